// state.h - what the planner and the policies of one Tide share. Private.
#pragma once

#include "src/zeroed_array.h"
#include "tidepool/tide/tide.h"

namespace tidepool {

struct Tide::State {
  TideOptions options;
  TideCounters counters;
  /// By block: the refresh of the clean pool that listed it last.
  internal::ZeroedArray<std::uint32_t> listed;
  std::uint32_t refresh = 0;  // number of the latest

  [[nodiscard]] bool InPool(BlockId b) const noexcept {
    return refresh != 0 && b.value() < listed.size() && listed[b.value()] == refresh;
  }
};

/// The link from one tier to another, or null.
[[nodiscard]] inline const LinkSignals* FindLink(const SchedulingSignals& signals, TierIndex from,
                                                 TierIndex to) noexcept {
  for (const LinkSignals& link : signals.links) {
    if (link.from == from && link.to == to) return &link;
  }
  return nullptr;
}

/// Blocks that may be queued on a link now: the background share of what it has left in the window,
/// less what is queued.
[[nodiscard]] std::uint64_t LinkBudget(const TideOptions& options, const SchedulingSignals& signals,
                                       TierIndex from, TierIndex to) noexcept;

/// Seconds for one block over a link; 0 if the link is unknown or moves nothing.
[[nodiscard]] inline double SecondsOver(const SchedulingSignals& signals, TierIndex from,
                                        TierIndex to) noexcept {
  const LinkSignals* link = FindLink(signals, from, to);
  if (link == nullptr || !(link->bytes_per_second > 0)) return 0;
  return static_cast<double>(signals.block_bytes) / link->bytes_per_second;
}

}  // namespace tidepool
