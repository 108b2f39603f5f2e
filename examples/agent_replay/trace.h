// agent_replay/trace.h - a request trace in memory, and its two file formats.
//
//   ttrace v1:       tab-separated, one request a line:
//                    t_ms scope session turn parent in_tok out_tok gap_ms busy_ms gap_kind blocks
//   Mooncake JSONL:  {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]}
//
// Block ids compare within a scope: (scope, id) names one block and with it the whole prefix that
// ends there. Every id stands for one full block, also the last one of a Mooncake request.
//
// Input is not trusted: each error names the file, the line and the value.
// Thread contract: plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/status.h"

namespace agent_replay {

enum class GapKind : std::uint8_t { kFirst, kTool, kUser, kUnknown };
std::string_view ToString(GapKind kind);

/// Consecutive block ids, both ends included.
struct BlockRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  [[nodiscard]] std::uint64_t count() const { return last - first + 1; }
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

/// One turn of a session.
struct Request {
  std::int64_t time_ms = 0;  ///< arrival, on the clock of its scope
  std::uint64_t scope = 0;
  std::uint64_t session = 0;  ///< unique within its scope
  std::int64_t parent = -1;   ///< session that spawned this one, or -1
  std::uint32_t turn = 0;
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0;
  std::int64_t gap_ms = -1;   ///< idle time before this turn, -1 = none or unknown
  std::int64_t busy_ms = -1;  ///< server time, -1 = unknown
  GapKind gap_kind = GapKind::kFirst;
  std::uint32_t blocks = 0;  ///< full prompt blocks
  std::uint32_t first_range = 0;
  std::uint32_t range_count = 0;
};

struct Trace {
  std::string name;
  std::uint32_t block_tokens = 64;
  std::vector<Request> requests;   ///< file order
  std::vector<BlockRange> ranges;  ///< of all requests, see RangesOf

  [[nodiscard]] std::span<const BlockRange> RangesOf(const Request& request) const {
    return std::span(ranges).subspan(request.first_range, request.range_count);
  }
  /// Appends `id` to the last request, which must be the newest: keeps ranges maximal.
  void AppendBlock(std::uint64_t id) { AppendRange({id, id}); }
  void AppendRange(BlockRange range);
};

/// Blocks over all prompts; distinct (scope, id); distinct (scope, session).
std::uint64_t PromptBlocks(const Trace& trace);
std::uint64_t UniqueBlocks(const Trace& trace);
std::uint32_t Sessions(const Trace& trace);

/// Calls visit(id) for the first `limit` blocks of a request, in prefix order.
template <typename Visit>
void ForEachBlock(const Trace& trace, const Request& request, std::uint32_t limit, Visit visit) {
  for (const BlockRange& range : trace.RangesOf(request)) {
    for (std::uint64_t id = range.first; id <= range.last; ++id) {
      if (limit-- == 0) return;
      visit(id);
    }
  }
}

inline constexpr std::uint64_t kMaxTraceBytes = 1u << 30;
inline constexpr std::uint32_t kMaxRequestBlocks = 1u << 20;
inline constexpr std::uint64_t kMaxBlockId = (std::uint64_t{1} << 60) - 1;
inline constexpr std::uint64_t kMaxTimeMs = std::uint64_t{1} << 42;  // 139 years

/// The format is told by the content. `name` is used in messages.
tidepool::StatusOr<Trace> ParseTrace(std::string_view text, std::string name);
tidepool::StatusOr<Trace> ReadTrace(const std::string& path);
/// As ttrace v1; `comment` goes into the first line.
std::string FormatTrace(const Trace& trace, std::string_view comment);
tidepool::Status WriteFile(const std::string& path, std::string_view content);

/// Mooncake files name no sessions. Request j continues the latest earlier i whose full blocks all
/// are a prefix of j's, with at least two of them and j longer than i; each i is continued once.
/// Fills session, turn, gap and gap kind. REQUIRES: one scope, ids that name whole prefixes.
void InferSessions(Trace& trace);

}  // namespace agent_replay
