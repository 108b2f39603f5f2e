// The trace parsers of agent_replay: what they accept, and what they say about what they do not.
#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <utility>

#include "examples/agent_replay/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/replay_files.h"

namespace agent_replay {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Line(const std::string& blocks) {
  return "0\t1\t1000\t0\t-1\t130\t5\t-1\t90\tfirst\t" + blocks + "\n";
}

std::string ErrorOf(const std::string& text) {
  const tidepool::StatusOr<Trace> trace = ParseTrace(text, "t.ttrace");
  return trace.ok() ? "no error" : std::string(trace.status().message());
}

TEST(ReplayTrace, ReadsEveryField) {
  const auto trace = ParseTrace(
      "# ttrace v1  test; block_size=32; more\n"
      "# t_ms\tscope\tsession\n"
      "0\t1\t1000\t0\t-1\t71175\t169\t-1\t7340\tfirst\t1-1112\n"
      "\n"
      "19000\t1\t1000\t1\t-1\t72762\t296\t12000\t-1\ttool\t1-5,7,9-1136\n"
      "20000\t3\t3001\t0\t3000\t20\t1\t-1\t5\tunknown\t-\n",
      "name");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->name, "name");
  EXPECT_EQ(trace->block_tokens, 32u);
  ASSERT_EQ(trace->requests.size(), 3u);
  const Request& r = trace->requests[1];
  EXPECT_EQ(r.time_ms, 19000);
  EXPECT_EQ(r.scope, 1u);
  EXPECT_EQ(r.session, 1000u);
  EXPECT_EQ(r.turn, 1u);
  EXPECT_EQ(r.parent, -1);
  EXPECT_EQ(r.input_tokens, 72762u);
  EXPECT_EQ(r.output_tokens, 296u);
  EXPECT_EQ(r.gap_ms, 12000);
  EXPECT_EQ(r.busy_ms, -1);
  EXPECT_EQ(r.gap_kind, GapKind::kTool);
  EXPECT_EQ(r.blocks, 5u + 1 + 1128);
  EXPECT_THAT(trace->RangesOf(r),
              ::testing::ElementsAre(BlockRange{1, 5}, BlockRange{7, 7}, BlockRange{9, 1136}));
  EXPECT_EQ(trace->requests[2].blocks, 0u);
  EXPECT_EQ(trace->requests[2].parent, 3000);
  EXPECT_EQ(PromptBlocks(*trace), 1112u + 1134);
  EXPECT_EQ(UniqueBlocks(*trace), 1136u);
  EXPECT_EQ(Sessions(*trace), 2u);
}

TEST(ReplayTrace, TakesDosLineEndsAndAMissingLastOne) {
  const auto trace = ParseTrace(
      "# c\r\n0\t1\t1\t0\t-1\t64\t1\t-1\t1\tfirst\t4\r\n"
      "1\t1\t1\t1\t-1\t64\t1\t1\t1\ttool\t4,5",
      "t");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_THAT(trace->RangesOf(trace->requests[1]), ::testing::ElementsAre(BlockRange{4, 5}));
}

TEST(ReplayTrace, SameIdInTwoScopesIsTwoBlocks) {
  const auto trace = ParseTrace(
      "0\t1\t1\t0\t-1\t64\t1\t-1\t1\tfirst\t4-9\n"
      "0\t2\t1\t0\t-1\t64\t1\t-1\t1\tfirst\t4-9\n",
      "t");
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(UniqueBlocks(*trace), 12u);
  EXPECT_EQ(Sessions(*trace), 2u);
}

