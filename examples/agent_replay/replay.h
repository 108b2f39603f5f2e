// agent_replay/replay.h - serves a trace's turns from a real KvCacheManager, with real bytes.
//
// A turn is admitted when it arrives; when its prefill starts (loads done), every block it reuses
// is compared byte for byte with what its identity says, the others are written and committed; when
// the step has finished, the session waits for its tool (Pause; the next turn is Resume + Append if
// it continues the prompt) or is finished until the user returns. Time is virtual and follows the
// trace; transfers are real. The traces do not say which blocks outputs become, so outputs are not
// replayed: they are part of the next prompt.
//
// A turn that does not fit waits, holding nothing, until running turns end. In lockstep turns are
// served one at a time in order of arrival, and all transfers are drained in between, so that hits
// are a function of the trace alone.
//
// Thread contract: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "schedule.h"
#include "tidepool/status.h"
#include "tidepool/transfer/file_io.h"
#include "trace.h"

namespace agent_replay {

class ChromeTrace;

inline constexpr std::size_t kTiers = 3;
inline constexpr std::array<const char*, kTiers> kTierNames = {"hbm", "dram", "nvme"};

enum class FileBackend : std::uint8_t { kThreads, kUring };
enum class Pace : std::uint8_t {
  kOverlapping,  ///< time jumps from event to event
  kLockstep,     ///< so it does, one turn at a time
  kWallClock,    ///< time passes: waits and service last as in the trace, divided by time_scale
};
enum class HbmPolicy : std::uint8_t { kLru, kSpear };
enum class Tiering : std::uint8_t { kDemand, kTide };
enum class Verification : std::uint8_t { kOn, kOff };

struct ReplayOptions {
  std::array<std::uint32_t, kTiers> tier_blocks{};  ///< hbm, dram, nvme; 0 = left out (hbm: never)
  std::uint64_t block_bytes = 4096;
  std::uint32_t block_tokens = 64;
  std::string nvme_path;  ///< created fresh unless kept; needed when there is an nvme tier
  bool keep = false;      ///< blocks that an earlier replay left in the file may be hit
  FileBackend io = FileBackend::kThreads;
  /// What stands behind the nvme tier instead of `io`, when set.
  std::function<std::unique_ptr<tidepool::FileIo>()> make_file_io;
  Pace pace = Pace::kOverlapping;
  double time_scale = 1;  ///< seconds of the trace in one of the clock; kWallClock only
  HbmPolicy policy = HbmPolicy::kLru;
  Tiering tiering = Tiering::kDemand;
  Verification verification = Verification::kOn;
  std::uint64_t payload_seed = 1;
  ChromeTrace* trace = nullptr;  ///< open; copies, turns and waits are written to it; may be null
};

struct TierResult {
  std::uint32_t blocks = 0;       ///< capacity
  std::uint32_t used_blocks = 0;  ///< at the end
  std::uint64_t hit_tokens = 0;
  std::uint64_t bytes_in = 0;   ///< copied into the tier by transfers
  std::uint64_t bytes_out = 0;  ///< copied out of it
  std::uint64_t evicted = 0;    ///< copies given up
};

/// CPU time of one request inside the manager, over all requests.
struct TimeSummary {
  double mean_us = 0;
  double p50_us = 0;
  double p99_us = 0;
};

/// What TIDE did, and what came of it. Windows: waits of sessions that have a next turn.
struct TideSummary {
  std::uint64_t pool_copies = 0, demand_copies = 0, held_back = 0;
  std::uint64_t duplicates_left = 0, only_copies_left = 0;
  std::uint64_t prefetched = 0, prefetched_used = 0, prefetched_wasted = 0;
  std::uint64_t windows = 0;
  std::uint64_t windows_met = 0;  ///< the turn after it neither loaded nor computed a block again
};

struct ReplayResult {
  std::array<TierResult, kTiers> tiers;
  std::uint64_t requests = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t recomputed_tokens = 0;
  std::uint64_t resumed = 0;           ///< turns that continued a paused sequence
  std::uint64_t stalls = 0;            ///< turns that were not granted at the first try
  std::uint64_t waits = 0;             ///< of those, that had to wait for running turns to end
  std::int64_t wait_ms = 0;            ///< virtual time they waited
  std::uint64_t clipped_requests = 0;  ///< larger than HBM less its reserve: leading part served
  std::uint64_t clipped_blocks = 0;
  std::uint64_t failed_loads = 0;
  std::uint64_t failed_offloads = 0;
  std::uint64_t dropped_dirty = 0;  ///< blocks lost although a lower tier exists
  std::uint64_t stored_found = 0;   ///< blocks that the kept file had at the start
  std::uint64_t stored_used = 0;    ///< of those, that some turn asked for
  std::uint64_t verified_blocks = 0;
  std::uint64_t mismatches = 0;
  std::string first_mismatch;
  TimeSummary metadata;   ///< Admit or Resume + Append, Commit, CompleteStep, Pause or Finish
  TimeSummary load_wait;  ///< wall time that a turn waited for its loads
  TideSummary tide;
  double metadata_bytes_per_block = 0;  ///< of every block there is room for; tokens excluded
  std::uint64_t metadata_bytes = 0;
  double wall_s = 0;
  std::int64_t virtual_ms = 0;
  std::string transfers;  ///< what moved the bytes
};

struct Progress {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  double hit_share = 0;  ///< of the prompt tokens so far
};

/// Blocks of one request that can be served at most: HBM less a sixteenth, so that one turn never
/// has it all, and less one block for the prompt's end.
constexpr std::uint32_t MaxRequestBlocks(std::uint32_t hbm_blocks) {
  const std::uint32_t reserve = hbm_blocks / 16 + 1;
  return hbm_blocks > reserve ? hbm_blocks - reserve : 0;
}

/// Errors: what KvCacheManager::Create refuses (a full disk, sizes), or a manager that makes no
/// progress. Mismatches are no error here: they are counted.
tidepool::StatusOr<ReplayResult> RunReplay(const Trace& trace, const Schedule& schedule,
                                           const ReplayOptions& options,
                                           const std::function<void(const Progress&)>& progress);

}  // namespace agent_replay
