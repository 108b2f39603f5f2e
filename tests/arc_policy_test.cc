// ARC through the public interface: the paper's rules state by state, and the fast policy against
// the slow one under random loads. Exact counts on whole streams: golden_counts_test.cc.
#include "tidepool/policy/arc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/flat_arc_policy.h"
#include "tidepool/block_pool.h"
#include "tidepool/testing/flat_cache.h"

namespace tidepool {
namespace {

using testing::FlatArcPolicy;
using testing::FlatCache;
using testing::FlatKey;

using Keys = std::vector<PrefixHash>;
using Blocks = std::vector<BlockId>;

PrefixHash Key(std::int64_t id) { return FlatKey(0, static_cast<std::uint64_t>(id)); }

void ExpectBounds(const ArcState& arc) {
  const std::uint64_t resident = arc.recent + arc.frequent;
  ASSERT_LE(resident, arc.capacity);
  ASSERT_LE(arc.recent + arc.recent_ghosts, arc.capacity);
  ASSERT_LE(resident + arc.recent_ghosts + arc.frequent_ghosts, std::uint64_t{2} * arc.capacity);
  ASSERT_GE(arc.target, 0);
  ASSERT_LE(arc.target, arc.capacity);
}

// --- The paper's rules, by both versions. ---

struct Version {
  const char* name;
  std::unique_ptr<EvictionPolicy> (*make)();
  ArcState (*state)(const EvictionPolicy& policy);
};
ArcState SlowState(const EvictionPolicy& policy) {
  return static_cast<const FlatArcPolicy&>(policy).State();
}
ArcState FastState(const EvictionPolicy& policy) { return GetArcState(policy); }

class ArcRulesTest : public ::testing::TestWithParam<Version> {
 protected:
  [[nodiscard]] std::unique_ptr<FlatCache> Cache(std::uint32_t capacity, std::uint32_t most = 0) {
    return std::make_unique<FlatCache>(GetParam().make(), capacity, most);
  }
  [[nodiscard]] static ArcState State(FlatCache& cache) { return GetParam().state(cache.policy()); }
  // Capacity 4, recent {6, 7}, frequent {4, 1}, target 3, reached by references alone.
  [[nodiscard]] std::unique_ptr<FlatCache> CacheOfS29() {
    auto cache = Cache(4);
    for (int id : {1, 2, 3, 4, 1, 5, 2, 3, 6, 7, 4, 1}) cache->Reference(Key(id));
    EXPECT_EQ(State(*cache).target, 3);
    EXPECT_EQ(State(*cache).recent, 2u);
    EXPECT_EQ(State(*cache).frequent, 2u);
    return cache;
  }
};

TEST_P(ArcRulesTest, S29TakesFromTheOtherListWhenTheFirstIsShort) {
  const std::unique_ptr<FlatCache> both = CacheOfS29();
  both->Pin(Key(4));
  both->Pin(Key(1));
  EXPECT_EQ(both->Evict(1), Keys{Key(6)});
  const std::unique_ptr<FlatCache> one = CacheOfS29();
  one->Pin(Key(4));
  EXPECT_EQ(one->Evict(3), (Keys{Key(1), Key(6), Key(7)}));
  one->Unpin(Key(4));
  EXPECT_EQ(one->Evict(9), Keys{Key(4)});
}

TEST_P(ArcRulesTest, S30BoundsFollowTheRealCapacity) {
  const std::unique_ptr<FlatCache> cache = Cache(2, 5);
  for (std::uint32_t capacity : {2u, 5u, 3u}) {
    cache->Resize(capacity);
    ExpectBounds(State(*cache));
    for (std::int64_t id = 0; id < 1000; ++id) {
      cache->Reference(Key(id));
      ExpectBounds(State(*cache));
    }
    for (std::int64_t i = 0; i < 200; ++i) {
      // Of the last 2c keys one half is resident, the other remembered.
      cache->Reference(Key(999 - (i * 3) % (2 * std::int64_t{capacity})));
      ExpectBounds(State(*cache));
      ASSERT_EQ(State(*cache).recent + State(*cache).frequent, cache->resident());
    }
  }
}

TEST_P(ArcRulesTest, S32GhostsFreeNoMemory) {
  const std::unique_ptr<FlatCache> cache = Cache(2);
  for (int id : {1, 2, 1, 3, 4}) cache->Reference(Key(id));
  EXPECT_GE(State(*cache).recent_ghosts + State(*cache).frequent_ghosts, 1u);
  EXPECT_EQ(cache->Evict(1).size(), 1u);
  EXPECT_EQ(cache->resident(), 1u);
  EXPECT_EQ(cache->Evict(9).size(), 1u);
  EXPECT_GT(State(*cache).recent_ghosts + State(*cache).frequent_ghosts, 0u);
  EXPECT_TRUE(cache->Evict(1).empty());  // only ghosts are left
}

TEST_P(ArcRulesTest, AGhostHitGoesToTheFrequentListAndAdaptsOnce) {
  const std::unique_ptr<FlatCache> cache = Cache(4);
  for (int id : {1, 2, 3, 4, 1, 5}) cache->Reference(Key(id));  // 2 left from T1 into B1
  ASSERT_EQ(State(*cache).recent_ghosts, 1u);
  const PrefixHash two = Key(2);
  cache->policy().OnMissed({&two, 1});  // a second request wants it before it is there
  cache->Reference(two);
  EXPECT_EQ(State(*cache).target, 1);
  EXPECT_EQ(State(*cache).frequent, 2u);
  cache->Reference(two);  // an ordinary hit
  EXPECT_EQ(State(*cache).target, 1);
}

TEST_P(ArcRulesTest, SelectingCommitsNothing) {
  const std::unique_ptr<FlatCache> cache = CacheOfS29();
  const ArcState before = State(*cache);
  const Keys first = cache->Victims(3);
  EXPECT_EQ(first.size(), 3u);
  EXPECT_EQ(cache->Victims(3), first);
  EXPECT_TRUE(State(*cache) == before);
  EXPECT_EQ(cache->Evict(3), first);
}

TEST_P(ArcRulesTest, TheTargetMovesBeforeRoomIsMade) {
  const std::unique_ptr<FlatCache> cache = Cache(4);
  for (int id : {1, 2, 3, 4, 1, 2, 5, 6}) cache->Reference(Key(id));  // 3, 4 in B1; T1 {5, 6}
  ASSERT_EQ(State(*cache).recent, 2u);
  ASSERT_EQ(State(*cache).target, 0);
  const PrefixHash incoming[] = {Key(3), Key(4)};
  VictimQuery query;
  query.blocks = 2;
  query.incoming = incoming;
  Blocks victims;
  // 3 moves the target to 1, where |T1| = 2 is above it; 4 moves it to 2, where |T1| = 1 is not.
  cache->policy().SelectVictims(query, SchedulingSignals{}, victims);
  ASSERT_EQ(victims.size(), 2u);
  EXPECT_EQ(State(*cache).target, 0);
  const Keys plain = cache->Victims(2);
  Blocks without;
  query.incoming = {};
  cache->policy().SelectVictims(query, SchedulingSignals{}, without);
  EXPECT_EQ(plain, (Keys{Key(5), Key(6)}));
  EXPECT_EQ(victims[0], without[0]);
  EXPECT_NE(victims[1], without[1]);
}

INSTANTIATE_TEST_SUITE_P(Both, ArcRulesTest,
                         ::testing::Values(Version{"Fast", &MakeArcPolicy, &FastState},
                                           Version{"Slow", &testing::MakeFlatArcPolicy,
                                                   &SlowState}),
                         [](const auto& version) { return version.param.name; });

// --- Both under one load, in HBM or below. ---

class EvenOnly final : public VictimFilter {
 public:
  [[nodiscard]] bool Allows(BlockId block) const noexcept override {
    return block.value() % 2 == 0;
  }
};

// Prefixes of named keys come, share, go and come back; every answer must be the same.
class ArcLoad {
 public:
  ArcLoad(std::uint32_t seed, TierIndex tier)
      : random_(seed), pool_({.block_tokens = 1, .slots = {kSlots, kSlots}}), tier_(tier) {
    Tell([&](EvictionPolicy& p) { p.Attach(BlockView(&pool_, nullptr), tier, kSlots); });
  }

