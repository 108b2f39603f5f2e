#include "generator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>

namespace agent_replay {
namespace {

// Block ids: the upper bits name the writer (a shared prefix, a session or a sub-agent), the lower
// ones count what it wrote, so that writers never meet whatever the number of sessions.
constexpr unsigned kIdBits = 26;
constexpr std::uint32_t kMaxShared = 64;
constexpr std::uint64_t kScaleStream = 0x5ca1e;

constexpr std::uint64_t FirstId(std::uint64_t number, bool sub_agent) {
  return (kMaxShared + 2 * number + (sub_agent ? 1 : 0)) << kIdBits;
}

std::int64_t Milliseconds(double seconds) { return std::llround(seconds * 1000); }

std::uint32_t Round(double value) {
  return static_cast<std::uint32_t>(std::llround(std::max(0.0, value)));
}

/// Draws the waits of one session.
class Waits {
 public:
  explicit Waits(const CodingPreset& preset) : preset_(preset) {}

  double Tool(Random& random) {
    const CodingPreset& p = preset_;
    deviation_ = p.tool_rho * deviation_ + std::sqrt(1 - p.tool_rho * p.tool_rho) * random.Normal();
    const bool fast = random.Chance(p.tool_fast_share);
    const double mu = fast ? p.tool_fast_mu : p.tool_slow_mu;
    const double sigma = fast ? p.tool_fast_sigma : p.tool_slow_sigma;
    return std::min(p.tool_cap_s, std::exp(mu + sigma * deviation_));
  }
  double User(Random& random) const {
    return std::min(preset_.user_cap_s,
                    std::exp(preset_.user_mu + preset_.user_sigma * random.Normal()));
  }

 private:
  const CodingPreset& preset_;
  double deviation_ = 0;
};

std::size_t CompactionBand(double context) {
  return context < 100e3 ? 0 : context < 150e3 ? 1 : context < 200e3 ? 2 : 3;
}

double NormalCdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

/// Two uniform numbers joined by a Gaussian copula.
std::pair<double, double> CorrelatedPair(double correlation, Random& random) {
  const double a = random.Normal();
  const double b = correlation * a + std::sqrt(1 - correlation * correlation) * random.Normal();
  return {NormalCdf(a), NormalCdf(b)};
}

/// What becomes of the previous turn's blocks: sets the context's size and what is kept.
void NextContext(const CodingPreset& preset, Random& random, const Turn& last, Turn& turn) {
  double context = 1.0 * last.input_tokens + last.output_tokens + turn.added_tokens;
  double kept = last.input_tokens / preset.block_tokens;  // whole blocks
  const double event = random.Uniform();
  const double compaction =
      context > preset.max_context ? 1 : preset.compaction[CompactionBand(context)];
  if (event < compaction) {
    context *= preset.compaction_size.Sample(random);
    kept *= preset.compaction_keep_min +
            (preset.compaction_keep_max - preset.compaction_keep_min) * random.Uniform();
  } else if (event < compaction + preset.deep_break) {
    kept *= preset.deep_break_keep.Sample(random);
  } else if (event < compaction + preset.deep_break + preset.tail_rewrite) {
    kept -= std::round(preset.tail_rewrite_blocks.Sample(random));
  } else if (random.Chance(preset.last_block_rewrite)) {
    kept -= 1;
  }
  turn.input_tokens = std::max(1u, Round(context));
  turn.kept_blocks = std::min(static_cast<std::uint32_t>(std::max(0.0, kept)),
                              turn.input_tokens / preset.block_tokens);
}

const Quantiles& PickTool(const AutonomousPreset& preset, Random& random) {
  double at = random.Uniform();
  for (const ToolKind& tool : preset.tools) {
    at -= tool.share;
    if (at < 0) return tool.seconds;
  }
  return preset.tools.back().seconds;
}

/// What a trace needs to know of any preset.
struct Frame {
  std::string name;
  double mean_start_gap_s;
  std::uint32_t block_tokens;
  std::uint32_t shared_tokens;
  std::uint32_t shared_variants;
};

template <typename Preset>
Frame FrameOf(std::string name, const Preset& preset) {
  return {std::move(name), preset.mean_start_gap_s, preset.block_tokens, preset.shared_tokens,
          preset.shared_variants};
}

std::uint32_t PickVariant(std::uint32_t variants, Random& random) {
  double total = 0;
  for (std::uint32_t i = 0; i < variants; ++i) total += 1.0 / (i + 1);
  double at = random.Uniform() * total;
  for (std::uint32_t i = 0; i + 1 < variants; ++i) {
    at -= 1.0 / (i + 1);
    if (at < 0) return i;
  }
  return variants - 1;
}

/// Gives one session's turns blocks and arrival times and appends them to the trace.
class Writer {
 public:
  Writer(const Frame& frame, Trace& trace) : frame_(frame), trace_(trace) {}

