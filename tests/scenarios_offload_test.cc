// Failure scenarios S36-S43: copies down and up, and how they fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/support/scenario_fixture.h"

namespace tidepool::testing {
namespace {

using enum Outcome;
using std::chrono::seconds;

TEST(Scenario, S36OffloadStartsOnlyAfterTheLastWriteIsComplete) {
  ScenarioFixture s({.hbm = 4, .dram = 4});
  const Tokens b = Text(1, 4);
  EXPECT_EQ(s.Allocate("S", b), kOk);
  EXPECT_EQ(s.CommitUnwritten("S", 4, {.timeline = 0, .step = 1}), kOk);
  static_cast<void>(s.Offload(b));
  s.Poll();
  EXPECT_TRUE(s.engine().submitted().empty());

  s.Write("S", 4);
  EXPECT_EQ(s.CompleteStep(0, 1), kOk);
  s.Poll();
  if (s.engine().InFlight().empty()) {
    EXPECT_EQ(s.Offload(b).accepted, 1u);
  }
  s.Settle();
  EXPECT_TRUE(s.Stored(kLowerTier, b, 0));
}

TEST(Scenario, S36PreemptionWaitsForTheLastWriteOfThePrivateTail) {
  ScenarioFixture s({.hbm = 4, .dram = 4});
  EXPECT_EQ(s.Allocate("S", Text(1, 6), {.session = 1}), kOk);
  EXPECT_EQ(s.Commit("S", 6, {.timeline = 0, .step = 1}), kOk);
  EXPECT_EQ(s.Preempt("S", PreemptMode::kOffload), kOk);
  s.Poll();
  EXPECT_TRUE(s.engine().submitted().empty());
  EXPECT_EQ(s.CompleteStep(0, 1), kOk);
  s.Settle();
  EXPECT_EQ(s.Resume("S"), kOk);
  EXPECT_EQ(s.Hit("S"), 6u);
  s.Settle();  // the fixture compares the bytes
}

TEST(Scenario, S37SequenceFreedWhileItsStoreRuns) {
  ScenarioFixture s({.hbm = 1, .dram = 1});
  const Tokens b = Text(1, 4);
  EXPECT_EQ(s.Allocate("S", b), kOk);
  EXPECT_EQ(s.Commit("S", 4), kOk);
  EXPECT_EQ(s.Offload(b).accepted, 1u);
  EXPECT_EQ(s.Free("S"), kOk);
  EXPECT_EQ(s.Counts(), "moving 1");
  EXPECT_EQ(s.Allocate("N", Text(2, 4)), kBusy);
  s.engine().FinishAll();
  EXPECT_EQ(s.Allocate("N", Text(2, 4)), kOk);
  EXPECT_EQ(s.Commit("N", 4), kOk);
  EXPECT_TRUE(s.Stored(kLowerTier, b, 0));
}

TEST(Scenario, S38LowerTierRefusesTheVictim) {
  ScenarioFixture s({.hbm = 3, .dram = 1});
  const Tokens h = Text(1, 4);
  const Tokens b = Text(2, 4);
  s.Store(h);
  s.Cache(b);
  EXPECT_EQ(s.Allocate("R", Join(h, {7})), kOk);  // the load pins the only host slot
  s.engine().ClearRecords();
  static_cast<void>(s.DrainEvents());
  EXPECT_EQ(s.Allocate("X", Text(3, 4)), kBusy);
  s.Poll();

  const ProbeResult probe = s.Probe(b);
  EXPECT_EQ(probe.tokens_by_tier[kLowerTier], 0u);
  EXPECT_TRUE(s.engine().submitted().empty());
  EXPECT_EQ(s.manager().used_slots(kLowerTier), 1u);
  const std::vector<Event> events = s.DrainEvents();
  if (probe.tokens == 0) {
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].kind, EventKind::kRemoved);
    EXPECT_EQ(events[0].reason, EvictReason::kCapacity);
    EXPECT_TRUE(events[0].first_or_last);
  } else {
    EXPECT_EQ(probe.tokens_by_tier[kHbmTier], 4u);
    EXPECT_TRUE(events.empty());
  }
  EXPECT_EQ(s.AllocatePatiently("X", Text(3, 4)), kOk);
}

