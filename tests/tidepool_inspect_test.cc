// The program tidepool-inspect as a user meets it: exit status, messages, text, JSON.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/shell.h"
#include "tests/support/slot_file_image.h"

#ifdef TIDEPOOL_INSPECT

namespace tidepool {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LoadBytes;
using ::testing::MatchesRegex;
using ::testing::Not;
using testing::RandomIdentity;
using testing::SaveBytes;
using testing::Shell;
using testing::ShellRun;
using testing::SlotFileImage;
using testing::SmallLayout;
using ::testing::StartsWith;

ShellRun Inspect(const std::string& arguments) {
  return Shell(std::string("'") + TIDEPOOL_INSPECT + "' " + arguments);
}

// Ten slots, one for each answer: 0 current, 1 superseded by 0, 2 of another epoch, 3 cleared,
// 4 of a dropped namespace, 5 torn, 6 misplaced, 7 foreign, 8 empty, 9 current in a second
// namespace.
class InspectTest : public ::testing::Test {
 protected:
  InspectTest()
      : path_(::testing::TempDir() + "/inspect-" + std::to_string(getpid())),
        image_(SmallLayout(10)) {
    std::mt19937_64 random(1);
    const auto write = [&](std::uint32_t slot, std::uint64_t generation, std::uint64_t epoch,
                           std::uint64_t root, std::uint64_t digest) {
      BlockIdentity who = RandomIdentity(random);
      who.epoch = epoch;
      who.root = {0, root};
      who.digest = {0, digest};
      who.position = slot;
      image_.Write(slot, generation, who);
    };
    write(0, 20, 1, 0xa, 0x100);
    write(1, 19, 1, 0xa, 0x100);
    write(2, 21, 0, 0xa, 0x102);
    write(3, 9, 1, 0xa, 0x103);
    write(4, 15, 1, 0xd, 0x104);
    write(5, 22, 1, 0xa, 0x105);
    image_.header(5)[40] ^= std::byte{4};
    write(6, 23, 1, 0xa, 0x106);
    std::ranges::copy(image_.header(0), image_.header(6).begin());
    write(7, 24, 1, 0xa, 0x107);
    image_.header(7)[112] ^= std::byte{4};
    testing::Reseal(image_.header(7));
    write(9, 25, 1, 0xb, 0x109);
    image_.Put({.sequence = 3, .epoch = 1, .least_generation = 10, .dropped = {{{0, 0xd}, 16}}});
    image_.Put({.sequence = 4, .epoch = 1, .least_generation = 10, .dropped = {{{0, 0xd}, 16}}});
  }
  ~InspectTest() override { std::filesystem::remove(path_); }

  ShellRun Run(const std::string& arguments, std::size_t bytes = SIZE_MAX) {
    SaveBytes(path_, image_.bytes().first(std::min(bytes, image_.bytes().size())));
    return Inspect(arguments + " '" + path_ + "'");
  }

  std::string path_;
  SlotFileImage image_;
};

// Two slots, both sound and of the state's epoch.
SlotFileImage SoundImage() {
  std::mt19937_64 random(2);
  SlotFileImage image(SmallLayout(2));
  for (const std::uint32_t slot : {0u, 1u}) {
    BlockIdentity who = RandomIdentity(random);
    who.epoch = 0;
    image.Write(slot, slot + 1, who);
  }
  return image;
}

TEST_F(InspectTest, ListShowsEachSlotThatIsNotEmpty) {
  const ShellRun run = Run("list");
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("0  current               0          20      1       4  "
                                          "00000000000000000000000000000100"),
                                HasSubstr("1  superseded "), HasSubstr("2  other epoch "),
                                HasSubstr("3  cleared "), HasSubstr("4  dropped ")));
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("5  torn\n"), HasSubstr("6  misplaced\n"), HasSubstr("7  foreign\n"),
                    Not(HasSubstr(" empty")), HasSubstr("9  current ")));
}

TEST_F(InspectTest, ListShowsTokensOnRequestOnly) {
  const SlotHeader header = image_.Parsed(9);
  std::string text;
  std::string json = "\"token_ids\": [";
  for (const Token token : header.identity.tokens) {
    text += " " + std::to_string(token);
    json += (json.back() == '[' ? "" : ", ") + std::to_string(token);
  }
  EXPECT_THAT(Run("list --tokens").output, HasSubstr(text + "\n"));
  EXPECT_THAT(Run("list").output, Not(HasSubstr(text)));
  EXPECT_THAT(Run("list --tokens --json").output, HasSubstr(json + "]}"));
  EXPECT_THAT(Run("list --json").output, Not(HasSubstr("token_ids")));
}

