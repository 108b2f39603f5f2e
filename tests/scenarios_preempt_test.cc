// Preemption: the mode by cost, what comes back, who may preempt whom (S06, S11 and kin), and what
// the demand ledger keeps for those that wait. Scenarios without a number are our own.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/scenario_fixture.h"

namespace tidepool::testing {
namespace {

using enum Outcome;

constexpr double kLinkRounding = 0x1p-10;            // what is measured of a link has ten bits
constexpr std::uint64_t kBytes = kBlockTokens * 16;  // of a block of one layer

void SetLinks(ScenarioFixture& s, double blocks_per_second) {
  const double bytes = blocks_per_second * static_cast<double>(kBytes);
  s.engine().SetLink(0, 1, bytes, Duration(0));
  s.engine().SetLink(1, 0, bytes, Duration(0));
  s.Poll();
}

std::function<void(ManagerOptions&)> Recomputing(double c0, double c1) {
  return [=](ManagerOptions& o) {
    o.recompute = {.c0_seconds = c0, .c1_seconds_per_token = c1};
    o.demand_ttl = std::chrono::hours(1);
  };
}

std::vector<ReclaimChoice> Plan(ScenarioFixture& s, std::uint32_t blocks) {
  return s.manager().PlanReclaim(blocks * kBytes);
}

std::vector<std::string> Names(ScenarioFixture& s, const std::vector<ReclaimChoice>& plan,
                               const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const ReclaimChoice& c : plan) {
    for (const std::string& name : names) {
      if (s.seq(name).id() == c.sequence) found.push_back(name);
    }
  }
  return found;
}

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

// --- The mode. ---

TEST(ScenarioPreempt, KeepsTheTailWhileNobodyWaitsForRoom) {
  ScenarioFixture s({.hbm = 4, .dram = 4});
  EXPECT_EQ(s.Allocate("S", Text(1, 6)), kOk);
  EXPECT_EQ(s.Commit("S", 6), kOk);
  EXPECT_EQ(s.Preempt("S"), kOk);
  s.Settle();
  EXPECT_TRUE(s.engine().submitted().empty());
  EXPECT_EQ(s.manager().stats().preempted_keep, 1u);
  EXPECT_EQ(s.Resume("S"), kOk);
  EXPECT_EQ(s.admission("S").ready_tokens, 6u);
}

struct CostCase {
  const char* what;
  double c0, c1;             // of a block
  std::uint32_t tokens;      // the last two are the tail
  double blocks_per_second;  // of both links
  std::uint32_t queued;      // blocks on their way down
  PreemptMode mode;
  double cost, ready;  // of one tail block; -1 = never
};

// The tail is half a block; every published block is clean, at a cost of one load each.
TEST(ScenarioPreempt, ChoosesTheCheaperOfOffloadAndRecompute) {
  constexpr auto kOffload = PreemptMode::kOffload;
  constexpr auto kRecompute = PreemptMode::kRecompute;
  const CostCase cases[] = {
      {"two copies cost less", 1, 0, 6, 8, 0, kOffload, 2. / 8 + 1. / 8, 1. / 8},
      {"half a block costs less", 1, 0, 6, 3, 0, kRecompute, .5 + 1. / 3, 0},
      {"attention grows with the position", 1, .5, 6, 3, 0, kOffload, 2. / 3 + 1. / 3, 1. / 3},
      {"the link is busy", 1, 0, 6, 8, 3, kRecompute, .5 + 1. / 8, 0},
      {"the link is dead", 1, 0, 6, 0, 0, kRecompute, .5, 0},
      {"the model is unknown", 0, 0, 6, .01, 0, kOffload, 300, 100},
      {"nothing can be done", 0, 0, 6, 0, 0, PreemptMode::kKeep, 0, -1},
  };
  for (const CostCase& c : cases) {
    SCOPED_TRACE(c.what);
    ScenarioFixture s({.hbm = 8, .dram = 8, .adjust = Recomputing(c.c0, c.c1)});
    EXPECT_EQ(s.Allocate("S", Text(1, c.tokens)), kOk);
    EXPECT_EQ(s.Commit("S", c.tokens), kOk);
    SetLinks(s, 1000);
    EXPECT_EQ(s.Offload(Text(1, c.tokens)).accepted, c.tokens / kBlockTokens);
    s.Settle();
    if (c.queued != 0) {
      s.Cache(Text(2, c.queued * kBlockTokens));
      EXPECT_EQ(s.Offload(Text(2, c.queued * kBlockTokens)).accepted, c.queued);
    }
    SetLinks(s, c.blocks_per_second);
    const std::vector<ReclaimChoice> plan = Plan(s, 8);
    ASSERT_EQ(plan.size(), 1u);
    EXPECT_EQ(plan[0].mode, c.mode);
    EXPECT_EQ(plan[0].blocks, 2u);
    EXPECT_EQ(plan[0].blocks_now, c.mode == kRecompute ? 2u : 1u);
    EXPECT_EQ(plan[0].recompute_tokens, c.mode == kRecompute ? 2u : 0u);
    EXPECT_NEAR(Seconds(plan[0].cost), c.cost, c.cost * kLinkRounding + 1e-6);
    if (c.ready < 0) {
      EXPECT_EQ(plan[0].ready_in, Duration::max());
    } else {
      EXPECT_NEAR(Seconds(plan[0].ready_in), c.ready, c.ready * kLinkRounding + 1e-6);
    }
    // Auto takes the same once somebody waits: for a slot more than there is.
    EXPECT_EQ(s.Allocate("N", Text(3, 28)), kBusy);
    EXPECT_EQ(s.Preempt("S"), kOk);
    const ManagerStats& stats = s.manager().stats();
    EXPECT_EQ(stats.preempted_offload, c.mode == kOffload ? 1u : 0u);
    EXPECT_EQ(stats.preempted_recompute, c.mode == kRecompute ? 1u : 0u);
  }
}

TEST(ScenarioPreempt, ThePlanCountsWhatItSendsDownItself) {
  ScenarioFixture s({.hbm = 8, .dram = 8, .adjust = Recomputing(1, 0)});
  for (const int i : {1, 2, 3}) {
    const std::string name = std::to_string(i);
    EXPECT_EQ(s.Allocate(name, Text(i, 3)), kOk);
    EXPECT_EQ(s.Commit(name, 3), kOk);
  }
  SetLinks(s, 4);  // a tail costs .75 s to compute, .25 s a copy
  const std::vector<ReclaimChoice> plan = Plan(s, 3);
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[0].mode, PreemptMode::kOffload);
  EXPECT_NEAR(Seconds(plan[0].ready_in), .25, 1e-6);
  EXPECT_NEAR(Seconds(plan[1].ready_in), .50, 1e-6);  // behind the first
  EXPECT_EQ(plan[2].mode, PreemptMode::kRecompute);   // .75 s down and .25 s up are more
  // Preempting them one by one without a Poll between comes to the same.
  EXPECT_EQ(s.Allocate("N", Text(4, 32)), kBusy);
  for (const ReclaimChoice& c : plan) {
    EXPECT_EQ(s.Preempt(Names(s, {c}, {"1", "2", "3"})[0]), kOk);
  }
  EXPECT_EQ(s.manager().stats().preempted_offload, 2u);
  EXPECT_EQ(s.manager().stats().preempted_recompute, 1u);
}

