#include "src/manager/stored_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tidepool::internal {

StoredTable::StoredTable(StoredBlocks&& stored, std::uint32_t block_tokens,
                         std::vector<SlotId>& superseded)
    : block_tokens_(block_tokens),
      blocks_(std::move(stored.blocks)),
      tokens_(std::move(stored.tokens)),
      left_(static_cast<std::uint32_t>(blocks_.size())) {
  by_digest_.reserve(left_);
  for (std::uint32_t i = 0; i < blocks_.size(); ++i) {
    const auto [at, first] = by_digest_.try_emplace(blocks_[i].digest, i);
    if (first) continue;
    const bool later = blocks_[i].generation > blocks_[at->second].generation;
    StoredBlock& older = blocks_[later ? at->second : i];
    if (later) at->second = i;
    superseded.push_back(std::exchange(older.slot, SlotId()));
    --left_;
  }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> order(blocks_.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = {blocks_[i].generation, i};
  std::ranges::sort(order);
  by_generation_.reserve(order.size());
  for (const auto& [generation, i] : order) by_generation_.push_back(i);
}

const StoredBlock* StoredTable::Find(const PrefixHash& digest, std::span<const Token> tokens,
                                     const PrefixHash* content) const noexcept {
  const auto at = by_digest_.find(digest);
  if (at == by_digest_.end()) return nullptr;
  const StoredBlock& block = blocks_[at->second];
  if (block.content != (content != nullptr ? *content : PrefixHash{})) return nullptr;
  if (tokens_.empty()) return &block;
  const Token* const own = tokens_.data() + std::size_t{at->second} * block_tokens_;
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
    const StoredBlock& block = blocks_[by_generation_[oldest_]];
    if (!block.slot.valid()) continue;
    slots.push_back(block.slot);
    Erase(block);
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
