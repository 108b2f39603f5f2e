// Failure scenarios S26-S28, S31 and S33-S35: who may leave, and in which order.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/flat_arc_policy.h"
#include "tests/support/scenario_fixture.h"
#include "tests/support/session_ranked_policy.h"
#include "tidepool/built_in_policies.h"
#include "tidepool/policy/lru.h"

namespace tidepool::testing {
namespace {

using enum Outcome;

void EvictChainsTailFirst(const std::function<void(ManagerOptions&)>& policy) {
  ScenarioFixture s({.hbm = 4, .adjust = policy});
  const Tokens chain = Text(1, 12);
  for (int round = 0; round < 200; ++round) {
    s.Cache(chain);
    EXPECT_EQ(s.Evict(1), 1u);
    EXPECT_EQ(s.Found(chain), 8u);
    EXPECT_EQ(s.Evict(1), 1u);
    EXPECT_EQ(s.Found(chain), 4u);
    EXPECT_EQ(s.Evict(1), 1u);
  }
  EXPECT_EQ(s.Counts(), "free 4");
}

TEST(Scenario, S26TailsGoBeforeHeads) {
  EvictChainsTailFirst(Using(&MakeLruPolicy));
  EvictChainsTailFirst(Using(&MakeFlatArcPolicy));
  EvictChainsTailFirst(Using(&MakeSessionRankedPolicy));
  for (const BuiltInPolicy& policy : BuiltInPolicies()) {
    SCOPED_TRACE(policy.name);
    EvictChainsTailFirst(Using(policy.make));
  }
  PolicyRecord record{.heads_first = true};  // the pool corrects a policy that names heads
  EvictChainsTailFirst(Recording(&record));
}

// LRU, and the session that has waited longest comes back: its own prefix is next to leave.
TEST(Scenario, RoomForARequestIsNotMadeFromItsOwnPrefix) {
  ScenarioFixture s({.hbm = 4, .dram = 4});
  const Tokens a = Text(1, 12);
  const Tokens prefix(a.begin(), a.begin() + 8);
  s.Cache(prefix, {.session = 1});
  EXPECT_EQ(s.Offload(prefix).accepted, 2u);
  s.Settle();  // clean: can leave at once
  s.Cache(Text(2, 8), {.session = 2});
  EXPECT_EQ(s.Allocate("A", a, {.session = 1}), kBusy);
  EXPECT_EQ(s.AllocatePatiently("A", a, {.session = 1}), kOk);
  EXPECT_EQ(s.admission("A").ready_tokens, 8u);
  EXPECT_EQ(s.manager().stats().loads, 0u);
}

TEST(Scenario, AnOwnPrefixLeavesWhenNothingElseCan) {
  ScenarioFixture s({.hbm = 4, .dram = 4});
  const Tokens a = Text(1, 16);
  const Tokens prefix(a.begin(), a.begin() + 8);
  s.Cache(prefix, {.session = 1});
  EXPECT_EQ(s.Offload(prefix).accepted, 2u);
  s.Settle();
  EXPECT_EQ(s.Allocate("R", Text(2, 8), {.session = 2}), kOk);  // runs, and stays
  EXPECT_EQ(s.Allocate("A", a, {.session = 1}), kBusy);
  s.Poll();
  EXPECT_EQ(s.Free("R"), kOk);
  EXPECT_EQ(s.AllocatePatiently("A", a, {.session = 1}), kOk);
}

TEST(Scenario, S27TwoPhysicalCopiesOfOnePrefix) {
  for (const bool earlier_first : {true, false}) {
    ScenarioFixture s({.hbm = 4});
    const Tokens tokens = Text(1, 4);
    EXPECT_EQ(s.Allocate("A", tokens), kOk);
    EXPECT_EQ(s.Allocate("C", tokens), kOk);
    const std::vector<SlotId> a = s.Slots("A");
    const std::vector<SlotId> c = s.Slots("C");
    EXPECT_NE(a, c);
    EXPECT_EQ(s.Commit("A", 4), kOk);
    EXPECT_EQ(s.Commit("C", 4), kOk);
    EXPECT_EQ(s.Slots("A"), a);
    EXPECT_EQ(s.Slots("C"), c);
    EXPECT_EQ(s.manager().stats().duplicate_blocks, 1u);
    EXPECT_EQ(s.Free(earlier_first ? "A" : "C"), kOk);
    EXPECT_EQ(s.Free(earlier_first ? "C" : "A"), kOk);
    EXPECT_EQ(s.Counts(), "free 3, cached 1");
    EXPECT_EQ(s.Found(tokens), 4u);
    EXPECT_EQ(s.Evict(1), 1u);
    EXPECT_EQ(s.Found(tokens), 0u);
    EXPECT_EQ(s.Evict(1), 0u);
    EXPECT_EQ(s.Counts(), "free 4");
  }
}

TEST(Scenario, S28ARecycledBlockForgetsItsOldKey) {
  ScenarioFixture s({.hbm = 1});
  const Tokens k1 = Text(1, 4);
  const Tokens k2 = Text(2, 4);
  s.Cache(k1);
  EXPECT_EQ(s.Evict(1), 1u);
  s.Cache(k2);
  EXPECT_EQ(s.Found(k1), 0u);
  EXPECT_EQ(s.Found(k2), 4u);
  EXPECT_EQ(s.Evict(1), 1u);
  EXPECT_EQ(s.Found(k1), 0u);
  EXPECT_EQ(s.Found(k2), 0u);
}

TEST(Scenario, S31NotEnoughVictimsEvictNone) {
  PolicyRecord record;
  ScenarioFixture s({.hbm = 5, .adjust = Recording(&record)});
  const Tokens cached = Text(2, 8);
  EXPECT_EQ(s.Allocate("held", Text(1, 12)), kOk);
  EXPECT_EQ(s.Allocate("waits", cached, {.session = 2}), kOk);
  EXPECT_EQ(s.Commit("waits", 8), kOk);
  EXPECT_EQ(s.Idle("waits"), kOk);
  EXPECT_EQ(s.Counts(), "held 3, cached 2");

  record = {};
  EXPECT_EQ(s.Allocate("S", Text(3, 12)), kBusy);
  EXPECT_LE(record.selections, 1u);
  EXPECT_EQ(s.Found(cached), 8u);
  EXPECT_EQ(s.Counts(), "held 3, cached 2");

  EXPECT_EQ(s.Resume("waits"), kOk);
  record = {};
  EXPECT_EQ(s.Allocate("S", Text(3, 4)), kBusy);
  EXPECT_LE(record.selections, 1u);
  EXPECT_EQ(record.named, 0u);
  EXPECT_EQ(s.Found(cached), 8u);
}

TEST(Scenario, S33DoNotEvictWhatThisRequestIsAboutToUse) {
  ScenarioFixture s({.hbm = 4});
  const Tokens x = Text(1, 8);
  const Tokens y = Text(2, 8);
  s.Cache(x);
  s.Cache(y);
  const std::vector<BlockId> blocks = s.Blocks(y);
  ASSERT_EQ(blocks.size(), 2u);
  const PrefixHash y1 = s.manager().pool().digest(blocks[0]);
  const PrefixHash y2 = s.manager().pool().digest(blocks[1]);
  static_cast<void>(s.DrainEvents());
  EXPECT_EQ(s.Allocate("R", Join(x, Text(3, 8))), kOk);
  EXPECT_EQ(s.Hit("R"), 8u);
  const std::vector<Event> events = s.DrainEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, EventKind::kRemoved);
  EXPECT_EQ(events[0].digest, y2);
  EXPECT_EQ(events[1].kind, EventKind::kRemoved);
  EXPECT_EQ(events[1].digest, y1);
}

TEST(Scenario, S34UnpinWithoutPin) {
  ScenarioFixture s({.hbm = 4});
  const Tokens chain = Text(1, 8);
  EXPECT_EQ(s.Allocate("S", chain), kOk);
  EXPECT_EQ(s.Commit("S", 8), kOk);
  EXPECT_EQ(s.Fork("S", "T"), kOk);
  EXPECT_EQ(s.Holds("S", 1), 2u);

  // A release that nothing balances: through a handle that outlived its Finish, and an empty one.
  StaleSequence stale(s.seq("T"));
  EXPECT_EQ(s.Free("T"), kOk);
  EXPECT_EQ(s.Holds("S", 1), 1u);
  EXPECT_EQ(stale->Finish(), kStaleHandle);
  EXPECT_EQ(stale->Truncate(0), kStaleHandle);
  EXPECT_EQ(stale->DropLeading(1), kStaleHandle);
  EXPECT_EQ(stale->Pause({}), kStaleHandle);
  EXPECT_EQ(s.Free("T"), kUnknownHandle);
  s.Check("releases without a hold");
  EXPECT_EQ(s.Holds("S", 0), 1u);
  EXPECT_EQ(s.Holds("S", 1), 1u);
  EXPECT_EQ(s.Evict(kAll), 0u);
  EXPECT_EQ(s.Counts(), "free 2, held 2");
}

TEST(Scenario, S35EvictingACacheEntryUnderALiveUser) {
  ScenarioFixture s({.hbm = 3});
  const Tokens b = Text(1, 4);
  EXPECT_EQ(s.Allocate("S", b), kOk);
  EXPECT_EQ(s.Commit("S", 4), kOk);
  EXPECT_EQ(s.Evict(kAll), 0u);
  int granted = 0;
  for (int i = 0; i < 4; ++i) {
    const std::string name = "X" + std::to_string(i);
    if (s.Allocate(name, Text(2 + i, 4)) != kOk) continue;
    EXPECT_EQ(s.Commit(name, 4), kOk);  // writes next to b; each step compares b's bytes
    ++granted;
  }
  EXPECT_EQ(granted, 2);
  EXPECT_TRUE(s.HasBytes(kHbmTier, s.Slots("S")[0], b, 0));
  EXPECT_EQ(s.Counts(), "held 3");
  EXPECT_EQ(s.Free("S"), kOk);
  EXPECT_EQ(s.Counts(), "held 2, cached 1");
  EXPECT_EQ(s.Allocate("Y", Text(8, 4)), kOk);
  EXPECT_EQ(s.Allocate("Z", Text(9, 4)), kBusy);
}

}  // namespace
}  // namespace tidepool::testing
