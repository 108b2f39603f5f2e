// link_meter.h - what one direction between two tiers gives and how much of it loads use, from what
// the manager sees at each Poll. Engines measure their own bytes per second; this adds what they
// cannot know: the use by class, and the loss when both directions run at once.
//
// Deterministic in the samples. Thread contract: thread-compatible.
#pragma once

#include <cstdint>

#include "tidepool/clock.h"

namespace tidepool::internal {

class LinkMeter {
 public:
  struct Sample {
    TimePoint now{};
    std::uint64_t moved_bytes = 0;       ///< copies that ended since the last sample
    std::uint64_t foreground_bytes = 0;  ///< of those, loads that somebody waits for
    bool busy = false;                   ///< copies are still under way
    bool opposite_busy = false;          ///< the same of the other direction
  };
  void Observe(const Sample& sample) noexcept;

  /// Bytes per second that loads took, smoothed over about a second of time, busy or not.
  [[nodiscard]] double foreground_bytes_per_second() const noexcept { return foreground_; }
  /// Rate with both directions busy over the rate with this one alone; at most 1, and 1 until each
  /// has been seen for kTrustedSeconds.
  [[nodiscard]] double shared_ratio() const noexcept;

 private:
  static constexpr double kForegroundSeconds = 1;
  static constexpr double kRateSeconds = 2;  // of busy time
  static constexpr double kTrustedSeconds = 0.1;

  struct Rate {  // decayed sums, so that long intervals weigh more
    double bytes = 0;
    double seconds = 0;
    void Add(double more_bytes, double more_seconds) noexcept;
  };

  Rate alone_;
  Rate shared_;
  double foreground_ = 0;
  TimePoint last_{};
  bool started_ = false;
  bool was_busy_ = false;           // at the last sample...
  bool was_opposite_busy_ = false;  // ...so that what lies between two is busy all through
};

}  // namespace tidepool::internal
