// A lockstep replay hits exactly what a brute-force simulation of the same rules says, tier by
// tier, and every reused byte is right; also when sessions overlap.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "examples/agent_replay/generator.h"
#include "examples/agent_replay/options.h"
#include "examples/agent_replay/replay.h"
#include "examples/agent_replay/schedule.h"
#include "gtest/gtest.h"
#include "tests/support/replay_files.h"
#include "tests/support/replay_oracle.h"
#include "tests/support/sparse_file_io.h"

namespace agent_replay {
namespace {

/// A file for the nvme tier, gone afterwards.
class TierFile {
 public:
  TierFile()
      : path_(std::filesystem::path(testing::TempDir()) /
              ("replay_oracle-" + std::to_string(getpid()) + ".tide")) {}
  ~TierFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// Sessions with short contexts and many breaks, in blocks of four tokens.
Trace SmallTrace(std::uint64_t seed, std::uint32_t sessions) {
  CodingPreset preset;
  preset.block_tokens = 4;
  preset.mean_start_gap_s = 20;
  preset.turns = Quantiles{{{.01, 2}, {.50, 12}, {.99, 30}}};
  preset.first_context = Quantiles{{{.01, 4}, {.50, 60}, {.99, 200}}};
  preset.output_tokens = Quantiles{{{.01, 1}, {.50, 8}, {.99, 40}}};
  preset.tool_tokens = Quantiles{{{0, 1}, {.50, 10}, {.99, 80}}};
  preset.user_tokens = preset.tool_tokens;
  preset.compaction = {.03, .03, .03, .03};
  preset.deep_break = .05;
  preset.tail_rewrite = .05;
  preset.last_block_rewrite = .1;
  preset.sub_agent = .3;
  preset.sub_agent_turns = Quantiles{{{.10, 2}, {.90, 5}}};
  preset.sub_agent_context = preset.first_context;
  preset.shared_tokens = 24;
  preset.shared_variants = 3;
  return GenerateTrace(preset, seed, sessions);
}

constexpr std::uint32_t kSmallBlockTokens = 4;
using TierBlocks = std::array<std::uint32_t, kTiers>;

TierBlocks Percent(const Trace& trace, const std::array<double, kTiers>& percent) {
  TierBlocks blocks{};
  for (std::size_t t = 0; t < kTiers; ++t) {
    blocks[t] =
        static_cast<std::uint32_t>(static_cast<double>(UniqueBlocks(trace)) * percent[t] / 100);
  }
  return blocks;
}

enum class FileKind : std::uint8_t { kMemory, kDisk };

tidepool::StatusOr<ReplayResult> Replay(const Trace& trace, const Schedule& schedule,
                                        const TierBlocks& tier_blocks, Pace pace,
                                        FileKind file_kind = FileKind::kMemory) {
  const TierFile file;
  ReplayOptions options;
  options.tier_blocks = tier_blocks;
  options.block_bytes = 64;
  options.block_tokens = kSmallBlockTokens;
  options.nvme_path = file.path();
  options.pace = pace;
  if (file_kind == FileKind::kMemory) {
    options.make_file_io = [] { return std::make_unique<tidepool::testing::SparseFileIo>(); };
  }
  return RunReplay(trace, schedule, options, [](const Progress&) {});
}

void ExpectEqual(const Trace& trace, const TierBlocks& tier_blocks,
                 FileKind file_kind = FileKind::kMemory) {
  const Schedule schedule = MakeSchedule(trace, 1, 60);
  const auto result = Replay(trace, schedule, tier_blocks, Pace::kLockstep, file_kind);
  ASSERT_TRUE(result.ok()) << result.status();
  const oracle::Hits expected = oracle::Simulate(trace, schedule, tier_blocks);
  for (std::size_t t = 0; t < kTiers; ++t) {
    EXPECT_EQ(result->tiers[t].hit_tokens, expected.blocks[t] * kSmallBlockTokens)
        << kTierNames[t] << " of " << tier_blocks[0] << ", " << tier_blocks[1] << ", "
        << tier_blocks[2] << " blocks";
  }
  EXPECT_EQ(result->mismatches, 0u) << result->first_mismatch;
  EXPECT_GT(result->verified_blocks, 0u);
  EXPECT_EQ(result->failed_loads + result->failed_offloads, 0u);
  EXPECT_EQ(result->waits, 0u);
}

class ReplayOracle : public testing::TestWithParam<std::array<double, kTiers>> {};

TEST_P(ReplayOracle, LockstepHitsAreExact) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Trace trace = SmallTrace(seed, 12);
    ExpectEqual(trace, Percent(trace, GetParam()));
    if (HasFailure()) return;
  }
}

std::string TiersName(const testing::TestParamInfo<std::array<double, kTiers>>& tiers) {
  std::string name;
  for (std::size_t t = 0; t < kTiers; ++t) {
    name += kTierNames[t] + std::to_string(static_cast<int>(tiers.param[t]));
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Tiers, ReplayOracle,
    testing::Values(std::array<double, kTiers>{100, 0, 0}, std::array<double, kTiers>{30, 0, 0},
                    std::array<double, kTiers>{15, 30, 0}, std::array<double, kTiers>{15, 0, 50},
                    std::array<double, kTiers>{10, 20, 70}, std::array<double, kTiers>{12, 15, 25},
                    std::array<double, kTiers>{20, 8, 40}),
    TiersName);

TEST(ReplayOracleFiles, LockstepOnADisk) {
  const Trace trace = SmallTrace(9, 12);
  ExpectEqual(trace, Percent(trace, {10, 20, 70}), FileKind::kDisk);
}

TEST(ReplayTurns, OverlappingSessionsReadRightBytes) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const Trace trace = SmallTrace(seed, 24);
    const Schedule schedule = MakeSchedule(trace, 1, 60);
    const auto result = Replay(trace, schedule, Percent(trace, {8, 6, 80}), Pace::kOverlapping,
                               seed == 1 ? FileKind::kDisk : FileKind::kMemory);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->mismatches, 0u) << result->first_mismatch;
    EXPECT_EQ(result->requests, trace.requests.size());
    EXPECT_GT(result->resumed, 0u);
    EXPECT_GT(result->stalls, 0u);
    for (const TierResult& tier : result->tiers) EXPECT_GT(tier.hit_tokens, 0u);
    std::uint64_t sum = result->recomputed_tokens;
    for (const TierResult& tier : result->tiers) sum += tier.hit_tokens;
    EXPECT_EQ(sum, result->prompt_tokens);
  }
}