TEST(ScenarioPreempt, WhatIsCleanGoesFirstAndTheTailStays) {
  ScenarioFixture s({.hbm = 8, .dram = 8});
  EXPECT_EQ(s.Allocate("S", Text(1, 14)), kOk);
  EXPECT_EQ(s.Commit("S", 14), kOk);
  EXPECT_EQ(s.Offload(Text(1, 12)).accepted, 3u);
  s.Settle();
  const std::vector<ReclaimChoice> two = Plan(s, 2);
  ASSERT_EQ(two.size(), 1u);
  EXPECT_EQ(two[0].mode, PreemptMode::kKeep);
  EXPECT_EQ(two[0].blocks_now, 3u);
  EXPECT_EQ(two[0].blocks, 4u);
  EXPECT_EQ(Plan(s, 4)[0].mode, PreemptMode::kOffload);
}

TEST(ScenarioPreempt, NoRoomBelowIsNoReasonToLoseTheTail) {
  ScenarioFixture s({.hbm = 4, .dram = 1});
  s.Store(Text(9, 4));
  EXPECT_EQ(s.Allocate("L", Join(Text(9, 4), {7})), kOk);  // the load pins the only slot below
  EXPECT_EQ(s.Allocate("S", Text(1, 6)), kOk);
  EXPECT_EQ(s.Commit("S", 6), kOk);
  s.Poll();
  EXPECT_EQ(Plan(s, 2)[0].mode, PreemptMode::kKeep);
  EXPECT_EQ(s.Preempt("S", PreemptMode::kOffload), kOk);
  EXPECT_EQ(s.Resume("S"), kOk);
  EXPECT_EQ(s.admission("S").ready_tokens, 6u);
  s.Settle();
}

