// Failure scenarios S01-S08 and S11: allocation.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/scenario_fixture.h"

namespace tidepool::testing {
namespace {

using enum Outcome;

TEST(Scenario, S01FailedAdmissionKeepsHits) {
  ScenarioFixture s({.hbm = 6});
  const Tokens a = Text(1, 8);
  s.Cache(a);
  EXPECT_EQ(s.Allocate("X", Text(2, 12)), kOk);
  for (int attempt = 0; attempt < 10; ++attempt) {
    EXPECT_EQ(s.Allocate("R", Join(a, Text(3, 12))), kBusy);  // 2 hits + 3 fresh
    EXPECT_EQ(s.Counts(), "free 1, held 3, cached 2");
    for (BlockId block : s.Blocks(a)) EXPECT_EQ(s.manager().pool().holds(block), 0u);
  }
  EXPECT_EQ(s.Allocate("Y", Text(4, 12)), kOk);  // 1 free + 2 evicted
  EXPECT_EQ(s.Counts(), "held 6");
  EXPECT_EQ(s.Found(a), 0u);
}

TEST(Scenario, S01FailedAdmissionKeepsTheEvictionOrder) {
  ScenarioFixture s({.hbm = 5});
  const Tokens older = Text(1, 8);
  const Tokens newer = Text(2, 4);
  s.Cache(older);
  s.Cache(newer);
  EXPECT_EQ(s.Allocate("X", Text(3, 4)), kOk);
  EXPECT_EQ(s.Allocate("R", Join(older, Text(4, 12))), kBusy);  // 1 free + 1 evictable of 3
  EXPECT_EQ(s.Evict(1), 1u);
  EXPECT_EQ(s.Found(older), 4u);
  EXPECT_EQ(s.Found(newer), 4u);
}

TEST(Scenario, S02ReservationThatFailsHalfWay) {
  ScenarioFixture s({.hbm = 8});
  EXPECT_EQ(s.Allocate("fault", Text(9, 24)), kOk);  // the third fresh block cannot be had
  const PoolCounts before = s.manager().counts();
  EXPECT_EQ(before.free, 2u);
  EXPECT_EQ(s.Allocate("S", Text(1, 16)), kBusy);
  EXPECT_EQ(s.manager().counts(), before);
  EXPECT_FALSE(s.seq("S").alive());
  EXPECT_EQ(s.manager().table_sizes().sequences, 1u);
  EXPECT_EQ(s.Free("S"), kUnknownHandle);

  EXPECT_EQ(s.Free("fault"), kOk);
  EXPECT_EQ(s.Counts(), "free 8");
  EXPECT_EQ(s.Allocate("S", Text(1, 16)), kOk);
  EXPECT_EQ(s.Slots("S").size(), 4u);
  EXPECT_EQ(s.Counts(), "free 4, held 4");
}

TEST(Scenario, S03TheQuoteEqualsTheCharge) {
  ScenarioFixture s({.hbm = 16});
  std::mt19937_64 random(3);
  std::vector<std::string> live;
  std::uint32_t granted = 0;
  for (int i = 0; i < 200; ++i) {
    const auto n = static_cast<std::uint32_t>(1 + random() % 40);
    const Tokens tokens = Text(random() % 2 == 0 ? static_cast<int>(random() % 4) : 100 + i, n);
    const std::string name = "S" + std::to_string(i);
    const ProbeResult quote = s.Probe(tokens);
    const Outcome outcome = s.Allocate(name, tokens);
    EXPECT_EQ(quote.fit == Fit::kFits, outcome == kOk) << name;
    EXPECT_NE(quote.fit, Fit::kNeverFits);
    if (outcome == kOk) {
      const std::uint32_t blocks = (n + kBlockTokens - 1) / kBlockTokens;
      EXPECT_EQ(s.Slots(name).size(), blocks);
      EXPECT_EQ(quote.fresh_blocks, blocks - s.Hit(name) / kBlockTokens) << name;
      EXPECT_EQ(s.Commit(name, n), kOk);
      live.push_back(name);
      ++granted;
    } else {
      EXPECT_EQ(outcome, kBusy);
      s.CancelDemand(name);  // given up: nobody has to wait behind it
    }
    while (!live.empty() && (outcome != kOk || random() % 3 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      EXPECT_EQ(s.Free(live.back()), kOk);
      live.pop_back();
      if (random() % 2 == 0) break;
    }
  }
  EXPECT_GT(granted, 100u);
}

TEST(Scenario, S04AFullyCachedPromptStillLeavesSomethingToCompute) {
  for (const bool partial_tail : {false, true}) {
    ScenarioFixture s({.hbm = 8, .adjust = [partial_tail](ManagerOptions& options) {
                         options.match_partial_tail = partial_tail;
                       }});
    const Tokens prompt = Text(1, 8);
    s.Cache(prompt);
    EXPECT_EQ(s.Allocate("C", prompt), kOk);
    EXPECT_EQ(s.Hit("C"), partial_tail ? 7u : 4u);  // always below 8
    EXPECT_EQ(s.Commit("C", 8), kOk);
    EXPECT_EQ(s.Free("C"), kOk);
    EXPECT_EQ(s.Allocate("D", Join(prompt, Text(2, 4))), kOk);
    EXPECT_EQ(s.Hit("D"), 8u);
  }
}

TEST(Scenario, S05BlockArithmeticAtBoundaries) {
  struct Case {
    std::uint32_t tokens, blocks, in_last;
  };
  ScenarioFixture s({.hbm = 8});
  EXPECT_EQ(s.Allocate("S", {}), kInvalidArgument);  // nothing to compute
  EXPECT_EQ(s.Counts(), "free 8");
  for (const Case& c :
       {Case{1, 1, 1}, Case{3, 1, 3}, Case{4, 1, 4}, Case{5, 2, 1}, Case{8, 2, 4}, Case{9, 3, 1}}) {
    const Tokens tokens = Text(1, c.tokens);
    EXPECT_EQ(s.Allocate("direct", tokens), kOk);
    EXPECT_EQ(s.Allocate("appended", {tokens[0]}), kOk);
    for (std::uint32_t i = 1; i < c.tokens; ++i) EXPECT_EQ(s.Append("appended", {tokens[i]}), kOk);
    for (const char* name : {"direct", "appended"}) {
      EXPECT_EQ(s.Slots(name).size(), c.blocks) << c.tokens;
      EXPECT_EQ(s.seq(name).tokens() - (c.blocks - 1) * kBlockTokens, c.in_last);
      for (std::uint32_t i = 0; i < c.blocks; ++i) EXPECT_EQ(s.Holds(name, i), 1u);
    }
    EXPECT_EQ(s.Truncate("appended", 0), kOk);
    EXPECT_EQ(s.Slots("appended").size(), 0u);
    EXPECT_EQ(s.Free("direct"), kOk);
    EXPECT_EQ(s.Free("appended"), kOk);
    EXPECT_EQ(s.Counts(), "free 8");
  }
}

TEST(Scenario, S06ARequestThatCanNeverFit) {
  PolicyRecord record;
  ScenarioFixture s({.hbm = 4, .adjust = Recording(&record)});
  s.Cache(Text(9, 4));  // something that an eviction attempt would find
  EXPECT_EQ(s.Allocate("S", Text(1, 17)), kNeverFits);
  EXPECT_EQ(record.selections, 0u);
  EXPECT_EQ(s.Found(Text(9, 4)), 4u);
  EXPECT_EQ(s.manager().table_sizes().demands, 0u);

  EXPECT_EQ(s.Allocate("S", Text(1, 16)), kOk);
  record.selections = 0;
  EXPECT_EQ(s.Append("S", {7}), kNeverFits);
  EXPECT_EQ(record.selections, 0u);
  EXPECT_EQ(s.seq("S").tokens(), 16u);
  EXPECT_EQ(s.Counts(), "held 4");
}

TEST(Scenario, S07WindowedTableForkThenBothFreed) {
  ScenarioFixture s({.hbm = 6});
  const Tokens tokens = Text(1, 12);
  EXPECT_EQ(s.Allocate("A", tokens), kOk);
  EXPECT_EQ(s.Commit("A", 12), kOk);
  EXPECT_EQ(s.DropLeading("A", 1), kOk);
  EXPECT_EQ(s.seq("A").block_table().dropped, 1u);
  EXPECT_EQ(s.Fork("A", "C"), kOk);
  const std::vector<BlockId> blocks = s.Blocks(tokens);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(s.manager().pool().holds(blocks[0]), 0u);
  EXPECT_EQ(s.manager().pool().holds(blocks[1]), 2u);
  EXPECT_EQ(s.manager().pool().holds(blocks[2]), 2u);
  EXPECT_EQ(s.Counts(), "free 3, held 2, cached 1");
  EXPECT_EQ(s.Free("A"), kOk);
  EXPECT_EQ(s.Free("C"), kOk);
  EXPECT_EQ(s.Counts(), "free 3, cached 3");
  EXPECT_EQ(s.Evict(kAll), 3u);
  EXPECT_EQ(s.Counts(), "free 6");
}

TEST(Scenario, S08FreeCountersSurviveTierSwaps) {
  ScenarioFixture s({.hbm = 2, .dram = 2});
  std::uint32_t reused = 0;
  for (int i = 0; i < 1000; ++i) {
    Tokens tokens = Text(i, 4);
    for (int j = i - 1; i % 3 == 2 && j >= 0 && j > i - 8; --j) {
      if (s.Probe(Text(j, 4)).tokens_by_tier[kLowerTier] == 0) continue;
      tokens = Join(Text(j, 4), {i});
      ++reused;
      break;
    }
    ASSERT_EQ(s.AllocatePatiently("S", tokens), kOk) << i;
    s.Settle();
    EXPECT_EQ(s.Commit("S", static_cast<std::uint32_t>(tokens.size())), kOk);
    EXPECT_EQ(s.Free("S"), kOk);
    EXPECT_LE(s.free_slots(), 2u);
    EXPECT_LE(s.manager().used_slots(kLowerTier), 2u);
  }
  EXPECT_GT(reused, 200u);
  EXPECT_TRUE(s.manager().Clear().ok());
  EXPECT_EQ(s.Counts(), "free 2");
  EXPECT_EQ(s.manager().used_slots(kLowerTier), 0u);
}

TEST(Scenario, S11AVictimOnceIsNotTheVictimAgain) {
  ScenarioFixture s({.hbm = 4});
  const Tokens a = Text(1, 8);
  const Tokens c = Text(2, 8);
  EXPECT_EQ(s.Allocate("A", a, {.session = 1}), kOk);
  EXPECT_EQ(s.Allocate("C", c, {.session = 2}), kOk);
  for (const char* name : {"A", "C"}) {
    EXPECT_EQ(s.Commit(name, 8), kOk);
    EXPECT_EQ(s.Idle(name, std::chrono::seconds(60)), kOk);
  }
  EXPECT_EQ(s.Allocate("N", Text(3, 8)), kOk);
  ASSERT_EQ(s.Found(a), 0u);
  EXPECT_EQ(s.Free("N"), kOk);

  EXPECT_EQ(s.Resume("A"), kOk);
  EXPECT_EQ(s.Commit("A", 8), kOk);
  EXPECT_EQ(s.Idle("A", std::chrono::seconds(60)), kOk);
  EXPECT_EQ(s.Found(c), 8u);
  EXPECT_EQ(s.Allocate("N", Text(4, 8)), kOk);
  EXPECT_EQ(s.Found(a), 8u);
  EXPECT_EQ(s.Found(c), 0u);
}

TEST(Scenario, S11TheLowerPriorityLosesWhoeverCameFirst) {
  for (const bool low_first : {true, false}) {
    ScenarioFixture s({.hbm = 4});
    const Tokens low = Text(1, 8);
    const Tokens high = Text(2, 8);
    const auto add = [&s](const Tokens& tokens, SessionId session, Priority priority) {
      const std::string name = "S" + std::to_string(session.value());
      EXPECT_EQ(s.Allocate(name, tokens, {.session = session, .priority = priority}), kOk);
      EXPECT_EQ(s.Commit(name, 8), kOk);
      EXPECT_EQ(s.Idle(name, std::chrono::seconds(session.value() * 30)), kOk);
    };
    if (low_first) add(low, 2, Priority::kBackground);
    add(high, 1, Priority::kCritical);
    if (!low_first) add(low, 2, Priority::kBackground);
    EXPECT_EQ(s.Allocate("N", Text(3, 8)), kOk);
    EXPECT_EQ(s.Found(low), 0u);
    EXPECT_EQ(s.Found(high), 8u);
  }
}

}  // namespace
}  // namespace tidepool::testing