TEST(ReplayTrace, NamesFileAndLine) {
  EXPECT_THAT(ErrorOf("# c\n" + Line("1") + "x\n"), StartsWith("t.ttrace:3: has 1 columns"));
  EXPECT_THAT(ErrorOf("# only\n"), HasSubstr("t.ttrace: has no requests"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("has no requests"));
}

TEST(ReplayTrace, NamesTheColumnAndTheValue) {
  const std::pair<const char*, const char*> cases[] = {
      {"-5\t1\t1\t0\t-1\t1\t1\t-1\t1\tfirst\t1", "t_ms is -5, allowed are 0 to"},
      {"nan\t1\t1\t0\t-1\t1\t1\t-1\t1\tfirst\t1", "t_ms is \"nan\", not a whole number"},
      {"1.5\t1\t1\t0\t-1\t1\t1\t-1\t1\tfirst\t1", "t_ms is \"1.5\", not a whole number"},
      {"\t1\t1\t0\t-1\t1\t1\t-1\t1\tfirst\t1", "t_ms is \"\", not a whole number"},
      {"0\t-1\t1\t0\t-1\t1\t1\t-1\t1\tfirst\t1", "scope is -1"},
      {"0\t1\t1\t0\t-2\t1\t1\t-1\t1\tfirst\t1", "parent is -2, allowed are -1"},
      {"0\t1\t1\t0\t-1\t9999999999\t1\t-1\t1\tfirst\t1", "in_tok is 9999999999"},
      {"0\t1\t1\t0\t-1\t99999999999999999999\t1\t-1\t1\tfirst\t1",
       "in_tok is \"99999999999999999999\", not a whole number"},
      {"0\t1\t1\t0\t-1\t1\t1\t-1\t1\tlunch\t1", "gap_kind is \"lunch\", allowed are first, tool"},
      {"0\t1\t1\t0\t-1\t1\t1\t-1\t1\tfirst", "has 10 columns, ttrace v1 has 11"},
      {"0\t1\t1\t0\t-1\t1\t1\t-1\t1\tfirst\t1\t2", "has 12 columns"},
      {"0 1 1 0 -1 1 1 -1 1 first 1", "has 1 columns"},
      {"{\"a\":1}\t2", "key \"a\" is unknown"},
  };
  for (const auto& [line, message] : cases) {
    EXPECT_THAT(ErrorOf(std::string(line) + "\n"), HasSubstr(message)) << line;
  }
}

TEST(ReplayTrace, RefusesBadBlockLists) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "block id is \"\""},
      {"1,", "block id is \"\""},
      {"1-", "block id is \"\""},
      {"1--2", "block id is -2"},
      {"5-3", "block range \"5-3\" runs backwards"},
      {"0-4000000000", "more than 1048576 blocks in one request"},
      {"0-1048575,2000000", "more than 1048576 blocks"},
      {"0-1152921504606846975", "more than 1048576 blocks"},
      {"9223372036854775807", "block id is 9223372036854775807"},
      {"99999999999999999999", "not a whole number"},
      {"1 - 2", "not a whole number"},
      {"a\x01\x02", "block id is \"a??\""},
  };
  for (const auto& [blocks, message] : cases) {
    EXPECT_THAT(ErrorOf(Line(blocks)), HasSubstr(message)) << blocks;
  }
  EXPECT_EQ(ErrorOf(Line("0-1048575")), "no error");
}

TEST(ReplayTrace, TurnsOfASessionFollowEachOther) {
  const std::string first = "5\t1\t7\t1\t-1\t1\t1\t-1\t1\tfirst\t1\n";
  EXPECT_THAT(ErrorOf(first + "6\t1\t7\t1\t-1\t1\t1\t-1\t1\ttool\t1\n"),
              HasSubstr("t.ttrace:2: turn 1 at 6 ms of session 7 comes after turn 1 at 5 ms"));
  EXPECT_THAT(ErrorOf(first + "4\t1\t7\t2\t-1\t1\t1\t-1\t1\ttool\t1\n"), HasSubstr("comes after"));
  EXPECT_EQ(ErrorOf(first + "4\t2\t7\t2\t-1\t1\t1\t-1\t1\ttool\t1\n"), "no error");
}

TEST(ReplayTrace, BadBlockSize) {
  EXPECT_THAT(ErrorOf("# block_size=0\n" + Line("1")), HasSubstr("t.ttrace:1: block_size is 0"));
  EXPECT_THAT(ErrorOf("# block_size=x\n" + Line("1")), HasSubstr("block_size is \"\""));
}

TEST(ReplayTrace, ReadsMooncake) {
  const auto trace = ParseTrace(
      R"({"timestamp": 0, "input_length": 1600, "output_length": 5, "hash_ids": [0, 1, 2, 9]})"
      "\n"
      R"( { "hash_ids":[0,1,2,4,5] ,"output_length":7,"timestamp":3000,"input_length":2500 } )"
      "\r\n"
      R"({"timestamp": 3000, "input_length": 3, "output_length": 1, "hash_ids": []})"
      "\n",
      "m");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->block_tokens, 512u);
  ASSERT_EQ(trace->requests.size(), 3u);
  // Request 1 continues request 0: its three full blocks are a prefix, the fourth was partial.
  const Request& r = trace->requests[1];
  EXPECT_EQ(r.session, trace->requests[0].session);
  EXPECT_EQ(r.turn, 1u);
  EXPECT_EQ(r.gap_ms, 3000);
  EXPECT_EQ(r.output_tokens, 7u);
  EXPECT_THAT(trace->RangesOf(r), ::testing::ElementsAre(BlockRange{0, 2}, BlockRange{4, 5}));
  EXPECT_NE(trace->requests[2].session, r.session);
}

