// TIDE on a real manager with a fake engine: the clean pool, its budget, and what leaves the tiers
// below. Times are the manual clock's; copies end when the test says so.
#include "tidepool/tide/tide.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/scenario_fixture.h"
#include "tidepool/policy/lru.h"
#include "tidepool/policy/spear.h"

namespace tidepool::testing {
namespace {

using enum Outcome;
using std::chrono::milliseconds;
using std::chrono::seconds;

// HBM by LRU, one planner, priced tiers below.
class TideFixture {
 public:
  TideFixture(ScenarioOptions options, const TideOptions& tide, CostModel recompute = {})
      : tide_(std::make_shared<Tide>(tide)) {
    options.adjust = [this, recompute](ManagerOptions& o) {
      o.migrator = tide_->MakePlanner();
      o.policy = [tide = tide_](TierIndex tier) {
        return tier == kHbmTier ? MakeLruPolicy() : tide->MakePolicy(tier);
      };
      o.recompute = recompute;
    };
    scenario_ = std::make_unique<ScenarioFixture>(std::move(options));
  }
  ScenarioFixture& operator*() { return *scenario_; }
  ScenarioFixture* operator->() { return scenario_.get(); }
  [[nodiscard]] const TideCounters& counters() const { return tide_->counters(); }
  void Advance(Duration by) {
    scenario_->SetTime(scenario_->clock().Now() + by);
    scenario_->Poll();
  }

