// Copies between memory arenas. Thread contract: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tidepool/tier.h"

namespace tidepool {

/// memcpy, by streaming stores when large: KV bytes are next read by a device or from a cold
/// cache, and not reading the destination first is worth 1.5 to 1.9 times on one thread.
void CopyBytes(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept;

/// True if the layers of a slot follow each other without gaps, so that a slot is one extent.
[[nodiscard]] bool IsContiguous(const Arena& arena) noexcept;

/// Address of byte `offset` of a slot's payload. REQUIRES: contiguous arena.
[[nodiscard]] inline std::byte* SlotBytes(const Arena& arena, SlotId slot, std::uint64_t offset) {
  return arena.At(slot, 0) + offset;
}

/// A part of one slot's payload.
struct SlotRange {
  SlotId slot;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// `range` of `arena` to or from flat memory; layer by layer where the arena has gaps.
void GatherSlot(const Arena& arena, const SlotRange& range, std::byte* to) noexcept;
void ScatterSlot(const Arena& arena, const SlotRange& range, const std::byte* from) noexcept;

/// `range.bytes` at `range.offset`, from `range.slot` of one arena to slot `to_slot` of another.
void CopySlot(const Arena& from, const SlotRange& range, const Arena& to, SlotId to_slot) noexcept;

}  // namespace tidepool