TEST(Scenario, S39LoadSourceIsSafeUntilAcknowledged) {
  ScenarioFixture s({.hbm = 4, .dram = 2});
  const Tokens h1 = Text(1, 4);
  const Tokens h2 = Text(2, 4);
  s.Store(h1);
  s.Store(h2);
  EXPECT_EQ(s.Allocate("R", Join(h1, {7})), kOk);
  EXPECT_EQ(s.admission("R").loading_tokens, 4u);
  EXPECT_EQ(s.Evict(1, kLowerTier), 1u);
  EXPECT_EQ(s.Found(h2), 0u);
  EXPECT_EQ(s.Evict(1, kLowerTier), 0u);
  s.engine().FinishAll();
  s.Poll();
  EXPECT_EQ(s.ticket("R").Ready(), kOk);
  EXPECT_TRUE(s.HasBytes(kHbmTier, s.Slots("R")[0], h1, 0));
  EXPECT_EQ(s.Evict(1, kLowerTier), 1u);
  EXPECT_EQ(s.manager().used_slots(kLowerTier), 0u);
  EXPECT_EQ(s.Probe(h1).tokens_by_tier[kHbmTier], 4u);
}

TEST(Scenario, S40CancelledDuringLoad) {
  ScenarioFixture s({.hbm = 4, .dram = 2});
  const Tokens chain = Text(1, 8);
  s.Store(chain);
  EXPECT_EQ(s.Allocate("R", Join(chain, {7})), kOk);
  EXPECT_EQ(s.admission("R").loading_tokens, 8u);
  const std::vector<CopyRequest> loads = s.engine().InFlight();
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(s.Free("R"), kOk);
  EXPECT_EQ(s.Counts(), "free 2, moving 2");

  EXPECT_TRUE(s.engine().Finish(loads[0].id));
  EXPECT_TRUE(s.engine().Finish(loads[1].id, TransferResult::kFailed));
  s.Poll();
  EXPECT_EQ(s.Found(chain), 4u);
  const PoolCounts ended = s.manager().counts();
  EXPECT_EQ(ended.free + ended.cached, 4u);
  EXPECT_GE(ended.free, 3u);

  const std::uint64_t late = s.manager().stats().late_completions;
  EXPECT_TRUE(s.engine().Repeat(loads[0].id));
  EXPECT_TRUE(s.engine().Repeat(loads[1].id));
  s.Poll();
  EXPECT_EQ(s.manager().counts(), ended);
  EXPECT_EQ(s.Found(chain), 4u);
  EXPECT_EQ(s.manager().stats().late_completions, late + 2);
  EXPECT_EQ(s.manager().table_sizes().transfers, 0u);
}

TEST(Scenario, S41ATransferThatNeverEnds) {
  ScenarioFixture s({.hbm = 4, .dram = 2});
  const Tokens b = Text(1, 4);
  s.Store(b);
  EXPECT_EQ(s.Allocate("R", Join(b, {7})), kOk);
  EXPECT_EQ(s.ticket("R").Ready(), kPending);
  s.SetTime(AtSecond(301));
  s.Poll();
  EXPECT_EQ(s.ticket("R").Ready(), kLoadFailed);
  EXPECT_EQ(s.seq("R").tokens(), 0u);  // recompute all of it
  EXPECT_EQ(s.manager().counts().quarantined, 1u);
  EXPECT_EQ(s.manager().stats().loads_timed_out, 1u);
  EXPECT_EQ(s.Free("R"), kOk);
  EXPECT_EQ(s.Counts(), "free 3, quarantined 1");

  s.SetTime(AtSecond(400));
  s.engine().FinishAll();
  s.Poll();
  EXPECT_EQ(s.Counts(), "free 4");
  EXPECT_EQ(s.Probe(b).tokens_by_tier[kHbmTier], 0u);
}

