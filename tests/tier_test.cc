// Tier specs and host arenas.
#include "tidepool/tier.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

namespace tidepool {
namespace {

TEST(TierTest, BuildersSayKindAndCapacity) {
  EXPECT_EQ(Hbm(HostArena(4_MiB)).kind, TierKind::kHbm);
  EXPECT_EQ(Hbm(HostArena(4_MiB)).bytes, 4_MiB);
  EXPECT_EQ(Hbm(HostArena(4_MiB)).device_work, DeviceWork::kInline);
  EXPECT_EQ(Dram(1_GiB).kind, TierKind::kDram);
  EXPECT_EQ(Dram(1_GiB).bytes, 1_GiB);
  const TierSpec nvme = Nvme("/somewhere/kv", 2_GiB);
  EXPECT_EQ(nvme.kind, TierKind::kNvme);
  EXPECT_EQ(nvme.path, "/somewhere/kv");
  EXPECT_EQ(nvme.bytes, 2_GiB);
}

TEST(TierTest, RegisteredHbmQueuesDeviceWorkAndTakesSlotsFromTheArena) {
  const StatusOr<Arena> arena = AllocateHostArena(7, 2, 64);
  ASSERT_TRUE(arena.ok());
  const TierSpec spec = Hbm(*arena);
  EXPECT_EQ(spec.device_work, DeviceWork::kQueued);
  EXPECT_EQ(spec.slots, 7u);
  EXPECT_EQ(spec.arena.layer_base, arena->layer_base);
}

TEST(TierTest, KindsHaveNames) {
  EXPECT_EQ(ToString(TierKind::kHbm), "hbm");
  EXPECT_EQ(ToString(TierKind::kShared), "shared");
  EXPECT_EQ(ToString(static_cast<TierKind>(99)), "unknown");
}

TEST(TierTest, ArenaKeepsLayersOfASlotTogetherAndSlotsOnPages) {
  const StatusOr<Arena> arena = AllocateHostArena(5, 3, 6144);  // 18,432 a slot
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(arena->slot_stride_bytes, 20480u);
  EXPECT_EQ(arena->layer_bytes, 6144u);
  EXPECT_EQ(arena->slots, 5u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena->At(SlotId(0), 0)) % 4096, 0u);
  EXPECT_EQ(arena->At(SlotId(4), 2) - arena->At(SlotId(0), 0), 4 * 20480 + 2 * 6144);
  std::memset(arena->At(SlotId(4), 2), 0x5A, 6144);  // the last byte is ours
}

TEST(TierTest, SmallSlotsAreAlignedToCacheLines) {
  const StatusOr<Arena> arena = AllocateHostArena(3, 2, 40);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(arena->slot_stride_bytes, 128u);
}

TEST(TierTest, ArenaOutlivesItsCopies) {
  Arena kept;
  {
    StatusOr<Arena> arena = AllocateHostArena(2, 1, 4096);
    ASSERT_TRUE(arena.ok());
    kept = *arena;
  }
  std::memset(kept.At(SlotId(1), 0), 1, 4096);
}

TEST(TierTest, BadSizesAreNamed) {
  EXPECT_EQ(AllocateHostArena(0, 1, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AllocateHostArena(1, 0, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AllocateHostArena(1, 1, 0).status().code(), absl::StatusCode::kInvalidArgument);
  constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
  const Status overflow = AllocateHostArena(1000, 2, kMax / 2).status();
  EXPECT_EQ(overflow.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(overflow.message().find("overflows"), std::string::npos);
  const Status too_large = AllocateHostArena(1u << 20, 1, std::uint64_t{1} << 42).status();
  EXPECT_EQ(too_large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(too_large.message().find("4611686018427387904 bytes"), std::string::npos);
}

}  // namespace
}  // namespace tidepool
