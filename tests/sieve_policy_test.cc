// SIEVE through the public interface: the hand, held and barred blocks, classes, and batches. Exact
// counts on whole streams: golden_counts_test.cc.
#include "tidepool/policy/sieve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "tidepool/block_pool.h"
#include "tidepool/testing/flat_cache.h"

namespace tidepool {
namespace {

using testing::FlatCache;
using testing::FlatKey;

using Keys = std::vector<PrefixHash>;
using Blocks = std::vector<BlockId>;

PrefixHash Key(std::uint64_t id) { return FlatKey(0, id); }
Keys KeysOf(std::initializer_list<std::uint64_t> ids) {
  Keys keys;
  for (const std::uint64_t id : ids) keys.push_back(Key(id));
  return keys;
}

// Keys 1 to n, of which `visited` were referenced again.
std::unique_ptr<FlatCache> Filled(std::uint32_t n, std::initializer_list<std::uint64_t> visited) {
  auto cache = std::make_unique<FlatCache>(MakeSievePolicy(), n);
  for (std::uint64_t id = 1; id <= n; ++id) cache->Reference(Key(id));
  for (const std::uint64_t id : visited) cache->Reference(Key(id));
  return cache;
}

TEST(SievePolicyTest, SparesWhatWasVisitedOnce) {
  const auto cache = Filled(4, {1, 3});
  EXPECT_EQ(cache->Victims(9), KeysOf({2, 4, 1, 3}));
  EXPECT_EQ(cache->Evict(1), KeysOf({2}));
  EXPECT_EQ(cache->Evict(1), KeysOf({4}));  // the hand goes on, past 3
  EXPECT_EQ(cache->Evict(9), KeysOf({1, 3}));
}

TEST(SievePolicyTest, TheHandStaysWhereItIs) {
  const auto cache = Filled(4, {1, 2});
  cache->Reference(Key(5));  // 3 leaves; 1 and 2, without marks now, are behind the hand
  EXPECT_EQ(cache->Victims(9), KeysOf({4, 5, 1, 2}));
  cache->Reference(Key(1));
  EXPECT_EQ(cache->Victims(9), KeysOf({4, 5, 2, 1}));
}

TEST(SievePolicyTest, ANewcomerDoesNotStandBeforeTheHandThatStartsAnew) {
  const auto cache = Filled(3, {1, 2});
  EXPECT_EQ(cache->Evict(1), KeysOf({3}));  // the newest: the hand goes back to the oldest
  cache->Reference(Key(4));
  EXPECT_EQ(cache->Victims(9), KeysOf({1, 2, 4}));
}

TEST(SievePolicyTest, SelectingMovesNoHand) {
  const auto cache = Filled(6, {1, 2, 5});
  const Keys all = cache->Victims(9);
  for (std::uint32_t n : {1u, 4u, 6u}) {
    EXPECT_EQ(cache->Victims(n), Keys(all.begin(), all.begin() + n));
  }
  EXPECT_EQ(cache->Victims(9), all);
  EXPECT_EQ(cache->Evict(9), all);
}

TEST(SievePolicyTest, ABarredBlockIsLookedAtAgain) {
  const auto cache = Filled(4, {3});
  cache->Pin(Key(1));
  EXPECT_EQ(cache->Evict(2), KeysOf({2, 4}));
  EXPECT_EQ(cache->Victims(9), KeysOf({3}));
  cache->Unpin(Key(1));
  EXPECT_EQ(cache->Victims(9).size(), 2u);
}

TEST(SievePolicyTest, ABatchTakesWhatSingleVictimsWould) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    FlatCache batch(MakeSievePolicy(), 40);
    FlatCache single(MakeSievePolicy(), 40);
    for (int step = 0; step < 400; ++step) {
      const PrefixHash key = Key(random() % 80);
      ASSERT_EQ(batch.Reference(key), single.Reference(key));
      if (random() % 20 != 0) continue;
      const std::uint32_t count = random() % 40;
      Keys one_by_one;
      for (std::uint32_t i = 0; i < count; ++i) {
        for (const PrefixHash& k : single.Evict(1)) one_by_one.push_back(k);
      }
      ASSERT_EQ(batch.Evict(count), one_by_one);
    }
  }
}

// --- In HBM, with holds. ---

constexpr BlockPool::Move kHit = {.to = Phase::kActive,
                                  .cause = Cause::kReady,
                                  .via = Phase::kReuse,
                                  .via_cause = Cause::kMatch,
                                  .hold = 1};

