// The program agent_replay as a user meets it: exit status, messages, table, JSON.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/shell.h"

#ifdef TIDEPOOL_AGENT_REPLAY

namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using tidepool::testing::Shell;
using tidepool::testing::ShellRun;

ShellRun AgentReplay(const std::string& arguments) {
  return Shell(std::string("'") + TIDEPOOL_AGENT_REPLAY + "' " + arguments);
}

std::string TempPath(const std::string& name) {
  return testing::TempDir() + "/replay_main-" + std::to_string(getpid()) + "-" + name;
}

constexpr const char* kSmall = "--sessions 2 --seed 3 --block-bytes 64 ";

// The main job again on the same file: prefixes of the first run are used in the second.
TEST(ReplayMain, KeepsItsFileFromRunToRun) {
  const std::string file = TempPath("kept.tide");
  const std::string keep = kSmall + std::string("--hbm 10% --dram 5% --keep --nvme-path ") + file;
  const ShellRun first = AgentReplay(keep);
  EXPECT_EQ(first.status, 0) << first.output;
  EXPECT_THAT(first.output, Not(HasSubstr("of an earlier replay")));
  const ShellRun second = AgentReplay(keep);
  EXPECT_EQ(second.status, 0) << second.output;
  EXPECT_THAT(second.output, HasSubstr("of an earlier replay"));
  EXPECT_THAT(second.output, HasSubstr("mismatches                 0"));
  const ShellRun other = AgentReplay(keep + " --block-bytes 128");
  EXPECT_EQ(other.status, 2) << "blocks of another size";
  EXPECT_THAT(other.output, HasSubstr("slot_bytes 64 (128 wanted)"));
  std::filesystem::remove(file);
  EXPECT_EQ(AgentReplay(kSmall + std::string("--keep")).status, 2) << "no file is named";
}

TEST(ReplayMain, PrintsATableAndWritesJson) {
  const std::string json = TempPath("result.json");
  const ShellRun run = AgentReplay(kSmall + std::string("--lockstep --json ") + json);
  EXPECT_EQ(run.status, 0) << run.output;
  for (const char* part :
       {"hit tokens", "recomputed", "offloaded, onboarded", "stalls", "verified blocks",
        "mismatches                 0", "metadata time a request", "hbm", "dram", "nvme"}) {
    EXPECT_THAT(run.output, HasSubstr(part));
  }
  std::ifstream file(json);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), testing::StartsWith("{\n  \"mismatches\": 0,\n"));
  for (const char* key : {"\"verified_blocks\": ", "\"hit_tokens\": {\"hbm\": ",
                          "\"recomputed_tokens\": ", "\"stalls\": ", "\"onboarded_bytes\": "}) {
    EXPECT_THAT(text.str(), HasSubstr(key));
  }
  std::filesystem::remove(json);
}

TEST(ReplayMain, ReplaysWhatItWrote) {
  const std::string trace = TempPath("t.ttrace");
  const std::string a = TempPath("a.json");
  const std::string b = TempPath("b.json");
  const std::string common = "--quiet --lockstep --block-bytes 64 --seed 3 --json ";
  ShellRun run = AgentReplay(common + a + " --sessions 2 --write-trace " + trace);
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_EQ(run.output, "");
  run = AgentReplay(common + b + " --trace " + trace);
  EXPECT_EQ(run.status, 0) << run.output;
  const auto hits = [](const std::string& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (line.find("\"hit_tokens\"") != line.npos) return line;
    }
    return std::string();
  };
  EXPECT_EQ(hits(a), hits(b));
  EXPECT_NE(hits(a), "");
  for (const std::string& path : {trace, a, b}) std::filesystem::remove(path);
}

TEST(ReplayMain, Help) {
  const ShellRun run = AgentReplay("--help");
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.output, HasSubstr("--lockstep"));
}

TEST(ReplayMain, BadArgumentsEndWithTwo) {
  const ShellRun run = AgentReplay("--hbm 10x");
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.output.find("agent_replay: --hbm \"10x\": expected"), 0u) << run.output;
}

TEST(ReplayMain, BadTraceLinesAreNamed) {
  const std::string trace = TempPath("bad.ttrace");
  std::ofstream(trace) << "# ttrace v1\n0\t1\t1\t0\t-1\t64\t1\t-1\t1\tfirst\t1-\n";
  const ShellRun run = AgentReplay("--trace " + trace);
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output, HasSubstr(trace + ":2: block id is \"\""));
  std::filesystem::remove(trace);
}

TEST(ReplayMain, AFullDiskIsNamed) {
  // A limit on the size of files stands for the disk.
  const std::string file = TempPath("full.tide");
  const ShellRun run = Shell("trap '' XFSZ; ulimit -f 16; '" TIDEPOOL_AGENT_REPLAY "' " +
                             std::string(kSmall) + "--nvme-path " + file);
  EXPECT_EQ(run.status, 2) << run.output;
  EXPECT_THAT(run.output, HasSubstr(file));
  std::filesystem::remove(file);
}

TEST(ReplayMain, AMissingDirectoryIsNamed) {
  const ShellRun run = AgentReplay(kSmall + std::string("--nvme-path /nowhere/x.tide"));
  EXPECT_EQ(run.status, 2) << run.output;
  EXPECT_THAT(run.output, HasSubstr("/nowhere/x.tide"));
}

TEST(ReplayMain, ResultsThatCannotBeWritten) {
  const ShellRun run = AgentReplay(kSmall + std::string("--json /nowhere/x.json"));
  EXPECT_EQ(run.status, 2) << run.output;
  EXPECT_THAT(run.output, HasSubstr("cannot write /nowhere/x.json"));
}

}  // namespace

#endif  // TIDEPOOL_AGENT_REPLAY