TEST(Scenario, S42AFailedLoadIsNotAHit) {
  ScenarioFixture s({.hbm = 4, .dram = 2, .engine = {.scribble_on_failure = false}});
  const Tokens k = Text(1, 4);
  const Tokens prompt = Join(k, {7});
  s.Store(k);
  EXPECT_EQ(s.Allocate("R", prompt), kOk);
  ASSERT_EQ(s.engine().InFlight().size(), 1u);
  const SlotId destination = s.engine().InFlight()[0].destination;
  const std::span<std::byte> bytes = s.engine().Bytes(kHbmTier, destination);
  std::memset(bytes.data(), 0xAA, bytes.size());
  s.engine().FinishAll(TransferResult::kFailed);
  s.Poll();
  EXPECT_EQ(s.ticket("R").Ready(), kLoadFailed);
  EXPECT_EQ(s.Commit("R", 5), kLoadFailed);  // the step was void
  EXPECT_EQ(s.seq("R").tokens(), 0u);
  EXPECT_EQ(s.manager().stats().hit_tokens[kLowerTier], 0u);
  EXPECT_EQ(s.manager().stats().loads_failed, 1u);
  EXPECT_EQ(s.Found(k), 0u);
  EXPECT_EQ(s.Allocate("other", prompt), kOk);
  EXPECT_EQ(s.Hit("other"), 0u);

  EXPECT_EQ(s.Append("R", prompt), kOk);  // and is repeated without the hit
  EXPECT_EQ(s.Commit("R", 5), kOk);
  EXPECT_EQ(s.Found(k), 4u);
}

TEST(Scenario, AFailedLoadIsToldBeforeTokensFollowIt) {
  ScenarioFixture s({.hbm = 6, .dram = 4});
  const Tokens k = Text(1, 8);
  s.Store(k);
  EXPECT_EQ(s.Allocate("R", Join(k, {7})), kOk);
  ASSERT_EQ(s.engine().InFlight().size(), 2u);
  s.engine().Finish(s.engine().InFlight()[1].id, TransferResult::kFailed);
  s.Poll();
  EXPECT_EQ(s.seq("R").tokens(), 4u);
  EXPECT_EQ(s.ticket("R").Ready(), kPending);  // the other load goes on
  EXPECT_EQ(s.Append("R", {8}), kLoadFailed);  // it would follow the wrong tokens
  EXPECT_EQ(s.seq("R").tokens(), 4u);
  EXPECT_EQ(s.Commit("R", 4), kStillLoading);
  s.Settle();
  EXPECT_EQ(s.ticket("R").Ready(), kLoadFailed);
  EXPECT_EQ(s.Append("R", {9}), kOk);
  EXPECT_EQ(s.Commit("R", 5), kOk);
}

TEST(Scenario, S43ABatchIsAcceptedOnlyInPart) {
  ScenarioFixture s({.hbm = 5, .dram = 3});
  const Tokens chain = Text(1, 20);
  s.Cache(chain);
  const KvCacheManager::OffloadResult result = s.Offload(chain);
  EXPECT_EQ(result.accepted, 3u);
  EXPECT_EQ(result.refused, 2u);
  s.Settle();
  EXPECT_EQ(s.manager().used_slots(kLowerTier), 3u);
  for (std::uint32_t block = 0; block < 5; ++block) {
    EXPECT_EQ(s.Stored(kLowerTier, chain, block), block < 3) << block;
  }

  ScenarioFixture shy({.hbm = 5, .dram = 5, .engine = {.accept_limit = 2}});
  shy.Cache(chain);
  const KvCacheManager::OffloadResult part = shy.Offload(chain);  // now the engine refuses
  EXPECT_EQ(part.accepted + part.refused, 5u);
  EXPECT_GE(part.accepted, 2u);
  shy.Settle();
  EXPECT_EQ(shy.manager().used_slots(kLowerTier), part.accepted);
}

}  // namespace
}  // namespace tidepool::testing
