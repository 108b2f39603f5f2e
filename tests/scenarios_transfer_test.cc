// Failure scenarios S44-S49: waiting for transfers, sharing them, and coming back during one.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "tests/support/scenario_fixture.h"

namespace tidepool::testing {
namespace {

using enum Outcome;

std::size_t CopiesTo(ScenarioFixture& s, TierIndex tier) {
  return static_cast<std::size_t>(
      std::ranges::count(s.engine().submitted(), tier, &CopyRequest::to));
}

TEST(Scenario, S44WaitingForMemoryThatCannotCome) {
  PolicyRecord record;
  ScenarioFixture s({.hbm = 3, .dram = 1, .adjust = Recording(&record)});
  EXPECT_EQ(s.Allocate("pinned", Text(1, 12)), kOk);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(s.Allocate("S", Text(2, 4)), kBusy);
  s.Poll();
  EXPECT_LE(record.selections, 2u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST(Scenario, S45FinishedTransfersAreNoticedWhenMemoryIsNeeded) {
  ScenarioFixture s({.hbm = 4, .dram = 4});
  const Tokens chain = Text(1, 16);
  s.Cache(chain);
  EXPECT_EQ(s.Offload(chain).accepted, 4u);
  EXPECT_EQ(s.Counts(), "moving 4");
  s.engine().FinishAll();  // and nobody polls
  EXPECT_EQ(s.Allocate("BIG", Text(2, 20)), kNeverFits);
  EXPECT_EQ(s.Allocate("N", Text(3, 8)), kOk);
}

TEST(Scenario, S46CleanBlocksAreNotRewritten) {
  ScenarioFixture s({.hbm = 2, .nvme = 2});
  const Tokens b = Text(1, 4);
  s.Store(b);
  EXPECT_EQ(s.manager().stats().bytes_in[kLowerTier], s.manager().block_bytes());
  for (const bool by_pressure : {false, true}) {
    EXPECT_EQ(s.Allocate("R", Join(b, {7})), kOk);
    EXPECT_EQ(s.admission("R").loading_tokens, 4u);
    s.Settle();
    EXPECT_EQ(s.Free("R"), kOk);
    if (by_pressure) {
      EXPECT_EQ(s.Allocate("X", Text(2, 8)), kOk);
    } else {
      EXPECT_EQ(s.Evict(1), 1u);
    }
    EXPECT_EQ(s.Probe(b).tokens_by_tier[kLowerTier], 4u);
  }
  s.Settle();
  EXPECT_EQ(s.manager().stats().bytes_in[kLowerTier], s.manager().block_bytes());
  EXPECT_EQ(CopiesTo(s, kLowerTier), 1u);
  EXPECT_TRUE(s.Stored(kLowerTier, b, 0));
}

TEST(Scenario, S47SeveralRequestsOneLoad) {
  ScenarioFixture s({.hbm = 6, .dram = 2});
  const Tokens k = Text(1, 4);
  s.Store(k);
  EXPECT_EQ(s.Allocate("R1", Join(k, {1})), kOk);
  EXPECT_EQ(s.Allocate("R2", Join(k, {2})), kOk);
  EXPECT_EQ(s.Allocate("R3", Join(k, {3})), kOk);
  EXPECT_EQ(s.admission("R3").loading_tokens, 4u);
  EXPECT_EQ(s.Free("R1"), kOk);
  EXPECT_EQ(s.ticket("R2").Ready(), kPending);
  s.engine().FinishAll();
  s.Poll();
  EXPECT_EQ(s.ticket("R2").Ready(), kOk);
  EXPECT_EQ(s.ticket("R3").Ready(), kOk);
  EXPECT_EQ(CopiesTo(s, kHbmTier), 1u);
  EXPECT_EQ(s.manager().stats().loads_joined, 2u);
  EXPECT_EQ(s.Holds("R2", 0), 2u);
}

TEST(Scenario, S48ZeroOfZeroIsNotFinished) {
  ScenarioFixture s({.hbm = 6, .dram = 4, .layers = 2});
  const Tokens chain = Text(1, 12);
  s.Store(chain);
  EXPECT_EQ(s.Probe(chain).loading_tokens, 0u);
  EXPECT_EQ(s.Allocate("R", Join(chain, {7})), kOk);
  EXPECT_EQ(s.ticket("R").Ready(), kPending);  // before a single byte has moved
  EXPECT_EQ(s.ticket("R").Ready(0), kPending);
  EXPECT_EQ(s.Probe(chain).loading_tokens, 12u);
  const std::vector<CopyRequest> loads = s.engine().InFlight();
  ASSERT_EQ(loads.size(), 3u);
  for (const CopyRequest& load : loads) {
    EXPECT_EQ(s.ticket("R").Ready(0), kPending);
    EXPECT_TRUE(s.engine().Progress(load.id, 1));
    s.Poll();
  }
  EXPECT_EQ(s.ticket("R").Ready(0), kOk);  // the first layer of all three
  for (const CopyRequest& load : loads) {
    EXPECT_EQ(s.ticket("R").Ready(), kPending);
    EXPECT_TRUE(s.engine().Finish(load.id));
    s.Poll();
  }
  EXPECT_EQ(s.ticket("R").Ready(), kOk);

  EXPECT_EQ(s.Allocate("none", Text(2, 4)), kOk);
  EXPECT_EQ(s.admission("none").loading_tokens, 0u);
  EXPECT_EQ(s.ticket("none").Ready(), kOk);
  const KvCacheManager::OffloadResult prefetch = s.Onboard(Text(3, 4));
  EXPECT_EQ(prefetch.outcome, kNotFound);
  EXPECT_EQ(prefetch.accepted, 0u);
}

TEST(Scenario, S48APrefetchIsPendingUntilItsBlocksAreThere) {
  ScenarioFixture s({.hbm = 4, .dram = 4});
  const Tokens chain = Text(1, 12);
  s.Store(chain);
  const KvCacheManager::OffloadResult prefetch = s.Onboard(chain);
  EXPECT_EQ(prefetch.outcome, kOk);
  EXPECT_EQ(prefetch.accepted, 3u);
  EXPECT_EQ(s.Counts(), "free 1, moving 3");
  EXPECT_EQ(s.Probe(chain).loading_tokens, 12u);
  s.Settle();
  EXPECT_EQ(s.Probe(chain).loading_tokens, 0u);
  EXPECT_EQ(s.Probe(chain).tokens_by_tier[kHbmTier], 12u);
  EXPECT_EQ(s.Counts(), "free 1, cached 3");
}

TEST(Scenario, S49TheSessionReturnsWhileBeingMovedOut) {
  ScenarioFixture s({.hbm = 3, .dram = 3});
  const Tokens chain = Text(1, 8);
  EXPECT_EQ(s.Allocate("S", chain, {.session = 1}), kOk);
  EXPECT_EQ(s.Commit("S", 8), kOk);
  EXPECT_EQ(s.Idle("S"), kOk);
  EXPECT_EQ(s.Allocate("X", Text(2, 12)), kBusy);
  s.Poll();  // write-back for X
  ASSERT_EQ(CopiesTo(s, kLowerTier), 2u);

  EXPECT_EQ(s.Resume("S"), kOk);
  EXPECT_EQ(s.admission("S").ready_tokens, 8u);
  EXPECT_EQ(s.Append("S", {7}), kOk);
  EXPECT_EQ(s.Commit("S", 9), kOk);
  s.engine().FinishAll();
  s.Poll();
  EXPECT_EQ(s.Counts(), "held 3");
  EXPECT_FALSE(s.seq("S").paused());
  for (std::uint32_t block = 0; block < 2; ++block) {
    EXPECT_TRUE(s.Stored(kHbmTier, chain, block));
    EXPECT_TRUE(s.Stored(kLowerTier, chain, block));
    EXPECT_TRUE(s.manager().pool().Clean(s.Blocks(chain)[block], kHbmTier));
  }
}

TEST(Scenario, S49AppendDoesNotTouchAPartialTailUnderCopy) {
  ScenarioFixture s({.hbm = 4, .dram = 4});
  EXPECT_EQ(s.Allocate("S", Text(1, 6), {.session = 1}), kOk);
  EXPECT_EQ(s.Commit("S", 6), kOk);
  const SlotId tail = s.Slots("S")[1];
  EXPECT_EQ(s.Preempt("S", PreemptMode::kOffload), kOk);
  s.Poll();
  ASSERT_FALSE(s.engine().InFlight().empty());
  EXPECT_EQ(s.Resume("S"), kOk);
  EXPECT_EQ(s.admission("S").ready_tokens, 6u);
  EXPECT_EQ(s.Append("S", {7}), kOk);
  EXPECT_EQ(s.Commit("S", 7), kOk);
  EXPECT_NE(s.Slots("S")[1], tail);
  s.Settle();  // the engine would report a source that changed
  EXPECT_EQ(s.seq("S").committed(), 7u);
  EXPECT_EQ(s.manager().counts().held, 2u);
}

TEST(Scenario, S47AFailedLoadOfAPreemptedTailFreesItOnce) {
  ScenarioFixture s({.hbm = 4, .dram = 4});
  EXPECT_EQ(s.Allocate("S", Text(1, 6), {.session = 1}), kOk);
  EXPECT_EQ(s.Commit("S", 6), kOk);
  EXPECT_EQ(s.Preempt("S", PreemptMode::kOffload), kOk);
  s.Settle();  // the tail is below only
  EXPECT_EQ(s.Counts(), "free 3, cached 1");
  EXPECT_EQ(s.Resume("S"), kOk);
  EXPECT_EQ(s.admission("S").loading_tokens, 2u);
  s.engine().FinishAll(TransferResult::kFailed);
  s.Poll();
  EXPECT_EQ(s.ticket("S").Ready(), kLoadFailed);
  EXPECT_EQ(s.seq("S").tokens(), 4u);
  EXPECT_EQ(s.Counts(), "free 3, held 1");
  EXPECT_EQ(s.manager().used_slots(kLowerTier), 0u);
  EXPECT_EQ(s.Append("S", {7, 8}), kOk);
}

}  // namespace
}  // namespace tidepool::testing
