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
  TimedPolicy(std::unique_ptr<EvictionPolicy> policy, DecisionCounts* counts, Future* future,
              PrefetchWatch* prefetches)
      : PolicyDecorator(std::move(policy)),
        counts_(counts),
        future_(future),
        prefetches_(prefetches) {}

  void Attach(const tidepool::BlockView& blocks, TierIndex tier, std::uint32_t slots) override {
    view_ = blocks;
    tier_ = tier;
    policy().Attach(blocks, tier, slots);
  }
  void OnInserted(std::span<const BlockId> blocks) noexcept override {
    if (prefetches_ != nullptr) {  // a request may have joined the copy
      for (const BlockId block : blocks) {
        if (view_.Held(block)) prefetches_->Used({&block, 1}, tier_);
      }
    }
    policy().OnInserted(blocks);
  }
  void OnAccessed(std::span<const BlockId> blocks) noexcept override {
    if (prefetches_ != nullptr) prefetches_->Used(blocks, tier_);
    policy().OnAccessed(blocks);
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
    if (prefetches_ != nullptr) prefetches_->Left(blocks, tier_);
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
  PrefetchWatch* prefetches_;
  tidepool::BlockView view_{nullptr, nullptr};
  TierIndex tier_ = tidepool::kHbmTier;
};

}  // namespace

std::unique_ptr<tidepool::EvictionPolicy> MakeTimedPolicy(
    std::unique_ptr<tidepool::EvictionPolicy> policy, DecisionCounts* counts, Future* future,
    PrefetchWatch* prefetches) {
  return std::make_unique<TimedPolicy>(std::move(policy), counts, future, prefetches);
}

}  // namespace policy_lab