  void Step() {
    switch (random_() % 8) {
      case 0:
        return Finish();
      case 1:
        return Evict(1 + random_() % 20);
      case 2:
        return ChangePriority();
      case 3:
        return TogglePin();
      case 4:
        return Resize();
      default:
        return Run();
    }
  }

  void Compare() {
    ASSERT_TRUE(GetArcState(*fast_) == slow_->State());
    Keys incoming;
    for (std::size_t i = random_() % 8; i > 0; --i) incoming.push_back(Key(random_() % kKeys));
    const EvenOnly even;
    VictimQuery query;
    query.blocks = random_() % 8 == 0 ? kSlots : random_() % 20;
    query.incoming = incoming;
    query.filter = random_() % 3 == 0 ? &even : nullptr;
    const Blocks victims = Select(*fast_, query);
    ASSERT_EQ(victims, Select(*slow_, query));
    ASSERT_EQ(victims, Select(*fast_, query));
    ASSERT_TRUE(GetArcState(*fast_) == slow_->State());
  }

 private:
  static constexpr std::uint32_t kSlots = 60;
  static constexpr std::uint32_t kKeys = 150;

  template <typename Hook>
  void Tell(const Hook& hook) {
    hook(static_cast<EvictionPolicy&>(*fast_));
    hook(static_cast<EvictionPolicy&>(*slow_));
  }
  static Blocks Select(EvictionPolicy& policy, const VictimQuery& query) {
    Blocks victims;
    policy.SelectVictims(query, SchedulingSignals{}, victims);
    return victims;
  }

