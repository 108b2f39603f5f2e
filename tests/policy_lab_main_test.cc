// The program policy_lab as a user meets it: options, messages, exit status, files.
#ifdef TIDEPOOL_POLICY_LAB

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "bench/policy_lab/options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/shell.h"

namespace policy_lab {
namespace {

using ::testing::HasSubstr;
using tidepool::testing::Shell;
using tidepool::testing::ShellRun;

ShellRun PolicyLab(const std::string& arguments) {
  return Shell(std::string("'") + TIDEPOOL_POLICY_LAB + "' " + arguments);
}

std::string TempPath(const std::string& name) {
  return testing::TempDir() + "/policy_lab-" + std::to_string(getpid()) + "-" + name;
}

std::string ReadAll(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(PolicyLabMain, RunsAPreset) {
  const std::string json = TempPath("r.json"), csv = TempPath("r.csv"), html = TempPath("r.html");
  const ShellRun run =
      PolicyLab("--generate chat --sessions 30 --capacity-blocks 300,900 --policy " +
                std::string("lru,belady --json ") + json + " --csv " + csv + " --html=" + html);
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("belady"));
  EXPECT_THAT(run.output, HasSubstr("chat preset, seed 1"));
  EXPECT_THAT(ReadAll(json), HasSubstr("\"rows\": ["));
  EXPECT_THAT(ReadAll(csv), HasSubstr("policy,capacity_blocks"));
  EXPECT_THAT(ReadAll(html), HasSubstr("Hit ratio over capacity"));
  for (const std::string& path : {json, csv, html}) std::filesystem::remove(path);
}

TEST(PolicyLabMain, RunsFlatReferences) {
  const std::string refs = TempPath("refs"), json = TempPath("refs.json");
  std::ofstream(refs) << "a\nb\na\nc\nb\na\n";
  const ShellRun run = PolicyLab("--refs " + refs + " --capacity-blocks 2 --json " + json);
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(ReadAll(json), HasSubstr("\"misses\": 5"));
  std::filesystem::remove(refs);
  std::filesystem::remove(json);
}

TEST(PolicyLabMain, HalvesAndModelsAreShortForOtherOptions) {
  const char* arguments[] = {"--trace",      "t",       "--halves",          "swapped",
                             "--model",      "30b_a3b", "--prefill-ms",      "1",
                             "--dram-times", "2",       "--capacity-blocks", "9"};
  const auto line = ParseCommandLine(arguments);
  ASSERT_TRUE(line.ok()) << line.status();
  const Settings& s = line->settings;
  EXPECT_EQ(s.part.index, 2u);
  EXPECT_EQ(s.train_part.index, 1u);
  ASSERT_TRUE(s.train.has_value());
  EXPECT_EQ(s.train->path, "t");
  EXPECT_EQ(s.block_bytes, 64 * 98304.0);
  EXPECT_EQ(s.prefill.slope_blocks, 131);
  EXPECT_EQ(s.prefill.c0_seconds, 1e-3);
  EXPECT_EQ(s.DramBlocks(9), 18u);
  const char* both[] = {"--trace",       "t", "--dram-times",      "2",
                        "--dram-blocks", "5", "--capacity-blocks", "9"};
  EXPECT_THAT(std::string(ParseCommandLine(both).status().message()), HasSubstr("--dram-times"));
  const char* many[] = {"--trace",  "t",         "--trace-out",       "f", "--mode", "engine",
                        "--policy", "lru,spear", "--capacity-blocks", "9"};
  EXPECT_THAT(std::string(ParseCommandLine(many).status().message()), HasSubstr("--trace-out"));
}

TEST(PolicyLabMain, Helps) {
  const ShellRun run = PolicyLab("--help");
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.output, HasSubstr("--scope-start"));
  EXPECT_THAT(run.output, HasSubstr("belady_cost"));
}

TEST(PolicyLabMain, BadArgumentsExitWithTwo) {
  for (const char* arguments :
       {"", "--trace /nowhere --capacity-blocks 10", "--generate chat --capacity-blocks ten",
        "--generate chat", "--bogus"}) {
    const ShellRun run = PolicyLab(arguments);
    EXPECT_EQ(run.status, 2) << arguments << ": " << run.output;
    EXPECT_THAT(run.output, testing::StartsWith("policy_lab: ")) << arguments;
  }
}

std::string ErrorOf(std::vector<const char*> arguments) {
  const auto parsed = ParseCommandLine(arguments);
  return parsed.ok() ? "" : std::string(parsed.status().message());
}

TEST(PolicyLabOptions, ErrorsNameOptionAndValue) {
  struct Case {
    const char* option;
    const char* value;
  };
  for (const Case& c : std::initializer_list<Case>{{"--generate", "novel"},
                                                   {"--part", "3/2"},
                                                   {"--part", "1"},
                                                   {"--mode", "hold"},
                                                   {"--scope-start", "poisson"},
                                                   {"--scope-start", "poisson:-1"},
                                                   {"--seeds", "0"},
                                                   {"--seed", "x"},
                                                   {"--capacity-blocks", "10,,20"},
                                                   {"--capacity-blocks", "1"},
                                                   {"--capacity-held", "nan"},
                                                   {"--policy", "lru,best"},
                                                   {"--lower-policy", "best"},
                                                   {"--hint-log-sd", "inf"},
                                                   {"--completion", "maybe"},
                                                   {"--priority", "high"},
                                                   {"--service", "fast"},
                                                   {"--link-gbs", "0"},
                                                   {"--block-mb", "-2"},
                                                   {"--prefill-slope", "0"},
                                                   {"--jobs", "0"}}) {
    const std::string error = ErrorOf({c.option, c.value});
    EXPECT_THAT(error, HasSubstr(c.option));
    EXPECT_NE(error.find('"'), error.npos) << c.option << " " << c.value << ": " << error;
  }
  EXPECT_THAT(ErrorOf({"--quiet=yes"}), HasSubstr("takes no value"));
  EXPECT_THAT(ErrorOf({"--trace"}), HasSubstr("needs a value"));
  EXPECT_THAT(ErrorOf({"--wrong", "1"}), HasSubstr("\"--wrong\""));
}

TEST(PolicyLabOptions, ChecksWhatBelongsTogether) {
  EXPECT_THAT(ErrorOf({"--trace", "t", "--generate", "chat", "--capacity-blocks", "9"}),
              HasSubstr("one of --trace"));
  EXPECT_THAT(ErrorOf({"--trace", "t"}), HasSubstr("--capacity-blocks"));
  EXPECT_THAT(ErrorOf({"--trace", "t", "--capacity-held", "2"}), HasSubstr("--mode engine"));
  EXPECT_THAT(ErrorOf({"--trace", "t", "--capacity-blocks", "9", "--nvme-blocks", "9"}),
              HasSubstr("--dram-blocks"));
  EXPECT_THAT(ErrorOf({"--refs", "r", "--capacity-blocks", "9", "--html", "h"}),
              HasSubstr("--html"));
}

TEST(PolicyLabOptions, AllMeansEachPolicyOnce) {
  const char* const arguments[] = {"--trace",    "t",        "--capacity-blocks",
                                   "9,8",        "--policy", "belady,all,lru",
                                   "--block-mb", "2.5"};
  const auto parsed = ParseCommandLine(arguments);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto& policies = parsed->settings.policies;
  EXPECT_EQ(policies.front(), "belady");
  EXPECT_EQ(std::count(policies.begin(), policies.end(), "lru"), 1);
  EXPECT_EQ(parsed->settings.capacities.size(), 2u);
  EXPECT_DOUBLE_EQ(parsed->settings.block_bytes, 2.5e6);
}

}  // namespace
}  // namespace policy_lab

#endif  // TIDEPOOL_POLICY_LAB
