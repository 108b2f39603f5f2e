// The manager's time: the injected clock is read once per call, when the call first asks, so that
// all of a call happens at one instant.
// Thread contract: scheduler thread only.
#pragma once

#include "tidepool/clock.h"

namespace tidepool::internal {

class CallClock final : public Clock {
 public:
  void set_source(const Clock* source) noexcept { source_ = source; }
  /// A new call: the next Now reads the source again.
  void BeginCall() noexcept { read_ = false; }
  [[nodiscard]] TimePoint Now() const noexcept override {
    if (!read_) {
      now_ = source_->Now();
      read_ = true;
    }
    return now_;
  }

 private:
  const Clock* source_ = nullptr;
  mutable TimePoint now_{};
  mutable bool read_ = false;
};

}  // namespace tidepool::internal
