// RankEngine alone, and under a real manager with two to four workers that have memory of their
// own.
#include "tidepool/transfer/rank_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/rank_world.h"
#include "tidepool/input_log.h"
#include "tidepool/testing/manual_clock.h"

namespace tidepool::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint32_t kLayers = 4;
constexpr std::uint64_t kBlock = 1u << 20;
constexpr std::array kResults = {TransferResult::kOk, TransferResult::kFailed,
                                 TransferResult::kCancelled, TransferResult::kTimedOut};

/// An attached engine with two tiers of 64 slots, spoken to in small words.
class Rig {
 public:
  explicit Rig(RankEngineOptions options) : engine(With(std::move(options), &clock)) {
    TierBinding tier{.slots = 64,
                     .slot_bytes = kBlock,
                     .layers = kLayers,
                     .prior_bytes_per_second = 10e9,
                     .prior_latency = std::chrono::microseconds(20)};
    EXPECT_TRUE(engine.Attach(std::vector{tier, tier}, nullptr).ok());
  }

  /// A copy from slot `id` to slot `id`, upwards unless it is a spill or shadow copy.
  static CopyRequest Request(std::uint32_t id,
                             TransferClass transfer_class = TransferClass::kDemandLoad,
                             TimePoint deadline = kNever) {
    const bool down = transfer_class >= TransferClass::kShadowCopy;
    return {.id = TransferId(id),
            .block = BlockId(id),
            .from = static_cast<TierIndex>(down ? 0 : 1),
            .to = static_cast<TierIndex>(down ? 1 : 0),
            .source = SlotId(id % 64),
            .destination = SlotId(id % 64),
            .transfer_class = transfer_class,
            .deadline = deadline};
  }
  std::size_t Submit(const std::vector<CopyRequest>& copies) { return engine.Submit(copies); }
  std::vector<std::uint64_t> Drain(std::uint32_t rank) {
    engine.DrainPlan(rank, plan);
    std::vector<std::uint64_t> ids;
    for (const CopyRequest& c : plan.copies) ids.push_back(c.id.value());
    return ids;
  }
  void End(std::uint32_t rank, std::uint32_t id, TransferResult result = TransferResult::kOk) {
    const Completion c{.id = TransferId(id), .terminal = true, .result = result};
    engine.Report(rank, {&c, 1});
  }
  void Layers(std::uint32_t rank, std::uint32_t id, std::uint32_t layers) {
    const Completion c{.id = TransferId(id), .layers_done = layers};
    engine.Report(rank, {&c, 1});
  }
  std::vector<Completion> Poll() {
    std::vector<Completion> completions;
    engine.Poll(completions);
    return completions;
  }
  /// "3:ok 4:failed", and "3:2" for two layers of copy 3.
  std::string Polled() {
    constexpr std::array kNames = {"ok", "failed", "cancelled", "timed out"};
    std::string text;
    for (const Completion& c : Poll()) {
      text +=
          (text.empty() ? "" : " ") + std::to_string(c.id.value()) + ":" +
          (c.terminal ? kNames[static_cast<std::size_t>(c.result)] : std::to_string(c.layers_done));
    }
    return text;
  }
  std::vector<std::uint64_t> Cancels(std::uint32_t rank) {
    (void)Drain(rank);
    std::vector<std::uint64_t> ids;
    for (const TransferId id : plan.cancels) ids.push_back(id.value());
    return ids;
  }

  ManualClock clock;
  RankEngine engine;
  RankPlan plan;

 private:
  static RankEngineOptions With(RankEngineOptions options, const Clock* clock) {
    options.clock = clock;
    return options;
  }
};

TEST(RankEngine, ACopyIsOverWhenEveryRankHasReported) {
  Rig rig({.ranks = 3});
  EXPECT_EQ(rig.Submit({Rig::Request(1), Rig::Request(2)}), 2u);
  for (std::uint32_t r = 0; r < 3; ++r) EXPECT_THAT(rig.Drain(r), ElementsAre(1, 2));
  EXPECT_THAT(rig.Drain(0), IsEmpty()) << "each copy is handed out once";
  rig.End(0, 2);
  rig.End(2, 2);
  rig.End(0, 1);
  EXPECT_EQ(rig.Polled(), "");
  rig.End(1, 2);
  EXPECT_EQ(rig.Polled(), "2:ok");
  rig.End(2, 1);
  rig.End(1, 1);
  EXPECT_EQ(rig.Polled(), "1:ok");
  EXPECT_EQ(rig.engine.outstanding(), 0u);
}