  struct Session {
    std::uint64_t id = 0;
    std::int64_t parent = -1;
    std::uint64_t next_block = 0;
    std::uint32_t shared_variant = 0;
    std::int64_t start_ms = 0;
  };

  /// Returns when the last turn ends.
  std::int64_t Write(const Session& session, const std::vector<Turn>& turns) {
    std::uint64_t next_block = session.next_block;
    std::int64_t time = session.start_ms;
    std::vector<BlockRange> context;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const Turn& turn = turns[i];
      if (i > 0) time += turn.gap_ms;
      const std::uint32_t blocks = turn.input_tokens / frame_.block_tokens;
      if (i == 0) {
        StartContext(session.shared_variant, blocks, context);
      } else {
        Shorten(context, turn.kept_blocks);
      }
      const std::uint64_t fresh = blocks - Count(context);
      if (fresh > 0) context.push_back({next_block, next_block + fresh - 1});
      next_block += fresh;
      trace_.requests.push_back({.time_ms = time,
                                 .session = session.id,
                                 .parent = session.parent,
                                 .turn = static_cast<std::uint32_t>(i),
                                 .input_tokens = turn.input_tokens,
                                 .output_tokens = turn.output_tokens,
                                 .gap_ms = turn.gap_ms,
                                 .busy_ms = turn.busy_ms,
                                 .gap_kind = turn.gap_kind,
                                 .first_range = static_cast<std::uint32_t>(trace_.ranges.size())});
      for (const BlockRange& range : context) trace_.AppendRange(range);
      time += turn.busy_ms;
    }
    return time;
  }

