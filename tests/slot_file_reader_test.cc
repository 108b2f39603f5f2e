// The reader against images whose content is known, truncated and hostile ones among them.
#include "tidepool/transfer/slot_file_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/slot_file_image.h"

namespace tidepool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RandomIdentity;
using testing::RandomLayout;
using testing::SaveBytes;
using testing::SlotFileImage;
using testing::SmallLayout;

class SlotFileReaderTest : public ::testing::Test {
 protected:
  SlotFileReaderTest()
      : path_(::testing::TempDir() + "/slot_file_reader-" + std::to_string(getpid())) {}
  ~SlotFileReaderTest() override { std::filesystem::remove(path_); }

  StatusOr<SlotFileReader> Reader(std::span<const std::byte> bytes) {
    SaveBytes(path_, bytes);
    return SlotFileReader::Open(path_);
  }

  std::string path_;
  std::mt19937_64 random_{1};
};

TEST_F(SlotFileReaderTest, ReadsWhatWasWritten) {
  for (int round = 0; round < 20; ++round) {
    const auto slots = static_cast<std::uint32_t>(1 + random_() % 40);
    SlotFileImage image(RandomLayout(random_, slots));
    std::vector<bool> written(slots);
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      if ((written[slot] = random_() % 4 != 0))
        image.Write(slot, slot + 5, RandomIdentity(random_));
    }
    StatusOr<SlotFileReader> reader = Reader(image.bytes());
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ(reader->layout(), image.layout());
    EXPECT_EQ(reader->file_bytes(), image.bytes().size());
    EXPECT_EQ(reader->state()->sequence, 2u);
    EXPECT_EQ(reader->StatePage(1)->sequence, 1u);

    SlotFileReader::Entry entry;
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      ASSERT_TRUE(reader->Next(entry));
      EXPECT_EQ(entry.slot, slot);
      ASSERT_EQ(entry.state, written[slot] ? HeaderState::kSound : HeaderState::kEmpty);
      if (!written[slot]) continue;
      EXPECT_EQ(entry.header.generation, slot + 5);
      EXPECT_EQ(entry.header.identity.digest, image.Parsed(slot).identity.digest);
      EXPECT_THAT(*reader->MismatchedSegments(entry.header), IsEmpty());
    }
    EXPECT_FALSE(reader->Next(entry));
    EXPECT_TRUE(reader->status().ok());
  }
}