class SieveHbmTest : public ::testing::Test {
 protected:
  SieveHbmTest() { sieve_->Attach(BlockView(&pool_, nullptr), kHbmTier, 16); }

  Blocks Cached(std::size_t count) {
    Blocks blocks(count);
    EXPECT_TRUE(pool_.Allocate(blocks));
    EXPECT_EQ(pool_.Transition(blocks, {.to = Phase::kActive, .cause = Cause::kCommit}),
              Outcome::kOk);
    sieve_->OnInserted(blocks);
    Release(blocks);
    return blocks;
  }
  void Hit(const Blocks& blocks) {
    EXPECT_EQ(pool_.Transition(blocks, kHit), Outcome::kOk);
    sieve_->OnProtected(blocks);
    sieve_->OnAccessed(blocks);
  }
  void Release(const Blocks& blocks) {
    EXPECT_EQ(pool_.Transition(blocks, {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1}),
              Outcome::kOk);
    sieve_->OnEvictable(blocks);
  }
  void Evict(const Blocks& blocks) {
    EXPECT_EQ(pool_.Transition(blocks, {.to = Phase::kFree, .cause = Cause::kDrop}), Outcome::kOk);
    sieve_->OnEvicted(blocks, EvictReason::kCapacity);
    pool_.FreeBlocks(blocks);
  }
  void SetPriority(const Blocks& blocks, Priority priority) {
    for (const BlockId b : blocks) pool_.set_claim_priority(b, priority);
    sieve_->OnPriorityChanged(blocks, priority);
  }
  Blocks Victims(std::uint32_t count) {
    Blocks victims;
    VictimQuery query;
    query.blocks = count;
    sieve_->SelectVictims(query, SchedulingSignals{}, victims);
    return victims;
  }

  BlockPool pool_{{.block_tokens = 1, .slots = {16}}};
  std::unique_ptr<EvictionPolicy> sieve_ = MakeSievePolicy();
};

TEST_F(SieveHbmTest, TailsBeforeHeads) {
  const Blocks a = Cached(3);
  const Blocks c = Cached(2);
  EXPECT_EQ(Victims(9), (Blocks{a[2], a[1], a[0], c[1], c[0]}));
}

TEST_F(SieveHbmTest, AHeldBlockKeepsItsPlaceUnlessTheHandComesToIt) {
  const Blocks a = Cached(1);
  const Blocks b = Cached(1);
  const Blocks c = Cached(1);
  Hit(b);
  Release(b);
  EXPECT_EQ(Victims(9), (Blocks{a[0], c[0], b[0]}));  // in its place, spared once
  Hit(b);
  EXPECT_EQ(Victims(9), (Blocks{a[0], c[0]}));
  Release(b);  // now the newest
  EXPECT_EQ(Victims(9), (Blocks{a[0], c[0], b[0]}));
  Evict({a[0]});
  Evict({c[0]});
  EXPECT_EQ(Victims(9), b);
}

TEST_F(SieveHbmTest, ABlockDroppedByOtherReasonsMovesNoHand) {
  const Blocks a = Cached(4);
  Hit({a[3]});
  Release({a[3]});
  Evict({a[0]});  // nobody had named it
  EXPECT_EQ(Victims(9), (Blocks{a[2], a[1], a[3]}));
}

TEST_F(SieveHbmTest, ALowerClassGoesFirst) {
  const Blocks critical = Cached(2);
  const Blocks nobody = Cached(2);
  SetPriority(critical, Priority::kCritical);
  Hit(nobody);
  Release(nobody);
  EXPECT_EQ(Victims(9), (Blocks{nobody[1], nobody[0], critical[1], critical[0]}));
  SetPriority(critical, Priority::kBackground);
  EXPECT_EQ(Victims(9), (Blocks{critical[1], critical[0], nobody[1], nobody[0]}));
}

TEST_F(SieveHbmTest, TwoSelectionsOfOnePlanAreBothCommitted) {
  const Blocks blocks = Cached(4);
  Hit({blocks[3]});
  Release({blocks[3]});
  const Blocks first = Victims(1);
  EXPECT_EQ(first, Blocks{blocks[2]});
  pool_.SetFlag(first[0], word::kChosen);
  const Blocks second = Victims(1);
  EXPECT_EQ(second, Blocks{blocks[1]});
  pool_.ClearFlag(first[0], word::kChosen);
  Evict({first[0], second[0]});
  EXPECT_EQ(Victims(9), (Blocks{blocks[0], blocks[3]}));
}

}  // namespace
}  // namespace tidepool