 private:
  void StartContext(std::uint32_t variant, std::uint32_t blocks,
                    std::vector<BlockRange>& context) const {
    if (frame_.shared_variants == 0) return;
    const std::uint64_t shared = std::min(frame_.shared_tokens / frame_.block_tokens, blocks);
    const std::uint64_t first = std::uint64_t{variant} << kIdBits;
    if (shared > 0) context.push_back({first, first + shared - 1});
  }
  static std::uint64_t Count(const std::vector<BlockRange>& context) {
    std::uint64_t count = 0;
    for (const BlockRange& range : context) count += range.count();
    return count;
  }
  static void Shorten(std::vector<BlockRange>& context, std::uint64_t blocks) {
    for (std::size_t i = 0; i < context.size(); ++i) {
      if (context[i].count() >= blocks) {
        context[i].last = context[i].first + blocks - 1;
        context.resize(blocks == 0 ? i : i + 1);
        return;
      }
      blocks -= context[i].count();
    }
  }
  const Frame& frame_;
  Trace& trace_;
};

std::int64_t Length(const std::vector<Turn>& turns) {
  std::int64_t length = 0;
  for (const Turn& turn : turns) length += std::max<std::int64_t>(0, turn.gap_ms) + turn.busy_ms;
  return length;
}

/// The turns of a session's stream, or of its sub-agent's.
using TurnSource = std::function<std::vector<Turn>(std::uint64_t number, bool sub_agent)>;

Trace WriteTrace(const Frame& frame, std::uint64_t seed, std::uint32_t sessions,
                 const TurnSource& turns_of) {
  Trace trace;
  trace.name = frame.name + " preset, seed " + std::to_string(seed);
  trace.block_tokens = frame.block_tokens;
  Writer writer(frame, trace);
  double start_s = 0;
  for (std::uint64_t number = 0; number < sessions; ++number) {
    Random random(~seed, number);  // apart from the streams of the turns
    start_s += number == 0 ? 0 : random.Exponential(frame.mean_start_gap_s);
    Writer::Session session{.id = 1000 * number,
                            .next_block = FirstId(number, false),
                            .shared_variant = PickVariant(frame.shared_variants, random),
                            .start_ms = Milliseconds(start_s)};
    std::vector<Turn> turns = turns_of(number, false);
    std::int64_t before_ms = session.start_ms;
    for (Turn& turn : turns) {
      if (turn.spawns) {
        const std::vector<Turn> inner = turns_of(number, true);
        writer.Write({.id = session.id + 1,
                      .parent = static_cast<std::int64_t>(session.id),
                      .next_block = FirstId(number, true),
                      .shared_variant = session.shared_variant,
                      .start_ms = before_ms},
                     inner);
        turn.gap_ms = std::max(turn.gap_ms, Length(inner));
      }
      before_ms += std::max<std::int64_t>(0, turn.gap_ms) + turn.busy_ms;
    }
    writer.Write(session, turns);
  }
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const Request& a, const Request& b) { return a.time_ms < b.time_ms; });
  return trace;
}

}  // namespace

double Quantiles::At(double p) const noexcept {
  if (p <= points_[0].p) return points_[0].value;
  for (std::size_t i = 1; i < size_; ++i) {
    if (p > points_[i].p) continue;
    const Point& a = points_[i - 1];
    const Point& b = points_[i];
    const double share = (p - a.p) / (b.p - a.p);
    return std::exp(std::log(a.value) + share * (std::log(b.value) - std::log(a.value)));
  }
  return points_[size_ - 1].value;
}

std::vector<Turn> GenerateTurns(const CodingPreset& preset, std::uint64_t seed,
                                std::uint64_t number, bool sub_agent) {
  Random random(seed, 2 * number + (sub_agent ? 1 : 0));
  Waits waits(preset);
  const auto [turns_at, context_at] = CorrelatedPair(preset.turns_context_correlation, random);
  const double turns = (sub_agent ? preset.sub_agent_turns : preset.turns).At(turns_at);
  std::vector<Turn> result(static_cast<std::size_t>(std::max(1.0, std::round(turns))));
  double until_user = std::round(preset.turns_per_prompt.Sample(random));
  for (std::size_t i = 0; i < result.size(); ++i) {
    Turn& turn = result[i];
    if (i == 0) {
      turn.input_tokens =
          Round((sub_agent ? preset.sub_agent_context : preset.first_context).At(context_at));
    } else {
      // A sub-agent never waits for the user.
      const bool user = --until_user < 1 && !sub_agent;
      if (user) until_user = std::round(preset.turns_per_prompt.Sample(random));
      turn.gap_kind = user ? GapKind::kUser : GapKind::kTool;
      turn.gap_ms = Milliseconds(user ? waits.User(random) : waits.Tool(random));
      turn.added_tokens = Round((user ? preset.user_tokens : preset.tool_tokens).Sample(random));
      NextContext(preset, random, result[i - 1], turn);
    }
    turn.output_tokens = Round(preset.output_tokens.Sample(random));
    turn.busy_ms = Milliseconds(preset.server_s.Sample(random));
  }
  if (!sub_agent && result.size() > 1 && random.Chance(preset.sub_agent)) {
    Turn& turn = result[1 + random.Below(result.size() - 1)];
    turn.spawns = true;
    turn.gap_kind = GapKind::kTool;
  }
  return result;
}

