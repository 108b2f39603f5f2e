// The small value types, outcomes' names and the process's clock.
#include "tidepool/types.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>
#include <type_traits>
#include <unordered_set>

#include "tidepool/clock.h"
#include "tidepool/status.h"

namespace tidepool {
namespace {

TEST(TypesTest, IdsOfDifferentKindsDoNotMix) {
  static_assert(!std::is_convertible_v<std::uint32_t, BlockId>);
  static_assert(!std::is_convertible_v<BlockId, SlotId>);
  static_assert(!std::is_constructible_v<SlotId, BlockId>);
  static_assert(std::is_convertible_v<std::uint64_t, SessionId>);  // the engine's own names
  static_assert(sizeof(BlockId) == 4 && sizeof(SessionId) == 8);
}

TEST(TypesTest, ADefaultIdIsInvalid) {
  EXPECT_FALSE(BlockId().valid());
  EXPECT_TRUE(BlockId(0).valid());
  EXPECT_FALSE(BlockId(BlockId::kInvalidValue).valid());
  EXPECT_LT(BlockId(1), BlockId(2));
  EXPECT_EQ((std::unordered_set<BlockId>{BlockId(1), BlockId(1), BlockId(2)}).size(), 2u);
}

TEST(TypesTest, ADoneFenceHasNoTimeline) {
  EXPECT_TRUE(Fence::Done().done());
  EXPECT_FALSE((Fence{.timeline = 0, .step = 0}).done());
  EXPECT_EQ(Fence::Done(), Fence{});
}

TEST(TypesTest, DigestsAreOrderedHighFirst) {
  EXPECT_LT((PrefixHash{1, 9}), (PrefixHash{2, 0}));
  EXPECT_EQ(PrefixHash{}, (PrefixHash{0, 0}));
}

TEST(TypesTest, ByteLiterals) {
  static_assert(4_KiB == 4096 && 1_MiB == 1u << 20 && 8_GiB == 8'589'934'592);
}

TEST(TypesTest, EveryOutcomeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  std::size_t count = 0;
  while (ToString(static_cast<Outcome>(count)) != "unknown outcome") {
    names.insert(ToString(static_cast<Outcome>(count++)));
  }
  EXPECT_EQ(names.size(), count);
  EXPECT_GE(count, 20u);
  EXPECT_EQ(ToString(Outcome::kIllegalTransition), "illegal transition");
}

TEST(TypesTest, TheSteadyClockDoesNotStepBack) {
  const Clock* const clock = Clock::Steady();
  ASSERT_NE(clock, nullptr);
  EXPECT_EQ(clock, Clock::Steady());
  const TimePoint first = clock->Now();
  EXPECT_LE(first, clock->Now());
  EXPECT_LT(first, kNever);
}

}  // namespace
}  // namespace tidepool