// All answers that three ranks can give, in all orders of reporting.
TEST(RankEngine, OneFailureFailsAndOneCancelOtherwiseCancels) {
  std::uint32_t id = 1;
  Rig rig({.ranks = 3});
  std::array<std::uint32_t, 3> order = {0, 1, 2};
  do {
    for (int answers = 0; answers < 64; ++answers, ++id) {
      const std::array results = {kResults[answers % 4], kResults[answers / 4 % 4],
                                  kResults[answers / 16]};
      ASSERT_EQ(rig.Submit({Rig::Request(id)}), 1u);
      for (std::uint32_t r = 0; r < 3; ++r) ASSERT_THAT(rig.Drain(r), ElementsAre(id));
      for (const std::uint32_t r : order) rig.End(r, id, results[r]);
      const auto any = [&](TransferResult result) {
        return std::ranges::count(results, result) != 0;
      };
      const bool failed = any(TransferResult::kFailed) || any(TransferResult::kTimedOut);
      const std::string want = failed                            ? "failed"
                               : any(TransferResult::kCancelled) ? "cancelled"
                                                                 : "ok";
      ASSERT_EQ(rig.Polled(), std::to_string(id) + ":" + want) << answers;
    }
  } while (std::ranges::next_permutation(order).found);
  EXPECT_EQ(rig.engine.outstanding(), 0u);
}

TEST(RankEngine, LayersAreThoseOfTheSlowestRank) {
  Rig rig({.ranks = 2});
  rig.Submit({Rig::Request(7)});
  for (std::uint32_t r = 0; r < 2; ++r) (void)rig.Drain(r);
  rig.Layers(0, 7, 3);
  EXPECT_EQ(rig.Polled(), "");
  rig.Layers(1, 7, 1);
  EXPECT_EQ(rig.Polled(), "7:1");
  rig.Layers(1, 7, 1);
  rig.Layers(0, 7, 2);  // less than it said before
  EXPECT_EQ(rig.Polled(), "");
  rig.End(1, 7);  // has all four
  EXPECT_EQ(rig.Polled(), "7:3");
  rig.End(0, 7);
  const std::vector<Completion> last = rig.Poll();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_TRUE(last[0].terminal);
  EXPECT_EQ(last[0].layers_done, kLayers);
}

TEST(RankEngine, WrongReportsAreCountedAndChangeNothing) {
  Rig rig({.ranks = 2});
  rig.Submit({Rig::Request(1), Rig::Request(2)});
  (void)rig.Drain(0);
  rig.End(1, 1);                  // has not been given it
  rig.End(0, 9);                  // never submitted
  rig.End(2, 1);                  // no such rank
  rig.Layers(0, 1, kLayers + 1);  // no such layer
  rig.End(0, 1);
  rig.End(0, 1, TransferResult::kFailed);  // again
  rig.Layers(0, 1, 1);
  EXPECT_EQ(rig.Polled(), "");
  (void)rig.Drain(1);
  rig.End(1, 1);
  EXPECT_EQ(rig.Polled(), "1:ok");
  rig.End(1, 1, TransferResult::kFailed);  // over
  EXPECT_EQ(rig.Polled(), "");
  const RankEngineStats& stats = rig.engine.stats();
  EXPECT_EQ(stats.not_drained, 1u);
  EXPECT_EQ(stats.unknown, 2u);
  EXPECT_EQ(stats.out_of_range, 2u);
  EXPECT_EQ(stats.repeated, 2u);
  EXPECT_EQ(rig.engine.outstanding(), 1u);
}

