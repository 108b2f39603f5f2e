// Loads that nobody holds yet: what the migrator brings up ahead of need, and what became of it.
#include <algorithm>

#include "src/manager/plan_context.h"

namespace tidepool::internal {

bool ManagerCore::NeedsLoad(BlockId b) const noexcept {
  return pool_->Has(b, word::kPublished) && !pool_->Has(b, word::kChosen | word::kExcluded) &&
         pool_->copy(b, kHbmTier) == CopyState::kAbsent && pool_->best_tier(b) < tiers_;
}

// While somebody waits for room there is none for guesses.
void ManagerCore::PlanPrefetches() {
  if (!demands_.empty()) return;
  copies_.clear();
  PlanContext context(this);
  migrator_->PlanLoads(context, signals_, copies_);
  if (copies_.size() > kCopiesPerPoll) copies_.resize(kCopiesPerPoll);
  for (std::size_t i = 0; i < copies_.size();) {
    const TransferClass cls = copies_[i].transfer_class;
    std::vector<BlockId> blocks;
    for (; i < copies_.size() && copies_[i].transfer_class == cls; ++i) {
      if (copies_[i].to == kHbmTier && NeedsLoad(copies_[i].block)) {
        blocks.push_back(copies_[i].block);
        pool_->SetFlag(copies_[i].block, word::kExcluded);  // named once, and no victim
      }
    }
    for (const BlockId b : blocks) pool_->ClearFlag(b, word::kExcluded);
    if (!blocks.empty()) StartPrefetches(blocks, cls);
  }
}

// As many of the blocks, from the first on, as there is room for.
void ManagerCore::StartPrefetches(std::span<const BlockId> blocks, TransferClass cls) {
  const RoomRequest room{.priority = Priority::kBackground};
  const auto wanted = static_cast<std::uint32_t>(blocks.size());
  if (cls == TransferClass::kCertainPrefetch && Available(room) < wanted) {
    MarkPath(blocks.back());
    (void)EvictClean(kHbmTier, wanted - Available(room), victims_);
    UnmarkAwaited();
  }
  blocks = blocks.first(std::min(wanted, Available(room)));
  if (blocks.empty()) return;
  StartLoads(blocks, nullptr, cls);
  for (const BlockId b : blocks) OwnSlots({&b, 1}, NamespaceOf(b), true);
  TrimGrants();
}

// A load that nobody had asked for has arrived.
void ManagerCore::NotePrefetched(BlockId block) {
  ++stats_.prefetched;
  if (pool_->holds(block) != 0) {
    ++stats_.prefetched_used;
  } else {
    prefetched_.insert(KeeperKey(pool_->ref(block)));
  }
}

void ManagerCore::NoteUsed(std::span<const BlockId> blocks) noexcept {
  if (prefetched_.empty()) return;
  for (const BlockId b : blocks) {
    stats_.prefetched_used += prefetched_.erase(KeeperKey(pool_->ref(b)));
  }
}

}  // namespace tidepool::internal