 private:
  std::shared_ptr<Tide> tide_;
  std::unique_ptr<ScenarioFixture> scenario_;
};

std::size_t Shadows(ScenarioFixture& s) {
  const auto& copies = s.engine().submitted();
  return static_cast<std::size_t>(std::count_if(copies.begin(), copies.end(), [](const auto& c) {
    return c.transfer_class == TransferClass::kShadowCopy;
  }));
}

TEST(TidePlanner, KeepsTheNextToLeaveClean) {
  TideFixture s({.hbm = 8, .dram = 8}, {.clean_pool = 0.25});
  s->Cache(Text(1, 16), {.session = 1});  // four blocks, the oldest
  s->Cache(Text(2, 16), {.session = 2});
  s.Advance(seconds(2));
  // A quarter of eight: the tail of what has waited longest, and the block before it.
  EXPECT_EQ(Shadows(*s), 2u);
  s->Settle();
  const std::vector<BlockId> oldest = s->Blocks(Text(1, 16));
  EXPECT_TRUE(s->manager().pool().Clean(oldest[3], kHbmTier));
  EXPECT_TRUE(s->manager().pool().Clean(oldest[2], kHbmTier));
  EXPECT_EQ(s.counters().pool_copies, 2u);
  // Nothing was given up.
  EXPECT_EQ(s->Counts(), "cached 8");
  // What is clean leaves at once, without a copy.
  s->engine().ClearRecords();
  EXPECT_EQ(s->Allocate("N", Text(3, 8), {.session = 3}), kOk);
  EXPECT_TRUE(s->engine().submitted().empty());
  EXPECT_EQ(s->Found(Text(1, 16)), 16u);
}

// A plan may look at dirty victims, release clean ones and in the end copy nothing.
TEST(TidePlanner, NothingLeavesForAPlanThatIsNotCarriedOut) {
  class Undecided final : public Migrator {
   public:
    explicit Undecided(std::vector<std::uint32_t>* released) : released_(released) {}
    std::string_view name() const noexcept override { return "undecided"; }
    void Plan(TierIndex tier, MigrationContext& context, const SchedulingSignals& /*signals*/,
              std::vector<PlannedCopy>& /*plan*/) noexcept override {
      std::vector<BlockId> seen;
      context.NextDirtyVictims(tier, 1, seen);
      if (seen.size() == 1) released_->push_back(context.ReleaseClean(tier, 2));
    }

   private:
    std::vector<std::uint32_t>* released_;
  };
  std::vector<std::uint32_t> released;
  ScenarioFixture s({.hbm = 8, .dram = 8, .adjust = [&](ManagerOptions& o) {
                       o.migrator = std::make_unique<Undecided>(&released);
                     }});
  s.Cache(Text(1, 8));
  EXPECT_EQ(s.Offload(Text(1, 4)).accepted, 1u);  // clean, before a dirty one
  s.Settle();
  released.clear();
  s.Poll();  // the fixture audits
  EXPECT_EQ(released, std::vector<std::uint32_t>{0});
  EXPECT_EQ(s.Counts(), "free 6, cached 2");
}

TEST(TidePlanner, CopiesNothingTwice) {
  TideFixture s({.hbm = 8, .dram = 8}, {.clean_pool = 0.5});
  s->Cache(Text(1, 16), {.session = 1});
  for (int i = 0; i < 5; ++i) s.Advance(seconds(2));  // the copies are still under way
  EXPECT_EQ(Shadows(*s), 4u);
  s->Settle();
  for (int i = 0; i < 5; ++i) s.Advance(seconds(2));
  EXPECT_EQ(Shadows(*s), 4u);
  EXPECT_GE(s.counters().refreshes, 10u);
}

TEST(TidePlanner, RefreshesEachSecondAndWhenAWaitBegins) {
  for (const bool on_waits : {true, false}) {
    TideFixture s({.hbm = 8, .dram = 8}, {.clean_pool = 0.5, .refresh_on_waits = on_waits});
    s.Advance(seconds(2));
    const std::uint64_t before = s.counters().refreshes;
    s.Advance(milliseconds(300));
    EXPECT_EQ(s.counters().refreshes, before);
    s->Cache(Text(1, 16), {.session = 1});
    s.Advance(milliseconds(300));
    EXPECT_EQ(s.counters().refreshes, before + (on_waits ? 1 : 0));
    s.Advance(seconds(1));
    EXPECT_EQ(s.counters().refreshes, before + (on_waits ? 2 : 1));
  }
}

TEST(TidePlanner, AMiddleTierKeepsWhatLeavesNextClean) {
  TideFixture s({.hbm = 8, .dram = 8, .nvme = 16},
                {.clean_pool = 0, .lower_clean_pool = 0.5, .min_extent_bytes = 0});
  s->Store(Text(1, 16), {.session = 1});
  const auto spills = [&] {
    const auto& copies = s->engine().submitted();
    return std::count_if(copies.begin(), copies.end(), [](const auto& c) { return c.to == 2; });
  };
  s.Advance(seconds(2));
  EXPECT_EQ(spills(), 0);  // used once
  EXPECT_EQ(s.counters().skipped_unused, 4u);
  // Used again, and let go of again: now it is worth a write.
  EXPECT_EQ(s->AllocatePatiently("A", Join(Text(1, 16), Text(2, 4)), {.session = 1}), kOk);
  s->Settle();
  EXPECT_EQ(s->Free("A"), kOk);
  s.Advance(seconds(2));
  EXPECT_EQ(spills(), 0);  // HBM has it too: DRAM may drop it as it is
  EXPECT_GE(s->Evict(4), 4u);
  s.Advance(seconds(2));
  EXPECT_EQ(spills(), 4);
  EXPECT_EQ(s.counters().lower_pool_copies, 4u);
  s->Settle();
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(s->Stored(2, Text(1, 16), i));
  EXPECT_EQ(s->manager().used_slots(1), 4u);  // nothing was given up
}

TEST(TidePlanner, SmallBlocksWaitUntilTheyMakeAnExtent) {
  TideFixture s(
      {.hbm = 8, .dram = 8, .nvme = 16},
      {.clean_pool = 0, .lower_clean_pool = 1, .lower_min_hits = 0, .min_extent_bytes = 1});
  const std::uint64_t block = s->manager().block_bytes();
  for (const std::uint64_t blocks : {5, 4}) {
    TideFixture t({.hbm = 8, .dram = 8, .nvme = 16}, {.clean_pool = 0,
                                                      .lower_clean_pool = 1,
                                                      .lower_min_hits = 0,
                                                      .min_extent_bytes = blocks * block});
    t->Store(Text(1, 16), {.session = 1});
    t.Advance(seconds(2));
    EXPECT_EQ(t.counters().lower_pool_copies, blocks == 4 ? 4u : 0u);
  }
}

TEST(TidePlanner, ReleasesAheadOfWhatIsAdmitted) {
  for (const int ahead : {0, 10}) {
    TideFixture s({.hbm = 16, .dram = 16}, {.clean_pool = 0.5, .release_ahead = seconds(ahead)});
    for (int i = 0; i < 4; ++i) {  // one block a second
      s->Cache(Text(i, 16), {.session = static_cast<std::uint64_t>(i)});
      s.Advance(seconds(4));
      s->Settle();
    }
    for (int i = 0; i < 3; ++i) s.Advance(seconds(1));
    EXPECT_EQ(s.counters().released_ahead > 0, ahead != 0);
    EXPECT_EQ(s->free_slots() > 0, ahead != 0);
    EXPECT_EQ(s->Found(Text(0, 16)), 16u);  // DRAM has what was given up
  }
}

TEST(TidePrefetch, AnArrivedSessionsBlocksComeUp) {
  for (const bool on : {true, false}) {
    TideFixture s({.hbm = 8, .dram = 8}, {.clean_pool = 0, .certain_prefetch = on});
    s->Store(Text(1, 16), {.session = 1});
    s->engine().ClearRecords();
    EXPECT_EQ(s->manager().SessionArrived(1), kOk);
    s->Poll();
    const std::vector<CopyRequest> copies = s->engine().InFlight();
    ASSERT_EQ(copies.size(), on ? 4u : 0u);
    EXPECT_EQ(s.counters().certain_prefetches, on ? 4u : 0u);
    if (!on) continue;
    EXPECT_EQ(copies[0].transfer_class, TransferClass::kCertainPrefetch);
    EXPECT_EQ(copies[0].block, s->Blocks(Text(1, 16))[0]);  // the first is needed first
    s->Settle();
    EXPECT_EQ(s->manager().stats().prefetched, 4u);
    EXPECT_EQ(s->Allocate("A", Join(Text(1, 16), Text(2, 4)), {.session = 1}), kOk);
    EXPECT_EQ(s->admission("A").ready_tokens, 16u);
    EXPECT_EQ(s->manager().stats().prefetched_used, 4u);
  }
}

TEST(TidePrefetch, ArrivedSessionsTakeThePlaceOfCleanBlocksOnly) {
  for (const bool clean : {false, true}) {
    TideFixture s({.hbm = 8, .dram = 16}, {.clean_pool = 0});
    s->Store(Text(1, 16), {.session = 1});
    s->Cache(Text(2, 16), {.session = 2});
    s->Cache(Text(3, 16), {.session = 3});
    if (clean) {
      EXPECT_EQ(s->Offload(Text(2, 16)).accepted, 4u);
    }
    s->Settle();
    EXPECT_EQ(s->manager().SessionArrived(1), kOk);
    s->Poll();
    EXPECT_EQ(s->engine().InFlight().size(), clean ? 4u : 0u);
    s->Settle();
    EXPECT_EQ(s->Found(Text(2, 16)) + s->Found(Text(3, 16)), 32u);  // nothing was lost
  }
}

TEST(TidePrefetch, NothingComesUpWhileSomebodyWaitsForRoom) {
  TideFixture s({.hbm = 8, .dram = 16}, {.clean_pool = 0});
  s->Store(Text(1, 16), {.session = 1});
  s->Cache(Text(2, 16), {.session = 2});
  EXPECT_EQ(s->Allocate("N", Text(3, 32), {.session = 3}), kBusy);
  s->engine().ClearRecords();
  EXPECT_EQ(s->manager().SessionArrived(1), kOk);
  s->Poll();
  for (const CopyRequest& copy : s->engine().submitted()) EXPECT_NE(copy.to, kHbmTier);
}

TEST(TidePrefetch, PredictedReturnsUseFreeSlotsInTime) {
  for (const bool on : {true, false}) {
    TideFixture s({.hbm = 8, .dram = 16},
                  {.clean_pool = 0, .predicted_prefetch = on, .prefetch_watermark = 0.25});
    const auto block = static_cast<double>(s->manager().block_bytes());
    s->engine().SetLink(kLowerTier, kHbmTier, 4 * block, Duration(0));
    EXPECT_EQ(s->Allocate("A", Text(1, 32), {.session = 1}), kOk);
    EXPECT_EQ(s->Commit("A", 32), kOk);
    EXPECT_EQ(s->Idle("A", seconds(100)), kOk);
    EXPECT_EQ(s->Offload(Text(1, 32)).accepted, 8u);
    s->Settle();
    EXPECT_EQ(s->Evict(8), 8u);
    s->engine().ClearRecords();
    // The lower quartile of 100 s with a log-sd of 1 is 51 s; eight blocks take 2 s.
    s.Advance(seconds(40));
    EXPECT_TRUE(s->engine().submitted().empty());
    s.Advance(seconds(9));
    s.Advance(seconds(2));
    EXPECT_EQ(s->engine().submitted().size(), on ? 5u : 0u);  // 0.7 x 4 blocks/s x 2 s
    s->Settle();
    EXPECT_EQ(s->manager().stats().prefetched, on ? 5u : 0u);
    if (!on) continue;
    // Somebody else needs the room before the session is back.
    EXPECT_EQ(s->AllocatePatiently("B", Text(2, 32), {.session = 2}), kOk);
    EXPECT_EQ(s->manager().stats().prefetched_wasted, 5u);
  }
}

TEST(TidePrefetch, AReturnEndsThePrediction) {
  TideFixture s({.hbm = 8, .dram = 16}, {.clean_pool = 0, .predicted_prefetch = true});
  s->Store(Text(1, 16), {.session = 1});
  EXPECT_EQ(s->manager().UpdateExpectedReturn(1, AtSecond(1000), 0.1F), kOk);
  EXPECT_EQ(s->manager().CompleteSession(1), kOk);
  s->engine().ClearRecords();
  s.Advance(seconds(5000));
  EXPECT_TRUE(s->engine().submitted().empty());
}

TEST(TidePlanner, StaysWithinTheLinksBudget) {
  // 0.5 x B x 2 s = two blocks.
  TideFixture s({.hbm = 8, .dram = 8}, {.clean_pool = 1, .background_share = 0.5});
  const auto block = static_cast<double>(s->manager().block_bytes());
  s->engine().SetLink(kHbmTier, kLowerTier, 2 * block, Duration(0));
  s->Cache(Text(1, 32), {.session = 1});
  s.Advance(seconds(2));
  EXPECT_EQ(Shadows(*s), 2u);
  EXPECT_EQ(s.counters().held_back, 1u);
  s.Advance(seconds(2));  // they still fill the queue
  EXPECT_EQ(Shadows(*s), 2u);
  s->Settle();
  s.Advance(seconds(2));
  EXPECT_EQ(Shadows(*s), 4u);
}

TEST(TidePlanner, ADeadLinkGetsNothing) {
  TideFixture s({.hbm = 8, .dram = 8}, {.clean_pool = 1});
  s->engine().SetLink(kHbmTier, kLowerTier, 0, Duration(0));
  s->Cache(Text(1, 32), {.session = 1});
  s.Advance(seconds(2));
  EXPECT_TRUE(s->engine().submitted().empty());
}

TEST(TidePlanner, ToleratesAnyOption) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double hostile : {nan, -1.0, 1e300}) {
    TideFixture s({.hbm = 8, .dram = 4}, {.clean_pool = hostile,
                                          .refresh = Duration::min(),
                                          .background_share = hostile,
                                          .window = Duration::max(),
                                          .duplicate_factor = hostile,
                                          .recency_rate = hostile});
    s->Cache(Text(1, 32), {.session = 1});
    s.Advance(seconds(2));
    EXPECT_EQ(s->AllocatePatiently("N", Text(2, 16), {.session = 2}), kOk);
    s->Settle();
  }
}

