#include "tidepool/clock.h"

namespace tidepool {
namespace {

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const noexcept override {
    const auto since_epoch = std::chrono::steady_clock::now().time_since_epoch();
    return TimePoint(std::chrono::duration_cast<Duration>(since_epoch));
  }
};

}  // namespace

const Clock* Clock::Steady() noexcept {
  // Leaked on purpose: handles may ask for the time during static destruction.
  static const SteadyClock* const clock = new SteadyClock;
  return clock;
}

}  // namespace tidepool
