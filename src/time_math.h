// time_math.h - times as seconds, without overflow whatever the clock says. Private.
#pragma once

#include <algorithm>
#include <cmath>

#include "tidepool/clock.h"

namespace tidepool::internal {

inline double ToSeconds(Duration d) noexcept { return std::chrono::duration<double>(d).count(); }
inline double ToSeconds(TimePoint t) noexcept { return ToSeconds(t.time_since_epoch()); }
/// Between 0 and 9e9 seconds, which is also what is not finite.
inline Duration ToDuration(double seconds) noexcept {
  constexpr double kMax = 9e9;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
      std::isfinite(seconds) ? std::clamp(seconds, 0.0, kMax) : kMax));
}
inline double SecondsBetween(TimePoint from, TimePoint to) noexcept {
  return ToSeconds(to) - ToSeconds(from);
}
/// kNever if that is beyond what a TimePoint can hold; `seconds` is at least 0.
inline TimePoint AfterSeconds(TimePoint from, double seconds) noexcept {
  const double ns = static_cast<double>(from.time_since_epoch().count()) + seconds * 1e9;
  return ns < 9.2e18 ? TimePoint(Duration(static_cast<Duration::rep>(ns))) : kNever;
}

}  // namespace tidepool::internal
