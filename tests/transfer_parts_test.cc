// The parts of the host engine that are plain functions: how a block is cut, how bytes are copied,
// how a rate is measured.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "src/transfer/chunk_plan.h"
#include "src/transfer/memory_copy.h"
#include "src/transfer/rate_estimate.h"

namespace tidepool {
namespace {

using namespace std::chrono_literals;

std::vector<std::uint64_t> Bounds(const ChunkPlan& plan) {
  std::vector<std::uint64_t> bounds;
  for (std::uint32_t i = 0; i < plan.count(); ++i) bounds.push_back(plan.Begin(i));
  bounds.push_back(plan.total());
  return bounds;
}

TEST(TransferChunkPlanTest, CutsBetweenLayersWhereItCan) {
  const ChunkPlan plan({.payload_bytes = 800, .layers = 8, .max_chunk_bytes = 350});
  EXPECT_EQ(Bounds(plan), (std::vector<std::uint64_t>{0, 300, 600, 800}));
  EXPECT_EQ(plan.Layers(0), 0u);
  EXPECT_EQ(plan.Layers(2), 6u);
  EXPECT_EQ(plan.Layers(3), 8u);
  EXPECT_EQ(plan.largest(), 300u);
}

TEST(TransferChunkPlanTest, AlignmentComesBeforeLayers) {
  // Layers of 48: every second boundary is a multiple of 32.
  const ChunkPlan even(
      {.payload_bytes = 480, .layers = 10, .max_chunk_bytes = 160, .alignment = 32});
  EXPECT_EQ(Bounds(even), (std::vector<std::uint64_t>{0, 96, 192, 288, 384, 480}));
  const ChunkPlan odd({.payload_bytes = 500, .layers = 5, .max_chunk_bytes = 160, .alignment = 32});
  EXPECT_EQ(Bounds(odd), (std::vector<std::uint64_t>{0, 160, 320, 480, 500}));
  EXPECT_EQ(odd.Layers(1), 1u);
}

TEST(TransferChunkPlanTest, CutsLayersThatAreTooLarge) {
  const ChunkPlan plan({.payload_bytes = 2000, .layers = 2, .max_chunk_bytes = 400});
  EXPECT_EQ(Bounds(plan), (std::vector<std::uint64_t>{0, 400, 800, 1000, 1400, 1800, 2000}));
  EXPECT_EQ(plan.Layers(2), 0u);
  EXPECT_EQ(plan.Layers(3), 1u);
}

TEST(TransferMemoryCopyTest, AnySizeAtAnyAddress) {
  std::vector<std::byte> from(200'000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  for (const std::size_t bytes : {0u, 1u, 63u, 4096u, 16'384u, 16'385u, 70'001u, 131'072u}) {
    for (const std::size_t shift : {0u, 1u, 17u, 63u}) {
      std::vector<std::byte> to(bytes + 256, std::byte{0xEE});
      CopyBytes(to.data() + shift, from.data() + 3 * shift, bytes);
      EXPECT_EQ(std::memcmp(to.data() + shift, from.data() + 3 * shift, bytes), 0);
      EXPECT_EQ(to[bytes + shift], std::byte{0xEE}) << "one past the end";
      if (shift > 0) {
        EXPECT_EQ(to[shift - 1], std::byte{0xEE});
      }
    }
  }
}

TEST(TransferRateEstimateTest, PriorUntilMeasuredThenWeightedByBytes) {
  RateEstimate rate(5e9);
  TimePoint now{1s};
  EXPECT_EQ(rate.bytes_per_second(), 5e9);
  for (int i = 0; i < 20; ++i) {
    rate.OnChunkStart(now);
    now += 1ms;
    rate.OnChunkEnd(now, 1'000'000);
    now += 1s;  // idle time does not count
  }
  EXPECT_TRUE(rate.measured());
  EXPECT_NEAR(rate.bytes_per_second(), 1e9, 1e3);
  EXPECT_NEAR(rate.seconds_per_byte_sd(), 0, 1e-15);
}

TEST(TransferRateEstimateTest, OverlappingChunksShareTheTime) {
  RateEstimate rate(1);
  TimePoint now{};
  rate.OnChunkStart(now);
  for (int i = 0; i < 100; ++i) {
    rate.OnChunkStart(now);
    now += 1ms;
    rate.OnChunkEnd(now, 2'000'000);
  }
  EXPECT_NEAR(rate.bytes_per_second(), 2e9, 1e6);
}

TEST(TransferRateEstimateTest, AClockThatStandsStillOrStepsBackIsNoSample) {
  RateEstimate rate(3e9);
  TimePoint now{1s};
  for (int i = 0; i < 20; ++i) {
    rate.OnChunkStart(now);
    now -= 1ms;
    rate.OnChunkEnd(now, 1000);
  }
  EXPECT_EQ(rate.bytes_per_second(), 3e9);
}

}  // namespace
}  // namespace tidepool
