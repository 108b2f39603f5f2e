// Failure scenarios S19-S25: blocks of sessions that wait, and lookups that use nothing.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tests/support/scenario_fixture.h"
#include "tests/support/session_ranked_policy.h"
#include "tidepool/policy/lru.h"
#include "tidepool/policy/spear.h"

namespace tidepool::testing {
namespace {

using enum Outcome;
using std::chrono::seconds;

/// A session of its own whose `tokens` are committed and idle.
void AddIdle(ScenarioFixture& s, int id, const Tokens& tokens, Duration return_in,
             Priority priority = Priority::kNormal) {
  const std::string name = "S" + std::to_string(id);
  const SessionId session(static_cast<std::uint64_t>(id));
  EXPECT_EQ(s.Allocate(name, tokens, {.session = session, .priority = priority}), kOk);
  EXPECT_EQ(s.Commit(name, static_cast<std::uint32_t>(tokens.size())), kOk);
  EXPECT_EQ(s.Idle(name, return_in), kOk);
}

TEST(Scenario, S19IdleSessionsDoNotPinThePool) {
  ScenarioFixture s({.hbm = 6});
  for (int id = 1; id <= 3; ++id) AddIdle(s, id, Text(id, 8), Duration::max());
  EXPECT_EQ(s.Counts(), "cached 6");
  EXPECT_EQ(s.Allocate("N", Text(9, 8)), kOk);
  std::uint32_t survivors = 0;
  int victim = 0;
  for (int id = 1; id <= 3; ++id) {
    const std::uint32_t found = s.Found(Text(id, 8));
    survivors += found;
    if (found < 8) victim = id;
  }
  EXPECT_EQ(survivors, 16u);
  const std::string name = "S" + std::to_string(victim);
  const std::uint32_t left = s.Found(Text(victim, 8));
  EXPECT_EQ(s.Resume(name), kOk);
  EXPECT_EQ(s.admission(name).ready_tokens, left);
  EXPECT_EQ(s.admission(name).recompute_tokens, 8 - left);
  EXPECT_EQ(s.Commit(name, 8), kOk);
}

/// Up to t=12, when A is due: C was touched last, but is away until t=600.
void PressureBeforeAReturns(ScenarioFixture& s) {
  EXPECT_EQ(s.Allocate("C", Text(2, 8), {.session = 20}), kOk);
  EXPECT_EQ(s.Commit("C", 8), kOk);
  AddIdle(s, 1, Text(1, 8), seconds(12));
  s.SetTime(AtSecond(5));
  EXPECT_EQ(s.Idle("C", seconds(595)), kOk);  // touched, then away for long
  s.SetTime(AtSecond(10));
  EXPECT_EQ(s.Allocate("N", Text(3, 8)), kOk);
  s.SetTime(AtSecond(12));
}

TEST(Scenario, S20WaitingIsNotColdLru) {
  ScenarioFixture s({.hbm = 4});
  PressureBeforeAReturns(s);
  EXPECT_EQ(s.Found(Text(2, 8)), 8u);
  EXPECT_EQ(s.Free("N"), kOk);
  EXPECT_EQ(s.Resume("S1"), kOk);
  EXPECT_EQ(s.Hit("S1"), 0u);  // LRU's mistake
  EXPECT_EQ(s.admission("S1").recompute_tokens, 8u);
}

TEST(Scenario, S20WaitingIsNotColdSessionRanked) {
  ScenarioFixture s({.hbm = 4, .adjust = Using(&MakeSessionRankedPolicy)});
  PressureBeforeAReturns(s);
  EXPECT_EQ(s.Found(Text(2, 8)), 0u);
  EXPECT_EQ(s.Resume("S1"), kOk);
  EXPECT_EQ(s.admission("S1").ready_tokens, 8u);
}

TEST(Scenario, S20WaitingIsNotColdSpear) {
  ScenarioFixture s({.hbm = 4, .adjust = Using([] { return MakeSpearPolicy(); })});
  PressureBeforeAReturns(s);
  EXPECT_EQ(s.Found(Text(2, 8)), 0u);
  EXPECT_EQ(s.Resume("S1"), kOk);
  EXPECT_EQ(s.admission("S1").ready_tokens, 8u);
}

TEST(Scenario, S21RetentionIsABiasNotALock) {
  ScenarioFixture s({.hbm = 4});
  // The first to go idle is due latest, so that LRU agrees with a policy that looks at the time.
  for (int id = 1; id <= 4; ++id) {
    AddIdle(s, id, Text(id, 4), seconds(100 - id), Priority::kCritical);
  }
  s.SetTime(AtSecond(10));
  EXPECT_EQ(s.Allocate("N", Text(9, 4)), kOk);
  EXPECT_EQ(s.Found(Text(1, 4)), 0u);
  EXPECT_EQ(s.Free("N"), kOk);
  s.Cache(Text(5, 4));  // claimed by nobody: leaves before all others

  s.SetTime(AtSecond(150));
  for (int id = 1; id <= 4; ++id) {
    EXPECT_EQ(s.Free("S" + std::to_string(id)), kOk);
    EXPECT_EQ(s.manager().CompleteSession(SessionId(static_cast<std::uint64_t>(id))), kOk);
    s.Check("CompleteSession");
  }
  for (const int id : {5, 2, 3, 4}) {  // a block that loses its claim counts as used then
    EXPECT_EQ(s.Found(Text(id, 4)), 4u);
    EXPECT_EQ(s.Evict(1), 1u);
    EXPECT_EQ(s.Found(Text(id, 4)), 0u) << "not in LRU order";
  }
}

TEST(Scenario, S21RetentionIsABiasNotALockSessionRanked) {
  ScenarioFixture s({.hbm = 4, .adjust = Using(&MakeSessionRankedPolicy)});
  const std::array due = {90, 400, 50, 70};
  for (int id = 1; id <= 4; ++id) {
    AddIdle(s, id, Text(id, 4), seconds(due[static_cast<std::size_t>(id - 1)]),
            Priority::kCritical);
  }
  s.SetTime(AtSecond(10));
  EXPECT_EQ(s.Allocate("N", Text(9, 4)), kOk);
  EXPECT_EQ(s.Found(Text(2, 4)), 0u);  // due latest
  s.SetTime(AtSecond(150));
  s.Poll();
  for (const int id : {1, 3, 4}) {  // least recently used first
    EXPECT_EQ(s.Found(Text(id, 4)), 4u);
    EXPECT_EQ(s.Evict(1), 1u);
    EXPECT_EQ(s.Found(Text(id, 4)), 0u) << "not in the base policy's order";
  }
}

TEST(Scenario, S22TheClockStepsBack) {
  ScenarioFixture s({.hbm = 6, .dram = 2, .adjust = [](ManagerOptions& options) {
                       options.demand_ttl = seconds(10);
                       options.load_ttl = seconds(10);
                     }});
  const auto demands = [&s] { return s.manager().table_sizes().demands; };
  s.SetTime(AtSecond(100));
  s.Store(Text(1, 4));
  AddIdle(s, 3, Text(3, 4), seconds(5));
  EXPECT_EQ(s.Allocate("L", Join(Text(1, 4), {7})), kOk);  // its load may take until 110
  EXPECT_EQ(s.Allocate("X", Text(2, 8)), kOk);
  EXPECT_EQ(s.Allocate("R", Text(4, 24)), kBusy);  // and so may its demand
  EXPECT_EQ(demands(), 1u);
  for (const int now : {40, 101}) {
    s.SetTime(AtSecond(now));
    s.Poll();
    EXPECT_EQ(demands(), 1u) << now;
    EXPECT_EQ(s.ticket("L").Ready(), kPending) << now;
    EXPECT_EQ(s.Found(Text(3, 4)), 4u) << now;
  }
  s.SetTime(AtSecond(110));
  s.Poll();
  EXPECT_EQ(demands(), 0u);
  EXPECT_EQ(s.ticket("L").Ready(), kLoadFailed);
  s.Settle();
}

/// Evicts 1,000 idle sessions whose signals are hostile, one by one; their digests in order.
std::vector<PrefixHash> OrderOfHostileSessions(TimePoint now, PolicyFactory policy) {
  constexpr int kSessions = 1000;
  using Float = std::numeric_limits<float>;
  const std::array sd = {Float::quiet_NaN(), Float::infinity(),  -Float::infinity(), -5.0F, 0.0F,
                         Float::max(),       Float::denorm_min()};
  const std::array wait = {Duration::max(), Duration::min(), Duration(-5'000'000'000), Duration(0),
                           Duration(1)};
  const std::array when = {TimePoint::max(), TimePoint::min(), TimePoint(), AtSecond(-5)};
  ScenarioFixture s({.hbm = kSessions, .adjust = Using(policy), .check_every_step = false});
  s.SetTime(now);
  for (std::size_t i = 1; i <= kSessions; ++i) {
    AddIdle(s, static_cast<int>(i), Text(static_cast<int>(i), 4), wait[i % wait.size()],
            static_cast<Priority>(i % kPriorityCount));
    EXPECT_EQ(
        s.manager().UpdateExpectedReturn(SessionId(i), when[i % when.size()], sd[i % sd.size()]),
        kOk);
  }
  s.Poll();
  s.Check("hostile signals");
  static_cast<void>(s.DrainEvents());
  std::vector<PrefixHash> order;
  for (int i = 0; i < kSessions; ++i) {
    EXPECT_EQ(s.Evict(1), 1u);
    for (const Event& event : s.DrainEvents()) order.push_back(event.digest);
  }
  return order;
}

TEST(Scenario, S23HostileSignalValues) {
  for (const PolicyFactory policy : {&MakeLruPolicy, &MakeSessionRankedPolicy}) {
    for (const TimePoint now : {AtSecond(1000), AtSecond(-1000), TimePoint::max()}) {
      const std::vector<PrefixHash> order = OrderOfHostileSessions(now, policy);
      EXPECT_EQ(std::set<PrefixHash>(order.begin(), order.end()).size(), 1000u);
      EXPECT_EQ(order.size(), 1000u);
      EXPECT_EQ(OrderOfHostileSessions(now, policy), order);
    }
  }
}

TEST(Scenario, S23NoWriteBackOverALinkWithoutBandwidth) {
  for (const double bandwidth : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    ScenarioFixture s({.hbm = 2, .dram = 2});
    s.engine().SetLink(kHbmTier, kLowerTier, bandwidth, Duration(0));
    s.Cache(Text(1, 8));
    EXPECT_EQ(s.Allocate("N", Text(2, 8)), kBusy);  // both victims are dirty
    for (int i = 0; i < 5; ++i) s.Poll();
    EXPECT_TRUE(s.engine().submitted().empty()) << bandwidth;
    EXPECT_EQ(s.AllocatePatiently("N", Text(2, 8)), kOk);  // yet nobody waits for ever
  }
}

TEST(Scenario, S24LookupsThatNeverBecomeLoads) {
  ScenarioFixture s({.hbm = 4});
  const Tokens a = Text(1, 8);
  const Tokens prompt = Join(a, {7});
  s.Cache(a);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(s.Allocate("plan", prompt), kOk);  // holds A's blocks
    EXPECT_EQ(s.Free("plan"), kOk);              // and does not use them
  }
  EXPECT_EQ(s.Counts(), "free 2, cached 2");
  EXPECT_EQ(s.Evict(kAll), 2u);
  EXPECT_EQ(s.Found(a), 0u);
  EXPECT_EQ(s.Counts(), "free 4");

  s.Cache(a);
  const ProbeResult plan = s.Probe(prompt);
  EXPECT_EQ(plan.tokens, 8u);
  s.SetTime(AtSecond(3600));
  EXPECT_EQ(s.Evict(kAll), 2u);  // the plan protects nothing
  EXPECT_EQ(s.Allocate("late", prompt), kOk);
  EXPECT_EQ(s.Hit("late"), 0u);  // and is not believed
}

TEST(Scenario, S25AskingIsNotUsing) {
  ScenarioFixture s({.hbm = 4});
  s.Cache(Text(1, 4));
  s.SetTime(AtSecond(1));
  s.Cache(Text(2, 4));
  s.SetTime(AtSecond(2));
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(s.Found(Text(1, 4)), 4u);
  EXPECT_EQ(s.Evict(1), 1u);
  EXPECT_EQ(s.Found(Text(1, 4)), 0u);
  EXPECT_EQ(s.Found(Text(2, 4)), 4u);

  s.Cache(Text(1, 4));
  EXPECT_EQ(s.Allocate("touch", Join(Text(2, 4), {7})), kOk);
  EXPECT_EQ(s.Free("touch"), kOk);
  EXPECT_EQ(s.Evict(1), 1u);
  EXPECT_EQ(s.Found(Text(1, 4)), 0u);  // use counts
}

}  // namespace
}  // namespace tidepool::testing
