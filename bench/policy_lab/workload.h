// policy_lab/workload.h - a trace made ready for replay: sessions, scopes and blocks are dense
// numbers, and each request knows what follows it in its session.
//
// Thread contract: immutable once built.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "examples/agent_replay/trace.h"
#include "settings.h"
#include "tidepool/sequence.h"

namespace policy_lab {

inline constexpr std::uint32_t kNoRequest = 0xffffffffu;

/// Consecutive dense block numbers.
struct BlockRun {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct LabRequest {
  std::int64_t time_ms = 0;   ///< since its scope's first request
  std::int64_t gap_ms = 0;    ///< idle time before it; 0 in a first turn
  std::int64_t busy_ms = -1;  ///< server time, -1 = unknown
  std::uint32_t scope = 0;
  std::uint32_t session = 0;
  std::uint32_t turn = 0;  ///< in its session, from 0
  std::uint32_t blocks = 0;
  std::uint32_t first_run = 0;
  std::uint32_t run_count = 0;
  std::uint32_t output_tokens = 0;
  std::uint32_t next = kNoRequest;  ///< the session's next turn
  tidepool::WaitClass wait_before = tidepool::WaitClass::kUnknown;
  tidepool::WaitClass wait_after = tidepool::WaitClass::kUnknown;  ///< as the engine would say
};

struct Workload {
  std::string name;
  std::uint32_t block_tokens = 64;
  std::vector<LabRequest> requests;  ///< file order
  std::vector<BlockRun> runs;
  std::vector<std::int64_t> scope_first_ms;  ///< by scope, on the trace's own clock
  std::uint32_t sessions = 0;
  std::uint32_t distinct_blocks = 0;
  std::uint32_t largest_request = 0;
  std::uint64_t prompt_blocks = 0;
  bool has_classes = false;

  [[nodiscard]] std::uint32_t scopes() const {
    return static_cast<std::uint32_t>(scope_first_ms.size());
  }
  [[nodiscard]] std::span<const BlockRun> RunsOf(const LabRequest& request) const {
    return std::span(runs).subspan(request.first_run, request.run_count);
  }
};

/// Calls visit(first dense block, count) for the positions [from, to) of a request, in order.
template <typename Visit>
void ForEachRun(const Workload& workload, const LabRequest& request, std::uint32_t from,
                std::uint32_t to, Visit visit) {
  std::uint32_t position = 0;
  for (const BlockRun& run : workload.RunsOf(request)) {
    const std::uint32_t begin = std::max(from, position);
    const std::uint32_t end = std::min(to, position + run.count);
    if (begin < end) visit(run.first + (begin - position), end - begin);
    position += run.count;
    if (position >= to) return;
  }
}

/// Errors: no requests left in the part, more distinct blocks than a token can name.
tidepool::StatusOr<Workload> BuildWorkload(const agent_replay::Trace& trace, Part part);
/// Reads the file or runs the generator, then builds.
tidepool::StatusOr<Workload> LoadWorkload(const Source& source, Part part, std::uint64_t seed);

/// Leading blocks that two requests have in common.
std::uint32_t CommonBlocks(const Workload& workload, const LabRequest& a, const LabRequest& b);

}  // namespace policy_lab
