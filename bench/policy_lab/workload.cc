#include "workload.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "examples/agent_replay/generator.h"
#include "examples/agent_replay/random.h"

namespace policy_lab {
namespace {

using agent_replay::BlockRange;
using agent_replay::GapKind;
using agent_replay::Request;
using agent_replay::Trace;
using tidepool::Status;
using tidepool::StatusOr;
using tidepool::WaitClass;

/// Share of tool waits among last turns, whose class the trace does not say: 28,516 tool waits end
/// a session with probability 0.0077, 4,275 user waits with 0.067 (agentic_dev).
constexpr double kLastIsTool = 0.43;

/// Distinct ids of a scope as disjoint intervals, and the dense number of each one's first id.
struct ScopeIds {
  struct Interval {
    std::uint64_t first, last;
    std::uint32_t dense;
  };
  std::vector<BlockRange> ranges;
  std::vector<Interval> intervals;

  /// Merges the ranges; returns the next free dense number, which may exceed 32 bits.
  std::uint64_t Number(std::uint64_t next) {
    std::sort(ranges.begin(), ranges.end(),
              [](const BlockRange& a, const BlockRange& b) { return a.first < b.first; });
    for (const BlockRange& range : ranges) {
      if (!intervals.empty() && range.first <= intervals.back().last + 1) {
        intervals.back().last = std::max(intervals.back().last, range.last);
      } else {
        intervals.push_back({range.first, range.last, 0});
      }
    }
    for (Interval& interval : intervals) {
      interval.dense = static_cast<std::uint32_t>(next);
      next += interval.last - interval.first + 1;
    }
    ranges = {};
    return next;
  }
  [[nodiscard]] BlockRun Find(const BlockRange& range) const {
    const auto after =
        std::upper_bound(intervals.begin(), intervals.end(), range.first,
                         [](std::uint64_t id, const Interval& i) { return id < i.first; });
    const Interval& interval = *(after - 1);
    return {interval.dense + static_cast<std::uint32_t>(range.first - interval.first),
            static_cast<std::uint32_t>(range.count())};
  }
};

WaitClass ClassOf(GapKind kind) {
  switch (kind) {
    case GapKind::kTool:
      return WaitClass::kTool;
    case GapKind::kUser:
      return WaitClass::kUser;
    case GapKind::kFirst:
    case GapKind::kUnknown:
      break;
  }
  return WaitClass::kUnknown;
}

class Builder {
 public:
  Builder(const Trace& trace, Part part) : trace_(trace), part_(part) {}

  StatusOr<Workload> Build() {
    out_.name = trace_.name;
    out_.block_tokens = trace_.block_tokens;
    if (Status s = NumberBlocks(); !s.ok()) return s;
    for (const Request& request : trace_.requests) {
      if (Wanted(request)) Add(request);
    }
    if (out_.requests.empty()) {
      return absl::InvalidArgumentError(trace_.name + ": part " + std::to_string(part_.index) +
                                        "/" + std::to_string(part_.of) + " has no requests");
    }
    out_.sessions = static_cast<std::uint32_t>(sessions_.size());
    EndSessions();
    return std::move(out_);
  }

 private:
  // Scopes are numbered over the whole trace, so that parts are disjoint; with one scope, sessions.
  bool Wanted(const Request& request) {
    if (part_.of == 1) return true;
    const std::uint64_t unit = all_scopes_.size() > 1 ? request.scope : request.session;
    const auto number = units_.try_emplace(unit, units_.size()).first->second;
    return number % part_.of == part_.index - 1;
  }

  Status NumberBlocks() {
    for (const Request& request : trace_.requests) {
      const std::span<const BlockRange> ranges = trace_.RangesOf(request);
      std::vector<BlockRange>& all = all_scopes_[request.scope].ranges;
      all.insert(all.end(), ranges.begin(), ranges.end());
    }
    std::uint64_t next = 0;
    for (auto& [scope, ids] : all_scopes_) next = ids.Number(next);
    if (next >= (std::uint64_t{1} << 31)) {
      return absl::InvalidArgumentError(trace_.name + ": " + std::to_string(next) +
                                        " distinct blocks; a token names less than 2^31");
    }
    out_.distinct_blocks = static_cast<std::uint32_t>(next);
    return absl::OkStatus();
  }

