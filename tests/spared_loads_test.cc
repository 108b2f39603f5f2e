// AdmitRequest::recompute_if_sooner: the split between loading and computing is the best of all
// splits, HBM's hits stay, and what is computed although a tier has it is right and found again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "tests/support/scenario_fixture.h"

namespace tidepool::testing {
namespace {

using enum Outcome;

constexpr std::uint32_t kBlocks = 6;
constexpr std::uint64_t kBytes = kBlockTokens * 16;  // of a block of one layer

struct Case {
  const char* what;
  double c0, c1;             // seconds of a block, and more per token before it
  double blocks_per_second;  // up
  std::uint32_t queued;      // loads of others in front
};

// Six blocks in DRAM only, `queued` others on their way up.
struct Waiting {
  explicit Waiting(const Case& c)
      : s({.hbm = 24, .dram = 24, .adjust = [&](ManagerOptions& o) {
             o.recompute = {.c0_seconds = c.c0, .c1_seconds_per_token = c.c1};
           }}) {
    s.Store(text);
    if (c.queued != 0) {
      s.Store(other);
      EXPECT_EQ(s.Allocate("Q", Join(other, {7})), kOk);
    }
    s.engine().SetLink(1, 0, c.blocks_per_second * static_cast<double>(kBytes), Duration(0));
    s.Poll();
  }
  const Tokens text = Text(1, kBlocks* kBlockTokens);
  const Tokens other = Text(2, 4 * kBlockTokens);
  ScenarioFixture s;
};

// The best of all splits by the model's own words, in exact arithmetic on small numbers.
std::uint32_t BestSplit(const Case& c) {
  double best = 0;
  std::uint32_t split = 0;
  for (std::uint32_t m = 0; m <= kBlocks; ++m) {
    double seconds = m == 0 ? 0 : (c.queued + m) / c.blocks_per_second;
    for (std::uint32_t i = m; i < kBlocks; ++i) seconds += c.c0 + c.c1 * i * kBlockTokens;
    if (m == 0 || seconds <= best) {
      best = seconds;
      split = m;
    }
  }
  return split;
}

TEST(SparedLoads, TheSplitIsTheBestOfAll) {
  const Case cases[] = {
      {"loading is fast", 1, 0, 8, 0},
      {"computing is fast", 1, 0, .5, 0},
      {"the link is busy", 1, 0, 1.125, 4},
      {"not busy enough", 1, 0, 4, 4},
      {"computing gets dearer with the position", .125, .125, 1, 0},
      {"so only a long prefix is worth a busy link", .125, .125, 1, 4},
  };
  std::uint32_t all = 0;
  std::uint32_t none = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Waiting w(c);
    const std::uint32_t split = BestSplit(c);
    all += split == kBlocks ? 1 : 0;
    none += split == 0 ? 1 : 0;
    const Tokens prompt = Join(w.text, {9});
    const auto prompt_tokens = static_cast<std::uint32_t>(prompt.size());
    EXPECT_EQ(w.s.Allocate("A", prompt, {.recompute_if_sooner = true}), kOk);
    EXPECT_EQ(w.s.admission("A").loading_tokens, split * kBlockTokens);
    EXPECT_EQ(w.s.admission("A").recompute_tokens, prompt_tokens - split * kBlockTokens);
    EXPECT_EQ(w.s.manager().stats().spared_loads, kBlocks - split);
    w.s.Settle();
    EXPECT_EQ(w.s.Commit("A", prompt_tokens), kOk);  // the fixture compares the bytes
    EXPECT_EQ(w.s.Free("A"), kOk);
    EXPECT_EQ(w.s.Allocate("B", prompt), kOk);
    EXPECT_EQ(w.s.Hit("B"), kBlocks * kBlockTokens);
    w.s.Settle();
  }
  EXPECT_GE(all, 1u);
  EXPECT_GE(none, 1u);
}

// The beginning in DRAM, the rest in a slow NVMe: the one is loaded, the other computed.
TEST(SparedLoads, ASlowTierBehindAFastOne) {
  ScenarioFixture s({.hbm = 8, .dram = 6, .nvme = 24, .adjust = [](ManagerOptions& o) {
                       o.recompute = {.c0_seconds = 1, .c1_seconds_per_token = 0};
                     }});
  const Tokens text = Text(1, kBlocks * kBlockTokens);
  s.Store(text);
  s.Cache(Text(2, 8 * kBlockTokens));
  // Room in HBM is made by copies into DRAM, and there by copies of the coldest into NVMe.
  EXPECT_EQ(s.AllocatePatiently("X", Text(3, 3 * kBlockTokens)), kOk);
  EXPECT_EQ(s.Free("X"), kOk);
  s.Settle();
  const auto tier = [&](std::uint32_t i) {
    return s.manager().pool().best_tier(s.Blocks(text)[i]);
  };
  s.engine().SetLink(1, 0, 8 * static_cast<double>(kBytes), Duration(0));
  s.engine().SetLink(2, 0, .25 * static_cast<double>(kBytes), Duration(0));
  Outcome outcome = kBusy;
  std::uint32_t in_dram = 0;
  for (int round = 0; round < 8 && outcome == kBusy; ++round) {
    s.Poll();
    s.engine().FinishAll();
    s.Poll();
    for (in_dram = 0; in_dram < kBlocks && tier(in_dram) == 1;) ++in_dram;
    outcome = s.Allocate("A", Join(text, {9}), {.recompute_if_sooner = true});
  }
  ASSERT_EQ(outcome, kOk);
  EXPECT_GT(in_dram, 0u);
  EXPECT_LT(in_dram, kBlocks);
  EXPECT_EQ(s.admission("A").loading_tokens, in_dram * kBlockTokens);
  EXPECT_EQ(s.manager().stats().spared_loads, kBlocks - in_dram);
  s.Settle();
}

TEST(SparedLoads, NothingIsSparedUnasked) {
  const Case slow = {"", 1, 0, .5, 0};
  const Case unknown = {"", 0, 0, .5, 0};
  for (const bool asked : {false, true}) {
    Waiting w(asked ? unknown : slow);  // asked, but nobody has said what computing costs
    EXPECT_EQ(w.s.Allocate("A", Join(w.text, {9}), {.recompute_if_sooner = asked}), kOk);
    EXPECT_EQ(w.s.admission("A").loading_tokens, kBlocks * kBlockTokens);
    EXPECT_EQ(w.s.manager().stats().spared_loads, 0u);
    w.s.Settle();
  }
}

// What HBM has, and what is on its way there already, is never given up.
TEST(SparedLoads, HitsInHbmStay) {
  Waiting w({"", 1, 0, .01, 0});
  const auto leading = std::span(w.text).first(2 * kBlockTokens);
  EXPECT_EQ(w.s.Allocate("first", Join({leading.begin(), leading.end()}, {9})), kOk);
  EXPECT_EQ(w.s.Hit("first"), 2 * kBlockTokens);
  EXPECT_EQ(w.s.Allocate("A", Join(w.text, {9}), {.recompute_if_sooner = true}), kOk);
  EXPECT_EQ(w.s.Hit("A"), 2 * kBlockTokens);
  EXPECT_EQ(w.s.manager().stats().spared_loads, kBlocks - 2);
  w.s.Settle();
}

}  // namespace
}  // namespace tidepool::testing
