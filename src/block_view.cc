#include <algorithm>

#include "tidepool/block_pool.h"
#include "tidepool/eviction_policy.h"
#include "tidepool/prefix_index.h"

namespace tidepool {

std::uint32_t BlockView::capacity() const noexcept { return pool_->capacity(); }

bool BlockView::Evictable(BlockId block, TierIndex tier) const noexcept {
  return pool_->Evictable(block, tier);
}

std::size_t BlockView::EvictableLead(std::span<const BlockId> blocks,
                                     TierIndex tier) const noexcept {
  const auto end =
      std::ranges::find_if_not(blocks, [&](BlockId b) { return pool_->Evictable(b, tier); });
  return static_cast<std::size_t>(end - blocks.begin());
}

bool BlockView::Chosen(BlockId block) const noexcept { return pool_->Has(block, word::kChosen); }

bool BlockView::Held(BlockId block) const noexcept { return pool_->holds(block) != 0; }

bool BlockView::Clean(BlockId block, TierIndex tier) const noexcept {
  return pool_->Clean(block, tier);
}

CopyState BlockView::Copy(BlockId block, TierIndex tier) const noexcept {
  return pool_->copy(block, tier);
}

std::uint64_t BlockView::Position(BlockId block) const noexcept {
  const bool published = index_ != nullptr && pool_->Has(block, word::kPublished);
  const std::uint64_t position =
      published ? index_->Position(block) : pool_->private_position(block);
  return position * pool_->block_tokens();
}

PrefixHash BlockView::Digest(BlockId block) const noexcept {
  // A private block's field may still hold the digest of the id's previous owner.
  return pool_->Has(block, word::kPublished) ? pool_->digest(block) : PrefixHash{};
}

BlockId BlockView::Parent(BlockId block) const noexcept {
  const bool published = index_ != nullptr && pool_->Has(block, word::kPublished);
  return published ? index_->Parent(block) : BlockId();
}

std::uint32_t BlockView::Hits(BlockId block) const noexcept {
  const bool published = index_ != nullptr && pool_->Has(block, word::kPublished);
  return published ? index_->Hits(block) : 0;
}

std::uint32_t BlockView::Claims(BlockId block) const noexcept {
  const bool published = index_ != nullptr && pool_->Has(block, word::kPublished);
  return published ? index_->Claims(block) : 0;
}

bool BlockView::IsTail(BlockId block, TierIndex tier) const noexcept {
  if (index_ == nullptr || !pool_->Has(block, word::kPublished)) return true;
  if (tier != kHbmTier && pool_->best_tier(block) < tier) return true;
  return index_->IsResidentTail(block, tier);
}

bool BlockView::IsEnd(BlockId block, TierIndex tier) const noexcept {
  if (index_ == nullptr || !pool_->Has(block, word::kPublished)) return true;
  return index_->IsResidentTail(block, tier);
}

bool BlockView::IsOnlyChild(BlockId block, TierIndex tier) const noexcept {
  if (index_ == nullptr || !pool_->Has(block, word::kPublished)) return true;
  return index_->IsOnlyChild(block, tier);
}

void BlockView::AppendUpwards(BlockId block, std::uint32_t count, std::vector<BlockId>& out) const {
  if (index_ != nullptr && pool_->Has(block, word::kPublished)) {
    index_->AppendUpwards(block, count, out);
  } else if (count != 0) {
    out.push_back(block);
  }
}

Priority BlockView::ClaimPriority(BlockId block) const noexcept {
  return pool_->claim_priority(block);
}

std::size_t BlockView::SameTailPriority(std::span<const BlockId> blocks) const noexcept {
  return pool_->AlikeTail(blocks, word::kClassMask);
}

void BlockView::Prefetch(BlockId block, TierIndex tier) const noexcept {
  pool_->Prefetch(block, tier);
}

}  // namespace tidepool
