// Parsers of ttrace v1 and Mooncake JSONL. No input makes them throw or allocate more than a small
// multiple of its own size.
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "trace.h"

namespace agent_replay {
namespace {

using tidepool::Status;
using tidepool::StatusOr;

/// What a line's parser needs to name an error.
struct Place {
  const std::string& file;
  std::size_t line = 0;

  [[nodiscard]] Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(file + ":" + std::to_string(line) + ": " + what);
  }
};

/// A piece of input, printable and short, for messages.
std::string Quote(std::string_view text) {
  constexpr std::size_t kMax = 40;
  std::string out = "\"";
  for (const char c : text.substr(0, kMax)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > kMax ? "...\"" : "\"");
}

std::optional<std::int64_t> ParseInteger(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

struct Field {
  const char* name;
  std::int64_t min;
  std::int64_t max;
};

constexpr std::int64_t kMaxId = static_cast<std::int64_t>(kMaxBlockId);
constexpr std::int64_t kMaxMs = static_cast<std::int64_t>(kMaxTimeMs);
constexpr std::int64_t kMaxTokens = 1 << 30;

Status CheckRange(const Place& place, const Field& field, std::string_view text,
                  std::optional<std::int64_t> value) {
  if (!value) {
    return place.Error(std::string(field.name) + " is " + Quote(text) + ", not a whole number");
  }
  if (*value < field.min || *value > field.max) {
    return place.Error(std::string(field.name) + " is " + std::to_string(*value) +
                       ", allowed are " + std::to_string(field.min) + " to " +
                       std::to_string(field.max));
  }
  return absl::OkStatus();
}

// --- ttrace -------------------------------------------------------------------------------------

constexpr std::size_t kColumns = 11;
constexpr std::array<Field, 9> kFields = {{{"t_ms", 0, kMaxMs},
                                           {"scope", 0, kMaxId},
                                           {"session", 0, kMaxId},
                                           {"turn", 0, kMaxTokens},
                                           {"parent", -1, kMaxId},
                                           {"in_tok", 0, kMaxTokens},
                                           {"out_tok", 0, kMaxTokens},
                                           {"gap_ms", -1, kMaxMs},
                                           {"busy_ms", -1, kMaxMs}}};

Status AppendChecked(const Place& place, BlockRange range, Trace& trace) {
  // Compared as ends, so that a huge range cannot overflow the sum.
  const std::uint64_t room = kMaxRequestBlocks - trace.requests.back().blocks;
  if (range.last - range.first >= room) {
    return place.Error("more than " + std::to_string(kMaxRequestBlocks) + " blocks in one request");
  }
  trace.AppendRange(range);
  return absl::OkStatus();
}

Status ParseBlocks(const Place& place, std::string_view text, Trace& trace) {
  if (text == "-") return absl::OkStatus();
  constexpr Field kId = {"block id", 0, kMaxId};
  while (true) {
    const std::string_view item = text.substr(0, text.find(','));
    const std::size_t dash = item.find('-');
    const std::string_view first_text = item.substr(0, dash);
    const std::string_view last_text = dash == item.npos ? first_text : item.substr(dash + 1);
    const std::optional<std::int64_t> first = ParseInteger(first_text);
    const std::optional<std::int64_t> last = ParseInteger(last_text);
    if (Status s = CheckRange(place, kId, first_text, first); !s.ok()) return s;
    if (Status s = CheckRange(place, kId, last_text, last); !s.ok()) return s;
    if (*last < *first) return place.Error("block range " + Quote(item) + " runs backwards");
    const BlockRange range{static_cast<std::uint64_t>(*first), static_cast<std::uint64_t>(*last)};
    if (Status s = AppendChecked(place, range, trace); !s.ok()) return s;
    if (item.size() == text.size()) return absl::OkStatus();
    text.remove_prefix(item.size() + 1);
  }
}

std::optional<GapKind> ParseGapKind(std::string_view text) {
  for (const GapKind kind : {GapKind::kFirst, GapKind::kTool, GapKind::kUser, GapKind::kUnknown}) {
    if (text == ToString(kind)) return kind;
  }
  return {};
}

Status ParseTtraceLine(const Place& place, std::string_view line, Trace& trace) {
  std::array<std::string_view, kColumns> columns;
  std::size_t count = 0;
  for (std::string_view rest = line;; ++count) {
    const std::size_t tab = rest.find('\t');
    if (count < kColumns) columns[count] = rest.substr(0, tab);
    if (tab == rest.npos) break;
    rest.remove_prefix(tab + 1);
  }
  if (++count != kColumns) {
    return place.Error("has " + std::to_string(count) + " columns, ttrace v1 has " +
                       std::to_string(kColumns) + ", separated by tabs");
  }
  std::array<std::int64_t, kFields.size()> values{};
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    const std::optional<std::int64_t> value = ParseInteger(columns[i]);
    if (Status s = CheckRange(place, kFields[i], columns[i], value); !s.ok()) return s;
    values[i] = *value;
  }
  const std::optional<GapKind> kind = ParseGapKind(columns[9]);
  if (!kind) {
    return place.Error("gap_kind is " + Quote(columns[9]) +
                       ", allowed are first, tool, user, unknown");
  }
  trace.requests.push_back({.time_ms = values[0],
                            .scope = static_cast<std::uint64_t>(values[1]),
                            .session = static_cast<std::uint64_t>(values[2]),
                            .parent = values[4],
                            .turn = static_cast<std::uint32_t>(values[3]),
                            .input_tokens = static_cast<std::uint32_t>(values[5]),
                            .output_tokens = static_cast<std::uint32_t>(values[6]),
                            .gap_ms = values[7],
                            .busy_ms = values[8],
                            .gap_kind = *kind,
                            .first_range = static_cast<std::uint32_t>(trace.ranges.size())});
  return ParseBlocks(place, columns[10], trace);
}

/// A comment may say block_size=N.
Status ParseComment(const Place& place, std::string_view line, Trace& trace) {
  constexpr std::string_view kKey = "block_size=";
  const std::size_t at = line.find(kKey);
  if (at == line.npos) return absl::OkStatus();
  std::string_view text = line.substr(at + kKey.size());
  text = text.substr(0, text.find_first_not_of("0123456789"));
  const std::optional<std::int64_t> value = ParseInteger(text);
  if (Status s = CheckRange(place, {"block_size", 1, 1 << 16}, text, value); !s.ok()) return s;
  trace.block_tokens = static_cast<std::uint32_t>(*value);
  return absl::OkStatus();
}

// --- Mooncake JSONL -----------------------------------------------------------------------------

constexpr std::uint32_t kMooncakeBlockTokens = 512;

/// Cursor over one line that holds a flat object of whole numbers and arrays of them.
class JsonLine {
 public:
  JsonLine(const Place& place, std::string_view text) : place_(place), rest_(text) {}

