// The trace for Perfetto: complete JSON whatever its limit, one event a copy, and as many copies as
// the manager has counted.
#ifdef TIDEPOOL_AGENT_REPLAY

#include "examples/agent_replay/chrome_trace.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "examples/agent_replay/generator.h"
#include "examples/agent_replay/replay.h"
#include "examples/agent_replay/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sparse_file_io.h"

namespace agent_replay {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::size_t Count(const std::string& text, std::string_view what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
  return n;
}

/// Braces and brackets outside strings close in order, and each line but the frame is one object.
bool Balanced(const std::string& text) {
  std::string open;
  bool quoted = false;
  for (const char c : text) {
    if (c == '"') quoted = !quoted;  // the writer escapes nothing: it leaves such characters out
    if (quoted) continue;
    if (c == '{' || c == '[') open += c;
    if (c != '}' && c != ']') continue;
    if (open.empty() || open.back() != (c == '}' ? '{' : '[')) return false;
    open.pop_back();
  }
  return open.empty() && !quoted;
}

class ReplayChromeTrace : public testing::Test {
 protected:
  ~ReplayChromeTrace() override { std::filesystem::remove(path_); }

  /// Copies that the manager counted.
  std::uint64_t Replay(std::uint64_t limit_bytes) {
    CodingPreset preset;
    preset.mean_start_gap_s = 20;
    preset.turns = Quantiles{{{.01, 2}, {.50, 6}, {.99, 12}}};
    const Trace trace = GenerateTrace(preset, 3, 4);
    const Schedule schedule = MakeSchedule(trace, 1, 60);
    const auto unique = static_cast<std::uint32_t>(UniqueBlocks(trace));
    ReplayOptions options;
    options.tier_blocks = {unique / 3, unique / 2, unique};
    options.block_bytes = 64;
    options.nvme_path = "unused";
    options.make_file_io = [] { return std::make_unique<tidepool::testing::SparseFileIo>(); };
    options.trace = &trace_;
    EXPECT_TRUE(trace_.Open(path_, limit_bytes).ok());
    const auto result = RunReplay(trace, schedule, options, [](const Progress&) {});
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(trace_.Close().ok());
    std::uint64_t bytes = 0;
    for (const TierResult& tier : result->tiers) bytes += tier.bytes_in;
    requests_ = result->requests;
    return bytes / options.block_bytes;
  }

  const std::string path_ =
      testing::TempDir() + "/chrome_trace-" + std::to_string(getpid()) + ".json";
  ChromeTrace trace_;
  std::uint64_t requests_ = 0;
};

TEST_F(ReplayChromeTrace, HasOneEventForEachCopyAndTurn) {
  const std::uint64_t copies = Replay(ChromeTrace::kDefaultLimit);
  const std::string text = ReadAll(path_);
  EXPECT_TRUE(Balanced(text));
  EXPECT_THAT(text, EndsWith("]}\n"));
  EXPECT_GT(copies, 0u);
  EXPECT_EQ(trace_.copies(), copies);
  EXPECT_EQ(Count(text, "\"name\": \"copy\""), copies);
  EXPECT_EQ(Count(text, "\"name\": \"turn\""), requests_);
  EXPECT_GT(Count(text, "\"name\": \"wait: tool\""), 0u);
  EXPECT_GT(Count(text, "\"name\": \"slots in use\""), 0u);
  EXPECT_EQ(trace_.left_out(), 0u);
}

TEST_F(ReplayChromeTrace, StaysBelowItsLimitAndSaysWhatItLeftOut) {
  Replay(4096);
  const std::string text = ReadAll(path_);
  EXPECT_LE(text.size(), 4096u);
  EXPECT_TRUE(Balanced(text));
  EXPECT_GT(trace_.left_out(), 0u);
  EXPECT_THAT(text, HasSubstr("\"left_out\", \"pid\": 3, \"args\": {\"events\": " +
                              std::to_string(trace_.left_out()) + "}"));
}

TEST_F(ReplayChromeTrace, NamesAFileThatItCannotWrite) {
  EXPECT_THAT(std::string(trace_.Open("/no/such/place").message()), HasSubstr("/no/such/place"));
}

}  // namespace
}  // namespace agent_replay

#endif  // TIDEPOOL_AGENT_REPLAY