TEST_F(InspectTest, ListWritesJson) {
  const ShellRun run = Run("list --json");
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, StartsWith("{\"file\": \"" + path_ +
                                     "\", \"slots\": [{\"slot\": 0, "
                                     "\"state\": \"current\", \"position\": 0, "
                                     "\"generation\": 20, \"epoch\": 1, \"digest\": "
                                     "\"00000000000000000000000000000100\", \"parent\": \""));
  EXPECT_THAT(run.output, HasSubstr("{\"slot\": 5, \"state\": \"torn\"}, "));
  EXPECT_THAT(run.output, ::testing::EndsWith("]}\n"));
}

TEST_F(InspectTest, StatsCountsStatesAndNamespaces) {
  const ShellRun run = Run("stats");
  EXPECT_EQ(run.status, 0) << run.output;
  for (const char* part :
       {": 57344 bytes of 57344", "\"weights-7 bf16 shard 0 of 1\"", "version 1, fingerprint ",
        "10 of 600 bytes, stride 4096, from 16384; 3 layers, 3 segments",
        "192 bytes each, from 12288; blocks of 4 tokens, which are stored",
        "sequence 4, epoch 1, least generation 10, 1 namespaces dropped",
        "state page 0 sequence 4\n", "state page 1 sequence 3\n",
        "by state     current 2, superseded 1, other epoch 1, cleared 1, dropped 1, foreign 1, "
        "misplaced 1, torn 1, empty 1\n",
        "1200 bytes in current slots",
        "0000000000000000000000000000000a: 1 blocks, 600 bytes, generations 20 to 20, deepest "
        "position 0\n",
        "0000000000000000000000000000000b: 1 blocks, 600 bytes, generations 25 to 25, deepest "
        "position 9\n"}) {
    EXPECT_THAT(run.output, HasSubstr(part));
  }
}

TEST_F(InspectTest, StatsWritesJson) {
  const ShellRun run = Run("stats --json");
  EXPECT_EQ(run.status, 0) << run.output;
  for (const char* part :
       {"\"bytes\": 57344, \"lock_holder\": null, \"layout\": {\"version\": 1, \"identity\": "
        "\"weights-7 bf16 shard 0 of 1\"",
        "\"state\": {\"sequence\": 4, \"epoch\": 1, \"least_generation\": 10, \"dropped\": "
        "[{\"root\": \"0000000000000000000000000000000d\", \"generation\": 16}]}, "
        "\"state_pages\": [\"sequence 4\", \"sequence 3\"]",
        "\"slots\": {\"current\": 2, \"superseded\": 1, \"other epoch\": 1, \"cleared\": 1, "
        "\"dropped\": 1, \"no state\": 0, \"foreign\": 1, \"misplaced\": 1, \"torn\": 1, "
        "\"empty\": 1, \"beyond the end\": 0}, \"current_bytes\": 1200",
        "{\"root\": \"0000000000000000000000000000000b\", \"blocks\": 1, \"bytes\": 600, "}) {
    EXPECT_THAT(run.output, HasSubstr(part));
  }
}

TEST_F(InspectTest, IdentitiesThatAreNotTextAreEscaped) {
  SlotFileLayout layout = SmallLayout(1);
  layout.identity = std::string("a\"b\n\x1b[31m\xff", 10);
  image_ = SlotFileImage(layout);
  for (const char* command : {"stats", "stats --json"}) {
    EXPECT_THAT(Run(command).output, HasSubstr("\"a\\\"b\\u000a\\u001b[31m\\u00ff\""));
  }
}

TEST_F(InspectTest, VerifyIsContentWithASoundFile) {
  image_ = SoundImage();
  const ShellRun run = Run("verify");
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_EQ(run.output,
            "2 payloads of 600 bytes read, 0 do not match; headers: 0 torn, 0 misplaced, "
            "0 foreign\n");
  const ShellRun json = Run("verify --json");
  EXPECT_EQ(json.status, 0);
  EXPECT_THAT(json.output,
              HasSubstr("\"matches\": true, \"payloads\": 2, \"payload_bytes\": 1200"));
}

TEST_F(InspectTest, S70_VerifyFindsAFlippedPayloadBit) {
  image_ = SoundImage();
  image_.payload(1)[450] ^= std::byte{16};
  const ShellRun run = Run("verify");
  EXPECT_EQ(run.status, 1) << run.output;
  EXPECT_THAT(run.output, HasSubstr("slot 1 (current): payload does not match, segments 2\n2 "
                                    "payloads of 600 bytes read, 1 do not match"));
  const ShellRun json = Run("verify --json");
  EXPECT_EQ(json.status, 1);
  EXPECT_THAT(json.output,
              AllOf(HasSubstr("\"matches\": false"),
                    HasSubstr("[{\"slot\": 1, \"state\": \"current\", \"segments\": [2]}]")));
}