// More headers, and payloads, than a buffer holds.
TEST_F(SlotFileReaderTest, ReadsInParts) {
  SlotFileLayout layout = SmallLayout(3);
  layout.block_tokens = kMaxStoredTokens;  // headers of 256 KiB and a little
  layout.layers = 1;
  layout.slot_bytes = 700'001;
  layout.slot_stride = 1u << 20;
  layout.segment_ends = {1, 300'000, 700'001};
  SlotFileImage image(layout);
  for (std::uint32_t slot = 0; slot < 3; ++slot) image.Write(slot, 1, RandomIdentity(random_));
  image.payload(1)[700'000] ^= std::byte{1};
  image.payload(2)[0] ^= std::byte{1};
  image.payload(2)[299'999] ^= std::byte{1};
  StatusOr<SlotFileReader> reader = Reader(image.bytes());
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<std::vector<std::uint32_t>> mismatched;
  for (SlotFileReader::Entry entry; reader->Next(entry);) {
    mismatched.push_back(*reader->MismatchedSegments(entry.header));
  }
  EXPECT_THAT(mismatched, ElementsAre(IsEmpty(), ElementsAre(2), ElementsAre(0, 1)));
}

TEST_F(SlotFileReaderTest, ReadsOneHeaderAfresh) {
  SlotFileImage image(SmallLayout(6));
  for (std::uint32_t slot = 0; slot < 6; ++slot) image.Write(slot, 1, RandomIdentity(random_));
  StatusOr<SlotFileReader> reader = Reader(image.bytes());
  SlotFileReader::Entry entry;
  ASSERT_TRUE(reader->Next(entry));
  image.Write(4, 9, RandomIdentity(random_));
  SaveBytes(path_, image.bytes());  // the same file, written over
  ASSERT_TRUE(reader->ReadHeader(4, entry).ok());
  EXPECT_EQ(entry.header.generation, 9u);
  ASSERT_TRUE(reader->Next(entry));
  EXPECT_EQ(entry.slot, 5u);
  EXPECT_EQ(reader->ReadHeader(6, entry).code(), absl::StatusCode::kOutOfRange);
  reader->Rewind();
  ASSERT_TRUE(reader->Next(entry));
  EXPECT_EQ(entry.slot, 0u);

  SlotFileReader moved = *std::move(reader);
  ASSERT_TRUE(moved.Next(entry));
  EXPECT_EQ(entry.slot, 1u);
}

// At each length: an error, or exactly the headers and segments that the file still has.
TEST_F(SlotFileReaderTest, TruncatedFiles) {
  SlotFileImage image(SmallLayout(3));  // headers at 12,288 + 192 n, payloads at 16,384 + 4,096 n
  for (std::uint32_t slot = 0; slot < 3; ++slot) image.Write(slot, 1, RandomIdentity(random_));
  struct Case {
    std::size_t bytes;
    std::uint32_t headers;
    std::size_t mismatched;
  };
  for (const Case& c : std::vector<Case>{{4096, 0, 0},
                                         {12'288, 0, 0},
                                         {12'288 + 191, 0, 0},
                                         {12'288 + 192, 1, 3},
                                         {16'384, 3, 9},
                                         {16'384 + 399, 3, 8},
                                         {16'384 + 400, 3, 7},
                                         {16'384 + 8192 + 599, 3, 1},
                                         {16'384 + 8192 + 600, 3, 0}}) {
    StatusOr<SlotFileReader> reader = Reader(image.bytes().first(c.bytes));
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ(reader->readable_slots(), c.headers);
    EXPECT_EQ(reader->state().ok(), c.bytes >= 12'288);
    std::uint32_t headers = 0;
    std::size_t mismatched = 0;
    for (SlotFileReader::Entry entry; reader->Next(entry); ++headers) {
      EXPECT_EQ(entry.state, HeaderState::kSound);
      mismatched += reader->MismatchedSegments(entry.header)->size();
    }
    EXPECT_TRUE(reader->status().ok());
    EXPECT_EQ(headers, c.headers) << c.bytes;
    EXPECT_EQ(mismatched, c.mismatched) << c.bytes;
  }
  for (const std::size_t bytes : {0u, 3u, 8u, 4095u}) {
    const StatusOr<SlotFileReader> reader = Reader(image.bytes().first(bytes));
    EXPECT_EQ(reader.status().code(),
              bytes < 8 ? absl::StatusCode::kNotFound : absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(reader.status().message()), HasSubstr(path_ + ": "));
  }
}

// It was whole when it was opened.
TEST_F(SlotFileReaderTest, AFileThatShrinksMeanwhileEndsTheListWithAnError) {
  SlotFileImage image(SmallLayout(3));
  StatusOr<SlotFileReader> reader = Reader(image.bytes());
  ASSERT_EQ(::truncate(path_.c_str(), 12'288 + 200), 0);
  SlotFileReader::Entry entry;
  ASSERT_TRUE(reader->Next(entry));
  EXPECT_FALSE(reader->Next(entry));
  EXPECT_EQ(reader->status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(reader->status().message()), HasSubstr("header of slot 1"));
}

// The largest file that a superblock can name, of which only the superblock exists.
TEST_F(SlotFileReaderTest, S77_AHugeLayoutCostsNothing) {
  SlotFileLayout layout = SmallLayout(kMaxFileSlots);
  layout.block_tokens = kMaxStoredTokens;
  layout.layers = 1;
  layout.slot_stride = std::uint64_t{1} << 34;
  layout.slot_bytes = layout.slot_stride;
  layout.segment_ends = {layout.slot_bytes};
  ASSERT_TRUE(CheckLayout(layout).ok());
  std::vector<std::byte> bytes(13'000);
  const SlotFilePage superblock = EncodeSuperblock(layout);
  std::memcpy(bytes.data(), superblock.data(), superblock.size());
  StatusOr<SlotFileReader> reader = Reader(bytes);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->readable_slots(), 0u);
  SlotFileReader::Entry entry;
  EXPECT_FALSE(reader->Next(entry));
  EXPECT_TRUE(absl::IsNotFound(reader->state().status()));
}

TEST_F(SlotFileReaderTest, WhatIsNoFileIsRefused) {
  EXPECT_EQ(SlotFileReader::Open(path_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SlotFileReader::Open(::testing::TempDir()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SlotFileReader::Open("/dev/zero").status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);  // and nobody waits for its other end
  const StatusOr<SlotFileReader> reader = SlotFileReader::Open(path_);
  EXPECT_THAT(std::string(reader.status().message()), HasSubstr("neither a regular file nor"));
}

}  // namespace
}  // namespace tidepool
