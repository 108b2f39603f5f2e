// Scenarios of our own: waiters of different priority, and who gets what is freed.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/support/scenario_fixture.h"

namespace tidepool::testing {
namespace {

using enum Outcome;

constexpr How kLow{.priority = Priority::kNormal};
constexpr How kHigh{.priority = Priority::kCritical};

TEST(Scenario, EveryCachedBlockDirtyTwoWaitersTheCriticalOneFirst) {
  ScenarioFixture s({.hbm = 2, .dram = 4});
  s.Cache(Text(1, 8));
  EXPECT_EQ(s.Allocate("low", Text(2, 4), kLow), kBusy);
  EXPECT_EQ(s.Allocate("high", Text(3, 4), kHigh), kBusy);  // came second
  EXPECT_EQ(s.manager().table_sizes().demands, 2u);
  s.Poll();
  const std::vector<CopyRequest> copies = s.engine().InFlight();
  ASSERT_EQ(copies.size(), 2u);

  EXPECT_TRUE(s.engine().Finish(copies[0].id));
  EXPECT_EQ(s.Allocate("low", Text(2, 4), kLow), kBusy);  // the slot is not for it
  s.Poll();
  EXPECT_EQ(s.Allocate("low", Text(2, 4), kLow), kBusy);
  EXPECT_EQ(s.Allocate("high", Text(3, 4), kHigh), kOk);
  EXPECT_EQ(s.manager().table_sizes().demands, 1u);

  EXPECT_TRUE(s.engine().Finish(copies[1].id));
  s.Poll();
  EXPECT_EQ(s.Allocate("low", Text(2, 4), kLow), kOk);
  EXPECT_EQ(s.manager().table_sizes().demands, 0u);
  EXPECT_EQ(s.Counts(), "held 2");
  EXPECT_EQ(s.Probe(Text(1, 8)).tokens_by_tier[kLowerTier], 8u);
  EXPECT_EQ(s.manager().stats().dropped_dirty, 0u);
}

TEST(Scenario, ASlotGrantedToACriticalWaiterIsNotTakenByAnAppend) {
  ScenarioFixture s({.hbm = 2, .dram = 4});
  EXPECT_EQ(s.Allocate("running", Text(2, 4), kLow), kOk);
  EXPECT_EQ(s.Commit("running", 4), kOk);
  s.Cache(Text(1, 4));
  EXPECT_EQ(s.Allocate("high", Text(3, 4), kHigh), kBusy);
  s.Poll();
  s.engine().FinishAll();
  s.Poll();
  EXPECT_EQ(s.Append("running", {7}), kBusy);
  EXPECT_EQ(s.seq("running").tokens(), 4u);
  EXPECT_EQ(s.Allocate("high", Text(3, 4), kHigh), kOk);
}

TEST(Scenario, AWithdrawnOrLapsedDemandGivesItsSlotToTheNext) {
  for (const bool withdrawn : {true, false}) {
    ScenarioFixture s({.hbm = 1, .dram = 4});
    s.Cache(Text(1, 4));
    const Tokens prompt = Text(3, 4);
    const AdmitRequest high{.request = 77, .tokens = prompt, .priority = Priority::kCritical};
    EXPECT_EQ(s.manager().Admit(high).outcome, kBusy);
    s.Poll();
    s.engine().FinishAll();
    s.Poll();
    EXPECT_EQ(s.Allocate("low", Text(2, 4), kLow), kBusy);
    if (withdrawn) {
      s.manager().CancelDemand(77);
    } else {
      s.SetTime(AtSecond(3));
      s.Poll();
    }
    EXPECT_EQ(s.Allocate("low", Text(2, 4), kLow), kOk);
  }
}

}  // namespace
}  // namespace tidepool::testing
