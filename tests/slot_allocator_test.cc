// SlotAllocator: lowest first, contiguous in bulk, exact against a set.
#include "tidepool/slot_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace tidepool {
namespace {

TEST(SlotAllocatorTest, HandsOutLowestFirstAndSkipsReservedSlots) {
  SlotAllocator slots(200, 3);
  EXPECT_EQ(slots.free(), 197u);
  EXPECT_FALSE(slots.IsFree(2));
  EXPECT_FALSE(slots.IsFree(200));
  EXPECT_EQ(slots.TakeOne(), 3u);
  std::vector<std::uint32_t> taken(196);
  slots.Take(taken);
  std::vector<std::uint32_t> expected(196);
  std::iota(expected.begin(), expected.end(), 4u);
  EXPECT_EQ(taken, expected);
  EXPECT_EQ(slots.free(), 0u);
  slots.Give(150);
  slots.Give(20);
  EXPECT_EQ(slots.TakeOne(), 20u);
  EXPECT_EQ(slots.TakeOne(), 150u);
}

TEST(SlotAllocatorTest, EdgesOfEveryLevel) {
  for (std::uint32_t capacity : {1u, 63u, 64u, 65u, 4095u, 4096u, 4097u, 262'144u, 262'145u}) {
    SCOPED_TRACE(capacity);
    SlotAllocator slots(capacity);
    std::vector<std::uint32_t> all(capacity);
    slots.Take(all);
    EXPECT_EQ(all.back(), capacity - 1);
    slots.Give(capacity - 1);
    EXPECT_EQ(slots.TakeOne(), capacity - 1);
    slots.Give(all);
    EXPECT_EQ(slots.free(), capacity);
    EXPECT_EQ(slots.TakeOne(), 0u);
  }
}

TEST(SlotAllocatorTest, AnEmptyRangeHasNothingFree) {
  EXPECT_EQ(SlotAllocator().free(), 0u);
  EXPECT_EQ(SlotAllocator(4, 9).free(), 0u);
  EXPECT_FALSE(SlotAllocator().IsFree(0));
}

TEST(SlotAllocatorTest, WithdrawnSlotsAreNotHandedOutUntilGivenBack) {
  SlotAllocator slots(4);
  EXPECT_TRUE(slots.Withdraw(0));
  EXPECT_FALSE(slots.Withdraw(0));
  EXPECT_EQ(slots.free(), 3u);
  EXPECT_EQ(slots.TakeOne(), 1u);
  EXPECT_FALSE(slots.Withdraw(1));
  slots.Give(0);
  EXPECT_EQ(slots.TakeOne(), 0u);
}

TEST(SlotAllocatorTest, RandomOperationsMatchASet) {
  constexpr std::uint32_t kCapacity = 5000;
  std::mt19937 random(7);
  SlotAllocator slots(kCapacity);
  std::set<std::uint32_t> free;
  for (std::uint32_t slot = 0; slot < kCapacity; ++slot) free.insert(free.end(), slot);
  std::vector<std::uint32_t> taken;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 2 == 0) {
      std::vector<std::uint32_t> got(std::min<std::size_t>(random() % 300, free.size()));
      slots.Take(got);
      for (std::uint32_t slot : got) {
        ASSERT_EQ(slot, *free.begin());
        free.erase(free.begin());
      }
      taken.insert(taken.end(), got.begin(), got.end());
    } else if (!taken.empty()) {
      const auto begin = taken.begin() + static_cast<std::ptrdiff_t>(random() % taken.size());
      if (random() % 2 == 0) std::shuffle(begin, taken.end(), random);
      const std::vector<std::uint32_t> back(begin, taken.end());
      taken.erase(begin, taken.end());
      slots.Give(back);
      free.insert(back.begin(), back.end());
    }
    ASSERT_EQ(slots.free(), free.size());
    const std::uint32_t probe = static_cast<std::uint32_t>(random() % kCapacity);
    ASSERT_EQ(slots.IsFree(probe), free.count(probe) == 1);
  }
}

}  // namespace
}  // namespace tidepool