  /// True and consumed if the next thing is `c`.
  bool Take(char c) {
    SkipSpace();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  [[nodiscard]] bool AtEnd() {
    SkipSpace();
    return rest_.empty();
  }
  Status Expect(char c) {
    return Take(c) ? absl::OkStatus()
                   : place_.Error(std::string("expected '") + c + "' before " + Quote(rest_));
  }
  /// A string without escapes.
  StatusOr<std::string_view> Key() {
    if (Status s = Expect('"'); !s.ok()) return s;
    const std::size_t end = rest_.find('"');
    if (end == rest_.npos) return place_.Error("a string does not end: " + Quote(rest_));
    const std::string_view key = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return key;
  }
  StatusOr<std::int64_t> Number(const Field& field) {
    SkipSpace();
    const std::string_view text = rest_.substr(0, rest_.find_first_of(",]} \t"));
    const std::optional<std::int64_t> value = ParseInteger(text);
    if (Status s = CheckRange(place_, field, text, value); !s.ok()) return s;
    rest_.remove_prefix(text.size());
    return *value;
  }
  [[nodiscard]] std::string_view rest() const { return rest_; }

 private:
  void SkipSpace() {
    const std::size_t n = rest_.find_first_not_of(" \t");
    rest_.remove_prefix(n == rest_.npos ? rest_.size() : n);
  }
  const Place& place_;
  std::string_view rest_;
};

Status ParseHashIds(const Place& place, JsonLine& json, Trace& trace) {
  if (Status s = json.Expect('['); !s.ok()) return s;
  if (json.Take(']')) return absl::OkStatus();
  do {
    const StatusOr<std::int64_t> id = json.Number({"hash_ids", 0, kMaxId});
    if (!id.ok()) return id.status();
    const std::uint64_t block = static_cast<std::uint64_t>(*id);
    if (Status s = AppendChecked(place, {block, block}, trace); !s.ok()) return s;
  } while (json.Take(','));
  return json.Expect(']');
}

Status ParseMooncakeLine(const Place& place, std::string_view line, Trace& trace) {
  trace.requests.push_back({.first_range = static_cast<std::uint32_t>(trace.ranges.size())});
  JsonLine json(place, line);
  if (Status s = json.Expect('{'); !s.ok()) return s;
  struct {
    Field field;
    std::optional<std::int64_t> value;
  } numbers[] = {{{"timestamp", 0, kMaxMs}, {}},
                 {{"input_length", 0, kMaxTokens}, {}},
                 {{"output_length", 0, kMaxTokens}, {}}};
  bool has_ids = false;
  do {
    const StatusOr<std::string_view> key = json.Key();
    if (!key.ok()) return key.status();
    if (Status s = json.Expect(':'); !s.ok()) return s;
    auto* const number = std::find_if(std::begin(numbers), std::end(numbers),
                                      [&](const auto& n) { return *key == n.field.name; });
    if (number != std::end(numbers) && !number->value) {
      const StatusOr<std::int64_t> value = json.Number(number->field);
      if (!value.ok()) return value.status();
      number->value = *value;
    } else if (*key == "hash_ids" && !has_ids) {
      has_ids = true;
      if (Status s = ParseHashIds(place, json, trace); !s.ok()) return s;
    } else {
      return place.Error("key " + Quote(*key) +
                         " is unknown or repeated; expected are timestamp, input_length, "
                         "output_length, hash_ids");
    }
  } while (json.Take(','));
  if (Status s = json.Expect('}'); !s.ok()) return s;
  if (!json.AtEnd()) return place.Error("something follows the object: " + Quote(json.rest()));
  for (const auto& number : numbers) {
    if (!number.value) return place.Error(std::string("has no ") + number.field.name);
  }
  if (!has_ids) return place.Error("has no hash_ids");
  Request& request = trace.requests.back();
  request.time_ms = *numbers[0].value;
  request.input_tokens = static_cast<std::uint32_t>(*numbers[1].value);
  request.output_tokens = static_cast<std::uint32_t>(*numbers[2].value);
  return absl::OkStatus();
}

// --- both ---------------------------------------------------------------------------------------

/// Turns and times of one session must follow each other.
class OrderCheck {
 public:
  Status Check(const Place& place, const Request& request) {
    const auto [at, fresh] =
        last_.try_emplace({request.scope, request.session}, request.turn, request.time_ms);
    if (fresh) return absl::OkStatus();
    auto& [turn, time_ms] = at->second;
    if (request.turn <= turn || request.time_ms < time_ms) {
      return place.Error("turn " + std::to_string(request.turn) + " at " +
                         std::to_string(request.time_ms) + " ms of session " +
                         std::to_string(request.session) + " comes after turn " +
                         std::to_string(turn) + " at " + std::to_string(time_ms) + " ms");
    }
    at->second = {request.turn, request.time_ms};
    return absl::OkStatus();
  }

