// tidepool/block_word.h - how BlockPool packs what is hot about a block into 32 bits: holds, pins,
// phase, flags and the state of its HBM copy.
//
// Thread contract: constants.
#pragma once

#include <cstdint>

#include "tidepool/block.h"

namespace tidepool {

namespace word {
inline constexpr std::uint32_t kHoldMask = (1u << 14) - 1;  // running sequences
inline constexpr unsigned kPinShift = 14;                   // transfers and queued device copies
inline constexpr std::uint32_t kPinOne = 1u << kPinShift;
inline constexpr std::uint32_t kPinMask = 31u << kPinShift;
inline constexpr unsigned kPhaseShift = 19;
inline constexpr std::uint32_t kPhaseMask = 7u << kPhaseShift;
inline constexpr std::uint32_t kPublished = 1u << 22;  // in the prefix index
inline constexpr std::uint32_t kAbandoned = 1u << 23;  // private, unwanted, pinned: freed at unpin
inline constexpr std::uint32_t kPending = 1u << 24;    // published, commit fence not passed
inline constexpr std::uint32_t kOrphan = 1u << 25;     // an ancestor has no copy anywhere
inline constexpr std::uint32_t kClean = 1u << 26;      // valid copies in HBM and one tier down
inline constexpr std::uint32_t kExcluded = 1u << 27;   // scratch: wanted by the plan in progress
inline constexpr std::uint32_t kChosen = 1u << 28;     // scratch: victim of the plan in progress
inline constexpr unsigned kClassShift = 29;            // strongest claimant's Priority
inline constexpr std::uint32_t kClassMask = 3u << kClassShift;
inline constexpr std::uint32_t kHbmValid = 1u << 31;  // the pool's own: valid copy in HBM
static_assert(kPinShift + 5 == kPhaseShift && kPhaseShift + 3 == 22 && kClassShift + 2 == 31);

// An unheld, unpinned block with a valid HBM copy at rest; and one that may be evicted.
inline constexpr std::uint32_t kRestMask = kHoldMask | kPinMask | kHbmValid;
inline constexpr std::uint32_t kRest = kHbmValid;
inline constexpr std::uint32_t kEvictableMask = kRestMask | kPhaseMask;
inline constexpr std::uint32_t kEvictable =
    kRest | (static_cast<std::uint32_t>(Phase::kIdle) << kPhaseShift);
inline constexpr std::uint32_t kScratchMask = kExcluded | kChosen;
}  // namespace word

}  // namespace tidepool
