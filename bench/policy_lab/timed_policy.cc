#include "timed_policy.h"

#include <chrono>
#include <utility>

#include "settings.h"

namespace policy_lab {
namespace {

using tidepool::BlockId;
using tidepool::EvictReason;
using tidepool::PrefixHash;
using tidepool::SchedulingSignals;
using tidepool::SessionSignals;
using tidepool::TierIndex;

class TimedPolicy final : public tidepool::EvictionPolicy {
 public:
  TimedPolicy(std::unique_ptr<EvictionPolicy> policy, DecisionCounts* counts, Future* future)
      : policy_(std::move(policy)), counts_(counts), future_(future) {}

  [[nodiscard]] std::string_view name() const noexcept override { return policy_->name(); }
  [[nodiscard]] tidepool::PolicyNeeds needs() const noexcept override { return policy_->needs(); }
  void Attach(const tidepool::BlockView& blocks, TierIndex tier, std::uint32_t slots) override {
    view_ = blocks;
    tier_ = tier;
    policy_->Attach(blocks, tier, slots);
  }
  void OnInserted(std::span<const BlockId> blocks) noexcept override {
    policy_->OnInserted(blocks);
  }
  void OnAccessed(std::span<const BlockId> blocks) noexcept override {
    policy_->OnAccessed(blocks);
  }
  void OnMissed(std::span<const PrefixHash> digests) noexcept override {
    policy_->OnMissed(digests);
  }
  void OnProtected(std::span<const BlockId> blocks) noexcept override {
    policy_->OnProtected(blocks);
  }
  void OnEvictable(std::span<const BlockId> blocks) noexcept override {
    if (future_ != nullptr && tier_ == tidepool::kHbmTier) {
      for (const BlockId block : blocks) {
        future_->Record(block, view_.Position(block) / kBlockTokens);
      }
    }
    policy_->OnEvictable(blocks);
  }
  void OnSession(const SessionSignals& session, tidepool::TimePoint now) noexcept override {
    policy_->OnSession(session, now);
  }
  void OnClaimed(const SessionSignals& session, std::span<const BlockId> blocks) noexcept override {
    policy_->OnClaimed(session, blocks);
  }
  void OnUnclaimed(const SessionSignals& session,
                   std::span<const BlockId> blocks) noexcept override {
    policy_->OnUnclaimed(session, blocks);
  }
  void OnPriorityChanged(std::span<const BlockId> blocks,
                         tidepool::Priority priority) noexcept override {
    policy_->OnPriorityChanged(blocks, priority);
  }
  void OnCopyChanged(std::span<const BlockId> blocks, TierIndex tier,
                     tidepool::CopyState state) noexcept override {
    policy_->OnCopyChanged(blocks, tier, state);
  }
  void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept override {
    if (reason == EvictReason::kCapacity || reason == EvictReason::kDemoted) {
      counts_->victims += blocks.size();
    }
    policy_->OnEvicted(blocks, reason);
  }
  void OnTimeAdvanced(const SchedulingSignals& signals) noexcept override {
    policy_->OnTimeAdvanced(signals);
  }
  void SelectVictims(const tidepool::VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override {
    const auto start = std::chrono::steady_clock::now();
    policy_->SelectVictims(query, signals, victims);
    const auto spent = std::chrono::steady_clock::now() - start;
    counts_->select_ns += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
  }
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override {
    return policy_->MemoryBytes();
  }

 private:
  std::unique_ptr<EvictionPolicy> policy_;
  DecisionCounts* counts_;
  Future* future_;
  tidepool::BlockView view_{nullptr, nullptr};
  TierIndex tier_ = tidepool::kHbmTier;
};

}  // namespace

std::unique_ptr<tidepool::EvictionPolicy> MakeTimedPolicy(
    std::unique_ptr<tidepool::EvictionPolicy> policy, DecisionCounts* counts, Future* future) {
  return std::make_unique<TimedPolicy>(std::move(policy), counts, future);
}

}  // namespace policy_lab
