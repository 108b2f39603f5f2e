// plan_context.h - what the manager lets a migrator ask and do. Private.
#pragma once

#include <vector>

#include "src/manager/core.h"

namespace tidepool::internal {

inline constexpr std::uint32_t kCopiesPerPoll = 4096;  // background copies started per tier

/// What the migrator may ask, bound to one Poll.
class PlanContext final : public MigrationContext {
 public:
  explicit PlanContext(ManagerCore* core)
      : core_(core), view_(core->pool_.get(), core->index_.get()) {}
  const BlockView& blocks() const noexcept override { return view_; }
  std::uint32_t Shortfall(TierIndex tier) const noexcept override {
    return core_->ShortfallOf(tier);
  }
  void NextDirtyVictims(TierIndex tier, std::uint32_t n, std::vector<BlockId>& out) override;
  void UpcomingVictims(TierIndex tier, std::uint32_t n, std::vector<BlockId>& out) override {
    core_->policies_[tier]->SelectVictims({.blocks = n}, core_->signals_, out);
  }
  bool NeedsCopy(BlockId block, TierIndex tier) const noexcept override {
    const BlockPool& pool = *core_->pool_;
    // Most of a clean pool is clean, which HBM's word tells without a look at the block's record.
    if (tier == kHbmTier && pool.Clean(block, tier)) return false;
    return pool.Has(block, word::kPublished) && pool.Evictable(block, tier) &&
           pool.copy(block, static_cast<TierIndex>(tier + 1)) == CopyState::kAbsent;
  }
  std::uint32_t FreeSlots(TierIndex tier) const noexcept override;
  std::uint32_t ReleaseClean(TierIndex tier, std::uint32_t n) override;
  void MissingInHbm(std::uint32_t session, std::vector<BlockId>& out) const override;
  /// Victims that the planner was shown and did not use.
  void ReturnUnused(TierIndex tier);

 private:
  std::vector<BlockId> shown_;  // dirty victims, marked chosen...
  TierIndex shown_tier_ = 0;    // ...in this tier
  ManagerCore* core_;
  BlockView view_;
};

}  // namespace tidepool::internal
