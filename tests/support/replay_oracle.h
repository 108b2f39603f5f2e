// A second opinion on what a lockstep replay hits: the rules of docs/design.md about matching,
// room, write-back and LRU order, simulated with lists and pointers, one turn at a time, one block
// at a time, without bytes, threads or tokens. Shares no code with the library.
#pragma once

#include <array>
#include <cstdint>

#include "examples/agent_replay/replay.h"
#include "examples/agent_replay/schedule.h"
#include "examples/agent_replay/trace.h"

namespace agent_replay::oracle {

struct Hits {
  std::array<std::uint64_t, kTiers> blocks{};
  std::uint64_t recomputed_blocks = 0;  ///< full blocks
  std::uint64_t dropped = 0;            ///< last copies given up
  friend bool operator==(const Hits&, const Hits&) = default;
};

/// `tier_blocks` as in ReplayOptions: hbm, dram, nvme; 0 = no such tier.
Hits Simulate(const Trace& trace, const Schedule& schedule,
              const std::array<std::uint32_t, kTiers>& tier_blocks);

}  // namespace agent_replay::oracle
