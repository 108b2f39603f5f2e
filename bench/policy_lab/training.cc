#include "training.h"

#include <algorithm>

namespace policy_lab {
namespace {

using tidepool::SessionSignals;
using tidepool::SessionState;

// Names of sessions, apart from those of the test run.
constexpr std::uint64_t kFirstSession = std::uint64_t{1} << 40;

}  // namespace

Training::Training(const Workload& workload, const Settings& settings, const ScopeStart& start,
                   std::uint64_t seed)
    : workload_(workload), settings_(settings), hints_(workload, settings, seed) {
  const Schedule schedule = MakeSchedule(workload, start, seed);
  times_ = settings.mode == Mode::kNoHold ? NoHoldTimes(schedule)
                                          : ClosedLoopTimes(workload, schedule, settings);
  for (const std::uint32_t request : times_.order) {
    events_.push_back({times_.arrival[request], request, false});
    events_.push_back({times_.completion[request], request, true});
  }
  // Stable: a request that takes no time still arrives first.
  std::stable_sort(events_.begin(), events_.end(),
                   [](const Event& a, const Event& b) { return a.at < b.at; });
}

void Training::Replay(const SessionObserver& observe) const {
  std::vector<SessionSignals> sessions(workload_.sessions);
  for (const Event& event : events_) {
    const std::uint32_t session = workload_.requests[event.request].session;
    sessions[session].session = tidepool::SessionId(kFirstSession + session);
    Tell(event, sessions[session], observe);
  }
}

void Training::Tell(const Event& event, SessionSignals& session,
                    const SessionObserver& observe) const {
  const LabRequest& request = workload_.requests[event.request];
  session.priority = settings_.priority;
  session.turn = request.turn + 1;
  if (!event.completes) {
    session.state = SessionState::kRunning;
    return observe(session, event.at);
  }
  const TimePoint next =
      request.next == kNoRequest ? tidepool::kNever : times_.arrival[request.next];
  const tidepool::PauseHint hint = hints_.AtEnd(event.request, next - event.at);
  session.idle_since = event.at;
  session.wait_class = hint.wait;
  session.state = tidepool::WaitingFor(hint.wait);
  session.blocks = request.blocks;
  session.expected_return =
      hint.expected_return == Duration::max() ? tidepool::kNever : event.at + hint.expected_return;
  session.expected_return_log_sd = hint.expected_return_log_sd;
  observe(session, event.at);
  if (request.next != kNoRequest || settings_.completion == Completion::kSilent) return;
  session.state = SessionState::kCompleted;
  observe(session, event.at);
}

}  // namespace policy_lab
