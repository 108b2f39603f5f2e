// time_math.h - times as seconds, without overflow whatever the clock says. Private.
#pragma once

#include "tidepool/clock.h"

namespace tidepool::internal {

inline double ToSeconds(Duration d) noexcept { return std::chrono::duration<double>(d).count(); }
inline double ToSeconds(TimePoint t) noexcept { return ToSeconds(t.time_since_epoch()); }
inline double SecondsBetween(TimePoint from, TimePoint to) noexcept {
  return ToSeconds(to) - ToSeconds(from);
}
/// kNever if that is beyond what a TimePoint can hold; `seconds` is at least 0.
inline TimePoint AfterSeconds(TimePoint from, double seconds) noexcept {
  const double ns = static_cast<double>(from.time_since_epoch().count()) + seconds * 1e9;
  return ns < 9.2e18 ? TimePoint(Duration(static_cast<Duration::rep>(ns))) : kNever;
}

}  // namespace tidepool::internal