TEST(TidePlanner, PoolOfNothingIsWriteBackOnDemand) {
  TideFixture s({.hbm = 4, .dram = 8}, {.clean_pool = 0});
  s->Cache(Text(1, 16), {.session = 1});
  s.Advance(seconds(2));
  EXPECT_TRUE(s->engine().submitted().empty());
  EXPECT_EQ(s->AllocatePatiently("N", Text(2, 8), {.session = 2}), kOk);
  EXPECT_EQ(s.counters().demand_copies, 2u);
  EXPECT_EQ(s->Found(Text(1, 16)), 16u);
}

// What is planned again at each Poll and finds no room below is not counted.
TEST(TidePlanner, OnlyCopiesThatStartAreCounted) {
  TideFixture s({.hbm = 4, .dram = 2, .nvme = 8}, {.clean_pool = 0, .lower_clean_pool = 0});
  s->Store(Text(1, 8), {.session = 1});  // fills DRAM
  s->Cache(Text(2, 16), {.session = 2});
  EXPECT_EQ(s->Allocate("N", Text(3, 16), {.session = 3}), kBusy);
  for (int i = 0; i < 5; ++i) s.Advance(milliseconds(1));
  const auto down =
      std::count_if(s->engine().submitted().begin(), s->engine().submitted().end(),
                    [](const auto& c) { return c.transfer_class == TransferClass::kSpill; });
  EXPECT_EQ(s.counters().demand_copies, static_cast<std::uint64_t>(down));
  EXPECT_LE(s.counters().demand_copies, 4u);
}