// --- What comes back. ---

TEST(ScenarioPreempt, KeptAndOffloadedBytesReturnRecomputedTokensAreListed) {
  for (const bool publish : {true, false}) {
    for (const PreemptMode mode :
         {PreemptMode::kRecompute, PreemptMode::kOffload, PreemptMode::kKeep}) {
      ScenarioFixture s({.hbm = 6, .dram = 6});
      EXPECT_EQ(s.Allocate("S", Text(1, 10), {.lookahead = 4, .publish = publish}), kOk);
      EXPECT_EQ(s.Commit("S", 9), kOk);  // one token is not computed yet
      EXPECT_EQ(s.Preempt("S", mode), kOk);
      s.Settle();
      if (mode == PreemptMode::kOffload) {
        EXPECT_EQ(s.Counts(), publish ? "free 4, cached 2" : "free 6");
      }
      EXPECT_EQ(s.Resume("S"), kOk);
      const std::uint32_t lost = mode != PreemptMode::kRecompute ? 0 : publish ? 1 : 9;
      EXPECT_EQ(s.admission("S").recompute_tokens, 1 + lost);
      EXPECT_EQ(s.Hit("S"), 9 - lost);
      s.Settle();  // the fixture compares the bytes
      EXPECT_EQ(s.Commit("S", 10), kOk);
    }
  }
}

TEST(ScenarioPreempt, ATailOnItsWayBackIsNotLostByBeingPreemptedAgain) {
  ScenarioFixture s({.hbm = 4, .dram = 4});
  EXPECT_EQ(s.Allocate("S", Text(1, 6), {.session = 1}), kOk);
  EXPECT_EQ(s.Commit("S", 6), kOk);
  EXPECT_EQ(s.Preempt("S", PreemptMode::kOffload), kOk);
  s.Settle();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(s.Resume("S"), kOk);
    EXPECT_EQ(s.admission("S").recompute_tokens, 0u);
    EXPECT_EQ(s.Preempt("S", i == 2 ? PreemptMode::kKeep : PreemptMode::kOffload), kOk);
  }
  s.Settle();
  EXPECT_EQ(s.Resume("S"), kOk);
  EXPECT_EQ(s.Hit("S"), 6u);
  s.Settle();
}

// --- Who is preempted. ---

