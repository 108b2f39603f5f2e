// Failure scenarios S89-S92: counters, gauges, events and the size of everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/scenario_fixture.h"

namespace tidepool::testing {
namespace {

using enum Outcome;

TEST(Scenario, S89HitCountersCountAdmissions) {
  ScenarioFixture s({.hbm = 2});
  const Tokens prompt = Text(1, 8);
  s.Cache(Text(1, 4));
  EXPECT_EQ(s.Allocate("X", Text(2, 4)), kOk);
  const ManagerStats before = s.manager().stats();
  const auto queried = [&] { return s.manager().stats().queried_tokens - before.queried_tokens; };
  const auto hit = [&] {
    return s.manager().stats().hit_tokens[kHbmTier] - before.hit_tokens[kHbmTier];
  };
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(s.Allocate("R", prompt, {.session = 1}), kBusy);
  }
  EXPECT_EQ(queried(), 0u);
  EXPECT_EQ(s.Free("X"), kOk);
  EXPECT_EQ(s.Allocate("R", prompt, {.session = 1}), kOk);
  EXPECT_EQ(queried(), 8u);
  EXPECT_EQ(hit(), 4u);
  EXPECT_EQ(s.manager().stats().busy - before.busy, 3u);
  EXPECT_EQ(s.manager().stats().admitted - before.admitted, 1u);

  EXPECT_EQ(s.Commit("R", 8), kOk);
  EXPECT_EQ(s.Preempt("R", PreemptMode::kRecompute), kOk);
  EXPECT_EQ(s.Evict(1), 1u);
  EXPECT_EQ(s.Resume("R"), kOk);
  EXPECT_EQ(queried(), 8u);
  EXPECT_EQ(hit(), 4u);
  EXPECT_EQ(s.manager().stats().admitted - before.admitted, 1u);
  EXPECT_EQ(s.manager().stats().readmitted, 1u);
  EXPECT_EQ(s.manager().stats().readmit_queried_tokens, 8u);
  EXPECT_EQ(s.manager().stats().readmit_hit_tokens, 4u);
}

TEST(Scenario, S90UsageReturnsToZeroAndNeverPassesAll) {
  ScenarioFixture s({.hbm = 12});
  std::mt19937_64 random(90);
  std::vector<std::string> live;
  for (int i = 0; i < 1000; ++i) {  // each step checks that the classes sum to the pool
    const std::string name = "S" + std::to_string(i);
    const auto n = static_cast<std::uint32_t>(1 + random() % 20);
    switch (random() % 5) {
      case 0:
      case 1:
        if (s.Allocate(name, Text(static_cast<int>(random() % 3), n)) != kOk) break;
        EXPECT_EQ(s.Commit(name, s.Hit(name) +
                                     static_cast<std::uint32_t>(random() % (n - s.Hit(name) + 1))),
                  kOk);
        live.push_back(name);
        break;
      case 2:
        if (live.empty()) break;
        EXPECT_EQ(s.Fork(live[random() % live.size()], name), kOk);
        live.push_back(name);
        break;
      case 3:
        if (live.empty()) break;
        std::swap(live[random() % live.size()], live.back());
        EXPECT_EQ(s.Free(live.back()), kOk);
        live.pop_back();
        break;
      default:
        s.Evict(static_cast<std::uint32_t>(random() % 3));
    }
    EXPECT_LE(s.manager().used_slots(kHbmTier), 12u);
  }
  for (const std::string& name : live) EXPECT_EQ(s.Free(name), kOk);
  EXPECT_EQ(s.manager().counts().held, 0u);
  s.Evict(kAll);
  EXPECT_EQ(s.Counts(), "free 12");
  EXPECT_EQ(s.manager().used_slots(kHbmTier), 0u);
}

/// What a router makes of the event log, and what it finds wrong with it.
class Mirror {
 public:
  void Apply(const std::vector<Event>& events) {
    for (const Event& event : events) {
      EXPECT_EQ(event.number, ++number_);
      const bool stored = event.kind == EventKind::kStored;
      const Key key{event.digest, event.tier};
      if (stored) {
        EXPECT_EQ(event.first_or_last, !Anywhere(event.digest));
        EXPECT_TRUE(keys_.insert(key).second) << "stored twice";
      } else {
        EXPECT_EQ(keys_.erase(key), 1u) << "removed twice";
        EXPECT_EQ(event.first_or_last, !Anywhere(event.digest));
        reasons_.insert(event.reason);
      }
    }
  }
  void Compare(ScenarioFixture& s) {
    Apply(s.DrainEvents());
    std::set<Key> snapshot;
    const EventSnapshot index = s.manager().Snapshot();
    for (const Event& event : index.stored) snapshot.emplace(event.digest, event.tier);
    EXPECT_EQ(index.number, number_);
    EXPECT_EQ(snapshot.size(), index.stored.size());
    EXPECT_EQ(snapshot, keys_);
  }
  [[nodiscard]] const std::set<EvictReason>& reasons() const { return reasons_; }

