// agent_replay/generator.h - synthetic sessions, as three presets: a coding assistant (growing
// contexts, tool and user waits, compactions, broken prefixes, sub-agents), an autonomous agent
// (tool waits by kind of tool) and chat (few turns). Sessions share prefixes.
//
// Each session has a random stream of its own, split from the seed by the session's number, so that
// a longer run keeps its earlier sessions. No block id is ever used for two prefixes.
//
// Thread contract: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "random.h"
#include "trace.h"

namespace agent_replay {

/// A distribution given by quantiles: value[i] at probability p[i]. Sampled by the inverse CDF,
/// log-linear between the points and constant outside.
class Quantiles {
 public:
  static constexpr std::size_t kMax = 10;
  struct Point {
    double p;
    double value;  ///< > 0
  };
  template <std::size_t kCount>
  constexpr explicit Quantiles(const Point (&points)[kCount]) : size_(kCount) {
    static_assert(kCount <= kMax);
    for (std::size_t i = 0; i < kCount; ++i) points_[i] = points[i];
  }
  [[nodiscard]] double At(double p) const noexcept;
  [[nodiscard]] double Sample(Random& random) const noexcept { return At(random.Uniform()); }

 private:
  std::array<Point, kMax> points_{};
  std::size_t size_;
};

/// Parameters of the coding assistant. Source of every figure unless said otherwise: 472 sessions
/// of callanjfox/kv-cache-tester traces/ (commit 94f6046dfd9c, Apache-2.0), as measured there.
struct CodingPreset {
  /// Session starts: Poisson. Free parameter, sets the load.
  double mean_start_gap_s = 60;
  std::uint32_t block_tokens = 64;

  Quantiles turns{{{.01, 4},
                   {.10, 7},
                   {.25, 13},
                   {.50, 36},
                   {.75, 88},
                   {.90, 151},
                   {.95, 231},
                   {.99, 346},
                   {.999, 514}}};
  Quantiles first_context{{{.01, 9.8e3},
                           {.10, 15.5e3},
                           {.25, 18.5e3},
                           {.50, 24.8e3},
                           {.75, 108e3},
                           {.90, 262e3},
                           {.95, 408e3},
                           {.99, 720e3},
                           {.999, 852e3}}};
  /// Sessions that start with a large context have fewer turns: Spearman's rank correlation -0.30.
  double turns_context_correlation = -0.313;  ///< of the Gaussian copula, 2 sin(pi/6 x -0.30)
  Quantiles output_tokens{{{.01, 59},
                           {.10, 107},
                           {.25, 139},
                           {.50, 219},
                           {.75, 430},
                           {.90, 901},
                           {.95, 1566},
                           {.99, 3643},
                           {.999, 7385}}};
  /// What a tool result adds beyond the output before it; at least 0 in the source.
  Quantiles tool_tokens{{{0, 1},
                         {.25, 47},
                         {.50, 290},
                         {.75, 999},
                         {.90, 2973},
                         {.95, 5582},
                         {.99, 16.5e3},
                         {.999, 65e3}}};
  Quantiles user_tokens{
      {{0, 1}, {.25, 52}, {.50, 166}, {.75, 520}, {.90, 1600}, {.95, 3121}, {.99, 12.4e3}}};
  Quantiles turns_per_prompt{{{.50, 1}, {.75, 5}, {.90, 18}, {.99, 81}}};

  /// Tool wait in seconds: a mixture of two log-normals whose log deviation follows an AR(1).
  double tool_fast_share = 0.70;
  double tool_fast_mu = 1.97, tool_fast_sigma = 0.54;
  double tool_slow_mu = 3.80, tool_slow_sigma = 1.52;
  double tool_rho = 0.20, tool_cap_s = 14'400;
  double user_mu = 4.97, user_sigma = 1.74, user_cap_s = 86'400;
  Quantiles server_s{{{.01, 2.3},
                      {.10, 3.4},
                      {.25, 4.3},
                      {.50, 6.2},
                      {.75, 10.5},
                      {.90, 18.5},
                      {.95, 28.8},
                      {.99, 61},
                      {.999, 127}}};

