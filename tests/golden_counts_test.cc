// Exact misses of the list policies at eight cache sizes, on a real trace and on a made-up stream:
// literal numbers, and equal to plain-container versions written from the papers. Set
// TIDEPOOL_TRACES to the folder with *.ttrace for the former.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "tests/support/flat_arc_policy.h"
#include "tests/support/paper_caches.h"
#include "tidepool/policy/arc.h"
#include "tidepool/policy/lru.h"
#include "tidepool/policy/sieve.h"
#include "tidepool/testing/flat_cache.h"

namespace tidepool {
namespace {

using testing::FlatCache;
using testing::References;

std::uint64_t Misses(std::unique_ptr<EvictionPolicy> policy, std::uint32_t capacity,
                     const References& references) {
  FlatCache cache(std::move(policy), capacity);
  std::uint64_t misses = 0;
  for (const PrefixHash& key : references) misses += !cache.Reference(key);
  return misses;
}

struct Golden {
  std::uint32_t capacity;
  std::uint64_t lru;
  std::uint64_t arc;
  std::uint64_t sieve;
};

void ExpectCounts(const Golden& golden, const References& references) {
  SCOPED_TRACE(golden.capacity);
  EXPECT_EQ(testing::LruMisses(references, golden.capacity), golden.lru);
  EXPECT_EQ(testing::ArcMisses(references, golden.capacity), golden.arc);
  EXPECT_EQ(testing::SieveMisses(references, golden.capacity), golden.sieve);
  EXPECT_EQ(Misses(MakeLruPolicy(), golden.capacity, references), golden.lru);
  EXPECT_EQ(Misses(MakeArcPolicy(), golden.capacity, references), golden.arc);
  EXPECT_EQ(Misses(testing::MakeFlatArcPolicy(), golden.capacity, references), golden.arc);
  EXPECT_EQ(Misses(MakeSievePolicy(), golden.capacity, references), golden.sieve);
}

References ConversationTrace() {
  const char* const folder = std::getenv("TIDEPOOL_TRACES");
  if (folder == nullptr) return {};
  return testing::ReadFlatReferences(std::string(folder) + "/mooncake_conversation_dev.ttrace");
}

TEST(GoldenCountsTest, MooncakeConversationTrace) {
  const References references = ConversationTrace();
  if (references.empty()) GTEST_SKIP() << "TIDEPOOL_TRACES is not set: golden counts not checked";
  ASSERT_EQ(references.size(), 180'012u);
  for (const Golden& golden : {
           Golden{586, 172'669, 171'751, 171'751},
           Golden{1'172, 172'005, 170'322, 170'944},
           Golden{2'345, 169'826, 166'740, 167'954},
           Golden{5'863, 155'771, 154'423, 160'125},
           Golden{9'381, 145'319, 142'846, 152'054},
           Golden{11'727, 139'666, 138'009, 148'475},
           Golden{29'318, 123'075, 125'524, 125'377},
           Golden{58'637, 117'637, 117'671, 117'671},
       }) {
    ExpectCounts(golden, references);
  }
}

TEST(GoldenCountsTest, GeneratedStream) {
  const References references = testing::GeneratedReferences(1, 100'000);
  for (const Golden& golden : {
           Golden{8, 94'913, 89'223, 89'184},
           Golden{32, 89'386, 82'539, 82'406},
           Golden{128, 85'945, 76'122, 76'535},
           Golden{512, 74'229, 67'366, 65'475},
           Golden{1'024, 66'720, 57'872, 61'124},
           Golden{2'048, 58'571, 48'604, 52'213},
           Golden{4'096, 49'115, 42'458, 42'517},
           Golden{8'192, 38'958, 35'860, 35'760},
       }) {
    ExpectCounts(golden, references);
  }
}

// What the counts are worth: ARC as it is often got wrong has others.
TEST(GoldenCountsTest, TellTheFaultyArcApart) {
  const References generated = testing::GeneratedReferences(1, 100'000);
  for (const std::uint32_t capacity : {256u, 1'024u, 4'096u}) {
    EXPECT_NE(testing::FaultyArcMisses(generated, capacity),
              testing::ArcMisses(generated, capacity));
  }
  const References trace = ConversationTrace();
  for (const std::uint32_t capacity : {1'172u, 9'381u}) {
    if (trace.empty()) break;
    EXPECT_NE(testing::FaultyArcMisses(trace, capacity), testing::ArcMisses(trace, capacity));
  }
}

}  // namespace
}  // namespace tidepool
