// Bytes per second of one direction while it is busy, from a prior and what was measured.
// Thread contract: thread-compatible.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "tidepool/clock.h"

namespace tidepool {

/// Chunks may overlap, so what is measured is the time during which at least one is in flight. A
/// sample ends after kSampleTime of it, or when the direction falls idle.
class RateEstimate {
 public:
  RateEstimate() = default;
  explicit RateEstimate(double prior_bytes_per_second) : prior_(prior_bytes_per_second) {}

  void OnChunkStart(TimePoint now) {
    if (in_flight_++ == 0) sample_start_ = now;
  }
  void OnChunkEnd(TimePoint now, std::uint64_t moved_bytes) {
    --in_flight_;
    sample_bytes_ += moved_bytes;
    const Duration elapsed = now - sample_start_;
    if (in_flight_ > 0 && elapsed < kSampleTime) return;
    if (elapsed > Duration{0} && sample_bytes_ > 0) {
      AddSample(static_cast<double>(sample_bytes_), std::chrono::duration<double>(elapsed).count());
    }
    sample_start_ = now;
    sample_bytes_ = 0;
  }

  [[nodiscard]] bool measured() const { return samples_ >= kTrustedSamples; }
  [[nodiscard]] std::string_view method() const { return measured() ? "measured" : "prior"; }
  [[nodiscard]] double bytes_per_second() const { return measured() ? bytes_ / seconds_ : prior_; }
  /// Standard deviation of the time of one byte; meaningful once measured.
  [[nodiscard]] double seconds_per_byte_sd() const { return std::sqrt(variance_); }

 private:
  static constexpr Duration kSampleTime = std::chrono::milliseconds(5);
  static constexpr double kKeep = 0.9;  // weight of the past in each sample
  static constexpr std::uint64_t kTrustedSamples = 4;

  void AddSample(double bytes, double seconds) {
    bytes_ = kKeep * bytes_ + bytes;
    seconds_ = kKeep * seconds_ + seconds;
    const double off = seconds / bytes - seconds_ / bytes_;
    variance_ = kKeep * variance_ + (1 - kKeep) * off * off;
    ++samples_;
  }

  double prior_ = 0;
  double bytes_ = 0;  // decayed sums: large samples weigh more
  double seconds_ = 0;
  double variance_ = 0;
  std::uint64_t samples_ = 0;
  std::uint64_t sample_bytes_ = 0;
  TimePoint sample_start_{};
  std::uint32_t in_flight_ = 0;
};

}  // namespace tidepool