// A session comes back at every moment of its copies' lives, and each of them may end in any way.
TEST(TidePlanner, AnEarlyReturnLosesNothingAndLeaksNothing) {
  for (std::size_t done = 0; done <= 4; ++done) {
    for (const TransferResult rest : {TransferResult::kOk, TransferResult::kFailed,
                                      TransferResult::kCancelled, TransferResult::kTimedOut}) {
      TideFixture s({.hbm = 8, .dram = 8}, {.clean_pool = 0.5});
      s->Cache(Text(1, 16), {.session = 1});
      s.Advance(seconds(2));
      const std::vector<CopyRequest> copies = s->engine().InFlight();
      ASSERT_EQ(copies.size(), 4u);
      for (std::size_t i = 0; i < done; ++i) s->engine().Finish(copies[i].id);
      EXPECT_EQ(s->Allocate("A", Text(1, 20), {.session = 1}), kOk);
      EXPECT_EQ(s->Hit("A"), 16u);
      for (std::size_t i = done; i < 4; ++i) s->engine().Finish(copies[i].id, rest);
      s->Poll();
      EXPECT_EQ(s->Commit("A", 20), kOk);
      EXPECT_EQ(s->Free("A"), kOk);
      s->Settle();
      EXPECT_EQ(s->manager().table_sizes().transfers, 0u);
      EXPECT_EQ(s->Found(Text(1, 20)), 20u);
      EXPECT_TRUE(s->engine().violations().empty());
    }
  }
}