// So fast that nothing waits long: what is checked is that time passes and every byte is right.
TEST(ReplayTurns, OnTheWallsClockWithTide) {
  const Trace trace = SmallTrace(4, 12);
  const Schedule schedule = MakeSchedule(trace, 1, 60);
  ReplayOptions options;
  options.tier_blocks = Percent(trace, {15, 30, 60});
  options.block_bytes = 64;
  options.block_tokens = kSmallBlockTokens;
  options.nvme_path = "unused";
  options.make_file_io = [] { return std::make_unique<tidepool::testing::SparseFileIo>(); };
  options.pace = Pace::kWallClock;
  options.time_scale = 1e5;
  options.policy = HbmPolicy::kSpear;
  options.tiering = Tiering::kTide;
  const auto result = RunReplay(trace, schedule, options, [](const Progress&) {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->mismatches, 0u) << result->first_mismatch;
  EXPECT_GT(result->verified_blocks, 0u);
  EXPECT_EQ(result->requests, trace.requests.size());
  EXPECT_GT(result->tide.pool_copies + result->tide.demand_copies, 0u);
  EXPECT_EQ(result->tide.windows, result->requests - schedule.sessions);
  EXPECT_LE(result->tide.windows_met, result->tide.windows);
  EXPECT_GE(result->wall_s * 1e3 * options.time_scale, static_cast<double>(result->virtual_ms));
}

TEST(ReplayTurns, MoreRunsThanHbmHolds) {  // sessions must wait for each other
  const Trace trace = SmallTrace(3, 40);
  Schedule schedule = MakeSchedule(trace, 1, 60);
  for (std::int64_t& arrival : schedule.arrival_ms) arrival /= 50;
  std::stable_sort(schedule.order.begin(), schedule.order.end(),
                   [&](std::uint32_t a, std::uint32_t b) {
                     return schedule.arrival_ms[a] < schedule.arrival_ms[b];
                   });
  const auto result = Replay(trace, schedule, {200, 300, 2000}, Pace::kOverlapping);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->mismatches, 0u) << result->first_mismatch;
  EXPECT_EQ(result->requests, trace.requests.size());
  EXPECT_GT(result->waits, 0u);
}

TEST(ReplayTurns, TurnsLargerThanHbmAreClippedAndCounted) {
  const Trace trace = SmallTrace(2, 6);
  const Schedule schedule = MakeSchedule(trace, 1, 60);
  const TierBlocks tiers = {40, 400, 0};
  const auto result = Replay(trace, schedule, tiers, Pace::kLockstep);
  ASSERT_TRUE(result.ok()) << result.status();
  std::uint64_t requests = 0;
  std::uint64_t blocks = 0;
  for (const Request& r : trace.requests) {
    if (r.blocks <= MaxRequestBlocks(tiers[0])) continue;
    ++requests;
    blocks += r.blocks - MaxRequestBlocks(tiers[0]);
  }
  EXPECT_GT(requests, 0u);
  EXPECT_EQ(result->clipped_requests, requests);
  EXPECT_EQ(result->clipped_blocks, blocks);
  EXPECT_EQ(result->mismatches, 0u);
}

// The check of the whole: real sessions, all tiers in use, exact to the block.
TEST(ReplayOracleFiles, AgenticSmall) {
  if (replay_files::TraceDirectory().empty()) {
    GTEST_SKIP() << "TIDEPOOL_TRACES names no directory with traces";
  }
#ifndef NDEBUG
  GTEST_SKIP() << "5 million blocks: only in optimised builds";
#endif
  const auto trace = replay_files::Load("agentic_small.ttrace");
  ASSERT_TRUE(trace.ok()) << trace.status();
  CommandLine command_line;
  command_line.hbm.value = 10, command_line.dram.value = 20, command_line.nvme.value = 70;
  const auto options = MakeReplayOptions(command_line, *trace);
  ASSERT_TRUE(options.ok()) << options.status();
  ExpectEqual(*trace, options->tier_blocks);
}

}  // namespace
}  // namespace agent_replay
