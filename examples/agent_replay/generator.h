// agent_replay/generator.h - synthetic sessions of a coding assistant: growing contexts, tool and
// user waits, compactions, broken prefixes, sub-agents, prefixes that sessions share.
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

/// `sessions` sessions and their sub-agents on one clock, sorted by arrival; one scope.
Trace GenerateTrace(const CodingPreset& preset, std::uint64_t seed, std::uint32_t sessions);

}  // namespace agent_replay