// Against a sort of everything submitted and not drained yet.
TEST(RankEngine, PlansAreInOrderOfClassDeadlineAndSubmission) {
  std::mt19937_64 random(5);
  Rig rig({.ranks = 2, .background_window = std::chrono::seconds(1)});
  std::array<std::vector<CopyRequest>, 2> waiting;  // by rank
  std::uint32_t id = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<CopyRequest> copies;
    for (std::uint64_t n = random() % 6; n > 0; --n) {
      const auto cls = static_cast<TransferClass>(random() % kTransferClassCount);
      copies.push_back(Rig::Request(++id, cls, TimePoint(Duration(random() % 4))));
    }
    ASSERT_EQ(rig.Submit(copies), copies.size());
    for (auto& w : waiting) w.insert(w.end(), copies.begin(), copies.end());
    const auto rank = static_cast<std::uint32_t>(random() % 2);
    std::vector<CopyRequest> want = std::exchange(waiting[rank], {});
    std::ranges::stable_sort(
        want, {}, [](const CopyRequest& c) { return std::tuple(c.transfer_class, c.deadline); });
    std::vector<std::uint64_t> want_ids;
    // While a demand load is owed, background copies of its direction come one at a time.
    const bool owed =
        std::ranges::count(want, TransferClass::kDemandLoad, &CopyRequest::transfer_class) != 0;
    bool held_back = false;
    for (const CopyRequest& c : want) {
      const bool background = c.to == 0 && c.transfer_class != TransferClass::kDemandLoad;
      if (owed && background && std::exchange(held_back, true)) {
        waiting[rank].push_back(c);
      } else {
        want_ids.push_back(c.id.value());
      }
    }
    ASSERT_EQ(rig.Drain(rank), want_ids);
    std::ranges::sort(waiting[rank], {}, &CopyRequest::id);
    for (const std::uint64_t done : want_ids) rig.End(rank, static_cast<std::uint32_t>(done));
  }
}

TEST(RankEngine, BackgroundCopiesHaveAWindowAndBehindADemandLoadOnlyOne) {
  Rig rig({.ranks = 2});
  std::vector<CopyRequest> shadows, prefetches;
  for (std::uint32_t i = 1; i <= 30; ++i) {
    shadows.push_back(Rig::Request(i, TransferClass::kShadowCopy));
    prefetches.push_back(Rig::Request(100 + i, TransferClass::kPredictedPrefetch));
  }
  rig.Submit(shadows);
  EXPECT_EQ(rig.Drain(0).size(), 19u) << "10 GB/s x 2 ms are 19 blocks of 1 MiB";
  EXPECT_THAT(rig.Drain(0), IsEmpty());
  rig.End(0, 1);
  rig.End(0, 2);
  EXPECT_THAT(rig.Drain(0), ElementsAre(20, 21)) << "the window is each rank's own";
  EXPECT_EQ(rig.Drain(1).size(), 19u);

  rig.Submit({Rig::Request(99)});
  rig.Submit(prefetches);
  EXPECT_THAT(rig.Drain(0), ElementsAre(99, 101)) << "loads come up, the other direction is full";
  rig.End(0, 101);
  EXPECT_THAT(rig.Drain(0), ElementsAre(102));
  EXPECT_THAT(rig.Drain(0), IsEmpty());
  rig.End(0, 99);
  EXPECT_EQ(rig.Drain(0).size(), 18u) << "the demand load is over on this rank";
  EXPECT_THAT(rig.Drain(1), ElementsAre(99, 101));
}

TEST(RankEngine, ACancelledCopyIsGivenToNoFurtherRank) {
  Rig rig({.ranks = 3});
  rig.Submit({Rig::Request(1), Rig::Request(2), Rig::Request(3)});
  rig.engine.Cancel(TransferId(1));  // nobody has it
  EXPECT_EQ(rig.Polled(), "1:cancelled");
  EXPECT_THAT(rig.Drain(0), ElementsAre(2, 3));
  rig.engine.Cancel(TransferId(2));
  rig.engine.Cancel(TransferId(2));
  rig.engine.Cancel(TransferId(77));
  EXPECT_EQ(rig.Polled(), "") << "rank 0 may be writing";
  EXPECT_THAT(rig.Drain(1), ElementsAre(3));
  EXPECT_THAT(rig.Cancels(0), ElementsAre(2));
  EXPECT_THAT(rig.Cancels(0), IsEmpty());
  rig.End(0, 2);  // was faster: no use, the others have not begun
  EXPECT_EQ(rig.Polled(), "2:cancelled");

  (void)rig.Drain(2);
  rig.engine.Cancel(TransferId(3));  // all have it
  for (std::uint32_t r = 0; r < 3; ++r) rig.End(r, 3);
  EXPECT_EQ(rig.Polled(), "3:ok") << "too late on every rank";
}

