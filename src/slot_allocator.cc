#include "tidepool/slot_allocator.h"

#include <algorithm>
#include <cassert>

#include "src/block_spans.h"

namespace tidepool {
namespace {

using internal::ChunkConsecutive;
using internal::kChunk;

constexpr std::uint32_t WordsFor(std::uint32_t bits) { return bits / 64 + (bits % 64 != 0); }

// Bits [begin, end) of a range of 64 that starts at `base`.
constexpr std::uint64_t MaskBelow(std::uint64_t bits) {
  return bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
}

}  // namespace

SlotAllocator::SlotAllocator(std::uint32_t capacity, std::uint32_t first)
    : capacity_(capacity), free_(capacity - std::min(first, capacity)) {
  std::uint32_t total = 0;
  std::uint32_t width = std::max(WordsFor(capacity), 1u);
  for (;; width = WordsFor(width)) {
    level_begin_[levels_++] = total;
    total += width;
    if (width == 1) break;
  }
  words_.assign(total, 0);
  for (std::uint32_t leaf = 0; leaf < WordsFor(capacity); ++leaf) {
    const std::uint64_t base = std::uint64_t{leaf} * 64;
    const std::uint64_t skipped = first > base ? MaskBelow(first - base) : 0;
    words_[leaf] = MaskBelow(capacity - base) & ~skipped;
    if (words_[leaf] != 0) SetAbove(leaf);
  }
}

void SlotAllocator::Take(std::span<std::uint32_t> out) noexcept {
  assert(out.size() <= free_);
  free_ -= static_cast<std::uint32_t>(out.size());
  while (!out.empty()) out = out.subspan(TakeFrom(LowestLeaf(), out));
}

std::uint32_t SlotAllocator::TakeFrom(std::uint32_t leaf, std::span<std::uint32_t> out) noexcept {
  const std::uint32_t base = leaf * 64;
  std::uint64_t word = words_[leaf];
  if (word == ~std::uint64_t{0} && out.size() >= 64) {
    for (std::uint32_t bit = 0; bit < 64; ++bit) out[bit] = base + bit;
    SetLeaf(leaf, 0);
    return 64;
  }
  std::uint32_t taken = 0;
  for (; word != 0 && taken < out.size(); word &= word - 1) {
    out[taken++] = base + static_cast<std::uint32_t>(__builtin_ctzll(word));
  }
  SetLeaf(leaf, word);
  return taken;
}

void SlotAllocator::Give(std::span<const std::uint32_t> slots) noexcept {
  for (std::size_t i = 0; i < slots.size();) {
    const std::size_t begin = i;
    const std::uint32_t leaf = slots[i] >> 6;
    std::uint64_t mask = 0;
    while (i < slots.size() && slots[i] >> 6 == leaf) {
      const std::uint32_t bit = slots[i] & 63;
      const bool chunk =
          bit <= 64 - kChunk && i + kChunk <= slots.size() && ChunkConsecutive(&slots[i]);
      mask |= (chunk ? MaskBelow(kChunk) : std::uint64_t{1}) << bit;
      i += chunk ? kChunk : 1;
    }
    GiveMask(leaf, mask, static_cast<std::uint32_t>(i - begin));
  }
}

bool SlotAllocator::Withdraw(std::uint32_t slot) noexcept {
  if (!IsFree(slot)) return false;
  const std::uint32_t leaf = slot >> 6;
  SetLeaf(leaf, words_[leaf] & ~(std::uint64_t{1} << (slot & 63)));
  --free_;
  return true;
}

std::uint64_t SlotAllocator::MemoryBytes() const noexcept {
  return words_.capacity() * sizeof(std::uint64_t);
}

std::uint32_t SlotAllocator::FindLowest() const noexcept {
  assert(words_.back() != 0);  // the top summary: something is free
  std::uint32_t index = 0;
  for (std::uint32_t level = levels_; level-- > 1;) {
    const std::uint64_t word = words_[level_begin_[level] + index];
    index = index * 64 + static_cast<std::uint32_t>(__builtin_ctzll(word));
  }
  return index;
}

void SlotAllocator::SetAbove(std::uint32_t leaf) noexcept {
  for (std::uint32_t level = 1; level < levels_; ++level) {
    std::uint64_t& summary = words_[level_begin_[level] + (leaf >> 6)];
    const std::uint64_t old = summary;
    summary |= std::uint64_t{1} << (leaf & 63);
    if (old != 0) return;
    leaf >>= 6;
  }
}

void SlotAllocator::ClearAbove(std::uint32_t leaf) noexcept {
  for (std::uint32_t level = 1; level < levels_; ++level) {
    std::uint64_t& summary = words_[level_begin_[level] + (leaf >> 6)];
    summary &= ~(std::uint64_t{1} << (leaf & 63));
    if (summary != 0) return;
    leaf >>= 6;
  }
}

}  // namespace tidepool
