// ARC of FAST 2003 through the public policy interface: the paper's rules, and exact golden counts
// (LRU's too) on a real trace. Set TIDEPOOL_TRACES to the folder with *.ttrace for the latter.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/flat_arc_policy.h"
#include "tests/support/flat_cache.h"
#include "tidepool/policy/lru.h"

namespace tidepool {
namespace {

using testing::FlatArcPolicy;
using testing::FlatCache;
using testing::FlatKey;
using testing::MakeFlatArcPolicy;

constexpr auto kT1 = FlatArcPolicy::kT1;
constexpr auto kT2 = FlatArcPolicy::kT2;

PrefixHash Key(std::int64_t id) { return FlatKey(0, static_cast<std::uint64_t>(id)); }

FlatArcPolicy& Arc(FlatCache& cache) { return static_cast<FlatArcPolicy&>(cache.policy()); }

void ExpectBounds(FlatCache& cache) {
  const FlatArcPolicy& arc = Arc(cache);
  const std::size_t c = arc.capacity();
  const std::size_t resident = arc.resident(kT1) + arc.resident(kT2);
  ASSERT_EQ(resident, cache.resident());
  ASSERT_LE(resident, c);
  ASSERT_LE(arc.resident(kT1) + arc.ghosts(kT1), c);
  ASSERT_LE(resident + arc.ghosts(kT1) + arc.ghosts(kT2), 2 * c);
  ASSERT_GE(arc.target(), 0);
  ASSERT_LE(arc.target(), static_cast<double>(c));
}

// Capacity 4, recent {6, 7}, frequent {4, 1}, target 3, reached by references alone.
std::unique_ptr<FlatCache> CacheOfS29() {
  auto cache = std::make_unique<FlatCache>(MakeFlatArcPolicy(), 4);
  for (int id : {1, 2, 3, 4, 1, 5, 2, 3, 6, 7, 4, 1}) cache->Reference(Key(id));
  EXPECT_EQ(Arc(*cache).target(), 3);
  EXPECT_EQ(Arc(*cache).resident(kT1), 2u);
  EXPECT_EQ(Arc(*cache).resident(kT2), 2u);
  return cache;
}

TEST(FlatArcTest, S29TakesFromTheOtherListWhenTheFirstIsShort) {
  const std::unique_ptr<FlatCache> both = CacheOfS29();
  both->Pin(Key(4));
  both->Pin(Key(1));
  EXPECT_EQ(both->Evict(1), (std::vector<PrefixHash>{Key(6)}));
  const std::unique_ptr<FlatCache> one = CacheOfS29();
  one->Pin(Key(4));
  EXPECT_EQ(one->Evict(3), (std::vector<PrefixHash>{Key(1), Key(6), Key(7)}));
  one->Unpin(Key(4));
  EXPECT_EQ(one->Evict(9), (std::vector<PrefixHash>{Key(4)}));
}

TEST(FlatArcTest, S30BoundsFollowTheRealCapacity) {
  FlatCache cache(MakeFlatArcPolicy(), 2, 5);
  for (std::uint32_t capacity : {2u, 5u, 3u}) {
    cache.Resize(capacity);
    ExpectBounds(cache);
    for (std::int64_t id = 0; id < 1000; ++id) {
      cache.Reference(Key(id));
      ExpectBounds(cache);
    }
    for (std::int64_t i = 0; i < 200; ++i) {
      // Of the last 2c keys one half is resident, the other remembered.
      cache.Reference(Key(999 - (i * 3) % (2 * std::int64_t{capacity})));
      ExpectBounds(cache);
    }
  }
}

TEST(FlatArcTest, S32GhostsFreeNoMemory) {
  FlatCache cache(MakeFlatArcPolicy(), 2);
  for (int id : {1, 2, 1, 3, 4}) cache.Reference(Key(id));
  const FlatArcPolicy& arc = Arc(cache);
  const std::size_t ghosts = arc.ghosts(kT1) + arc.ghosts(kT2);
  EXPECT_GE(ghosts, 1u);
  EXPECT_EQ(cache.Evict(1).size(), 1u);
  EXPECT_EQ(cache.resident(), 1u);
  EXPECT_EQ(cache.Evict(9).size(), 1u);
  EXPECT_GT(arc.ghosts(kT1) + arc.ghosts(kT2), 0u);
  EXPECT_TRUE(cache.Evict(1).empty());  // only ghosts are left
}

TEST(FlatArcTest, AGhostHitGoesToTheFrequentListAndAdaptsOnce) {
  FlatCache cache(MakeFlatArcPolicy(), 4);
  for (int id : {1, 2, 3, 4, 1, 5}) cache.Reference(Key(id));  // 2 left from T1 into B1
  const FlatArcPolicy& arc = Arc(cache);
  ASSERT_EQ(arc.ghosts(kT1), 1u);
  cache.Reference(Key(2));
  EXPECT_EQ(arc.target(), 1);
  EXPECT_EQ(arc.resident(kT2), 2u);
  cache.Reference(Key(2));  // an ordinary hit
  EXPECT_EQ(arc.target(), 1);
}

TEST(FlatArcTest, SelectingTwiceGivesTheSameVictims) {
  const std::unique_ptr<FlatCache> cache = CacheOfS29();
  VictimQuery query;
  query.blocks = 3;
  std::vector<BlockId> first;
  std::vector<BlockId> second;
  cache->policy().SelectVictims(query, SchedulingSignals{}, first);
  cache->policy().SelectVictims(query, SchedulingSignals{}, second);
  EXPECT_EQ(first.size(), 3u);
  EXPECT_EQ(first, second);
}

std::uint64_t Misses(std::unique_ptr<EvictionPolicy> policy, std::uint32_t capacity,
                     const std::vector<PrefixHash>& references) {
  FlatCache cache(std::move(policy), capacity);
  std::uint64_t misses = 0;
  for (const PrefixHash& key : references) misses += !cache.Reference(key);
  return misses;
}

struct Golden {
  std::uint32_t capacity;
  std::uint64_t lru_misses;
  std::uint64_t arc_misses;
};

TEST(FlatArcTest, GoldenCountsOfTheMooncakeConversationTrace) {
  const char* const folder = std::getenv("TIDEPOOL_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "TIDEPOOL_TRACES is not set: golden counts not checked";
  const std::vector<PrefixHash> references =
      testing::ReadFlatReferences(std::string(folder) + "/mooncake_conversation_dev.ttrace");
  ASSERT_EQ(references.size(), 180'012u);
  for (const Golden& golden :
       {Golden{586, 172'669, 171'751}, Golden{1'172, 172'005, 170'322},
        Golden{2'345, 169'826, 166'740}, Golden{5'863, 155'771, 154'423},
        Golden{9'381, 145'319, 142'846}, Golden{11'727, 139'666, 138'009},
        Golden{29'318, 123'075, 125'524}, Golden{58'637, 117'637, 117'671}}) {
    SCOPED_TRACE(golden.capacity);
    EXPECT_EQ(Misses(MakeLruPolicy(), golden.capacity, references), golden.lru_misses);
    EXPECT_EQ(Misses(MakeFlatArcPolicy(), golden.capacity, references), golden.arc_misses);
  }
}

}  // namespace
}  // namespace tidepool