  /// Per turn. A compaction shrinks the context and keeps some of the old blocks as prefix; a deep
  /// break keeps a prefix and rewrites the rest; a tail rewrite replaces the last blocks.
  /// Compactions come with context: 0.0041 on average, as in those sessions split at 100k, 150k and
  /// 200k tokens of context.
  std::array<double, 4> compaction = {.0008, .0044, .031, .0020};
  Quantiles compaction_size{{{.10, .16}, {.50, .25}, {.90, .49}}};
  double compaction_keep_min = 0.08, compaction_keep_max = 0.13;
  double deep_break = 0.0130;
  Quantiles deep_break_keep{{{.10, .01}, {.25, .05}, {.50, .11}, {.75, .18}, {.90, .34}}};
  double tail_rewrite = 0.0088;
  Quantiles tail_rewrite_blocks{{{.10, 2}, {.50, 2}, {.75, 3}, {.90, 7}}};
  /// The block before the new part is replaced: 1,334 of 32,791 turns of the same sessions.
  double last_block_rewrite = 0.0407;
  /// Assumed: a window of 1M tokens; a longer context is compacted at once.
  double max_context = 1'000'000;

  /// 63 sub-agents in 710 sessions; the parent idles until it ends. The first context is that of
  /// the few in the part named above.
  double sub_agent = 63.0 / 710;
  Quantiles sub_agent_turns{{{.10, 5}, {.50, 11}, {.90, 18}, {.99, 24}}};
  Quantiles sub_agent_context{{{.10, 9.5e3}, {.50, 10.2e3}, {.90, 18.2e3}}};

  /// System prompt and tools at the start of each context: 12.4k + 2.8k tokens at the median, equal
  /// for all sessions of a tenant. Assumed: 4 variants, Zipf with s = 1. 0 variants: nothing
  /// shared.
  std::uint32_t shared_tokens = 15'200;
  std::uint32_t shared_variants = 4;
};

/// Waits for one kind of tool.
struct ToolKind {
  double share = 0;  ///< of the calls
  Quantiles seconds;
};

/// Parameters of an autonomous software agent. Source of every figure unless said otherwise: the
/// 111 sessions of agentcgroup with a local Qwen model, as measured there. Nobody answers but
/// tools.
struct AutonomousPreset {
  double mean_start_gap_s = 60;  ///< Poisson; free, sets the load
  std::uint32_t block_tokens = 64;

  Quantiles turns{{{.10, 18}, {.50, 45}, {.90, 92}, {.99, 135}}};
  Quantiles first_context{{{.10, 13.2e3}, {.50, 13.4e3}, {.90, 13.8e3}, {.99, 14.6e3}}};
  /// Of the context in one turn, output included.
  Quantiles growth{{{.10, 114}, {.50, 409}, {.90, 1468}, {.99, 10.0e3}}};
  /// Assumed: how much of the growth is output.
  double output_share = 0.5;

