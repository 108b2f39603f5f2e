// tidepool/block.h - what is known about a block: its phase, its copies, and a read-only view that
// policies and planners get.
//
// Thread contract: plain values; BlockView is scheduler-thread only.
#pragma once

#include <cstdint>

#include "tidepool/types.h"

namespace tidepool {

/// Phase of a block (design page, section "The six phases"). kFree is the absence of a phase.
enum class Phase : std::uint8_t {
  kFree = 0,
  kAllocated,  ///< reserved in HBM, nothing committed in it, invisible
  kActive,     ///< committed (full or partial) and held by a running sequence
  kIdle,       ///< in HBM with no running holder
  kCandidate,  ///< chosen for removal, still in HBM, still rescuable
  kOffloaded,  ///< being moved out, or only in lower tiers
  kReuse,      ///< matched and being made ready for a holder
};
inline constexpr std::size_t kPhaseCount = 7;

/// State of a block's copy in one tier.
enum class CopyState : std::uint8_t { kAbsent, kWriting, kValid };

/// A block plus the generation that was current when the reference was taken. The generation
/// changes when the block is freed, so a stale reference never reaches a recycled block.
struct BlockRef {
  BlockId block;
  std::uint32_t generation = 0;
  friend constexpr bool operator==(const BlockRef&, const BlockRef&) noexcept = default;
};

}  // namespace tidepool