// --- What leaves the tier below. ---

// Session 1 is below only, session 2 in both tiers.
void OneOnlyBelowOneInBoth(TideFixture& s) {
  s->Store(Text(1, 8), {.session = 1});
  s->Cache(Text(2, 8), {.session = 2});
  EXPECT_EQ(s->Offload(Text(2, 8)).accepted, 2u);
  s->Settle();
}

TEST(TidePolicy, DuplicatesLeaveBeforeOnlyCopies) {
  for (const bool first : {true, false}) {
    TideFixture s({.hbm = 8, .dram = 4},
                  {.clean_pool = 0, .duplicates_first = first, .one_price = false});
    OneOnlyBelowOneInBoth(s);
    EXPECT_EQ(s->Evict(2, kLowerTier), 2u);
    EXPECT_EQ(s->Found(Text(1, 8)), first ? 8u : 0u);
    EXPECT_EQ(s->Found(Text(2, 8)), 8u);
    EXPECT_EQ(s.counters().duplicates_left, first ? 2u : 0u);
    EXPECT_EQ(s.counters().only_copies_left, first ? 0u : 2u);
  }
}

TEST(TidePolicy, DuplicatesOfTheCleanPoolLeaveLast) {
  TideFixture s({.hbm = 8, .dram = 4}, {.clean_pool = 1, .one_price = false});
  OneOnlyBelowOneInBoth(s);
  s.Advance(seconds(2));  // lists session 2
  EXPECT_EQ(s->Evict(2, kLowerTier), 2u);
  EXPECT_EQ(s->Found(Text(1, 8)), 0u);
  EXPECT_EQ(s.counters().only_copies_left, 2u);
  EXPECT_EQ(s->Evict(2, kLowerTier), 2u);  // nothing else is left
  EXPECT_EQ(s->Found(Text(2, 8)), 8u);     // HBM still has it
}

