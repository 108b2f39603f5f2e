// policy_lab/schedule.h - when requests arrive, by seed; what unlimited memory would make of it;
// and what a session says about its wait at the end of a turn.
//
// Thread contract: immutable once built.
#pragma once

#include <cstdint>
#include <vector>

#include "settings.h"
#include "tidepool/clock.h"
#include "tidepool/sequence.h"
#include "workload.h"

namespace policy_lab {

using tidepool::Duration;
using tidepool::TimePoint;

[[nodiscard]] constexpr Duration Milliseconds(std::int64_t ms) { return Duration(ms * 1'000'000); }
[[nodiscard]] Duration Seconds(double seconds);
[[nodiscard]] constexpr double ToSeconds(Duration d) {
  return static_cast<double>(d.count()) * 1e-9;
}

/// Arrivals in the open loop of no_hold; in engine mode only first turns arrive by it.
struct Schedule {
  std::uint64_t seed = 0;
  std::vector<TimePoint> arrival;    ///< by request
  std::vector<std::uint32_t> order;  ///< requests by (arrival, file order)
};
Schedule MakeSchedule(const Workload& workload, const ScopeStart& start, std::uint64_t seed);

/// Arrival and completion of each request under unlimited memory.
struct NominalTimes {
  std::vector<TimePoint> arrival;
  std::vector<TimePoint> completion;
  std::vector<std::uint32_t> order;  ///< requests by (arrival, file order)
};
NominalTimes NoHoldTimes(const Schedule& schedule);
/// The closed loop: each turn arrives its gap after the turn before it has completed.
NominalTimes ClosedLoopTimes(const Workload& workload, const Schedule& schedule,
                             const Settings& settings);

/// Seconds that a request runs for, loads apart.
[[nodiscard]] double ServiceSeconds(const Settings& settings, const LabRequest& request,
                                    double prefill_s);

/// Hints at the end of a turn. Draws depend on seed and request only, so that policies are told
/// the same.
class Hints {
 public:
  Hints(const Workload& workload, const Settings& settings, std::uint64_t seed);
  /// `until_next`: true time to the session's next arrival; ignored after its last turn.
  [[nodiscard]] tidepool::PauseHint AtEnd(std::uint32_t request, Duration until_next) const;

 private:
  [[nodiscard]] Duration StrangersGap(const LabRequest& request, std::uint64_t draw) const;

  const Workload& workload_;
  const Settings& settings_;
  const std::uint64_t seed_;
  std::vector<std::vector<std::uint32_t>> turns_by_class_;  // requests with a gap before them
};

}  // namespace policy_lab
