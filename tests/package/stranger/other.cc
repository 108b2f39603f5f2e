#include <tidepool/tidepool.h>

bool OtherSourceWorks() {
  const tidepool::Clock* clock = tidepool::Clock::Steady();
  const tidepool::TimePoint before = clock->Now();
  return clock->Now() >= before;
}
