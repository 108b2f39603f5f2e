// block_pool_internal.h - the parts of a BlockPool that its header hides. Private.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "src/zeroed_array.h"
#include "tidepool/block_pool.h"
#include "tidepool/slot_allocator.h"

namespace tidepool {
namespace internal {

/// The slots of one tier and what Resize and quarantine have made of them.
struct TierSlots {
  SlotAllocator allocator;
  std::uint32_t first = 0;   // slots below are never the pool's
  std::uint32_t limit = 0;   // slots at or above leave circulation when they become free
  std::uint32_t usable = 0;  // in circulation: free, in use or in quarantine
  std::uint32_t quarantined = 0;
  std::vector<bool> withdrawn;  // by slot; empty until one is

  TierSlots(std::uint32_t slots, std::uint32_t first_slot)
      : allocator(slots, first_slot),
        first(std::min(first_slot, slots)),
        limit(slots),
        usable(slots - first) {}

  [[nodiscard]] bool IsWithdrawn(std::uint32_t slot) const {
    return !withdrawn.empty() && withdrawn[slot];
  }
  void MarkWithdrawn(std::uint32_t slot) {
    if (withdrawn.empty()) withdrawn.resize(allocator.capacity());
    withdrawn[slot] = true;
    --usable;
  }
  void Return(std::uint32_t slot) {
    if (slot < limit) return allocator.Give(slot);
    MarkWithdrawn(slot);
  }
  void Return(std::span<const std::uint32_t> slots) {
    if (limit == allocator.capacity()) return allocator.Give(slots);
    for (std::uint32_t slot : slots) Return(slot);
  }
  void SetLimit(std::uint32_t new_limit) {
    for (std::uint32_t slot = new_limit; slot < limit; ++slot) {
      if (allocator.Withdraw(slot)) MarkWithdrawn(slot);
    }
    for (std::uint32_t slot = limit; slot < new_limit; ++slot) {
      if (!IsWithdrawn(slot)) continue;  // still in use: it never left circulation
      withdrawn[slot] = false;
      allocator.Give(slot);
      ++usable;
    }
    limit = new_limit;
  }
  [[nodiscard]] std::uint32_t used() const { return usable - allocator.free() - quarantined; }
};

}  // namespace internal

struct BlockPool::Impl {
  std::vector<internal::TierSlots> tiers;
  SlotAllocator ids;
  internal::ZeroedArray<std::uint32_t> words;
  internal::ZeroedArray<Record> records;
  internal::ZeroedArray<PrefixHash> digests;
  internal::ZeroedArray<Token> tokens;
  std::array<internal::ZeroedArray<std::uint32_t>, kMaxTiers - 1> lower_slots;

  /// Maps the arrays; false if one is refused.
  bool Map(const Options& options, std::uint32_t capacity) {
    words = internal::ZeroedArray<std::uint32_t>(capacity);
    records = internal::ZeroedArray<Record>(capacity);
    digests = internal::ZeroedArray<PrefixHash>(capacity);
    tokens = internal::ZeroedArray<Token>(std::uint64_t{capacity} * options.block_tokens);
    bool mapped = words.data() && records.data() && digests.data() && tokens.data();
    for (std::size_t tier = 1; tier < options.slots.size(); ++tier) {
      lower_slots[tier - 1] = internal::ZeroedArray<std::uint32_t>(capacity);
      mapped = mapped && lower_slots[tier - 1].data();
    }
    return mapped;
  }
};

}  // namespace tidepool