  /// Medians, p90 and p99 as measured; lower points from the log-normals fitted to the same calls.
  /// Assumed: p75 of git and of other shell calls, which are either instant or take seconds.
  std::array<ToolKind, 11> tools{{
      {.138, Quantiles({{.10, .61}, {.50, 8.0}, {.90, 13.4}, {.99, 79}, {.999, 121}})},   // tests
      {.171, Quantiles({{.01, .02}, {.10, .17}, {.50, 7.4}, {.90, 10.3}, {.99, 16.9}})},  // python
      {.035, Quantiles({{.10, 1.8}, {.50, 7.7}, {.90, 15.3}, {.99, 42}})},                // install
      {.067, Quantiles({{.10, .005}, {.50, .03}, {.75, .06}, {.90, 7.5}, {.99, 14}})},    // git
      {.095,
       Quantiles(
           {{.10, .004}, {.50, .03}, {.75, .06}, {.90, 7.8}, {.99, 15}})},      // other shell calls
      {.192, Quantiles({{.10, .006}, {.50, .013}, {.90, .041}, {.99, .054}})},  // read
      {.099, Quantiles({{.10, .013}, {.50, .024}, {.90, .053}, {.99, .076}})},  // edit
      {.079, Quantiles({{.10, .013}, {.50, .023}, {.90, .047}, {.99, .059}})},  // grep
      {.078, Quantiles({{.10, .006}, {.50, .013}, {.90, .041}, {.99, .051}})},  // to-do list
      {.045, Quantiles({{.10, .014}, {.50, .027}, {.90, .05}, {.99, .1}})},     // glob, write
      {.001, Quantiles({{.10, 7.8}, {.50, 14.3}, {.90, 26}})},                  // web fetch
  }};
  double tool_cap_s = 121;  ///< the tools' time limit
  /// Ours, not measured: log-sd of the sessions' time scales, by which each multiplies its waits.
  double between_session_sd = 0;
  /// Assumed: makes tools 0.36 of a session's time at the median, as measured.
  Quantiles server_s{{{.10, 2.7}, {.50, 4.9}, {.90, 9.3}}};

  /// The first context is almost constant: one prefix for the one set of tools.
  std::uint32_t shared_tokens = 13'200;
  std::uint32_t shared_variants = 1;
};

/// Parameters of chat. Source of every figure unless said otherwise: the conversation trace of
/// Mooncake (first 60 %), sessions inferred from prefixes.
struct ChatPreset {
  double mean_start_gap_s = 60;  ///< Poisson; free, sets the load
  std::uint32_t block_tokens = 512;

  /// 0.76 of the sessions have one turn.
  Quantiles turns{{{.76, 1}, {.7601, 1.6}, {.90, 2.4}, {.99, 6}}};
  Quantiles first_context{{{.10, 973}, {.50, 7.3e3}, {.90, 28e3}, {.99, 90e3}}};
  Quantiles output_tokens{{{.10, 24}, {.50, 356}, {.90, 607}, {.99, 1170}}};
  /// Of the context in one turn, output included.
  Quantiles growth{{{.10, 105}, {.50, 497}, {.90, 4716}, {.99, 19.2e3}}};
  /// From one arrival to the next; the source sees no more than an hour, so these are too short.
  double user_mu = 4.85, user_sigma = 0.92, user_cap_s = 3600;
  double decode_s = 0.025;  ///< assumed: server time of an output token

  /// Most sessions share their first block.
  std::uint32_t shared_tokens = 512;
  std::uint32_t shared_variants = 1;
};

/// One turn before it has blocks and an absolute time.
struct Turn {
  std::int64_t gap_ms = -1;
  std::int64_t busy_ms = 0;
  GapKind gap_kind = GapKind::kFirst;
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0;
  std::uint32_t added_tokens = 0;  ///< by the tool or the user, beyond the output before it
  std::uint32_t kept_blocks = 0;   ///< leading blocks equal to the previous turn's; 0 in turn 0
  bool spawns = false;             ///< its gap waits for a sub-agent
};

/// The turns of session `number`; stream 0 is the session's, stream 1 its sub-agent's.
std::vector<Turn> GenerateTurns(const CodingPreset& preset, std::uint64_t seed,
                                std::uint64_t number, bool sub_agent);

std::vector<Turn> GenerateTurns(const AutonomousPreset& preset, std::uint64_t seed,
                                std::uint64_t number);
std::vector<Turn> GenerateTurns(const ChatPreset& preset, std::uint64_t seed, std::uint64_t number);

/// `sessions` sessions and their sub-agents on one clock, sorted by arrival; one scope.
Trace GenerateTrace(const CodingPreset& preset, std::uint64_t seed, std::uint32_t sessions);
Trace GenerateTrace(const AutonomousPreset& preset, std::uint64_t seed, std::uint32_t sessions);
Trace GenerateTrace(const ChatPreset& preset, std::uint64_t seed, std::uint32_t sessions);

}  // namespace agent_replay
