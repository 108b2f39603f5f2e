// policy_lab/training.h - what a predictor learns from before the test run: the sessions of a
// training trace, told in the order of time as a manager with unlimited memory would tell them.
//
// Thread contract: immutable once built; Replay may run on several threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "schedule.h"
#include "settings.h"
#include "tidepool/scheduling_signals.h"
#include "workload.h"

namespace policy_lab {

/// Called with kRunning at an arrival, with what the session waits for at a completion, and with
/// kCompleted after a last turn if the settings say that completion is signalled.
using SessionObserver =
    std::function<void(const tidepool::SessionSignals& session, tidepool::TimePoint now)>;

class Training {
 public:
  Training(const Workload& workload, const Settings& settings, const ScopeStart& start,
           std::uint64_t seed);
  void Replay(const SessionObserver& observe) const;

 private:
  struct Event {
    tidepool::TimePoint at{};
    std::uint32_t request = 0;
    bool completes = false;
  };
  void Tell(const Event& event, tidepool::SessionSignals& session,
            const SessionObserver& observe) const;

  const Workload& workload_;
  const Settings& settings_;
  NominalTimes times_;
  Hints hints_;
  std::vector<Event> events_;  // in the order of time
};

}  // namespace policy_lab
