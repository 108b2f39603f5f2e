#include "schedule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "random.h"

namespace agent_replay {

Schedule MakeSchedule(const Trace& trace, std::uint64_t seed, double mean_start_gap_s) {
  Schedule schedule;
  Random random(seed, 0x5ced);
  std::map<std::uint64_t, std::int64_t> offsets;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> sessions;
  std::vector<std::uint32_t> last_turns;
  double start_s = 0;
  schedule.next_turn.assign(trace.requests.size(), kNoRequest);
  for (std::uint32_t i = 0; i < trace.requests.size(); ++i) {
    const Request& request = trace.requests[i];
    const auto [offset, new_scope] =
        offsets.try_emplace(request.scope, static_cast<std::int64_t>(start_s * 1000));
    if (new_scope) start_s += random.Exponential(mean_start_gap_s);
    schedule.arrival_ms.push_back(offset->second + request.time_ms);
    const auto [session, new_session] = sessions.try_emplace(
        {request.scope, request.session}, static_cast<std::uint32_t>(sessions.size()));
    schedule.session.push_back(session->second);
    if (new_session) {
      schedule.first_turns.push_back(i);
      last_turns.push_back(i);
    } else {
      schedule.next_turn[last_turns[session->second]] = i;
      last_turns[session->second] = i;
    }
  }
  schedule.sessions = static_cast<std::uint32_t>(sessions.size());
  schedule.scopes = static_cast<std::uint32_t>(offsets.size());
  schedule.order.resize(trace.requests.size());
  std::iota(schedule.order.begin(), schedule.order.end(), 0u);
  std::stable_sort(schedule.order.begin(), schedule.order.end(),
                   [&](std::uint32_t a, std::uint32_t b) {
                     return schedule.arrival_ms[a] < schedule.arrival_ms[b];
                   });
  return schedule;
}

}  // namespace agent_replay