std::vector<Turn> GenerateTurns(const AutonomousPreset& preset, std::uint64_t seed,
                                std::uint64_t number) {
  Random random(seed, 2 * number);
  const double turns = preset.turns.Sample(random);
  // Its own stream: the spread changes waits and nothing else.
  Random scale_random(seed ^ kScaleStream, number);
  const double scale = std::exp(preset.between_session_sd * scale_random.Normal());
  std::vector<Turn> result(static_cast<std::size_t>(std::max(1.0, std::round(turns))));
  for (std::size_t i = 0; i < result.size(); ++i) {
    Turn& turn = result[i];
    if (i == 0) {
      turn.input_tokens = Round(preset.first_context.Sample(random));
    } else {
      const Turn& last = result[i - 1];
      const double wait_s = std::min(preset.tool_cap_s, PickTool(preset, random).Sample(random));
      turn.gap_kind = GapKind::kTool;
      turn.gap_ms = Milliseconds(scale * wait_s);
      turn.input_tokens = last.input_tokens + last.output_tokens + turn.added_tokens;
      turn.kept_blocks = last.input_tokens / preset.block_tokens;
    }
    const double growth = preset.growth.Sample(random);
    turn.output_tokens = Round(growth * preset.output_share);
    if (i + 1 < result.size()) result[i + 1].added_tokens = Round(growth) - turn.output_tokens;
    turn.busy_ms = Milliseconds(preset.server_s.Sample(random));
  }
  return result;
}

std::vector<Turn> GenerateTurns(const ChatPreset& preset, std::uint64_t seed,
                                std::uint64_t number) {
  Random random(seed, 2 * number);
  const double turns = preset.turns.Sample(random);
  std::vector<Turn> result(static_cast<std::size_t>(std::max(1.0, std::round(turns))));
  for (std::size_t i = 0; i < result.size(); ++i) {
    Turn& turn = result[i];
    turn.output_tokens = Round(preset.output_tokens.Sample(random));
    turn.busy_ms = Milliseconds(turn.output_tokens * preset.decode_s);
    if (i == 0) {
      turn.input_tokens = Round(preset.first_context.Sample(random));
      continue;
    }
    const Turn& last = result[i - 1];
    const double arrival_s =
        std::min(preset.user_cap_s, std::exp(preset.user_mu + preset.user_sigma * random.Normal()));
    turn.gap_kind = GapKind::kUser;
    turn.gap_ms = std::max<std::int64_t>(0, Milliseconds(arrival_s) - last.busy_ms);
    // The next prompt may leave out some of the answer.
    const std::uint32_t growth = Round(preset.growth.Sample(random));
    turn.added_tokens = growth - std::min(growth, last.output_tokens);
    turn.input_tokens = last.input_tokens + growth;
    turn.kept_blocks = last.input_tokens / preset.block_tokens;
  }
  return result;
}

Trace GenerateTrace(const CodingPreset& preset, std::uint64_t seed, std::uint32_t sessions) {
  return WriteTrace(FrameOf("coding", preset), seed, sessions,
                    [&](std::uint64_t number, bool sub_agent) {
                      return GenerateTurns(preset, seed, number, sub_agent);
                    });
}

Trace GenerateTrace(const AutonomousPreset& preset, std::uint64_t seed, std::uint32_t sessions) {
  return WriteTrace(FrameOf("autonomous", preset), seed, sessions, [&](std::uint64_t number, bool) {
    return GenerateTurns(preset, seed, number);
  });
}

Trace GenerateTrace(const ChatPreset& preset, std::uint64_t seed, std::uint32_t sessions) {
  return WriteTrace(FrameOf("chat", preset), seed, sessions, [&](std::uint64_t number, bool) {
    return GenerateTurns(preset, seed, number);
  });
}

}  // namespace agent_replay
