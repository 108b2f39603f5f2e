// Failure scenarios S12-S18: blocks that a running sequence holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/support/scenario_fixture.h"

namespace tidepool::testing {
namespace {

using enum Outcome;

TEST(Scenario, S12CopyOnWriteOfASharedPartialTail) {
  ScenarioFixture s({.hbm = 6, .layers = 2});
  EXPECT_EQ(s.Allocate("P", Text(1, 6)), kOk);
  EXPECT_EQ(s.Commit("P", 6), kOk);
  EXPECT_EQ(s.Fork("P", "C"), kOk);
  EXPECT_EQ(s.Holds("P", 0), 2u);
  EXPECT_EQ(s.Holds("P", 1), 2u);
  EXPECT_EQ(s.Counts(), "free 4, held 2");

  const SlotId tail = s.Slots("P")[1];
  EXPECT_EQ(s.Append("C", {100}), kOk);
  EXPECT_EQ(s.Counts(), "free 3, held 3");
  EXPECT_EQ(s.manager().stats().cow_copies, 1u);
  EXPECT_EQ(s.Holds("P", 1), 1u);
  EXPECT_NE(s.Slots("C")[1], tail);

  EXPECT_EQ(s.Append("P", {200}), kOk);
  EXPECT_EQ(s.Slots("P")[1], tail);
  EXPECT_EQ(s.manager().stats().cow_copies, 1u);
  EXPECT_EQ(s.Counts(), "free 3, held 3");
  EXPECT_EQ(s.Commit("C", 7), kOk);  // each step also compares the bytes of both
  EXPECT_EQ(s.Commit("P", 7), kOk);
}

TEST(Scenario, APausedForksTailIsNotWrittenIn) {
  ScenarioFixture s({.hbm = 8});
  EXPECT_EQ(s.Allocate("P", Text(1, 7)), kOk);
  EXPECT_EQ(s.Commit("P", 6), kOk);
  EXPECT_EQ(s.Fork("P", "C"), kOk);
  EXPECT_EQ(s.Commit("P", 7), kOk);  // its place was taken before the fork
  EXPECT_EQ(s.Idle("P"), kOk);
  EXPECT_EQ(s.Holds("C", 1), 1u);  // and yet not for the fork to write in
  EXPECT_EQ(s.Append("C", {100}), kOk);
  EXPECT_EQ(s.manager().stats().cow_copies, 1u);
  EXPECT_EQ(s.Commit("C", 7), kOk);
  EXPECT_EQ(s.Resume("P"), kOk);
  EXPECT_EQ(s.Hit("P"), 7u);  // each step also compares the bytes of both
  EXPECT_EQ(s.Free("C"), kOk);
  EXPECT_EQ(s.Append("P", {200}), kOk);
  EXPECT_EQ(s.manager().stats().cow_copies, 1u);
  EXPECT_EQ(s.Commit("P", 8), kOk);
}

TEST(Scenario, S13ChunkedPrefillPublishesOnlyFinishedBlocks) {
  ScenarioFixture s({.hbm = 8});
  const Tokens a = Text(1, 10);
  const Tokens longer = Join(a, Text(2, 4));
  EXPECT_EQ(s.Allocate("A", a), kOk);
  EXPECT_EQ(s.Found(longer), 0u);
  EXPECT_EQ(s.Commit("A", 6), kOk);
  EXPECT_EQ(s.Found(longer), 4u);
  EXPECT_EQ(s.Allocate("R", longer), kOk);
  EXPECT_EQ(s.Hit("R"), 4u);
  EXPECT_EQ(s.Commit("A", 8), kOk);
  EXPECT_EQ(s.Found(longer), 8u);
  EXPECT_EQ(s.Commit("A", 10), kOk);
  EXPECT_EQ(s.Found(longer), 8u);
}

TEST(Scenario, S14AProbeIsOutOfDateByAdmission) {
  ScenarioFixture s({.hbm = 4});
  const Tokens a = Text(1, 8);
  s.Cache(a);
  EXPECT_EQ(s.Allocate("filler", Text(8, 8)), kOk);
  const Tokens prompt = Join(a, Text(2, 4));
  EXPECT_EQ(s.Found(prompt), 8u);
  EXPECT_EQ(s.Evict(1), 1u);
  EXPECT_EQ(s.Allocate("X", Text(3, 4)), kOk);  // the slot of A's second block: no other is free
  EXPECT_EQ(s.Commit("X", 4), kOk);
  const SlotId x = s.Slots("X")[0];
  EXPECT_EQ(s.Free("filler"), kOk);

  EXPECT_EQ(s.Allocate("R", prompt), kOk);
  EXPECT_EQ(s.Hit("R"), 4u);
  const std::vector<SlotId> slots = s.Slots("R");
  EXPECT_EQ(std::count(slots.begin(), slots.end(), x), 0);
  EXPECT_EQ(s.Commit("R", 12), kOk);
}

TEST(Scenario, S15RejectedSpeculativeTokensLeaveNoTrace) {
  ScenarioFixture s({.hbm = 6});
  const Tokens accepted = Text(1, 8);
  const Tokens prompt(accepted.begin(), accepted.begin() + 6);
  const Tokens rejected = Text(2, 3);
  EXPECT_EQ(s.Allocate("S", prompt), kOk);
  EXPECT_EQ(s.Commit("S", 6), kOk);
  EXPECT_EQ(s.Append("S", Join({accepted[6], accepted[7]}, rejected)), kOk);
  s.Write("S", 11);  // the draft's KV is in memory, uncommitted
  EXPECT_EQ(s.Counts(), "free 3, held 3");
  EXPECT_EQ(s.manager().index().blocks(), 1u);

  EXPECT_EQ(s.Truncate("S", 8), kOk);
  EXPECT_EQ(s.Commit("S", 8), kOk);
  EXPECT_EQ(s.Counts(), "free 4, held 2");
  EXPECT_EQ(s.manager().index().blocks(), 2u);
  EXPECT_EQ(s.Found(Join(Join(accepted, rejected), {99})), 8u);
  EXPECT_EQ(s.DrainEvents().size(), 2u);  // two keys ever
}

TEST(Scenario, S16FreedBeforeAnythingWasPublished) {
  ScenarioFixture s({.hbm = 6});
  EXPECT_EQ(s.Allocate("A", Text(1, 12)), kOk);
  EXPECT_EQ(s.Free("A"), kOk);
  EXPECT_EQ(s.Counts(), "free 6");
  EXPECT_EQ(s.manager().index().blocks(), 0u);

  EXPECT_EQ(s.Allocate("C", Text(1, 12)), kOk);
  EXPECT_EQ(s.Hit("C"), 0u);
  EXPECT_EQ(s.Commit("C", 4), kOk);
  EXPECT_EQ(s.Free("C"), kOk);
  EXPECT_EQ(s.Counts(), "free 5, cached 1");
}

TEST(Scenario, S17TwoCleanUpPathsFreeTheSameSequence) {
  ScenarioFixture s({.hbm = 4});
  const Tokens shared = Text(1, 4);
  EXPECT_EQ(s.Allocate("A", Join(shared, {50})), kOk);
  EXPECT_EQ(s.Commit("A", 5), kOk);
  EXPECT_EQ(s.Allocate("D", Join(shared, {60})), kOk);
  EXPECT_EQ(s.Hit("D"), 4u);
  EXPECT_EQ(s.Holds("D", 0), 2u);
  StaleSequence other_path(s.seq("A"));
  EXPECT_EQ(s.Free("A"), kOk);
  EXPECT_EQ(s.Free("A"), kUnknownHandle);
  EXPECT_EQ(other_path->Finish(), kStaleHandle);
  s.Check("the stale Finish");
  EXPECT_EQ(s.Holds("D", 0), 1u);
  EXPECT_EQ(s.Counts(), "free 2, held 2");
}

/// A's block in the only slot is 0xFF all over, evicted, and C gets the slot for 2 tokens.
void Recycle(ScenarioFixture& s, NamespaceId a, NamespaceId c) {
  EXPECT_EQ(s.Allocate("A", Text(1, 4), {.ns = a}), kOk);
  EXPECT_EQ(s.CommitUnwritten("A", 4, Fence::Done()), kOk);
  const Arena& arena = s.manager().arena(kHbmTier);
  std::memset(arena.At(s.Slots("A")[0], 0), 0xFF, arena.layer_bytes);
  EXPECT_EQ(s.Free("A"), kOk);
  EXPECT_EQ(s.Evict(1), 1u);
  EXPECT_EQ(s.Allocate("C", Text(2, 2), {.ns = c}), kOk);
}

bool SlotIsZero(ScenarioFixture& s, SlotId slot) {
  const Arena& arena = s.manager().arena(kHbmTier);
  return std::all_of(arena.At(slot, 0), arena.At(slot, 0) + arena.layer_bytes,
                     [](std::byte b) { return b == std::byte{0}; });
}

TEST(Scenario, S18RecycledMemoryCarriesNothingOver) {
  ScenarioFixture tenants({.hbm = 1});
  const NamespaceId a = tenants.manager().RegisterNamespace({"a", "", "", ""}).value();
  const NamespaceId c = tenants.manager().RegisterNamespace({"c", "", "", ""}).value();
  Recycle(tenants, a, c);
  EXPECT_TRUE(SlotIsZero(tenants, tenants.Slots("C")[0]));
  EXPECT_EQ(tenants.manager().stats().zeroed_slots, 1u);

  ScenarioFixture same_tenant({.hbm = 1, .adjust = [](ManagerOptions& options) {
                                 options.tiers[0].clear_on_reuse = true;
                               }});
  Recycle(same_tenant, NamespaceId(0), NamespaceId(0));
  EXPECT_TRUE(SlotIsZero(same_tenant, same_tenant.Slots("C")[0]));

  ScenarioFixture queued({.hbm = 1, .adjust = [](ManagerOptions& options) {
                            options.tiers[0].device_work = DeviceWork::kQueued;
                          }});
  const NamespaceId q = queued.manager().RegisterNamespace({"q", "", "", ""}).value();
  Recycle(queued, NamespaceId(0), q);
  StepWork work;
  queued.manager().DrainStepWork({.timeline = 0, .step = 1}, work);
  EXPECT_EQ(work.zero, queued.Slots("C"));  // the engine clears it before the step
  EXPECT_TRUE(work.copies.empty());
  EXPECT_EQ(queued.CompleteStep(0, 1), kOk);
}

}  // namespace
}  // namespace tidepool::testing