 private:
  using Key = std::pair<PrefixHash, TierIndex>;
  [[nodiscard]] bool Anywhere(const PrefixHash& digest) const {
    const auto it = keys_.lower_bound({digest, 0});
    return it != keys_.end() && it->first == digest;
  }
  std::set<Key> keys_;
  std::set<EvictReason> reasons_;
  std::uint64_t number_ = 0;
};

void RandomOperation(ScenarioFixture& s, std::mt19937_64& random) {
  const auto n = static_cast<std::uint32_t>(4 + random() % 12);
  const Tokens tokens = Text(static_cast<int>(random() % 12), n);
  switch (random() % 8) {
    case 0:  // both compute the same blocks, unless their hits are still loading
      if (s.Allocate("A", tokens) == kOk && s.Allocate("C", tokens) == kOk) {
        static_cast<void>(s.Commit("C", n));
        static_cast<void>(s.Commit("A", n));
      }
      static_cast<void>(s.Free("A"));
      static_cast<void>(s.Free("C"));
      break;
    case 1:
    case 2:
      if (s.Allocate("A", tokens) == kOk) static_cast<void>(s.Commit("A", n));
      static_cast<void>(s.Free("A"));
      break;
    case 3:
      static_cast<void>(s.Offload(tokens));
      break;
    case 4:
      static_cast<void>(s.Onboard(tokens));
      break;
    case 5:
      s.Evict(static_cast<std::uint32_t>(random() % 3));
      break;
    case 6:
      s.engine().FinishAll(random() % 4 == 0 ? TransferResult::kFailed : TransferResult::kOk);
      s.Poll();
      break;
    default:
      if (random() % 8 == 0) {
        EXPECT_TRUE(s.manager().Clear().ok());
      }
      s.Evict(1, static_cast<TierIndex>(1 + random() % 2));
  }
}

TEST(Scenario, S91ReplayingEventsRebuildsTheIndex) {
  ScenarioFixture s({.hbm = 6, .dram = 5, .nvme = 4});
  std::mt19937_64 random(91);
  Mirror mirror;
  for (int i = 0; i < 500 && !::testing::Test::HasFailure(); ++i) {
    RandomOperation(s, random);
    mirror.Compare(s);
  }
  s.Settle();
  EXPECT_TRUE(s.manager().Clear().ok());
  s.SetTime(AtSecond(10));
  s.Poll();  // the demands of the refused have lapsed
  mirror.Compare(s);
  EXPECT_TRUE(s.manager().Snapshot().stored.empty());
  EXPECT_EQ(s.Counts(), "free 6");
  EXPECT_TRUE(mirror.reasons().contains(EvictReason::kDemoted));
  EXPECT_TRUE(mirror.reasons().contains(EvictReason::kCapacity));
  EXPECT_TRUE(mirror.reasons().contains(EvictReason::kReset));

  s.Store(Text(20, 4));
  EXPECT_EQ(s.Onboard(Text(20, 4)).accepted, 1u);
  s.engine().FinishAll(TransferResult::kFailed);
  s.Poll();
  mirror.Compare(s);
  EXPECT_TRUE(mirror.reasons().contains(EvictReason::kFailed));
  s.Cache(Text(21, 4));
  EXPECT_TRUE(s.manager().AdvanceEpoch().ok());
  EXPECT_EQ(s.Allocate("all", Text(22, 24)), kOk);
  mirror.Compare(s);
  EXPECT_TRUE(mirror.reasons().contains(EvictReason::kInvalidated));
}

/// One session from start to end; with `cancelled` it ends while its prefix is being loaded.
void LiveThroughASession(ScenarioFixture& s, std::uint64_t id, bool cancelled) {
  const How how{.session = SessionId(id)};
  const Tokens tokens = Text(static_cast<int>(id), 6);
  if (cancelled) {
    s.Store(Text(static_cast<int>(id), 4));
    ASSERT_EQ(s.Allocate("S", tokens, how), kOk);
    ASSERT_EQ(s.ticket("S").Ready(), kPending);
    ASSERT_EQ(s.Free("S"), kOk);
    s.Settle();
  } else {
    ASSERT_EQ(s.AllocatePatiently("S", tokens, how), kOk);
    ASSERT_EQ(s.Commit("S", 6), kOk);
    ASSERT_EQ(s.Idle("S"), kOk);
    ASSERT_EQ(s.Resume("S"), kOk);
    ASSERT_EQ(s.Free("S"), kOk);
  }
  ASSERT_EQ(s.manager().CompleteSession(SessionId(id)), kOk);
  EXPECT_TRUE(s.manager().Clear().ok());
}

TEST(Scenario, S92NothingGrowsForEver) {
  ScenarioFixture s({.hbm = 4, .dram = 4, .check_every_step = false});
  std::uint64_t early = 0;
  for (std::uint64_t id = 1; id <= 100'000 && !::testing::Test::HasFailure(); ++id) {
    LiveThroughASession(s, id, id % 10 == 0);
    if (id % 500 == 0) {
      s.Check("session " + std::to_string(id));
      static_cast<void>(s.DrainEvents());
    }
    if (id == 1000) early = s.manager().metadata_bytes();
  }
  s.Settle();
  const TableSizes sizes = s.manager().table_sizes();
  EXPECT_EQ(sizes.sequences, 0u);
  EXPECT_EQ(sizes.sessions, 0u);
  EXPECT_EQ(sizes.transfers, 0u);
  EXPECT_EQ(sizes.demands, 0u);
  EXPECT_EQ(sizes.pending_commits, 0u);
  EXPECT_EQ(sizes.pending_releases, 0u);
  EXPECT_EQ(sizes.device_work, 0u);
  EXPECT_LE(s.manager().metadata_bytes(), early);
  EXPECT_EQ(s.manager().index().blocks(), 0u);
  EXPECT_LE(s.manager().index().nodes(), 1u);  // the root of namespace 0
  EXPECT_EQ(s.Counts(), "free 4");
}

}  // namespace
}  // namespace tidepool::testing
