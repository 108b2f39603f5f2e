// tidepool/lifecycle.h - the legal edges of the six-phase state machine, as one constexpr table.
// docs/lifecycle.md is generated from it and a test keeps the two the same. Phases are written in
// one place only: BlockPool::Transition (block_pool.h).
//
// Thread contract: constants and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tidepool/block.h"
#include "tidepool/export.h"

namespace tidepool {

/// Why a phase changed; reported to the observer with each span.
enum class Cause : std::uint8_t {
  kReserve,       ///< fresh slot for an admission or append
  kCommit,        ///< the engine wrote tokens
  kMatch,         ///< found through the prefix index
  kOnboard,       ///< a load into HBM began
  kReady,         ///< the load (or nothing) stood between match and use
  kRelease,       ///< pause, finish or fork parent gone: the last hold left
  kCancel,        ///< the admission that wanted it went away
  kSelectVictim,  ///< policy chose it
  kReprieve,      ///< no longer needed as a victim, or the lower tier refused
  kEvict,         ///< left HBM, a lower copy remains
  kOffload,       ///< copy down began, HBM is to be released
  kDrop,          ///< last copy gone
  kAbandon,       ///< private and no longer wanted
  kLoadFailed,    ///< the load ended in an error
  kInvalidate,    ///< epoch, namespace or retraction
  kFound,         ///< an earlier process had stored it
};
inline constexpr std::size_t kCauseCount = 16;

struct Edge {
  Phase from;
  Phase to;
  std::string_view when;
};

/// Every legal edge, with the ways it is taken. Order is the order of docs/lifecycle.md.
inline constexpr std::array kEdges = {
    Edge{Phase::kFree, Phase::kAllocated, "Reserve: a fresh slot for admission, append or fork"},
    Edge{Phase::kFree, Phase::kOffloaded,
         "Found in a tier that was kept: asked for the first time"},
    Edge{Phase::kAllocated, Phase::kActive, "Commit: the engine wrote at least one token"},
    Edge{Phase::kAllocated, Phase::kIdle, "Pause of a sequence whose reserved tail holds tokens"},
    Edge{Phase::kAllocated, Phase::kFree, "Abandoned before anything was committed"},
    Edge{Phase::kActive, Phase::kIdle, "Pause, finish or preempt: the last hold left"},
    Edge{Phase::kActive, Phase::kFree, "Truncate, or finish of an unpublished block"},
    Edge{Phase::kIdle, Phase::kReuse, "Match: an admission or resume wants it"},
    Edge{Phase::kIdle, Phase::kCandidate, "Victim selection"},
    Edge{Phase::kIdle, Phase::kFree, "Private and abandoned, or invalidated"},
    Edge{Phase::kCandidate, Phase::kReuse, "Rescued by a match"},
    Edge{Phase::kCandidate, Phase::kIdle, "Reprieved: no longer needed, or refused below"},
    Edge{Phase::kCandidate, Phase::kOffloaded, "Evicted with a clean copy, or write-back begins"},
    Edge{Phase::kCandidate, Phase::kFree, "Dropped: it was the last copy"},
    Edge{Phase::kOffloaded, Phase::kReuse, "Match: onboard, or rescue while the copy still runs"},
    Edge{Phase::kOffloaded, Phase::kIdle,
         "The lower tier refused or the copy failed; HBM keeps it"},
    Edge{Phase::kOffloaded, Phase::kFree, "Dropped from the last tier"},
    Edge{Phase::kReuse, Phase::kActive, "Ready for its holder"},
    Edge{Phase::kReuse, Phase::kIdle, "The holder went away and the bytes are in HBM"},
    Edge{Phase::kReuse, Phase::kOffloaded,
         "The load failed or was cancelled; a lower copy remains"},
    Edge{Phase::kReuse, Phase::kFree, "The load failed and no valid copy remains"},
};

/// Bit `to` of element `from` is set when the edge exists.
inline constexpr std::array<std::uint8_t, kPhaseCount> kLegalEdges = [] {
  std::array<std::uint8_t, kPhaseCount> legal{};
  for (const Edge& edge : kEdges) {
    legal[static_cast<std::size_t>(edge.from)] |=
        static_cast<std::uint8_t>(1u << static_cast<unsigned>(edge.to));
  }
  return legal;
}();

[[nodiscard]] constexpr bool IsLegal(Phase from, Phase to) noexcept {
  return ((kLegalEdges[static_cast<std::size_t>(from)] >> static_cast<unsigned>(to)) & 1u) != 0;
}

TIDEPOOL_EXPORT std::string_view ToString(Phase phase) noexcept;
TIDEPOOL_EXPORT std::string_view ToString(Cause cause) noexcept;

}  // namespace tidepool