  // A request for a run of consecutive keys: holds what is there, computes and publishes the rest.
  void Run() {
    const std::int64_t first = random_() % kKeys;
    const std::uint32_t count = 1 + random_() % 10;
    Blocks hits;
    Keys misses;
    for (std::int64_t id = first; id < first + count; ++id) {
      const auto at = std::find_if(cached_.begin(), cached_.end(),
                                   [&](BlockId b) { return pool_.digest(b) == Key(id); });
      if (at == cached_.end()) {
        misses.push_back(Key(id));
      } else {
        hits.push_back(*at);
      }
    }
    Hold(hits);
    if (pool_.free_slots(kHbmTier) < misses.size()) {
      Evict(static_cast<std::uint32_t>(misses.size()), misses);
    }
    Tell([&](EvictionPolicy& p) { p.OnMissed(misses); });
    misses.resize(std::min<std::size_t>(misses.size(), pool_.free_slots(kHbmTier)));
    Blocks run = hits;
    for (const PrefixHash& key : misses) run.push_back(Insert(key));
    if (!run.empty()) running_.push_back(run);
  }
  void Hold(const Blocks& hits) {
    if (hits.empty()) return;
    Blocks changed;
    EXPECT_EQ(pool_.Transition(hits,
                               {.to = Phase::kActive,
                                .cause = Cause::kReady,
                                .via = Phase::kReuse,
                                .via_cause = Cause::kMatch,
                                .hold = 1},
                               &changed),
              Outcome::kOk);
    Tell([&](EvictionPolicy& p) {
      if (tier_ == kHbmTier) p.OnProtected(changed);
      p.OnAccessed(hits);
    });
  }
  BlockId Insert(const PrefixHash& key) {
    BlockId b;
    EXPECT_TRUE(pool_.Allocate({&b, 1}));
    EXPECT_EQ(pool_.Transition({&b, 1}, {.to = Phase::kActive, .cause = Cause::kCommit}),
              Outcome::kOk);
    if (random_() % 10 != 0) {  // else it stays private
      pool_.set_digest(b, key);
      pool_.SetFlag(b, word::kPublished);
    }
    pool_.set_claim_priority(b, static_cast<Priority>(random_() % kPriorityCount));
    if (tier_ != kHbmTier) {
      EXPECT_TRUE(pool_.AttachSlot(b, tier_));
      pool_.CommitCopy(b, tier_);
    }
    if (tier_ != kHbmTier || pool_.Has(b, word::kPublished)) {
      Tell([&](EvictionPolicy& p) { p.OnInserted({&b, 1}); });
    }
    cached_.push_back(b);
    return b;
  }
  void Finish() {
    if (running_.empty()) return;
    std::swap(running_[random_() % running_.size()], running_.back());
    Blocks changed;
    EXPECT_EQ(
        pool_.Transition(running_.back(),
                         {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1}, &changed),
        Outcome::kOk);
    if (tier_ == kHbmTier) Tell([&](EvictionPolicy& p) { p.OnEvictable(changed); });
    running_.pop_back();
  }
  void Evict(std::uint32_t count, const Keys& incoming = {}) {
    VictimQuery query;
    query.blocks = count;
    query.incoming = incoming;
    Blocks victims = Select(*fast_, query);
    std::erase_if(victims, [this](BlockId b) { return !pool_.Evictable(b, kHbmTier); });
    if (victims.empty()) return;
    const auto reason = static_cast<EvictReason>(random_() % 3);
    EXPECT_EQ(pool_.Transition(victims, {.to = Phase::kFree, .cause = Cause::kDrop}), Outcome::kOk);
    Tell([&](EvictionPolicy& p) { p.OnEvicted(victims, reason); });
    for (const BlockId b : victims) {
      std::erase(cached_, b);
      pool_.ClearFlag(b, word::kPublished);
      if (tier_ != kHbmTier) pool_.DetachSlot(b, tier_);
    }
    pool_.FreeBlocks(victims);
  }
  void ChangePriority() {
    Blocks blocks;
    for (const BlockId b : cached_) {
      if (random_() % 4 == 0) blocks.push_back(b);
    }
    const auto priority = static_cast<Priority>(random_() % kPriorityCount);
    for (const BlockId b : blocks) pool_.set_claim_priority(b, priority);
    Tell([&](EvictionPolicy& p) { p.OnPriorityChanged(blocks, priority); });
  }
  void TogglePin() {
    if (cached_.empty()) return;
    const BlockId b = cached_[random_() % cached_.size()];
    if (!pool_.Unpin(b)) {
      EXPECT_TRUE(pool_.Pin(b));
    }
  }
  void Resize() {
    const std::uint32_t slots = kSlots / 2 + random_() % (kSlots / 2 + 1);
    Tell([&](EvictionPolicy& p) { p.Attach(BlockView(&pool_, nullptr), tier_, slots); });
  }

  std::mt19937 random_;
  BlockPool pool_;
  TierIndex tier_;
  std::unique_ptr<EvictionPolicy> fast_ = MakeArcPolicy();
  std::unique_ptr<FlatArcPolicy> slow_ = std::make_unique<FlatArcPolicy>();
  std::vector<Blocks> running_;
  Blocks cached_;  // all that is resident
};

TEST(ArcPolicyTest, RandomLoadsMatchTheSlowVersion) {
  for (const TierIndex tier : {kHbmTier, TierIndex{1}}) {
    for (std::uint32_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE("tier " + std::to_string(tier) + " seed " + std::to_string(seed));
      ArcLoad load(seed, tier);
      for (int step = 0; step < 2000; ++step) {
        load.Step();
        load.Compare();
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace tidepool
