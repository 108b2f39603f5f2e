// The command line of agent_replay: errors name the option and the value.
#include <string>
#include <vector>

#include "examples/agent_replay/options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace agent_replay {
namespace {

using ::testing::HasSubstr;

tidepool::StatusOr<CommandLine> Parse(std::vector<const char*> arguments) {
  return ParseCommandLine(arguments);
}

std::string ErrorOf(std::vector<const char*> arguments) {
  const auto parsed = Parse(std::move(arguments));
  return parsed.ok() ? "no error" : std::string(parsed.status().message());
}

TEST(ReplayOptionsTest, Defaults) {
  const auto c = Parse({});
  ASSERT_TRUE(c.ok());
  EXPECT_TRUE(c->trace_path.empty());
  EXPECT_EQ(c->pace, Pace::kOverlapping);
  EXPECT_EQ(c->verification, Verification::kOn);
  EXPECT_EQ(c->hbm.value, 10);
}

TEST(ReplayOptionsTest, TakesBothForms) {
  const auto c = Parse({"--trace", "a b", "--hbm=12%", "--dram", "64MiB", "--nvme", "1000",
                        "--seed=18446744073709551615", "--lockstep", "--verify", "no",
                        "--block-bytes", "64", "--io", "uring", "--start-gap", "0.5", "--quiet"});
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->trace_path, "a b");
  EXPECT_EQ(c->hbm.value, 12);
  EXPECT_EQ(c->dram.unit, SizeSpec::Unit::kBytes);
  EXPECT_EQ(c->dram.value, 64. * (1 << 20));
  EXPECT_EQ(c->nvme.unit, SizeSpec::Unit::kBlocks);
  EXPECT_EQ(c->seed, ~std::uint64_t{0});
  EXPECT_EQ(c->pace, Pace::kLockstep);
  EXPECT_EQ(c->verification, Verification::kOff);
  EXPECT_EQ(c->io, FileBackend::kUring);
  EXPECT_EQ(c->start_gap_s, 0.5);
}

TEST(ReplayOptionsTest, ATimeScaleMeansTheWallsClock) {
  Trace trace;
  trace.requests.push_back({.input_tokens = 6400, .first_range = 0});
  for (std::uint64_t id = 0; id < 100; ++id) trace.AppendBlock(id);
  const auto c = Parse({"--time-scale", "50", "--policy", "spear@tide"});
  ASSERT_TRUE(c.ok()) << c.status();
  const auto options = MakeReplayOptions(*c, trace);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->pace, Pace::kWallClock);
  EXPECT_EQ(options->time_scale, 50);
  EXPECT_EQ(options->policy, HbmPolicy::kSpear);
  EXPECT_EQ(options->tiering, Tiering::kTide);
  const auto both = Parse({"--time-scale", "50", "--lockstep"});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT(std::string(MakeReplayOptions(*both, trace).status().message()),
              HasSubstr("--lockstep"));
}

TEST(ReplayOptionsTest, ErrorsNameTheValue) {
  EXPECT_THAT(ErrorOf({"--tracee", "x"}), HasSubstr("\"--tracee\": there is no such option"));
  EXPECT_THAT(ErrorOf({"file"}), HasSubstr("\"file\""));
  EXPECT_THAT(ErrorOf({"--trace"}), HasSubstr("--trace \"\": needs a value"));
  EXPECT_THAT(ErrorOf({"--trace="}), HasSubstr("--trace \"\": expected a path"));
  EXPECT_THAT(ErrorOf({"--lockstep=yes"}), HasSubstr("takes no value"));
  EXPECT_THAT(ErrorOf({"--sessions", "0"}),
              HasSubstr("--sessions \"0\": expected a number from 1 to 1000000"));
  EXPECT_THAT(ErrorOf({"--sessions", "-3"}), HasSubstr("\"-3\""));
  EXPECT_THAT(ErrorOf({"--sessions", "4x"}), HasSubstr("\"4x\""));
  EXPECT_THAT(ErrorOf({"--seed", "18446744073709551616"}), HasSubstr("18446744073709551616"));
  EXPECT_THAT(ErrorOf({"--start-gap", "nan"}), HasSubstr("--start-gap \"nan\""));
  EXPECT_THAT(ErrorOf({"--policy", "fifo"}), HasSubstr("--policy \"fifo\": expected lru"));
  EXPECT_THAT(ErrorOf({"--io", "dma"}), HasSubstr("--io \"dma\": expected threads or uring"));
  EXPECT_THAT(ErrorOf({"--block-bytes", "4095"}), HasSubstr("expected a multiple of 8"));
  EXPECT_THAT(ErrorOf({"--block-tokens", "3"}), HasSubstr("from 4 to 4096"));
}

TEST(ReplayOptionsTest, BadSizes) {
  for (const char* size :
       {"", "%", "x", "-1", "10%%", "1.5", "nan", "inf", "5 MiB", "1e300", "5MiBs", "0x10"}) {
    EXPECT_THAT(ErrorOf({"--hbm", size}), HasSubstr("--hbm \"" + std::string(size) + "\""));
  }
}

Trace TwoHundredBlocks() {
  Trace trace;
  trace.block_tokens = 64;
  trace.requests.push_back({});
  trace.AppendRange({0, 199});
  return trace;
}

TEST(ReplayOptionsTest, SizesInBlocks) {
  const auto c = Parse({"--hbm", "10%", "--dram", "1MiB", "--nvme", "0"});
  ASSERT_TRUE(c.ok());
  const auto options = MakeReplayOptions(*c, TwoHundredBlocks());
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->tier_blocks, (std::array<std::uint32_t, kTiers>{20, 256, 0}));
  EXPECT_EQ(options->block_tokens, 64u);
}

TEST(ReplayOptionsTest, SizesThatDoNotWork) {
  const auto error = [](std::vector<const char*> arguments) {
    const auto c = Parse(std::move(arguments));
    const auto options = MakeReplayOptions(*c, TwoHundredBlocks());
    return std::string(options.status().message());
  };
  EXPECT_THAT(error({"--hbm", "1%"}), HasSubstr("--hbm is 2 blocks, at least 4"));
  EXPECT_THAT(error({"--dram", "100B"}), HasSubstr("--dram is 0"));
  EXPECT_THAT(error({"--nvme", "100TB"}), HasSubstr("--nvme is 24414062500"));
  EXPECT_THAT(error({"--hbm", "0"}), HasSubstr("--hbm is 0 blocks"));
}

}  // namespace
}  // namespace agent_replay
