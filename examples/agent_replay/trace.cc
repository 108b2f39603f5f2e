// Facts about a trace, the ttrace writer, and session inference.
#include "trace.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

namespace agent_replay {

std::string_view ToString(GapKind kind) {
  switch (kind) {
    case GapKind::kFirst:
      return "first";
    case GapKind::kTool:
      return "tool";
    case GapKind::kUser:
      return "user";
    case GapKind::kUnknown:
      return "unknown";
  }
  return "?";
}

void Trace::AppendRange(BlockRange range) {
  Request& request = requests.back();
  request.blocks += static_cast<std::uint32_t>(range.count());
  if (request.range_count > 0 && ranges.back().last + 1 == range.first) {
    ranges.back().last = range.last;
    return;
  }
  ranges.push_back(range);
  ++request.range_count;
}

std::uint64_t PromptBlocks(const Trace& trace) {
  std::uint64_t blocks = 0;
  for (const Request& request : trace.requests) blocks += request.blocks;
  return blocks;
}

std::uint64_t UniqueBlocks(const Trace& trace) {
  std::map<std::uint64_t, std::vector<BlockRange>> scopes;
  for (const Request& request : trace.requests) {
    const std::span<const BlockRange> ranges = trace.RangesOf(request);
    std::vector<BlockRange>& scope = scopes[request.scope];
    scope.insert(scope.end(), ranges.begin(), ranges.end());
  }
  std::uint64_t unique = 0;
  for (auto& [scope, ranges] : scopes) {
    std::sort(ranges.begin(), ranges.end(),
              [](const BlockRange& a, const BlockRange& b) { return a.first < b.first; });
    std::uint64_t next = 0;  // ids below it are counted
    for (const BlockRange& range : ranges) {
      const std::uint64_t first = std::max(range.first, next);
      if (first > range.last) continue;
      unique += range.last - first + 1;
      next = range.last + 1;
    }
  }
  return unique;
}

std::uint32_t Sessions(const Trace& trace) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> sessions;
  for (const Request& request : trace.requests) sessions.emplace(request.scope, request.session);
  return static_cast<std::uint32_t>(sessions.size());
}

std::string FormatTrace(const Trace& trace, std::string_view comment) {
  std::string out = "# ttrace v1  ";
  out += comment;
  out += "; block_size=" + std::to_string(trace.block_tokens) +
         "\n# t_ms\tscope\tsession\tturn\tparent\tin_tok\tout_tok\tgap_ms\tbusy_ms\tgap_kind\t"
         "blocks\n";
  for (const Request& r : trace.requests) {
    for (const std::int64_t field :
         {r.time_ms, static_cast<std::int64_t>(r.scope), static_cast<std::int64_t>(r.session),
          std::int64_t{r.turn}, r.parent, std::int64_t{r.input_tokens},
          std::int64_t{r.output_tokens}, r.gap_ms, r.busy_ms}) {
      out += std::to_string(field) + '\t';
    }
    out += ToString(r.gap_kind);
    char separator = '\t';
    for (const BlockRange& range : trace.RangesOf(r)) {
      out += separator + std::to_string(range.first);
      if (range.last > range.first) out += '-' + std::to_string(range.last);
      separator = ',';
    }
    out += r.range_count == 0 ? "\t-\n" : "\n";
  }
  return out;
}

tidepool::Status WriteFile(const std::string& path, std::string_view content) {
  const auto error = [&path] {
    return absl::UnavailableError("cannot write " + path + ": " + std::strerror(errno));
  };
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return error();
  const bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  const int write_errno = errno;
  const bool closed = std::fclose(file) == 0;
  if (!written) errno = write_errno;
  return written && closed ? absl::OkStatus() : error();
}

void InferSessions(Trace& trace) {
  struct Open {
    std::size_t request;
    std::uint32_t full_blocks;
  };
  // Keyed by the last full block: whoever contains it at that position continues the whole prefix.
  // Later requests overwrite earlier ones, continued ones are erased or marked.
  std::unordered_map<std::uint64_t, std::vector<Open>> open;
  std::uint64_t next_session = 0;
  for (std::size_t j = 0; j < trace.requests.size(); ++j) {
    Request& request = trace.requests[j];
    const std::uint32_t full = request.input_tokens / trace.block_tokens;
    std::vector<Open>* best = nullptr;
    std::size_t best_at = 0;
    std::uint32_t position = 0;
    std::uint64_t last_full = 0;
    ForEachBlock(trace, request, std::min(full, request.blocks), [&](std::uint64_t id) {
      ++position;
      last_full = id;
      const auto found = open.find(id);
      if (found == open.end()) return;
      for (std::size_t k = found->second.size(); k-- > 0;) {
        const Open& candidate = found->second[k];
        if (candidate.full_blocks != position ||
            trace.requests[candidate.request].input_tokens >= request.input_tokens) {
          continue;
        }
        if (best == nullptr || candidate.request > (*best)[best_at].request) {
          best = &found->second;
          best_at = k;
        }
        break;
      }
    });
    if (best != nullptr) {
      const Request& earlier = trace.requests[(*best)[best_at].request];
      request.session = earlier.session;
      request.turn = earlier.turn + 1;
      request.gap_ms = std::max<std::int64_t>(0, request.time_ms - earlier.time_ms);
      request.gap_kind = GapKind::kUnknown;
      best->erase(best->begin() + static_cast<std::ptrdiff_t>(best_at));
    } else {
      request.session = next_session++;
      request.turn = 0;
      request.gap_kind = GapKind::kFirst;
    }
    if (position >= 2) open[last_full].push_back({j, position});
  }
}

}  // namespace agent_replay