TEST(ScenarioPreempt, NoTwoSequencesPreemptEachOther) {
  ScenarioFixture s({.hbm = 8});
  EXPECT_EQ(s.Allocate("old", Text(1, 8)), kOk);
  EXPECT_EQ(s.Allocate("young", Text(2, 8)), kOk);
  EXPECT_EQ(s.Allocate("high", Text(3, 8), {.priority = Priority::kCritical}), kOk);
  const std::vector<std::string> all = {"old", "young", "high"};
  const auto victims_of = [&](const char* name) {
    return Names(s, s.manager().PlanReclaim(8 * kBytes, s.seq(name)), all);
  };
  using List = std::vector<std::string>;
  EXPECT_EQ(victims_of("old"), List{"young"});
  EXPECT_EQ(victims_of("young"), List{});
  EXPECT_EQ(victims_of("high"), (List{"young", "old"}));
  // Rank is for life: preempted and back, the old one is still the older.
  EXPECT_EQ(s.Preempt("old"), kOk);
  EXPECT_EQ(victims_of("old"), List{"young"});  // parked, it may claim the room for its return
  EXPECT_EQ(s.Resume("old"), kOk);
  EXPECT_EQ(victims_of("young"), List{});
  EXPECT_EQ(s.manager().PlanReclaim(kBytes, Sequence()).size(), 0u);
}

TEST(ScenarioPreempt, S11AVictimOnceIsNotTheVictimAgain) {
  ScenarioFixture s({.hbm = 8});
  for (const int i : {1, 2, 3}) {
    const std::string name = std::to_string(i);
    EXPECT_EQ(s.Allocate(name, Text(i, 8)), kOk);
    EXPECT_EQ(s.Commit(name, 7), kOk);
  }
  const auto victim = [&] { return Names(s, Plan(s, 1), {"1", "2", "3"}).at(0); };
  EXPECT_EQ(victim(), "3");
  EXPECT_EQ(s.Preempt("3"), kOk);
  EXPECT_EQ(s.Resume("3"), kOk);
  EXPECT_EQ(victim(), "2");  // 3 has not had its step yet
  EXPECT_EQ(s.Commit("3", 8), kOk);
  EXPECT_EQ(victim(), "2");  // and has lost work before: equal conditions, the next one's turn
}

TEST(ScenarioPreempt, WhoHasNotHadAStepIsLastWhateverItCosts) {
  ScenarioFixture s({.hbm = 8, .adjust = Recomputing(1, 1)});
  EXPECT_EQ(s.Allocate("dear", Text(1, 16)), kOk);
  EXPECT_EQ(s.Commit("dear", 16), kOk);
  EXPECT_EQ(s.Allocate("new", Text(2, 4)), kOk);
  EXPECT_EQ(Names(s, Plan(s, 5), {"dear", "new"}), (std::vector<std::string>{"dear", "new"}));
  EXPECT_EQ(s.Commit("new", 1), kOk);
  EXPECT_EQ(Names(s, Plan(s, 5), {"dear", "new"}), (std::vector<std::string>{"new", "dear"}));
}

TEST(ScenarioPreempt, BlocksSharedAmongVictimsCountWithTheLastOfThem) {
  ScenarioFixture s({.hbm = 6});
  EXPECT_EQ(s.Allocate("A", Text(1, 8)), kOk);
  EXPECT_EQ(s.Commit("A", 8), kOk);
  EXPECT_EQ(s.Fork("A", "B"), kOk);  // nothing of its own
  EXPECT_EQ(s.Allocate("C", Text(2, 8)), kOk);
  const std::vector<std::string> all = {"A", "B", "C"};
  EXPECT_EQ(Names(s, Plan(s, 2), all), std::vector<std::string>{"C"});
  const std::vector<ReclaimChoice> plan = Plan(s, 4);
  EXPECT_EQ(Names(s, plan, all), (std::vector<std::string>{"C", "A", "B"}));
  EXPECT_EQ(plan[1].blocks, 0u);
  EXPECT_EQ(plan[2].blocks, 2u);
}

