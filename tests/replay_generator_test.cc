// The synthetic sessions of agent_replay: the same for the same seed, and like their sources.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "examples/agent_replay/generator.h"
#include "gtest/gtest.h"

namespace agent_replay {
namespace {

TEST(ReplayGenerator, SameSeedSameBytes) {
  const CodingPreset preset;
  const std::string once = FormatTrace(GenerateTrace(preset, 5, 12), "x");
  EXPECT_EQ(once, FormatTrace(GenerateTrace(preset, 5, 12), "x"));
  EXPECT_NE(once, FormatTrace(GenerateTrace(preset, 6, 12), "x"));
}

TEST(ReplayGenerator, IsReadBack) {
  const std::string text = FormatTrace(GenerateTrace(CodingPreset(), 5, 30), "x");
  const auto trace = ParseTrace(text, "t");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(FormatTrace(*trace, "x"), text);
}

TEST(ReplayGenerator, ALongerRunKeepsItsEarlierSessions) {
  const Trace small = GenerateTrace(CodingPreset(), 3, 10);
  const Trace large = GenerateTrace(CodingPreset(), 3, 20);
  std::size_t at = 0;
  for (const Request& r : large.requests) {
    if (r.session >= 10 * 1000) continue;
    ASSERT_LT(at, small.requests.size());
    const Request& s = small.requests[at++];
    EXPECT_EQ(r.session, s.session);
    EXPECT_EQ(r.time_ms, s.time_ms);
    EXPECT_TRUE(std::ranges::equal(large.RangesOf(r), small.RangesOf(s)));
  }
  EXPECT_EQ(at, small.requests.size());
}

TEST(ReplayGenerator, NoIdIsUsedForTwoPrefixes) {
  const Trace trace = GenerateTrace(CodingPreset(), 11, 60);
  std::unordered_map<std::uint64_t, std::uint64_t> before;  // id -> id before it
  for (const Request& request : trace.requests) {
    std::uint64_t last = ~std::uint64_t{0};
    ForEachBlock(trace, request, request.blocks, [&](std::uint64_t id) {
      ASSERT_EQ(before.try_emplace(id, last).first->second, last) << "id " << id;
      last = id;
    });
  }
}

TEST(ReplayGenerator, SessionsShareFourPrefixes) {
  const CodingPreset preset;
  const Trace trace = GenerateTrace(preset, 1, 200);
  std::unordered_map<std::uint64_t, int> first_blocks;
  for (const Request& r : trace.requests) {
    if (r.turn == 0 && r.parent < 0) ++first_blocks[trace.RangesOf(r)[0].first];
  }
  EXPECT_EQ(first_blocks.size(), 4u);
  int largest = 0;
  for (const auto& [id, count] : first_blocks) largest = std::max(largest, count);
  EXPECT_NEAR(largest, 200 / (1 + 1. / 2 + 1. / 3 + 1. / 4), 25);  // Zipf, s = 1
}

TEST(ReplayGenerator, ParentsIdleUntilTheirSubAgentsEnd) {
  const Trace trace = GenerateTrace(CodingPreset(), 2, 200);
  std::unordered_map<std::uint64_t, std::pair<std::int64_t, std::int64_t>> sub_agents;
  for (const Request& r : trace.requests) {
    if (r.parent < 0) continue;
    auto& [begin, end] =
        sub_agents.try_emplace(static_cast<std::uint64_t>(r.parent), r.time_ms, 0).first->second;
    end = r.time_ms + r.busy_ms;
  }
  EXPECT_NEAR(static_cast<double>(sub_agents.size()), 200 * 63. / 710, 12);
  for (const Request& r : trace.requests) {
    const auto found = sub_agents.find(r.session);
    if (found == sub_agents.end()) continue;
    const auto& [begin, end] = found->second;
    EXPECT_TRUE(r.time_ms + r.busy_ms <= begin || r.time_ms >= end) << r.session;
  }
}

double QuantileOf(std::vector<double>& values, double p) {
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(p * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

/// Medians within 10 %, p90 within 20 % of the sources' figures.
void ExpectLike(const char* what, std::vector<double> values, double p50, double p90) {
  EXPECT_NEAR(QuantileOf(values, .5), p50, .10 * p50) << what;
  EXPECT_NEAR(QuantileOf(values, .9), p90, .20 * p90) << what;
}

TEST(ReplayGenerator, IsLikeItsSources) {
  const CodingPreset preset;
  std::vector<double> turns, first, output, tool, user, server, tool_gap, user_gap;
  for (std::uint64_t number = 0; number < 2000; ++number) {
    const std::vector<Turn> session = GenerateTurns(preset, 1, number, false);
    turns.push_back(static_cast<double>(session.size()));
    first.push_back(session[0].input_tokens);
    for (const Turn& turn : session) {
      output.push_back(turn.output_tokens);
      server.push_back(static_cast<double>(turn.busy_ms) / 1000);
      if (turn.spawns || turn.gap_kind == GapKind::kFirst) continue;
      const bool is_tool = turn.gap_kind == GapKind::kTool;
      (is_tool ? tool : user).push_back(turn.added_tokens);
      (is_tool ? tool_gap : user_gap).push_back(static_cast<double>(turn.gap_ms) / 1000);
    }
  }
  ExpectLike("turns", turns, 36, 151);
  ExpectLike("first context", first, 24.8e3, 262e3);
  ExpectLike("output tokens", output, 219, 901);
  ExpectLike("tokens of a tool result", tool, 290, 2973);
  ExpectLike("tokens of a user turn", user, 166, 1600);
  ExpectLike("server time", server, 6.2, 18.5);
  // The mixture's own quantiles: its median lies near the fast part's exp(1.97 + 0.2 sigma).
  ExpectLike("tool wait", tool_gap, 9, 88);
  ExpectLike("user wait", user_gap, std::exp(4.97), std::exp(4.97 + 1.74 * 1.2816));
}

struct TurnValues {
  std::vector<double> turns, first, output, growth, gap, arrival_gap, tool_share;
  double single = 0;
};

template <typename Preset>
TurnValues ValuesOf(const Preset& preset, std::uint64_t sessions) {
  TurnValues v;
  for (std::uint64_t number = 0; number < sessions; ++number) {
    const std::vector<Turn> session = GenerateTurns(preset, 2, number);
    v.turns.push_back(static_cast<double>(session.size()));
    v.single += session.size() == 1 ? 1. / static_cast<double>(sessions) : 0;
    v.first.push_back(session[0].input_tokens);
    double waits = 0, busy = 0;
    for (std::size_t i = 0; i < session.size(); ++i) {
      v.output.push_back(session[i].output_tokens);
      busy += static_cast<double>(session[i].busy_ms);
      if (i == 0) continue;
      waits += static_cast<double>(session[i].gap_ms);
      v.growth.push_back(1. * session[i].input_tokens - session[i - 1].input_tokens);
      v.gap.push_back(static_cast<double>(session[i].gap_ms) / 1000);
      v.arrival_gap.push_back(static_cast<double>(session[i].gap_ms + session[i - 1].busy_ms) /
                              1000);
    }
    v.tool_share.push_back(waits / (waits + busy));
  }
  return v;
}

TEST(ReplayGenerator, AutonomousAgentsAreLikeTheirSources) {
  const TurnValues v = ValuesOf(AutonomousPreset(), 3000);
  ExpectLike("turns", v.turns, 45, 92);
  ExpectLike("first context", v.first, 13.4e3, 13.8e3);
  ExpectLike("growth", v.growth, 409, 1468);
  ExpectLike("tool wait", v.gap, 0.035, 9.3);
  double mean = 0;
  for (const double gap : v.gap) mean += gap / static_cast<double>(v.gap.size());
  EXPECT_NEAR(mean, 3.05, 0.3);
  std::vector<double> shares = v.tool_share;
  EXPECT_NEAR(QuantileOf(shares, .5), 0.36, 0.036);
}

TEST(ReplayGenerator, ChatIsLikeItsSources) {
  const TurnValues v = ValuesOf(ChatPreset(), 10'000);
  EXPECT_NEAR(v.single, 0.76, 0.01);
  ExpectLike("turns", v.turns, 1, 2);
  ExpectLike("first context", v.first, 7.3e3, 28e3);
  ExpectLike("output tokens", v.output, 356, 607);
  ExpectLike("growth", v.growth, 497, 4716);
  ExpectLike("arrival to arrival", v.arrival_gap, std::exp(4.85), std::exp(4.85 + 0.92 * 1.2816));
}

TEST(ReplayGenerator, TheSpreadBetweenSessionsScalesWaitsOnly) {
  AutonomousPreset spread;
  spread.between_session_sd = 1;
  std::vector<double> scales;
  for (std::uint64_t number = 0; number < 2000; ++number) {
    const std::vector<Turn> plain = GenerateTurns(AutonomousPreset(), 2, number);
    const std::vector<Turn> scaled = GenerateTurns(spread, 2, number);
    ASSERT_EQ(plain.size(), scaled.size());
    double before = 0, after = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(plain[i].input_tokens, scaled[i].input_tokens);
      EXPECT_EQ(plain[i].busy_ms, scaled[i].busy_ms);
      before += static_cast<double>(plain[i].gap_ms);
      after += static_cast<double>(scaled[i].gap_ms);
    }
    scales.push_back(std::log(after / before));
  }
  double squares = 0;
  for (const double scale : scales) squares += scale * scale / static_cast<double>(scales.size());
  EXPECT_NEAR(std::sqrt(squares), 1, 0.05);
}

TEST(ReplayGenerator, OtherPresetsMakeValidTraces) {
  for (const Trace& trace :
       {GenerateTrace(AutonomousPreset(), 5, 30), GenerateTrace(ChatPreset(), 5, 200)}) {
    const std::string text = FormatTrace(trace, "x");
    const auto read = ParseTrace(text, "t");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(FormatTrace(*read, "x"), text);
    std::unordered_map<std::uint64_t, std::uint64_t> before;  // id -> id before it
    for (const Request& request : trace.requests) {
      EXPECT_EQ(request.blocks, request.input_tokens / trace.block_tokens);
      std::uint64_t last = ~std::uint64_t{0};
      ForEachBlock(trace, request, request.blocks, [&](std::uint64_t id) {
        ASSERT_EQ(before.try_emplace(id, last).first->second, last) << "id " << id;
        last = id;
      });
    }
  }
}

TEST(ReplayGenerator, HitRatioOfAnInfiniteCache) {
  CodingPreset preset;
  preset.shared_variants = 0;
  const Trace trace = GenerateTrace(preset, 1, 200);
  std::unordered_set<std::uint64_t> seen;
  std::uint64_t hits = 0;
  for (const Request& request : trace.requests) {
    bool hit = true;
    ForEachBlock(trace, request, request.blocks, [&](std::uint64_t id) {
      hit = !seen.insert(id).second && hit;
      hits += hit ? 1 : 0;
    });
  }
  EXPECT_NEAR(static_cast<double>(hits) / static_cast<double>(PromptBlocks(trace)), 0.96, 0.01);
}

}  // namespace
}  // namespace agent_replay
