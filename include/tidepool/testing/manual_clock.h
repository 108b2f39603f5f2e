// tidepool/testing/manual_clock.h - a clock that moves only when a test moves it.
//
// Thread contract: thread-safe.
#pragma once

#include <atomic>

#include "tidepool/clock.h"

namespace tidepool::testing {

class ManualClock final : public Clock {
 public:
  explicit ManualClock(TimePoint start = TimePoint{}) noexcept
      : now_ns_(start.time_since_epoch().count()) {}

  [[nodiscard]] TimePoint Now() const noexcept override {
    return TimePoint{Duration{now_ns_.load(std::memory_order_relaxed)}};
  }
  void Advance(Duration by) noexcept { now_ns_.fetch_add(by.count(), std::memory_order_relaxed); }
  /// Any value, also an earlier one: the library tolerates clocks that step back.
  void Set(TimePoint now) noexcept {
    now_ns_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }

 private:
  std::atomic<Duration::rep> now_ns_;
};

}  // namespace tidepool::testing