TEST(ScenarioPreempt, AForksPrivateBlockDoesNotOutliveThoseWhoKeptIt) {
  ScenarioFixture s({.hbm = 4});
  EXPECT_EQ(s.Allocate("A", Text(1, 3)), kOk);
  EXPECT_EQ(s.Commit("A", 3, {.timeline = 0, .step = 1}), kOk);
  EXPECT_EQ(s.Fork("A", "B"), kOk);
  EXPECT_EQ(s.Commit("A", 3, {.timeline = 0, .step = 9}), kOk);
  EXPECT_EQ(s.Idle("A"), kOk);  // both releases wait for their steps, A's for the later one
  EXPECT_EQ(s.Idle("B"), kOk);
  EXPECT_EQ(s.Free("A"), kOk);  // B has kept it
  EXPECT_EQ(s.Resume("B"), kOk);
  EXPECT_EQ(s.Free("B"), kOk);
  EXPECT_EQ(s.CompleteStep(0, 9), kOk);
  EXPECT_EQ(s.Counts(), "free 4");
}

// --- The ledger. ---

// One-block requests come and go as fast as they can; the parked sequence needs four at once.
TEST(ScenarioPreempt, NewcomersDoNotEatTheRoomOfAParkedSequence) {
  for (const std::uint32_t dram : {0u, 8u}) {
    ScenarioFixture s({.hbm = 5, .dram = dram});
    EXPECT_EQ(s.Allocate("parked", Text(1, 16), {.publish = false}), kOk);
    EXPECT_EQ(s.Commit("parked", 16), kOk);
    EXPECT_EQ(s.Preempt("parked", PreemptMode::kRecompute), kOk);
    int next = 10;
    std::vector<std::string> running;
    const auto admit = [&] {
      const std::string name = std::to_string(next);
      const Outcome outcome = s.Allocate(name, Text(next, 4));
      if (outcome == kOk) running.push_back(name);
      ++next;
      return outcome;
    };
    while (admit() == kOk) {
    }
    int tries = 1;
    for (; s.Resume("parked") != kOk && tries < 20; ++tries) {
      EXPECT_EQ(s.Free(running.front()), kOk);
      running.erase(running.begin());
      static_cast<void>(admit());
    }
    EXPECT_EQ(tries, 5);  // four of the five have ended, nobody has come in between
  }
}

// A request that was never admitted may be overtaken by those that fit, but not for ever.
TEST(ScenarioPreempt, AWaitingRequestIsOvertakenAFewTimesOnly) {
  ScenarioFixture s({.hbm = 4});
  EXPECT_EQ(s.Allocate("running", Text(1, 8)), kOk);
  EXPECT_EQ(s.Allocate("large", Text(2, 12)), kBusy);
  int overtaken = 0;
  for (int i = 10; i < 40; ++i) {
    const std::string name = std::to_string(i);
    if (s.Allocate(name, Text(i, 4)) != kOk) break;
    ++overtaken;
    EXPECT_EQ(s.Free(name), kOk);
  }
  EXPECT_EQ(overtaken, 4);
  const Tokens urgent = Text(50, 4);
  EXPECT_EQ(s.Allocate("urgent", urgent, {.priority = Priority::kCritical}), kOk);
  EXPECT_EQ(s.Free("urgent"), kOk);
  EXPECT_EQ(s.Free("running"), kOk);
  EXPECT_EQ(s.Allocate("small", Text(60, 8)), kBusy);  // there is room for one of them only
  EXPECT_EQ(s.Allocate("large", Text(2, 12)), kOk);
  EXPECT_EQ(s.Allocate("small", Text(60, 4)), kOk);
  // Its place in the order is that of its first try.
  EXPECT_EQ(s.manager().PlanReclaim(kBytes, s.seq("small")).size(), 0u);
}

// What can be evicted counts too: a newcomer leaves enough of it.
TEST(ScenarioPreempt, ANewcomerLeavesEvictableRoomForThoseBeforeIt) {
  ScenarioFixture s({.hbm = 6});
  EXPECT_EQ(s.Allocate("parked", Text(1, 16), {.publish = false}), kOk);
  EXPECT_EQ(s.Preempt("parked"), kOk);
  EXPECT_EQ(s.Allocate("running", Text(2, 12)), kOk);
  EXPECT_EQ(s.Resume("parked"), kBusy);
  EXPECT_EQ(s.Commit("running", 4), kOk);
  EXPECT_EQ(s.Free("running"), kOk);  // one block cached, five free
  EXPECT_EQ(s.Allocate("big", Text(3, 12)), kBusy);
  EXPECT_EQ(s.Found(Text(2, 4)), 4u);  // refused, it has evicted nothing
  EXPECT_EQ(s.Allocate("small", Text(3, 8)), kOk);
  EXPECT_EQ(s.Resume("parked"), kOk);
}

