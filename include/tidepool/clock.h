// tidepool/clock.h - injected time. The library never reads a clock of its own.
//
// Thread contract: implementations must be callable from any thread.
#pragma once

#include <chrono>

#include "tidepool/export.h"

namespace tidepool {

using Duration = std::chrono::nanoseconds;

/// Tag clock: a TimePoint is nanoseconds since an arbitrary epoch of the injected Clock.
struct ClockTag {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<ClockTag, Duration>;
  static constexpr bool is_steady = true;
};
using TimePoint = ClockTag::time_point;

inline constexpr TimePoint kNever = TimePoint::max();

class TIDEPOOL_EXPORT Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic time. A clock that steps back is tolerated: ages are clamped at zero.
  [[nodiscard]] virtual TimePoint Now() const noexcept = 0;

  /// The process's steady clock; never null, lives for ever.
  static const Clock* Steady() noexcept;
};

}  // namespace tidepool
