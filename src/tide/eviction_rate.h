// eviction_rate.h - blocks evicted per second, smoothed over some minutes. Private.
// Thread contract: thread-compatible.
#pragma once

#include <cmath>
#include <cstddef>

#include "src/time_math.h"

namespace tidepool::internal {

class EvictionRate {
 public:
  void Add(std::size_t blocks) noexcept { evicted_ += static_cast<double>(blocks); }
  /// Takes in what was added, once a second at most.
  void Advance(TimePoint now) noexcept {
    const double seconds = SecondsBetween(at_, now);
    if (seconds < 1) return;
    const double share = 1 - std::exp(-seconds / kSmoothingSeconds);
    per_s_ += share * (evicted_ / seconds - per_s_);
    evicted_ = 0;
    at_ = now;
  }
  [[nodiscard]] double per_second() const noexcept { return per_s_; }

 private:
  static constexpr double kSmoothingSeconds = 300;

  double evicted_ = 0;  // since at_
  double per_s_ = 0;
  TimePoint at_{};
};

}  // namespace tidepool::internal