  void Add(const Request& request) {
    const auto index = static_cast<std::uint32_t>(out_.requests.size());
    const auto [scope, new_scope] = scopes_.try_emplace(request.scope, out_.scopes());
    if (new_scope) out_.scope_first_ms.push_back(request.time_ms);
    std::int64_t& first_ms = out_.scope_first_ms[scope->second];
    first_ms = std::min(first_ms, request.time_ms);
    const auto [session, new_session] =
        sessions_.try_emplace({request.scope, request.session},
                              Last{static_cast<std::uint32_t>(sessions_.size()), kNoRequest});
    LabRequest r{.time_ms = request.time_ms,
                 .busy_ms = request.busy_ms,
                 .scope = scope->second,
                 .session = session->second.session,
                 .blocks = request.blocks,
                 .first_run = static_cast<std::uint32_t>(out_.runs.size()),
                 .run_count = request.range_count,
                 .output_tokens = request.output_tokens};
    if (!new_session) {
      LabRequest& before = out_.requests[session->second.request];
      before.next = index;
      before.wait_after = r.wait_before = ClassOf(request.gap_kind);
      r.turn = before.turn + 1;
      r.gap_ms = std::max<std::int64_t>(0, request.gap_ms);
      out_.has_classes |= r.wait_before != WaitClass::kUnknown;
    }
    session->second.request = index;
    const ScopeIds& ids = all_scopes_.at(request.scope);
    for (const BlockRange& range : trace_.RangesOf(request)) out_.runs.push_back(ids.Find(range));
    out_.prompt_blocks += r.blocks;
    out_.largest_request = std::max(out_.largest_request, r.blocks);
    out_.requests.push_back(r);
  }

  // A last turn gets a class that does not give away that it is the last.
  void EndSessions() {
    for (const auto& [key, last] : sessions_) {
      if (!out_.has_classes) continue;
      agent_replay::Random random(agent_replay::Mix(key.first) ^ key.second, 0x1a57);
      out_.requests[last.request].wait_after =
          random.Chance(kLastIsTool) ? WaitClass::kTool : WaitClass::kUser;
    }
    for (LabRequest& r : out_.requests) r.time_ms -= out_.scope_first_ms[r.scope];
  }

  struct Last {
    std::uint32_t session;
    std::uint32_t request;
  };
  const Trace& trace_;
  const Part part_;
  std::map<std::uint64_t, ScopeIds> all_scopes_;
  std::unordered_map<std::uint64_t, std::size_t> units_;
  std::unordered_map<std::uint64_t, std::uint32_t> scopes_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Last> sessions_;
  Workload out_;
};

StatusOr<Trace> LoadTrace(const Source& source, std::uint64_t seed) {
  if (!source.path.empty()) return agent_replay::ReadTrace(source.path);
  const auto generate = [&](auto preset) {
    preset.mean_start_gap_s = source.mean_start_gap_s;
    return agent_replay::GenerateTrace(preset, seed, source.sessions);
  };
  if (source.preset == "chat") return generate(agent_replay::ChatPreset());
  if (source.preset == "autonomous") {
    return generate(agent_replay::AutonomousPreset{.between_session_sd = source.between_sd});
  }
  return generate(agent_replay::CodingPreset());
}

}  // namespace

StatusOr<Workload> BuildWorkload(const Trace& trace, Part part) {
  return Builder(trace, part).Build();
}

StatusOr<Workload> LoadWorkload(const Source& source, Part part, std::uint64_t seed) {
  const StatusOr<Trace> trace = LoadTrace(source, seed);
  if (!trace.ok()) return trace.status();
  return BuildWorkload(*trace, part);
}

std::uint32_t CommonBlocks(const Workload& workload, const LabRequest& a, const LabRequest& b) {
  const std::span<const BlockRun> x = workload.RunsOf(a);
  const std::span<const BlockRun> y = workload.RunsOf(b);
  std::uint32_t common = 0;
  std::uint32_t skip_x = 0, skip_y = 0;  // blocks of the current runs that are behind us
  for (std::size_t i = 0, j = 0; i < x.size() && j < y.size();) {
    if (x[i].first + skip_x != y[j].first + skip_y) break;
    const std::uint32_t n = std::min(x[i].count - skip_x, y[j].count - skip_y);
    common += n;
    skip_x += n;
    skip_y += n;
    if (skip_x == x[i].count) ++i, skip_x = 0;
    if (skip_y == y[j].count) ++j, skip_y = 0;
  }
  return common;
}

}  // namespace policy_lab
