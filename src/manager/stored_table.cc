#include "src/manager/stored_table.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace tidepool::internal {

StoredTable::StoredTable(StoredBlocks&& stored, std::uint32_t block_tokens)
    : block_tokens_(block_tokens),
      tokens_at_(stored.blocks.size()),
      tokens_(std::move(stored.tokens)),
      left_(static_cast<std::uint32_t>(stored.blocks.size())) {
  std::iota(tokens_at_.begin(), tokens_at_.end(), 0u);
  std::ranges::sort(tokens_at_, {},
                    [&](std::uint32_t i) { return std::pair(stored.blocks[i].generation, i); });
  blocks_.reserve(left_);
  by_digest_.reserve(left_);
  for (const std::uint32_t i : tokens_at_) {
    by_digest_[stored.blocks[i].digest] = static_cast<std::uint32_t>(blocks_.size());
    blocks_.push_back(stored.blocks[i]);
  }
}

const StoredBlock* StoredTable::Find(const PrefixHash& digest, std::span<const Token> tokens,
                                     const PrefixHash* content) const noexcept {
  const auto at = by_digest_.find(digest);
  if (at == by_digest_.end()) return nullptr;
  const StoredBlock& block = blocks_[at->second];
  if (block.content != (content != nullptr ? *content : PrefixHash{})) return nullptr;
  if (tokens_.empty()) return &block;
  const Token* const own = tokens_.data() + std::size_t{tokens_at_[at->second]} * block_tokens_;
  return std::memcmp(own, tokens.data(), tokens.size_bytes()) == 0 ? &block : nullptr;
}

void StoredTable::Erase(const StoredBlock& block) noexcept {
  StoredBlock& own = blocks_[static_cast<std::size_t>(&block - blocks_.data())];
  if (!own.slot.valid()) return;
  by_digest_.erase(own.digest);
  own.slot = SlotId();
  --left_;
}

void StoredTable::TakeOldest(std::uint32_t count, std::vector<SlotId>& slots) {
  for (; count != 0 && left_ != 0; ++oldest_) {
    if (!blocks_[oldest_].slot.valid()) continue;
    slots.push_back(blocks_[oldest_].slot);
    Erase(blocks_[oldest_]);
    --count;
  }
}

template <typename Wanted>
void StoredTable::TakeWhere(const Wanted& wanted, std::vector<SlotId>& slots) {
  for (const StoredBlock& block : blocks_) {
    if (!block.slot.valid() || !wanted(block)) continue;
    slots.push_back(block.slot);
    Erase(block);
  }
}

void StoredTable::TakeRoot(const PrefixHash& root, std::vector<SlotId>& slots) {
  TakeWhere([&](const StoredBlock& block) { return block.root == root; }, slots);
}

void StoredTable::TakeBeyond(std::uint32_t limit, std::vector<SlotId>& slots) {
  TakeWhere([&](const StoredBlock& block) { return block.slot.value() >= limit; }, slots);
}

}  // namespace tidepool::internal