TEST_F(InspectTest, VerifyFindsDamagedHeadersAndStatePages) {
  EXPECT_EQ(Run("verify").status, 1);
  EXPECT_THAT(Run("verify").output, HasSubstr("1 torn, 1 misplaced, 1 foreign"));

  image_ = SoundImage();
  image_.bytes()[4096 + 20] ^= std::byte{1};
  EXPECT_EQ(Run("verify").status, 1);
  EXPECT_THAT(Run("verify").output, HasSubstr("state page 0: state page: checksum mismatch\n"));
  EXPECT_THAT(Run("list").output, HasSubstr(" current "));  // the other page holds

  image_.bytes()[8192 + 20] ^= std::byte{1};
  EXPECT_EQ(Run("verify").status, 1);
  EXPECT_THAT(Run("list").output, HasSubstr(" no state "));
  EXPECT_THAT(Run("stats").output, HasSubstr("none is sound: nothing in the file counts"));
}

TEST_F(InspectTest, TruncatedFilesAreReadAsFarAsTheyGo) {
  image_ = SoundImage();
  ShellRun run = Run("verify", 16'384 + 4096 + 500);
  EXPECT_EQ(run.status, 1) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("slot 1 (current): payload does not match, segments 2\n"),
                                HasSubstr("the file ends 3596 bytes early")));
  run = Run("stats", 12'288 + 192);
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("by state     current 1, beyond the end 1\n"));
  run = Run("stats", 5000);
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("nothing in the file counts"));
}

TEST_F(InspectTest, S77_WhatIsNoSuchFileIsAnErrorForEachCommand) {
  for (const std::string command : {"list", "verify", "stats"}) {
    ShellRun run = Run(command, 3);
    EXPECT_EQ(run.status, 2);
    EXPECT_EQ(run.output, "tidepool-inspect: " + path_ + ": no superblock\n");
    run = Run(command, 4000);
    EXPECT_EQ(run.status, 2);
    EXPECT_EQ(run.output, "tidepool-inspect: " + path_ + ": superblock: 4000 bytes of 4096\n");
    run = Inspect(command + " '" + TIDEPOOL_INSPECT + "'");
    EXPECT_EQ(run.status, 2);
    EXPECT_THAT(run.output, HasSubstr(": no superblock\n"));
    run = Inspect(command + " /nowhere/at/all");
    EXPECT_EQ(run.status, 2);
    EXPECT_EQ(run.output,
              "tidepool-inspect: /nowhere/at/all: cannot open: No such file or directory\n");
    run = Inspect(command + " /");
    EXPECT_EQ(run.status, 2);
  }
}

TEST_F(InspectTest, WrongUsageIsAnError) {
  for (const char* arguments :
       {"", "list", "list a b", "show x", "list --all x", "stats --tokens x"}) {
    const ShellRun run = Inspect(arguments);
    EXPECT_EQ(run.status, 2) << arguments;
    EXPECT_THAT(run.output, AllOf(StartsWith("tidepool-inspect: "), HasSubstr("see --help")));
  }
  EXPECT_EQ(Inspect("--help").status, 0);
  EXPECT_THAT(Inspect("--help").output, HasSubstr("Exit status"));
  EXPECT_THAT(Inspect("--version").output,
              MatchesRegex("tidepool-inspect [0-9.]+, file format 1\n"));
}

TEST_F(InspectTest, OutputThatCannotBeWrittenIsAnError) {
  Run("list");
  const ShellRun run = Inspect("list '" + path_ + "' > /dev/full");
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.output, "tidepool-inspect: cannot write the output\n");
}

// It neither needs the lock nor takes it: an owner may hold it, or start at any moment.
TEST_F(InspectTest, SaysWhoHoldsTheLock) {
  EXPECT_THAT(Run("stats").output, HasSubstr("owner        none seen\n"));
  const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  const ShellRun run = Inspect("stats '" + path_ + "'");
  EXPECT_EQ(run.status, 0);
  if (!std::ifstream("/proc/locks").good()) GTEST_SKIP() << "no /proc/locks here";
  EXPECT_THAT(run.output,
              HasSubstr("owner        process " + std::to_string(getpid()) + " holds the lock"));
  ::close(fd);
}

TEST_F(InspectTest, ChangesNothing) {
  Run("stats");
  const auto before = std::filesystem::last_write_time(path_);
  ASSERT_EQ(::chmod(path_.c_str(), 0400), 0);
  for (const char* command : {"list ", "verify ", "stats "}) Inspect(command + path_);
  EXPECT_EQ(std::filesystem::last_write_time(path_), before);
  EXPECT_TRUE(std::ranges::equal(LoadBytes(path_), image_.bytes()));
}

}  // namespace
}  // namespace tidepool

#endif  // TIDEPOOL_INSPECT