// Demands belong to sequences: forks of one session, and sequences without any name.
TEST(ScenarioPreempt, EachParkedSequenceHasItsOwnDemand) {
  ScenarioFixture s({.hbm = 6, .dram = 6});
  EXPECT_EQ(s.Allocate("A", Text(1, 8), {.session = 1}), kOk);
  EXPECT_EQ(s.Commit("A", 8), kOk);
  EXPECT_EQ(s.Fork("A", "B"), kOk);
  EXPECT_EQ(s.Fork("A", "C"), kOk);
  EXPECT_EQ(s.Append("B", Text(5, 12)), kOk);
  EXPECT_EQ(s.Append("C", Text(6, 4)), kOk);
  EXPECT_EQ(s.Append("C", Text(7, 4)), kBusy);
  EXPECT_EQ(s.Append("B", Text(8, 4)), kBusy);
  EXPECT_EQ(s.manager().table_sizes().demands, 2u);
  EXPECT_EQ(s.Preempt("C"), kOk);  // it still lacks what it could not append
  EXPECT_EQ(s.manager().table_sizes().demands, 2u);
  EXPECT_EQ(s.Append("B", Text(8, 4)), kOk);
  EXPECT_EQ(s.Resume("C"), kBusy);
  EXPECT_EQ(s.Free("A"), kOk);
  EXPECT_EQ(s.manager().table_sizes().demands, 1u);  // what C needs to come back
  EXPECT_EQ(s.Free("C"), kOk);
  EXPECT_EQ(s.manager().table_sizes().demands, 0u);
}

TEST(ScenarioPreempt, SlotsThatLoadsFillAreNobodyElses) {
  ScenarioFixture s({.hbm = 4, .dram = 8});
  s.Store(Text(1, 12));
  EXPECT_EQ(s.Allocate("S", Join(Text(1, 12), {7})), kOk);
  EXPECT_EQ(s.Hit("S"), 12u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(s.Allocate("N", Text(2, 4), {.priority = Priority::kCritical}), kBusy);
    s.Poll();
  }
  s.engine().FinishAll();
  s.Poll();
  EXPECT_EQ(s.ticket("S").Ready(), kOk);
  EXPECT_EQ(s.Commit("S", 13), kOk);
}

TEST(ScenarioPreempt, RoomForAReturnIsNotMadeFromItsOwnTail) {
  ScenarioFixture s({.hbm = 4, .dram = 8});
  EXPECT_EQ(s.Allocate("S", Text(1, 10), {.publish = false}), kOk);
  EXPECT_EQ(s.Commit("S", 6), kOk);
  EXPECT_EQ(s.Preempt("S", PreemptMode::kKeep), kOk);  // two blocks stay, three are needed
  EXPECT_EQ(s.Allocate("N", Text(2, 8)), kOk);
  EXPECT_EQ(s.Commit("N", 8), kOk);
  EXPECT_EQ(s.Resume("S"), kBusy);
  EXPECT_EQ(s.Free("N"), kOk);
  s.Settle();
  EXPECT_EQ(s.Resume("S"), kOk);
  EXPECT_EQ(s.admission("S").ready_tokens, 6u);
}

// --- Every order of steps in a small world. ---

/// Three sequences that each need most of the pool. Whoever lacks room preempts those behind it, or
/// itself.
class SmallWorld {
 public:
  static constexpr int kActors = 3;

  explicit SmallWorld(std::uint32_t dram)
      : s_({.hbm = 4,
            .dram = dram,
            .adjust = Recomputing(dram == 0 ? 0 : 1e-3, 0),
            .check_every_step = false}) {}

