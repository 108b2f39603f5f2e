// prefix_index_table.h - the one hash table of the prefix index: tag -> node, for child lookup.
// Private.
//
// Robin-hood hashing with linear probing over 8-byte slots. A slot's home is given by the top bits
// of its tag, so growing is one sequential pass. Tags are not unique: the caller compares tokens.
#pragma once

#include <bit>
#include <cstdint>
#include <utility>

#include "zeroed_array.h"

namespace tidepool::internal {

class ChildTable {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  ChildTable() : slots_(kInitialSlots) {}

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept { return slots_.bytes(); }

  /// The node with this tag that `equal(node)` accepts, or kNone.
  template <typename Equal>
  [[nodiscard]] std::uint32_t Find(std::uint32_t tag, const Equal& equal) const noexcept {
    std::size_t at = Home(tag);
    for (std::size_t distance = 0;; ++distance, at = Next(at)) {
      const Slot& slot = slots_[at];
      if (slot.node_plus1 == 0) return kNone;
      if (slot.tag == tag && equal(slot.node_plus1 - 1)) return slot.node_plus1 - 1;
      if (slot.tag != tag && Distance(at) < distance) return kNone;
    }
  }

  void Insert(std::uint32_t tag, std::uint32_t node) {
    if (size_ + 1 > slots_.size() / 4 * 3) Grow();
    ++size_;
    Place({tag, node + 1});
  }

  /// REQUIRES: (tag, from) is in the table.
  void Replace(std::uint32_t tag, std::uint32_t from, std::uint32_t to) noexcept {
    slots_[Locate(tag, from)].node_plus1 = to + 1;
  }

  /// REQUIRES: (tag, node) is in the table.
  void Erase(std::uint32_t tag, std::uint32_t node) noexcept {
    std::size_t hole = Locate(tag, node);
    for (std::size_t at = Next(hole); slots_[at].node_plus1 != 0 && Distance(at) != 0;
         hole = at, at = Next(at)) {
      slots_[hole] = slots_[at];
    }
    slots_[hole] = {};
    --size_;
  }

  void Prefetch(std::uint32_t tag) const noexcept { __builtin_prefetch(&slots_[Home(tag)]); }

 private:
  struct Slot {
    std::uint32_t tag = 0;
    std::uint32_t node_plus1 = 0;  // 0 = empty
  };
  static constexpr std::size_t kInitialSlots = 512;

  [[nodiscard]] std::size_t Mask() const noexcept { return slots_.size() - 1; }
  [[nodiscard]] std::size_t Next(std::size_t at) const noexcept { return (at + 1) & Mask(); }
  [[nodiscard]] std::size_t Home(std::uint32_t tag) const noexcept {
    return static_cast<std::size_t>((std::uint64_t{tag} * slots_.size()) >> 32);
  }
  [[nodiscard]] std::size_t Distance(std::size_t at) const noexcept {
    return (at - Home(slots_[at].tag)) & Mask();
  }

  [[nodiscard]] std::size_t Locate(std::uint32_t tag, std::uint32_t node) const noexcept {
    std::size_t at = Home(tag);
    while (slots_[at].node_plus1 != node + 1) at = Next(at);
    return at;
  }

  void Place(Slot slot) noexcept {
    std::size_t at = Home(slot.tag);
    for (std::size_t distance = 0; slots_[at].node_plus1 != 0; ++distance, at = Next(at)) {
      const std::size_t resident = Distance(at);
      if (resident >= distance) continue;
      std::swap(slot, slots_[at]);
      distance = resident;
    }
    slots_[at] = slot;
  }

  void Grow() {
    const ZeroedArray<Slot> old = std::exchange(slots_, ZeroedArray<Slot>(slots_.size() * 2));
    for (std::size_t i = 0; i < old.size(); ++i) {
      if (old[i].node_plus1 != 0) Place(old[i]);
    }
  }

  ZeroedArray<Slot> slots_;
  std::uint32_t size_ = 0;
};

}  // namespace tidepool::internal