TEST(ReplayTrace, RefusesBadMooncake) {
  const std::string good =
      R"({"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [0]})"
      "\n";
  const std::pair<const char*, const char*> cases[] = {
      {R"({"timestamp": 0, "input_length": 9, "hash_ids": [0]})", "has no output_length"},
      {R"({"timestamp": 0, "input_length": 9, "output_length": 1})", "has no hash_ids"},
      {R"({"timestamp": 0, "timestamp": 0})", "key \"timestamp\" is unknown or repeated"},
      {R"({"x": 0})", "key \"x\" is unknown or repeated"},
      {R"({"timestamp": -1})", "timestamp is -1, allowed are 0"},
      {R"({"timestamp": NaN})", "timestamp is \"NaN\", not a whole number"},
      {R"({"timestamp": 1e3})", "timestamp is \"1e3\""},
      {R"({"timestamp": "5"})", "timestamp is \"\"5\"\""},
      {R"({"hash_ids": [1, [2]]})", "hash_ids is \"[2\""},
      {R"({"hash_ids": [1, -2]})", "hash_ids is -2"},
      {R"({"hash_ids": [1)", "expected ']' before \"\""},
      {R"({"timestamp": 0)", "expected '}' before \"\""},
      {R"({"timestamp)", "a string does not end"},
      {R"({})", "expected '\"' before \"}\""},
      {R"([1])", "expected '{' before \"[1]\""},
      {R"({"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [0]} x)",
       "something follows the object: \"x\""},
  };
  for (const auto& [line, message] : cases) {
    const std::string error = ErrorOf(good + line + "\n");
    EXPECT_THAT(error, StartsWith("t.ttrace:2: ")) << line;
    EXPECT_THAT(error, HasSubstr(message)) << line;
  }
}

TEST(ReplayTrace, FilesThatCannotBeRead) {
  EXPECT_THAT(std::string(ReadTrace("/nowhere/t.ttrace").status().message()),
              HasSubstr("cannot read /nowhere/t.ttrace: No such file"));
  EXPECT_THAT(std::string(ReadTrace("/").status().message()), HasSubstr("cannot read /: "));
  EXPECT_THAT(std::string(WriteFile("/nowhere/t", "x").message()),
              HasSubstr("cannot write /nowhere/t: No such file"));
}

TEST(ReplayTrace, FormatIsReadBack) {
  const std::string text =
      "# ttrace v1  x; block_size=64\n"
      "# t_ms\tscope\tsession\tturn\tparent\tin_tok\tout_tok\tgap_ms\tbusy_ms\tgap_kind\tblocks\n"
      "0\t1\t1000\t0\t-1\t71175\t169\t-1\t7340\tfirst\t1-1112\n"
      "19000\t1\t1000\t1\t-1\t72762\t296\t12000\t-1\ttool\t1-5,7,9-1136\n"
      "19000\t2\t1\t0\t1000\t3\t1\t-1\t-1\tuser\t-\n";
  const auto trace = ParseTrace(text, "t");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(FormatTrace(*trace, "x"), text);
}

// Whatever stands in the file, the answer is a trace or an error.
TEST(ReplayTrace, SurvivesMutations) {
  std::mt19937_64 random(7);
  const std::string ttrace = "# block_size=64\n" + Line("1-5,7") + Line("-");
  const std::string mooncake =
      R"({"timestamp": 0, "input_length": 1600, "output_length": 5, "hash_ids": [0, 1, 9]})"
      "\n";
  const std::string alphabet = std::string("0123456789-,\t\n\r#{}[]\":. e\x80", 26) + '\0';
  for (int i = 0; i < 20'000; ++i) {
    std::string text = i % 2 == 0 ? ttrace : mooncake;
    for (int k = 0; k < 1 + i % 4; ++k) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        default:
          text.erase(at, 1 + random() % 5);
          break;
      }
      if (text.empty()) text = "x";
    }
    const auto trace = ParseTrace(text, "t");
    EXPECT_TRUE(trace.ok() || !trace.status().message().empty());
  }
}

// The JSONL files say the same as the .ttrace files derived from them. Sessions, which the source
// does not name, were inferred there by a narrower reading of the same rule.
TEST(ReplayTrace, MooncakeFilesInBothFormats) {
  if (replay_files::TraceDirectory().empty()) {
    GTEST_SKIP() << "TIDEPOOL_TRACES names no directory with traces";
  }
  for (const std::string name :
       {"mooncake_conversation_dev", "mooncake_synthetic_dev", "mooncake_arxiv1000_dev"}) {
    const auto derived = replay_files::Load(name + ".ttrace");
    const auto source = replay_files::Load(name + ".jsonl.zst");
    ASSERT_TRUE(derived.ok() && source.ok()) << derived.status() << source.status();
    EXPECT_LE(Sessions(*source), Sessions(*derived)) << name;
    EXPECT_GT(Sessions(*source), Sessions(*derived) * 4 / 5) << name;
    EXPECT_EQ(source->block_tokens, derived->block_tokens);
    ASSERT_EQ(source->requests.size(), derived->requests.size());
    for (std::size_t i = 0; i < source->requests.size(); ++i) {
      const Request& a = source->requests[i];
      const Request& b = derived->requests[i];
      ASSERT_EQ(a.time_ms, b.time_ms) << name << " request " << i;
      ASSERT_EQ(a.input_tokens, b.input_tokens) << name << " request " << i;
      ASSERT_EQ(a.output_tokens, b.output_tokens) << name << " request " << i;
      ASSERT_TRUE(std::ranges::equal(source->RangesOf(a), derived->RangesOf(b)));
    }
  }
}

}  // namespace
}  // namespace agent_replay
