#include "timed_policy.h"

#include <chrono>
#include <utility>

#include "settings.h"
#include "tidepool/testing/policy_decorator.h"

namespace policy_lab {
namespace {

using tidepool::BlockId;
using tidepool::EvictReason;
using tidepool::SchedulingSignals;
using tidepool::TierIndex;

class TimedPolicy final : public tidepool::testing::PolicyDecorator {
 public:
  TimedPolicy(std::unique_ptr<EvictionPolicy> policy, DecisionCounts* counts, Future* future)
      : PolicyDecorator(std::move(policy)), counts_(counts), future_(future) {}

  void Attach(const tidepool::BlockView& blocks, TierIndex tier, std::uint32_t slots) override {
    view_ = blocks;
    tier_ = tier;
    policy().Attach(blocks, tier, slots);
  }
  void OnEvictable(std::span<const BlockId> blocks) noexcept override {
    if (future_ != nullptr && tier_ == tidepool::kHbmTier) {
      for (const BlockId block : blocks) {
        future_->Record(block, view_.Position(block) / kBlockTokens);
      }
    }
    policy().OnEvictable(blocks);
  }
  void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept override {
    if (reason == EvictReason::kCapacity || reason == EvictReason::kDemoted) {
      counts_->victims += blocks.size();
    }
    policy().OnEvicted(blocks, reason);
  }
  void SelectVictims(const tidepool::VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override {
    const auto start = std::chrono::steady_clock::now();
    policy().SelectVictims(query, signals, victims);
    const auto spent = std::chrono::steady_clock::now() - start;
    counts_->select_ns += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
  }

 private:
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