TEST(RankEngine, WithdrawLeavesWhatARankHas) {
  Rig rig({.ranks = 2});
  rig.Submit({Rig::Request(1)});
  (void)rig.Drain(0);
  rig.Submit({Rig::Request(2)});
  for (std::uint32_t id = 1; id <= 3; ++id) rig.engine.Withdraw(TransferId(id));
  EXPECT_EQ(rig.Polled(), "2:cancelled");
  EXPECT_THAT(rig.Drain(1), ElementsAre(1));
  EXPECT_THAT(rig.Cancels(0), IsEmpty());
}

TEST(RankEngine, AFailedPartCallsTheOthersOff) {
  Rig rig({.ranks = 3});
  rig.Submit({Rig::Request(1)});
  (void)rig.Drain(0);
  (void)rig.Drain(1);
  rig.End(0, 1, TransferResult::kFailed);
  EXPECT_EQ(rig.Polled(), "");
  EXPECT_THAT(rig.Drain(2), IsEmpty());
  EXPECT_THAT(rig.Cancels(1), ElementsAre(1));
  rig.Layers(1, 1, 2);
  EXPECT_EQ(rig.Polled(), "") << "no layers of what has failed";
  rig.End(1, 1, TransferResult::kCancelled);
  EXPECT_EQ(rig.Polled(), "1:failed");
}

TEST(RankEngine, ALostRankFailsWhatItOwesAndStopsPlansUntilItIsBack) {
  Rig rig({.ranks = 2, .freed_slots = true});
  rig.Submit({Rig::Request(1), Rig::Request(2), Rig::Request(3)});
  (void)rig.Drain(1);
  rig.End(1, 1);
  EXPECT_EQ(rig.engine.RankLost(1), Outcome::kOk);
  EXPECT_EQ(rig.engine.RankLost(1), Outcome::kOk);
  EXPECT_EQ(rig.Polled(), "2:failed 3:failed") << "rank 0 had not been given them";
  EXPECT_THAT(rig.Drain(0), ElementsAre(1)) << "of this one it had reported";
  rig.End(0, 1);
  EXPECT_EQ(rig.Polled(), "1:ok");
  EXPECT_EQ(rig.Submit({Rig::Request(4)}), 0u);
  rig.End(1, 2);
  EXPECT_EQ(rig.engine.stats().from_lost, 1u);
  rig.engine.OnSlotFreed(1, SlotId(3));
  EXPECT_EQ(rig.engine.RankBack(1), Outcome::kOk);
  EXPECT_EQ(rig.engine.RankBack(1), Outcome::kOk);
  EXPECT_EQ(rig.Submit({Rig::Request(4)}), 1u);
  EXPECT_THAT(rig.Drain(1), ElementsAre(4));
  EXPECT_THAT(rig.plan.freed, IsEmpty()) << "it has forgotten everything anyway";
  EXPECT_EQ(rig.engine.RankLost(2), Outcome::kInvalidArgument);
  EXPECT_EQ(rig.engine.RankBack(2), Outcome::kInvalidArgument);
}

// A load that was drained by the survivor ends only when the survivor lets go of it.
TEST(RankEngine, ACopyOfALostRankEndsWhenTheOthersLetGo) {
  Rig rig({.ranks = 3});
  rig.Submit({Rig::Request(1)});
  (void)rig.Drain(0);
  (void)rig.Drain(1);
  rig.engine.RankLost(1);
  EXPECT_EQ(rig.Polled(), "");
  EXPECT_THAT(rig.Cancels(0), ElementsAre(1));
  rig.engine.RankLost(0);
  EXPECT_EQ(rig.Polled(), "1:failed");
  EXPECT_EQ(rig.engine.outstanding(), 0u);
  rig.engine.RankBack(0);
  EXPECT_EQ(rig.Submit({Rig::Request(2)}), 0u) << "rank 1 is still away";
}

TEST(RankEngine, SubmitTakesALeadingPart) {
  Rig rig({.ranks = 2, .max_queued_copies = 2});
  const std::vector<CopyRequest> copies = {Rig::Request(1, TransferClass::kSpill),
                                           Rig::Request(2, TransferClass::kSpill),
                                           Rig::Request(3, TransferClass::kSpill), Rig::Request(4)};
  EXPECT_EQ(rig.Submit(copies), 2u);
  EXPECT_EQ(rig.engine.QueuedBytes(0, 1), 2 * kBlock);
  EXPECT_EQ(rig.Submit({copies[3]}), 1u) << "the other direction has room";
  for (std::uint32_t r = 0; r < 2; ++r) {
    (void)rig.Drain(r);
    rig.End(r, 1);
  }
  EXPECT_EQ(rig.Submit({copies[2]}), 1u);
  EXPECT_EQ(rig.engine.QueuedBytes(0, 1), 2 * kBlock);
}

