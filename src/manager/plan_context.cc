#include "src/manager/plan_context.h"

#include <algorithm>
#include <iterator>

namespace tidepool::internal {

void PlanContext::NextDirtyVictims(TierIndex tier, std::uint32_t n, std::vector<BlockId>& out) {
  class Dirty final : public VictimFilter {
   public:
    Dirty(const BlockPool* pool, TierIndex t) : pool_(pool), tier_(t) {}
    bool Allows(BlockId b) const noexcept override { return !pool_->Clean(b, tier_); }

   private:
    const BlockPool* pool_;
    TierIndex tier_;
  } dirty(core_->pool_.get(), tier);
  const std::size_t before = out.size();
  shown_tier_ = tier;
  core_->PlanVictims(tier, std::min(n, kCopiesPerPoll), &dirty, out);
  shown_.insert(shown_.end(), out.begin() + static_cast<std::ptrdiff_t>(before), out.end());
}

std::uint32_t PlanContext::FreeSlots(TierIndex tier) const noexcept {
  if (tier != kHbmTier) {
    const bool stored = tier == core_->stored_tier_;
    return core_->pool_->free_slots(tier) + (stored ? core_->stored_.size() : 0);
  }
  return core_->Available({.priority = Priority::kBackground});  // every demand goes first
}

std::uint32_t PlanContext::ReleaseClean(TierIndex tier, std::uint32_t n) {
  if (tier >= core_->tiers_) return 0;
  n = std::min(n, kCopiesPerPoll);
  // What the plan has taken may yet stay, so nothing that stands before it leaves now.
  std::vector<BlockId> taken;
  std::ranges::copy_if(shown_, std::back_inserter(taken),
                       [&](BlockId b) { return core_->pool_->Has(b, word::kChosen); });
  core_->Unchoose(taken, shown_tier_);
  std::uint32_t released = 0;
  if (tier == kHbmTier) {
    released = core_->EvictClean(tier, n, core_->victims_);
  } else {
    const std::uint32_t before = core_->pool_->free_slots(tier);
    released = core_->AcquireLower(tier, before + n) - before;
  }
  for (const BlockId b : taken) core_->Choose(b, shown_tier_);
  return released;
}

void PlanContext::MissingInHbm(std::uint32_t session, std::vector<BlockId>& out) const {
  const BlockId tail = core_->index_->ClaimedTail(session);
  if (!tail.valid()) return;
  const std::size_t before = out.size();
  core_->index_->AppendPath(tail, out);
  const auto first = out.begin() + static_cast<std::ptrdiff_t>(before);
  out.erase(std::remove_if(first, out.end(), [&](BlockId b) { return !core_->NeedsLoad(b); }),
            out.end());
}

void PlanContext::ReturnUnused(TierIndex tier) {
  for (const BlockId b : shown_) {
    if (core_->pool_->Has(b, word::kChosen) && core_->pool_->pins(b) == 0) {
      core_->Unchoose({&b, 1}, tier);
    }
  }
  shown_.clear();
}

}  // namespace tidepool::internal
