// tidepool/slot_allocator.h - a hierarchical bitmap that hands out small integers, lowest first, so
// that bulk requests come out contiguous (long extents for copies, dense state for the caches).
//
// Invariants: a summary bit is set exactly when its 64-bit word below is non-zero; no leaf word
// before `low_` is non-zero.
// Thread contract: scheduler thread only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tidepool/export.h"

namespace tidepool {

class TIDEPOOL_EXPORT SlotAllocator {
 public:
  SlotAllocator() : SlotAllocator(0) {}
  /// All of [first, capacity) start free; [0, first) are never handed out.
  explicit SlotAllocator(std::uint32_t capacity, std::uint32_t first = 0);

  [[nodiscard]] std::uint32_t free() const noexcept { return free_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] bool IsFree(std::uint32_t slot) const noexcept {
    return slot < capacity_ && ((words_[slot >> 6] >> (slot & 63)) & 1u) != 0;
  }

  /// Fills `out` with free slots in increasing order. REQUIRES: out.size() <= free().
  /// COMPLEXITY: O(n + levels).
  void Take(std::span<std::uint32_t> out) noexcept;
  /// REQUIRES: free() > 0.
  [[nodiscard]] std::uint32_t TakeOne() noexcept {
    const std::uint32_t leaf = LowestLeaf();
    const std::uint64_t word = words_[leaf];
    SetLeaf(leaf, word & (word - 1));
    --free_;
    return leaf * 64 + static_cast<std::uint32_t>(__builtin_ctzll(word));
  }
  /// REQUIRES: `slot` was taken.
  void Give(std::uint32_t slot) noexcept {
    GiveMask(slot >> 6, std::uint64_t{1} << (slot & 63), 1);
  }
  /// COMPLEXITY: about one word update for each 64 neighbours.
  void Give(std::span<const std::uint32_t> slots) noexcept;

  /// Withdraws a free slot from circulation (Resize); Give brings it back. Returns false if it is
  /// not free.
  bool Withdraw(std::uint32_t slot) noexcept;

  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept;

 private:
  static constexpr std::uint32_t kMaxLevels = 6;  // 64^6 > 2^32

  [[nodiscard]] std::uint32_t LowestLeaf() noexcept {
    if (words_[low_] == 0) low_ = FindLowest();
    return low_;
  }
  void SetLeaf(std::uint32_t leaf, std::uint64_t word) noexcept {
    words_[leaf] = word;
    if (word == 0) ClearAbove(leaf);
  }
  void GiveMask(std::uint32_t leaf, std::uint64_t mask, std::uint32_t count) noexcept {
    const std::uint64_t old = words_[leaf];
    words_[leaf] = old | mask;
    if (old == 0) SetAbove(leaf);
    if (leaf < low_) low_ = leaf;
    free_ += count;
  }
  [[nodiscard]] std::uint32_t FindLowest() const noexcept;
  std::uint32_t TakeFrom(std::uint32_t leaf, std::span<std::uint32_t> out) noexcept;
  void SetAbove(std::uint32_t leaf) noexcept;
  void ClearAbove(std::uint32_t leaf) noexcept;

  std::vector<std::uint64_t> words_;  // level 0 (one bit a slot, 1 = free), then its summaries
  std::array<std::uint32_t, kMaxLevels> level_begin_{};
  std::uint32_t levels_ = 0;
  std::uint32_t capacity_ = 0;
  std::uint32_t free_ = 0;
  std::uint32_t low_ = 0;
};

}  // namespace tidepool