 private:
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::pair<std::uint32_t, std::int64_t>> last_;
};

}  // namespace

StatusOr<Trace> ParseTrace(std::string_view text, std::string name) {
  Trace trace;
  trace.name = std::move(name);
  Place place{trace.name};
  OrderCheck order;
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  const bool mooncake = start != text.npos && text[start] == '{';
  if (mooncake) trace.block_tokens = kMooncakeBlockTokens;
  while (!text.empty()) {
    ++place.line;
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    if (line[0] == '#' && !mooncake) {
      if (Status s = ParseComment(place, line, trace); !s.ok()) return s;
      continue;
    }
    Status status =
        mooncake ? ParseMooncakeLine(place, line, trace) : ParseTtraceLine(place, line, trace);
    if (status.ok() && !mooncake) status = order.Check(place, trace.requests.back());
    if (!status.ok()) return status;
  }
  if (trace.requests.empty()) return absl::InvalidArgumentError(trace.name + ": has no requests");
  if (mooncake) InferSessions(trace);
  return trace;
}

StatusOr<Trace> ReadTrace(const std::string& path) {
  const auto error = [&path] {
    return absl::InvalidArgumentError("cannot read " + path + ": " + std::strerror(errno));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(path.c_str(), "rb"), [](std::FILE* f) { return std::fclose(f); });
  if (file == nullptr) return error();
  std::string text;
  std::vector<char> buffer(1u << 18);
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    text.append(buffer.data(), n);
    if (text.size() > kMaxTraceBytes) {
      return absl::InvalidArgumentError(path + ": longer than the limit of " +
                                        std::to_string(kMaxTraceBytes) + " bytes");
    }
  }
  if (std::ferror(file.get()) != 0) return error();
  return ParseTrace(text, path);
}

}  // namespace agent_replay
