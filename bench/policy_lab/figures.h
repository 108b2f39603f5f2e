// policy_lab/figures.h - what one run measures, and the meter that adds it up.
//
// Thread contract: one run, one thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "prefetch_watch.h"
#include "schedule.h"
#include "settings.h"
#include "tidepool/tide/tide.h"
#include "workload.h"

namespace policy_lab {

struct OccupancySample {
  double at_s = 0;
  std::uint32_t held = 0;
  std::uint32_t cached = 0;
};

struct RunFigures {
  std::uint32_t capacity_blocks = 0;
  std::uint64_t requests = 0;
  std::uint64_t prompt_blocks = 0;
  std::array<std::uint64_t, kMaxLabTiers> hits{};  ///< leading blocks, by the tier that had them
  std::uint64_t missed_compulsory = 0;             ///< seen for the first time
  std::uint64_t missed_concurrent = 0;  ///< another request is computing it for the first time
  std::uint64_t missed_evicted = 0;
  std::uint64_t missed_oversize = 0;  ///< seen before, but beyond what the capacity lets in
  std::uint64_t refused_requests = 0;

  double recompute_cost = 0;  ///< of missed blocks that were computed before
  double prefill_cost = 0;    ///< of all missed blocks
  double recompute_s = 0;     ///< prefill seconds of missed blocks that were computed before
  double transfer_s = 0;      ///< seconds that requests waited for loads

  std::vector<float> ttft_s;
  double queue_s = 0, lookup_s = 0, prefill_s = 0;  ///< sums over requests; lookup is wall time
  /// Of queue_s, at the head of the queue while room was being evicted.
  double room_s = 0;
  double queue_p99_s = 0, room_p99_s = 0, transfer_p99_s = 0, prefill_p99_s = 0;
  /// Stall: waiting for loads and computing again what had been computed before.
  double stall_p50_s = 0, stall_p99_s = 0;

  std::uint64_t windows = 0;        ///< waits that ended with a return and a grant
  std::uint64_t windows_met = 0;    ///< everything that had to be there was in HBM
  std::uint64_t windows_late = 0;   ///< copies of the session's blocks were under way at its return
  double idle_block_s = 0;          ///< blocks of waiting sessions x time, of waits that ended
  double freed_block_s = 0;         ///< of those, not in HBM (release_after_s only)
  std::uint64_t return_blocks = 0;  ///< blocks that those sessions came back for

  std::array<double, kMaxLabTiers> bytes_down{};  ///< modelled, into tier t from above
  std::array<double, kMaxLabTiers> bytes_up{};    ///< modelled, from tier t upwards
  PrefetchWatch::Counts prefetches;
  tidepool::TideCounters tide;
  std::uint64_t victims = 0;  ///< of HBM
  double select_ns = 0;       ///< wall time of HBM's choices
  double wall_s = 0;

  double held_mean = 0, held_p50 = 0, held_p90 = 0;  ///< blocks, over time that anything runs
  double end_s = 0;
  std::vector<OccupancySample> occupancy;

  [[nodiscard]] std::uint64_t Hits() const { return hits[0] + hits[1] + hits[2]; }
  [[nodiscard]] std::uint64_t Misses() const { return prompt_blocks - Hits(); }
};

/// How one request was served.
struct Served {
  std::array<std::uint32_t, kMaxLabTiers> hits{};
  std::uint32_t limit = 0;  ///< leading blocks that the capacity lets in
  double queue_s = 0;
  double room_s = 0;  ///< of queue_s
  double lookup_s = 0;
  double transfer_s = 0;
};

/// How a wait ended.
struct Window {
  std::uint32_t blocks = 0;  ///< that the session shares with its turn before
  std::uint32_t in_hbm = 0;  ///< of those, served from HBM without a load
  std::uint32_t moving = 0;  ///< of those, being copied when it returned
  double idle_block_s = 0, freed_block_s = 0;
};

class Meter {
 public:
  Meter(const Workload& workload, const Settings& settings);

  /// Returns the seconds of its prefill.
  double Count(std::uint32_t request, const Served& served);
  void Count(const Window& window);
  /// The request has completed: its blocks are there to be cached.
  void Complete(std::uint32_t request);
  /// From `at` on so many blocks are held and cached.
  void Occupy(TimePoint at, std::uint32_t held, std::uint32_t cached);
  /// Completes the figures.
  RunFigures Finish(TimePoint end);

 private:
  void CountMisses(const LabRequest& request, std::uint32_t hits, std::uint32_t limit);
  void Sample(TimePoint at);

  const Workload& workload_;
  const BlockCost cost_;
  RunFigures figures_;
  std::vector<float> queue_, room_, transfer_, prefill_, stall_;  // seconds, by request
  enum class Seen : std::uint8_t { kNever, kBeingComputed, kComputed };
  std::vector<Seen> seen_;  // by block
  struct Held {
    std::uint32_t blocks;
    double seconds;
  };
  std::vector<Held> held_;
  TimePoint last_{};
  OccupancySample now_{};
  double sample_every_s_ = 1;
};

}  // namespace policy_lab