  /// One of the actors does what it can, or all copies end.
  void Do(int choice) {
    if (choice == kActors) {
      s_.engine().FinishAll();
    } else {
      Act(choice);
    }
    s_.manager().Poll();
  }
  [[nodiscard]] bool done() const { return finished_[0] && finished_[1] && finished_[2]; }
  [[nodiscard]] int preemptions() const { return preemptions_; }
  [[nodiscard]] bool mutual() const {
    for (int a = 0; a < kActors; ++a) {
      for (int b = 0; b < a; ++b) {
        if (preempted_[a][b] && preempted_[b][a]) return true;
      }
    }
    return false;
  }
  ScenarioFixture& fixture() { return s_; }

 private:
  static std::string Name(int actor) { return std::to_string(actor); }

  void Act(int actor) {
    const std::string name = Name(actor);
    Sequence& seq = s_.seq(name);
    if (finished_[actor]) return;
    if (!seq.alive()) {
      static_cast<void>(s_.Allocate(name, Text(actor + 1, 5)));
    } else if (seq.paused()) {
      if (s_.Resume(name) == kBusy) MakeRoom(actor, 3);
    } else if (s_.ticket(name).Ready() == kPending) {
      return;
    } else if (seq.committed() < seq.tokens()) {
      EXPECT_EQ(s_.Commit(name, seq.tokens()), kOk);
    } else if (seq.tokens() >= 11) {
      EXPECT_EQ(s_.Free(name), kOk);
      finished_[actor] = true;
    } else if (s_.Append(name, Text(100 + actor, 3)) == kBusy) {
      if (MakeRoom(actor, 1) == 0) static_cast<void>(s_.Preempt(name));
    }
  }

  std::uint32_t MakeRoom(int actor, std::uint32_t blocks) {
    std::uint32_t reclaimed = 0;
    for (const ReclaimChoice& c : s_.manager().PlanReclaim(blocks * kBytes, s_.seq(Name(actor)))) {
      for (int victim = 0; victim < kActors; ++victim) {
        if (s_.seq(Name(victim)).id() != c.sequence || finished_[victim]) continue;
        EXPECT_EQ(s_.Preempt(Name(victim), c.mode), kOk);
        preempted_[actor][victim] = true;
        ++preemptions_;
        reclaimed += c.blocks;
      }
    }
    return reclaimed;
  }

  ScenarioFixture s_;
  bool finished_[kActors] = {};
  bool preempted_[kActors][kActors] = {};
  int preemptions_ = 0;
};

// After any five steps of anybody, every fair order from there ends everybody's work.
TEST(ScenarioPreempt, S06EveryOrderOfStepsEndsInASmallWorld) {
  constexpr int kChoices = SmallWorld::kActors + 1;
  constexpr int kDepth = 5;
  int most_rounds = 0;
  int most_preemptions = 0;
  for (const std::uint32_t dram : {0u, 2u}) {
    for (int path = 0; path < 1 << (2 * kDepth); ++path) {
      SmallWorld world(dram);
      for (int i = 0, rest = path; i < kDepth; ++i, rest /= kChoices) world.Do(rest % kChoices);
      int rounds = 0;
      for (; !world.done() && rounds < 100; ++rounds) {
        for (int i = 0; i < kChoices; ++i) {
          world.Do(path % 2 == 0 ? i : kChoices - 1 - i);
        }
      }
      world.fixture().Settle();
      world.fixture().Check("path " + std::to_string(path));
      ASSERT_TRUE(world.done()) << "path " << path << ", " << dram << " slots below: livelock";
      ASSERT_FALSE(world.mutual()) << "path " << path;
      most_rounds = std::max(most_rounds, rounds);
      most_preemptions = std::max(most_preemptions, world.preemptions());
    }
  }
  EXPECT_LE(most_rounds, 40);
  EXPECT_LE(most_preemptions, 8);
  EXPECT_GE(most_preemptions, 2);  // the world is small enough to matter
}

}  // namespace
}  // namespace tidepool::testing
