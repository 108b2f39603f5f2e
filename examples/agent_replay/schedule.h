// agent_replay/schedule.h - when each turn of a trace arrives on the replay's one clock, and which
// turn follows which.
//
// Sessions of different scopes have no common clock in the recorded traces, so each scope gets a
// start of its own: a Poisson process, seeded. A trace with one scope is replayed as it stands.
//
// Thread contract: plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "trace.h"

namespace agent_replay {

inline constexpr std::uint32_t kNoRequest = 0xffffffffu;

struct Schedule {
  std::uint32_t sessions = 0;
  std::uint32_t scopes = 0;
  // Indexed by request:
  std::vector<std::uint32_t> session;    ///< dense, by first appearance
  std::vector<std::int64_t> arrival_ms;  ///< if nothing before it is late
  std::vector<std::uint32_t> next_turn;  ///< next request of the session, or kNoRequest
  // Others:
  std::vector<std::uint32_t> order;        ///< requests by arrival; file order among equals
  std::vector<std::uint32_t> first_turns;  ///< first request of each session
};

Schedule MakeSchedule(const Trace& trace, std::uint64_t seed, double mean_start_gap_s);

}  // namespace agent_replay