TEST(RankEngine, ImpossibleCopiesFailAtOnce) {
  Rig rig({.ranks = 2});
  CopyRequest no_slot = Rig::Request(1);
  no_slot.source = SlotId(64);
  CopyRequest no_tier = Rig::Request(2);
  no_tier.from = 2;
  EXPECT_EQ(rig.Submit({no_slot, Rig::Request(3), no_tier, Rig::Request(3)}), 4u);
  EXPECT_EQ(rig.Polled(), "1:failed 2:failed 3:failed");
  EXPECT_EQ(rig.engine.outstanding(), 1u);
}

TEST(RankEngine, OptionsAreChecked) {
  const std::vector<TierBinding> tiers(2);
  RankEngine none({.ranks = 0});
  EXPECT_THAT(std::string(none.Attach(tiers, nullptr).message()), HasSubstr("ranks is 0"));
  RankEngine many({.ranks = kMaxRanks + 1});
  EXPECT_THAT(std::string(many.Attach(tiers, nullptr).message()), HasSubstr("1025"));
  RankEngine one({.ranks = 1});
  EXPECT_TRUE(one.Attach(tiers, nullptr).ok());
  EXPECT_EQ(one.Attach(tiers, nullptr).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(RankEngine, BandwidthIsThatOfTheSlowestRank) {
  Rig rig({.ranks = 2});
  EXPECT_EQ(rig.engine.BytesPerSecond(1, 0), 10e9);
  EXPECT_EQ(rig.engine.EstimateCost(1, 0, kBlock).method, "prior");
  for (std::uint32_t id = 1; id <= 8; ++id) {
    rig.Submit({Rig::Request(id)});
    rig.clock.Advance(std::chrono::seconds(3));  // nobody has it yet: the link is not busy
    for (std::uint32_t r = 0; r < 2; ++r) (void)rig.Drain(r);
    rig.clock.Advance(std::chrono::milliseconds(1));
    rig.End(0, id);
    rig.clock.Advance(std::chrono::milliseconds(3));
    rig.End(1, id);
  }
  EXPECT_NEAR(rig.engine.BytesPerSecond(1, 0), kBlock / 0.004, 1);
  const TransferEstimate estimate = rig.engine.EstimateCost(1, 0, kBlock);
  EXPECT_EQ(estimate.method, "measured");
  EXPECT_NEAR(static_cast<double>(estimate.time.count()), 4'020'000, 10);
  EXPECT_EQ(rig.engine.BytesPerSecond(0, 1), 10e9) << "the other direction is as it was";
}

TEST(RankEngine, FreedSlotsComeBeforeTheCopiesThatUseThemAgain) {
  Rig rig({.ranks = 2, .freed_slots = true});
  rig.engine.OnSlotFreed(1, SlotId(5));
  rig.Submit({Rig::Request(5, TransferClass::kSpill)});
  for (std::uint32_t r = 0; r < 2; ++r) {
    EXPECT_THAT(rig.Drain(r), ElementsAre(5));
    ASSERT_EQ(rig.plan.freed.size(), 1u);
    EXPECT_EQ(rig.plan.freed[0].slot, SlotId(5));
    EXPECT_EQ(rig.plan.freed[0].tier, 1);
  }
  Rig plain({.ranks = 1});
  plain.engine.OnSlotFreed(1, SlotId(5));
  (void)plain.Drain(0);
  EXPECT_THAT(plain.plan.freed, IsEmpty());
}

// --- Under a manager. ---

struct Case {
  std::string name;
  RankWorldOptions options;
};

std::vector<Case> Cases() {
  const RankFaults rough = {
      .late = 0.4, .fail = 0.05, .repeat = 0.1, .reorder = 0.3, .layers = 0.3, .nonsense = 0.1};
  return {{"TwoRanks", {.ranks = 2}},
          {"TwoRanksLate", {.ranks = 2, .faults = {.late = 0.6, .layers = 0.5}}},
          {"TwoRanksRough", {.ranks = 2, .faults = rough}},
          {"FourRanksRough", {.ranks = 4, .hbm = 10, .dram = 8, .faults = rough}},
          {"ThreeRanksTight", {.ranks = 3, .hbm = 7, .dram = 6, .layers = 1, .faults = rough}}};
}

class RankWorldTest : public ::testing::TestWithParam<Case> {};

TEST_P(RankWorldTest, EveryRankHasTheBytesAndNothingLeaks) {
  std::uint64_t loaded = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    RankWorldOptions options = GetParam().options;
    options.seed = seed;
    RankWorld world(options);
    for (int i = 0; i < 500 && world.failure().empty(); ++i) world.Step();
    world.WindDown();
    ASSERT_EQ(world.failure(), "");
    EXPECT_GT(world.verified(), 10'000u);
    loaded += world.loaded();
    if (options.faults.repeat > 0) {
      EXPECT_GT(world.engine().stats().repeated + world.engine().stats().unknown, 0u);
      EXPECT_GT(world.manager().stats().offloads_failed, 0u);
    }
  }
  EXPECT_GT(loaded, 40u);
}

// What the ranks did is an input like any other.
TEST_P(RankWorldTest, ItsLogRepeatsTheRun) {
  InputLogBuffer log;
  RankWorldOptions options = GetParam().options;
  options.seed = 9;
  options.input_log = &log;
  std::uint64_t hash = 0;
  {
    RankWorld world(options);
    for (int i = 0; i < 300; ++i) world.Step();
    world.WindDown();
    ASSERT_EQ(world.failure(), "");
    hash = world.manager().decision_hash();
  }
  const StatusOr<ReplayReport> report = ReplayInputLog(log.bytes(), RankWorld::Options(options));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->agrees) << report->divergence;
  EXPECT_TRUE(report->complete);
  EXPECT_EQ(report->decision_hash, hash);
}

INSTANTIATE_TEST_SUITE_P(Worlds, RankWorldTest, ::testing::ValuesIn(Cases()),
                         [](const auto& world) { return world.param.name; });

std::vector<Token> Prompt(Token first, std::uint32_t n) {
  std::vector<Token> tokens(n);
  for (std::uint32_t i = 0; i < n; ++i) tokens[i] = first + static_cast<Token>(i);
  return tokens;
}

TEST(RankWorld, WaitingOnATicketExchangesPlansAndReports) {
  RankWorld world({.ranks = 2});
  const std::vector<Token> text = Prompt(500, 12);
  world.Finish(world.Admit(text));
  EXPECT_EQ(world.manager().Offload(text).accepted, 3u);
  bool idle = false;  // a rank's message may be late
  for (int i = 0; i < 20 && !idle; ++i) idle = world.manager().WaitIdle(std::chrono::seconds(1));
  EXPECT_TRUE(idle);
  EXPECT_EQ(world.manager().Evict(kHbmTier, 3), 3u);
  Admission a = world.manager().Admit({.tokens = Prompt(500, 13)});
  ASSERT_EQ(a.loading_tokens, 12u);
  Outcome ready = Outcome::kPending;
  for (int i = 0; i < 20 && ready == Outcome::kPending; ++i) ready = a.ticket.WaitReady();
  EXPECT_EQ(ready, Outcome::kOk);
}

TEST(RankWorld, ARankThatDiesInTheMiddleOfEverythingLeaksNothing) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    RankWorld world({.ranks = 3, .faults = {.late = 0.5}, .seed = seed});
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 60; ++i) world.Step();
      ASSERT_EQ(world.failure(), "");
      const auto victim = static_cast<std::uint32_t>((seed + round) % 3);
      world.engine().RankLost(victim);
      world.worker(victim).Die();
      world.EndAll();  // what was running is lost
      for (int i = 0; i < 100 && world.engine().outstanding() != 0; ++i) world.Exchange();
      EXPECT_EQ(world.engine().outstanding(), 0u);
      world.manager().Poll();
      EXPECT_TRUE(world.manager().Clear().ok());
      world.engine().RankBack(victim);
      world.Exchange(true);
      world.Check("the rank's return");
      ASSERT_EQ(world.failure(), "");
      EXPECT_EQ(world.manager().table_sizes().transfers, 0u);
    }
    world.WindDown();
    EXPECT_EQ(world.failure(), "");
  }
}

}  // namespace
}  // namespace tidepool::testing