// A duplicate is worth k * rho * C_link, an only-copy 0.25 / age * (C - C_link): an old only-copy
// leaves before a duplicate while HBM evicts a lot, and stays when it does not.
// What NVMe has of DRAM's blocks keeps DRAM clean: there the older leaves, whoever else has it.
TEST(TidePolicy, FurtherDownRecencyDecides) {
  TideFixture s({.hbm = 8, .dram = 8, .nvme = 8}, {.clean_pool = 0,
                                                   .lower_clean_pool = 1,
                                                   .lower_min_hits = 0,
                                                   .min_extent_bytes = 0,
                                                   .one_price = false});
  s->Store(Text(1, 8), {.session = 1});
  s.Advance(seconds(2));
  s->Settle();
  EXPECT_EQ(s->Evict(2, kLowerTier), 2u);  // NVMe alone has it now
  s->Store(Text(2, 8), {.session = 2});
  s.Advance(seconds(2));
  s->Settle();
  EXPECT_EQ(s->manager().used_slots(2), 4u);
  EXPECT_EQ(s->Evict(2, 2), 2u);
  EXPECT_EQ(s->Found(Text(1, 8)), 0u);
  for (std::uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(s->Stored(2, Text(2, 8), i));
}

TEST(TidePolicy, OnePriceComparesDuplicatesWithOnlyCopies) {
  for (const double factor : {0.0, 1e9}) {
    TideFixture s({.hbm = 8, .dram = 4}, {.clean_pool = 0, .duplicate_factor = factor},
                  {.c0_seconds = 1, .c1_seconds_per_token = 0});
    s->engine().SetLink(kLowerTier, kHbmTier, 1e6, Duration(0));
    OneOnlyBelowOneInBoth(s);
    s.Advance(seconds(10));  // has seen the evictions of Store
    EXPECT_EQ(s->Evict(2, kLowerTier), 2u);
    EXPECT_EQ(s.counters().duplicates_left, factor == 0 ? 2u : 0u);
  }
}

TEST(TidePolicy, OnlyCopiesOfHigherPriorityStayLonger) {
  TideFixture s({.hbm = 8, .dram = 4}, {.clean_pool = 0});
  s->Store(Text(1, 8), {.session = 1, .priority = Priority::kCritical});
  s->Store(Text(2, 8), {.session = 2, .priority = Priority::kNormal});
  EXPECT_EQ(s->Evict(2, kLowerTier), 2u);
  EXPECT_EQ(s->Found(Text(1, 8)), 8u);
  EXPECT_EQ(s->Found(Text(2, 8)), 0u);
}

// spear below HBM: a session's copies leave together, whatever order they came in.
TEST(SpearBelowHbm, ASessionsCopiesLeaveTogether) {
  ScenarioFixture s({.hbm = 16, .dram = 8, .adjust = [](ManagerOptions& o) {
                       o.policy = [](TierIndex) { return MakeSpearPolicy(); };
                     }});
  s.Cache(Text(1, 16), {.session = 1});
  s.SetTime(AtSecond(100));
  s.Cache(Text(2, 16), {.session = 2});
  s.SetTime(AtSecond(200));
  EXPECT_EQ(s.Offload(Text(2, 16)).accepted, 4u);
  s.Settle();
  s.SetTime(AtSecond(210));
  EXPECT_EQ(s.Offload(Text(1, 16)).accepted, 4u);  // waits longer, was copied later
  s.Settle();
  EXPECT_EQ(s.Evict(4, kLowerTier), 4u);
  for (const BlockId b : s.Blocks(Text(1, 16))) {
    EXPECT_EQ(s.manager().pool().copy(b, kLowerTier), CopyState::kAbsent);
  }
  for (const BlockId b : s.Blocks(Text(2, 16))) {
    EXPECT_EQ(s.manager().pool().copy(b, kLowerTier), CopyState::kValid);
  }
}

}  // namespace
}  // namespace tidepool::testing
