// The format of docs/nvme_format.md: round trips, each rule of validity, hostile files, corruption,
// and the vectors of that page.
#include "tidepool/transfer/slot_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/slot_file_image.h"

namespace tidepool {
namespace {

using ::testing::HasSubstr;
using testing::RandomIdentity;
using testing::RandomLayout;
using testing::Reseal;
using testing::SlotFileImage;
using testing::SmallLayout;

template <typename T>
void Put(std::span<std::byte> bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    text += "0123456789abcdef"[std::to_integer<int>(b >> 4)];
    text += "0123456789abcdef"[std::to_integer<int>(b & std::byte{15})];
  }
  return text;
}

// What ParseSuperblock says once `edit` has changed a good page and its checksum is right again.
Status AfterEdit(const std::function<void(std::span<std::byte>)>& edit) {
  SlotFilePage page = EncodeSuperblock(SmallLayout(4));
  edit(page);
  Reseal(page);
  return ParseSuperblock(page).status();
}

template <typename T>
Status WithField(std::size_t at, T value) {
  return AfterEdit([=](std::span<std::byte> page) { Put(page, at, value); });
}

HeaderState StateOf(SlotFileImage& image, std::uint32_t slot) {
  SlotHeader header;
  return ParseSlotHeader(image.header(slot), image.layout(), slot, header);
}

// --- Round trips. ---

TEST(SlotFile, SuperblocksOfAnyLayoutReadBack) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 500; ++i) {
    const SlotFileLayout layout =
        RandomLayout(random, static_cast<std::uint32_t>(1 + random() % kMaxFileSlots));
    ASSERT_TRUE(CheckLayout(layout).ok()) << CheckLayout(layout);
    const StatusOr<SlotFileLayout> parsed = ParseSuperblock(EncodeSuperblock(layout));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, layout);
    EXPECT_TRUE(SameLayout(*parsed, layout).ok());
  }
}

TEST(SlotFile, LargestLayoutReadsBack) {
  SlotFileLayout layout = SmallLayout(4);
  layout.identity = std::string(kMaxIdentityBytes, 'x');
  layout.block_tokens = kMaxStoredTokens;
  layout.layers = 1;
  layout.slot_bytes = std::uint64_t{1} << 40;
  layout.slot_stride = layout.slot_bytes;
  layout.segment_ends.clear();
  for (std::uint64_t i = 1; i <= kMaxFileSegments; ++i) {
    layout.segment_ends.push_back(i * (layout.slot_bytes / kMaxFileSegments));
  }
  layout.slots = 1u << 22;  // with 2^40 bytes each: 2^62
  ASSERT_TRUE(CheckLayout(layout).ok()) << CheckLayout(layout);
  EXPECT_EQ(ParseSuperblock(EncodeSuperblock(layout)).value(), layout);
  EXPECT_LT(layout.file_bytes(), std::uint64_t{1} << 63);
  ++layout.slots;
  EXPECT_THAT(std::string(CheckLayout(layout).message()), HasSubstr("2^62"));
}

TEST(SlotFile, StatesReadBack) {
  std::mt19937_64 random(2);
  for (std::size_t dropped = 0; dropped <= SlotFileState::kMaxDropped; dropped += 16) {
    SlotFileState state{.sequence = random(), .epoch = random(), .least_generation = random()};
    for (std::size_t i = 0; i < dropped; ++i) {
      state.dropped.push_back({{random(), random()}, random()});
    }
    EXPECT_EQ(ParseState(EncodeState(state)).value(), state);
  }
}

TEST(SlotFile, HeadersReadBack) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    const SlotFileLayout layout = RandomLayout(random, 1000);
    std::vector<std::uint64_t> sums(layout.segments());
    for (std::uint64_t& sum : sums) sum = random();
    std::vector<Token> tokens(layout.stores_tokens ? layout.block_tokens : 0);
    for (Token& token : tokens) token = static_cast<Token>(random());
    SlotHeader header{static_cast<std::uint32_t>(random() % 1000), random(), RandomIdentity(random),
                      std::as_bytes(std::span(sums))};
    header.identity.tokens = tokens;
    std::vector<std::byte> bytes(layout.header_bytes());
    EncodeSlotHeader(header, layout, bytes);

    SlotHeader parsed;
    ASSERT_EQ(ParseSlotHeader(bytes, layout, header.slot, parsed), HeaderState::kSound);
    EXPECT_EQ(parsed.slot, header.slot);
    EXPECT_EQ(parsed.generation, header.generation);
    EXPECT_EQ(parsed.identity.root, header.identity.root);
    EXPECT_EQ(parsed.identity.parent, header.identity.parent);
    EXPECT_EQ(parsed.identity.digest, header.identity.digest);
    EXPECT_EQ(parsed.identity.content, header.identity.content);
    EXPECT_EQ(parsed.identity.epoch, header.identity.epoch);
    EXPECT_EQ(parsed.identity.position, header.identity.position);
    EXPECT_TRUE(std::ranges::equal(parsed.identity.tokens, tokens));
    for (std::uint32_t s = 0; s < layout.segments(); ++s) EXPECT_EQ(parsed.sum(s), sums[s]);
  }
}

TEST(SlotFile, RegionsDoNotOverlapAndAreAligned) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 500; ++i) {
    const SlotFileLayout layout =
        RandomLayout(random, static_cast<std::uint32_t>(1 + random() % 5000));
    EXPECT_EQ(layout.HeaderOffset(0), 12288u);
    EXPECT_EQ(layout.header_bytes() % 64, 0u);
    EXPECT_GE(layout.header_bytes(),
              136 + 8 * layout.segments() + (layout.stores_tokens ? 4 * layout.block_tokens : 0));
    EXPECT_LE(layout.HeaderOffset(layout.slots), layout.payloads_offset());
    EXPECT_EQ(layout.PayloadOffset(layout.slots - 1) % 4096, 0u);
    EXPECT_EQ(layout.file_bytes(), layout.payloads_offset() + layout.slots * layout.slot_stride);
  }
  SlotFileLayout layout = SmallLayout(4);
  layout.slot_stride = 3u << 21;  // 2 MiB is a divisor, 1 MiB is the most that is kept
  EXPECT_EQ(layout.payloads_offset(), 1u << 20);
}

// --- Validity of the superblock: S77, S73. ---

TEST(SlotFile, S77_SuperblocksWithHostileFieldsAreRejected) {
  EXPECT_TRUE(WithField(16, std::uint32_t{4}).ok());  // as it was
  struct Case {
    Status status;
    absl::StatusCode code;
    std::string_view names;
  };
  const std::vector<Case> cases = {
      {WithField(0, 'X'), absl::StatusCode::kNotFound, "no superblock"},
      {WithField(8, std::uint32_t{2}), absl::StatusCode::kUnimplemented, "version is 2"},
      {WithField(8, ~std::uint32_t{0}), absl::StatusCode::kUnimplemented, "4294967295"},
      {WithField(12, ~std::uint32_t{0}), absl::StatusCode::kDataLoss, "4294967295 bytes"},
      {WithField(12, std::uint32_t{1025}), absl::StatusCode::kDataLoss, "1025 bytes"},
      {WithField(16, std::uint32_t{0}), absl::StatusCode::kDataLoss, "slots is 0"},
      {WithField(16, ~std::uint32_t{0}), absl::StatusCode::kDataLoss, "slots is 4294967295"},
      {WithField(20, std::uint32_t{0}), absl::StatusCode::kDataLoss, "layers is 0"},
      {WithField(20, std::uint32_t{7}), absl::StatusCode::kDataLoss, "layers is 7"},
      {WithField(24, std::uint32_t{0}), absl::StatusCode::kDataLoss, "block_tokens is 0"},
      {WithField(24, ~std::uint32_t{0}), absl::StatusCode::kDataLoss, "block_tokens"},
      {WithField(28, std::uint32_t{0}), absl::StatusCode::kDataLoss, "segments is 0"},
      {WithField(28, std::uint32_t{2}), absl::StatusCode::kDataLoss, "last segment end is 400"},
      {WithField(28, ~std::uint32_t{0}), absl::StatusCode::kDataLoss, "4294967295 segments"},
      {WithField(32, std::uint64_t{1} << 63), absl::StatusCode::kDataLoss, "9223372036854775808"},
      {WithField(32, std::uint64_t{0}), absl::StatusCode::kDataLoss, "slot_bytes is 0"},
      {WithField(40, std::uint64_t{1} << 63), absl::StatusCode::kDataLoss, "slot_stride"},
      {WithField(40, std::uint64_t{0}), absl::StatusCode::kDataLoss, "slot_stride is 0"},
      {WithField(40, std::uint64_t{4095}), absl::StatusCode::kDataLoss, "slot_stride is 4095"},
      {WithField(56, std::uint64_t{3}), absl::StatusCode::kUnimplemented, "flags are 3"},
      {WithField(56, std::uint64_t{1} << 63), absl::StatusCode::kUnimplemented, "flags"},
      {WithField(91, 'X'), absl::StatusCode::kDataLoss, "unused bytes"},  // behind the identity
      {WithField(1088, std::uint64_t{0}), absl::StatusCode::kDataLoss, "do not grow"},
      {WithField(1096, std::uint64_t{200}), absl::StatusCode::kDataLoss, "do not grow"},
      {WithField(1096, std::uint64_t{1} << 63), absl::StatusCode::kDataLoss, "do not grow"},
      {WithField(1104, std::uint64_t{599}), absl::StatusCode::kDataLoss, "last segment end"},
      {WithField(1112, std::uint64_t{800}), absl::StatusCode::kDataLoss, "unused bytes"},
      {WithField(4080, std::uint64_t{1}), absl::StatusCode::kDataLoss, "unused bytes"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(c.status.code(), c.code) << c.names << ": " << c.status;
    EXPECT_THAT(std::string(c.status.message()), HasSubstr(std::string(c.names)));
  }
}

// The product of fields that are each in range must not wrap around either.
TEST(SlotFile, S77_FilesBeyondAllOffsetsAreRejected) {
  const Status status = AfterEdit([](std::span<std::byte> page) {
    Put(page, 16, kMaxFileSlots);
    Put(page, 40, std::uint64_t{1} << 40);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("slot_stride is 1099511627776"));
}

TEST(SlotFile, S77_ShortPagesAreRejected) {
  const SlotFilePage superblock = EncodeSuperblock(SmallLayout(4));
  const SlotFilePage state = EncodeState({.sequence = 1});
  for (const std::size_t size : {1u, 3u, 7u, 8u, 12u, 64u, 4095u}) {
    EXPECT_EQ(ParseSuperblock(std::span(superblock).first(size)).status().code(),
              size < 8 ? absl::StatusCode::kNotFound : absl::StatusCode::kDataLoss);
    EXPECT_EQ(ParseState(std::span(state).first(size)).status().code(),
              absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(ParseSuperblock({}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ParseState({}).status().code(), absl::StatusCode::kNotFound);
}

TEST(SlotFile, S73_AnotherLayoutIsNamedFieldByField) {
  const SlotFileLayout wanted = SmallLayout(4);
  const auto differs = [&](auto edit) {
    SlotFileLayout found = wanted;
    edit(found);
    EXPECT_NE(found.fingerprint(), wanted.fingerprint());
    const Status status = SameLayout(found, wanted);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(differs([](auto& l) { l.identity = "weights-8"; }), HasSubstr("\"weights-8\""));
  EXPECT_THAT(differs([](auto& l) { l.slots = 5; }), HasSubstr("slots 5 (4 wanted)"));
  EXPECT_THAT(differs([](auto& l) { l.layers = 2; }), HasSubstr("layers 2 (3 wanted)"));
  EXPECT_THAT(differs([](auto& l) { l.block_tokens = 8; }), HasSubstr("block_tokens 8"));
  EXPECT_THAT(differs([](auto& l) { l.slot_stride = 8192; }), HasSubstr("slot_stride 8192"));
  EXPECT_THAT(differs([](auto& l) { l.stores_tokens = false; }), HasSubstr("stored tokens"));
  EXPECT_THAT(differs([](auto& l) { l.digest_check = 1; }), HasSubstr("digest seed"));
  EXPECT_THAT(differs([](auto& l) { l.segment_ends[0] = 100; }), HasSubstr("boundaries"));
}

// --- Validity of state pages. ---

TEST(SlotFile, S77_StatesWithHostileFieldsAreRejected) {
  const auto edited = [](std::size_t at, auto value) {
    SlotFilePage page = EncodeState({.sequence = 1, .dropped = {{{1, 2}, 3}}});
    Put(page, at, value);
    Reseal(page);
    return ParseState(page).status().code();
  };
  EXPECT_EQ(edited(8, std::uint64_t{5}), absl::StatusCode::kOk);
  EXPECT_EQ(edited(7, '2'), absl::StatusCode::kDataLoss);  // the version is in the magic
  EXPECT_EQ(edited(32, ~std::uint32_t{0}), absl::StatusCode::kDataLoss);
  EXPECT_EQ(edited(32, std::uint32_t{161}), absl::StatusCode::kDataLoss);
  EXPECT_EQ(edited(36, std::uint32_t{1}), absl::StatusCode::kDataLoss);
  EXPECT_EQ(edited(32, std::uint32_t{0}), absl::StatusCode::kDataLoss);  // an entry left over
  EXPECT_EQ(edited(4080, std::uint64_t{1}), absl::StatusCode::kDataLoss);
}

TEST(SlotFile, TheSoundStatePageOfTheHigherSequenceHolds) {
  SlotFileImage image(SmallLayout(1));
  const auto pages = image.bytes().subspan(4096, 8192);
  EXPECT_EQ(ParseStatePages(pages)->sequence, 2u);
  image.Put({.sequence = 3, .epoch = 9});
  EXPECT_EQ(ParseStatePages(pages)->epoch, 9u);

  // Torn: the one before holds. Both torn: none does.
  pages[4096 + 100] ^= std::byte{1};  // of sequence 3
  EXPECT_EQ(ParseStatePages(pages)->sequence, 2u);
  pages[100] ^= std::byte{1};
  EXPECT_EQ(ParseStatePages(pages).status().code(), absl::StatusCode::kDataLoss);
  std::ranges::fill(pages, std::byte{0});
  EXPECT_EQ(ParseStatePages(pages).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ParseStatePages(pages.first(3)).status().code(), absl::StatusCode::kNotFound);

  // In the other's place it does not count: the next write would destroy the only one.
  const SlotFilePage misplaced = EncodeState({.sequence = 8});
  std::ranges::copy(misplaced, pages.subspan(4096).begin());
  EXPECT_EQ(ParseStatePages(pages).status().code(), absl::StatusCode::kDataLoss);
  image.Put({.sequence = 6});
  EXPECT_EQ(ParseStatePages(pages)->sequence, 6u);
}

// --- Validity of headers. ---

TEST(SlotFile, HeadersSayWhatTheyAre) {
  std::mt19937_64 random(5);
  SlotFileImage image(SmallLayout(4));
  image.Write(1, 7, RandomIdentity(random));
  EXPECT_EQ(StateOf(image, 0), HeaderState::kEmpty);
  EXPECT_EQ(StateOf(image, 1), HeaderState::kSound);

  std::ranges::copy(image.header(1), image.header(2).begin());
  EXPECT_EQ(StateOf(image, 2), HeaderState::kMisplaced);
  // Half written over another: no field says so but the checksum.
  image.Write(3, 8, RandomIdentity(random));
  std::ranges::copy(image.header(1).first(64), image.header(3).begin());
  EXPECT_EQ(StateOf(image, 3), HeaderState::kTorn);
  // Half written over nothing.
  std::ranges::copy(image.header(1).subspan(64), image.header(0).subspan(64).begin());
  EXPECT_EQ(StateOf(image, 0), HeaderState::kTorn);

  SlotHeader header;
  EXPECT_EQ(ParseSlotHeader(image.header(1).first(100), image.layout(), 1, header),
            HeaderState::kTorn);
}

TEST(SlotFile, S77_HeadersWithHostileFieldsAreForeign) {
  std::mt19937_64 random(6);
  const auto edited = [&](std::size_t at, auto value) {
    SlotFileImage image(SmallLayout(4));
    image.Write(1, 7, RandomIdentity(random));
    Put(image.header(1), at, value);
    Reseal(image.header(1));
    return StateOf(image, 1);
  };
  EXPECT_EQ(edited(16, std::uint64_t{5}), HeaderState::kSound);
  EXPECT_EQ(edited(0, 'X'), HeaderState::kTorn);
  EXPECT_EQ(edited(4, std::uint32_t{2}), HeaderState::kForeign);
  EXPECT_EQ(edited(8, ~std::uint32_t{0}), HeaderState::kMisplaced);
  EXPECT_EQ(edited(96, ~std::uint32_t{0}), HeaderState::kForeign);  // tokens
  EXPECT_EQ(edited(96, std::uint32_t{0}), HeaderState::kForeign);
  EXPECT_EQ(edited(100, ~std::uint32_t{0}), HeaderState::kForeign);  // sums
  EXPECT_EQ(edited(104, std::uint64_t{1} << 63), HeaderState::kForeign);
  EXPECT_EQ(edited(112, std::uint64_t{0}), HeaderState::kForeign);  // fingerprint
  EXPECT_EQ(edited(120, std::uint64_t{1}), HeaderState::kForeign);  // unused
  EXPECT_EQ(edited(168, std::uint64_t{1}), HeaderState::kForeign);  // behind sums and tokens
}

// A block device is not erased when a file is made anew on it: what other weights left behind must
// not count, though the geometry is the same.
TEST(SlotFile, S73_HeadersOfAnotherFileOfEqualGeometryAreForeign) {
  std::mt19937_64 random(7);
  SlotFileImage image(SmallLayout(4));
  image.Write(1, 7, RandomIdentity(random));
  SlotFileLayout other = image.layout();
  SlotHeader header;
  ASSERT_EQ(ParseSlotHeader(image.header(1), other, 1, header), HeaderState::kSound);
  other.identity[0] = 'W';
  EXPECT_EQ(ParseSlotHeader(image.header(1), other, 1, header), HeaderState::kForeign);
  other = image.layout();
  ++other.digest_check;
  EXPECT_EQ(ParseSlotHeader(image.header(1), other, 1, header), HeaderState::kForeign);
  other = image.layout();
  other.segment_ends[0] = 199;
  EXPECT_EQ(ParseSlotHeader(image.header(1), other, 1, header), HeaderState::kForeign);
}

TEST(SlotFile, AStateDecidesWhichHeadersCount) {
  SlotHeader header;
  header.generation = 10;
  header.identity.epoch = 3;
  header.identity.root = {1, 2};
  SlotFileState state{.epoch = 3, .least_generation = 10, .dropped = {{{1, 2}, 10}, {{1, 3}, 99}}};
  EXPECT_EQ(StandingOf(header, state), HeaderStanding::kCurrent);
  state.dropped.push_back({{1, 2}, 11});
  EXPECT_EQ(StandingOf(header, state), HeaderStanding::kDropped);
  for (const std::uint64_t epoch : {4u, 2u}) {
    state.epoch = epoch;
    EXPECT_EQ(StandingOf(header, state), HeaderStanding::kOtherEpoch);
  }
  state.least_generation = 11;
  EXPECT_EQ(StandingOf(header, state), HeaderStanding::kCleared);
}

// --- The vectors of docs/nvme_format.md. ---

TEST(SlotFile, SuperblockVector) {
  const SlotFilePage page = EncodeSuperblock(SmallLayout(4));
  const std::span<const std::byte> bytes = page;
  EXPECT_EQ(Hex(bytes.first(64)),
            "54494445504f4f4c"
            "010000001b000000040000000300000004000000030000005802000000000000"
            "001000000000000088776655443322110100000000000000");
  EXPECT_EQ(Hex(bytes.subspan(4088)), "970078a36316891d");
  EXPECT_EQ(SmallLayout(4).fingerprint(), 0x426c6ce5dcb72f4bu);
}

TEST(SlotFile, StateVector) {
  const SlotFilePage page =
      EncodeState({.sequence = 3,
                   .epoch = 1,
                   .least_generation = 5,
                   .dropped = {{{0x0123456789abcdef, 0xfedcba9876543210}, 9}}});
  const std::span<const std::byte> bytes = page;
  EXPECT_EQ(Hex(bytes.first(64)),
            "5450535441544531030000000000000001000000000000000500000000000000"
            "0100000000000000efcdab89674523011032547698badcfe0900000000000000");
  EXPECT_EQ(Hex(bytes.subspan(4088)), "711f20d1285f1cbc");
}

TEST(SlotFile, HeaderVector) {
  std::array<std::byte, 600> payload;
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i % 251);
  std::array<std::uint64_t, 3> sums;
  for (std::size_t i = 0; i < 3; ++i)
    sums[i] = SegmentSum(std::span(payload).subspan(200 * i, 200));
  const std::array<Token, 4> tokens = {-2, -1, 0, 1};
  SlotHeader header{.slot = 2, .generation = 7, .sums = std::as_bytes(std::span(sums))};
  header.identity = {.root = {0x0101010101010101, 0x0202020202020202},
                     .parent = {0x0303030303030303, 0x0404040404040404},
                     .digest = {0x0505050505050505, 0x0606060606060606},
                     .epoch = 1,
                     .position = 1,
                     .tokens = tokens};
  std::array<std::byte, 192> bytes;
  ASSERT_EQ(SmallLayout(4).header_bytes(), bytes.size());
  EncodeSlotHeader(header, SmallLayout(4), bytes);
  EXPECT_EQ(Hex(bytes),
            "5450534801000000020000000100000007000000000000000100000000000000"
            "0101010101010101020202020202020203030303030303030404040404040404"
            "0505050505050505060606060606060600000000000000000000000000000000"
            "040000000300000058020000000000004b2fb7dce56c6c420000000000000000"
            "0307affe64882af45a86557006dbf38faf7f44394b4978bdfeffffffffffffff"
            "00000000010000000000000000000000000000000000000024802809e11ec419");
}

// --- Corruption. ---

// What each byte of a file is for, from docs/nvme_format.md and not from the code.
class ByteMap {
 public:
  enum class Use { kUnused, kSuperblock, kStatePage, kHeader, kSegment };
  struct Place {
    Use use = Use::kUnused;
    std::uint32_t slot = 0;  // or page
    std::uint32_t segment = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };

  // Slots of 3 segments of 200 bytes, headers of 128 + 3 * 8 + 4 * 4 + 8 = 176 bytes in 192.
  explicit ByteMap(std::vector<bool> written) : written_(std::move(written)) {}

  [[nodiscard]] Place At(std::uint64_t offset) const {
    if (offset < 4096) return {Use::kSuperblock};
    if (offset < 12288) return {Use::kStatePage, static_cast<std::uint32_t>(offset / 4096 - 1)};
    const std::uint64_t headers_end = 12288 + 192 * written_.size();
    if (offset < headers_end) {
      return {Use::kHeader, static_cast<std::uint32_t>((offset - 12288) / 192)};
    }
    const std::uint64_t payloads = (headers_end + 4095) / 4096 * 4096;
    if (offset < payloads) return {};
    const auto slot = static_cast<std::uint32_t>((offset - payloads) / 4096);
    const std::uint64_t within = (offset - payloads) % 4096;
    if (!written_[slot] || within >= 600) return {};
    return {Use::kSegment, slot, static_cast<std::uint32_t>(within / 200)};
  }

 private:
  std::vector<bool> written_;
};

// Everything of the file that is not as it should be.
std::vector<ByteMap::Place> Problems(SlotFileImage& image, const std::vector<bool>& written) {
  using Use = ByteMap::Use;
  std::vector<ByteMap::Place> problems;
  if (!ParseSuperblock(image.bytes().first(4096)).ok()) problems.push_back({Use::kSuperblock});
  for (std::uint32_t page = 0; page < 2; ++page) {
    if (!ParseState(image.bytes().subspan(4096 * (page + 1), 4096)).ok()) {
      problems.push_back({Use::kStatePage, page});
    }
  }
  for (std::uint32_t slot = 0; slot < written.size(); ++slot) {
    SlotHeader header;
    const HeaderState state = ParseSlotHeader(image.header(slot), image.layout(), slot, header);
    if (state != (written[slot] ? HeaderState::kSound : HeaderState::kEmpty)) {
      problems.push_back({Use::kHeader, slot});
    }
    if (state != HeaderState::kSound) continue;
    for (std::uint32_t segment = 0; segment < 3; ++segment) {
      if (SegmentSum(image.payload(slot).subspan(200 * segment, 200)) != header.sum(segment)) {
        problems.push_back({Use::kSegment, slot, segment});
      }
    }
  }
  return problems;
}

// Each of 10,000 flips is found, and found where it is, or lies where the format has no bytes.
TEST(SlotFile, CorruptionsAreFoundWhereTheyAre) {
  std::mt19937_64 random(8);
  const std::vector<bool> written = {true, false, true, true, true, true, true, true};
  SlotFileImage image(SmallLayout(static_cast<std::uint32_t>(written.size())));
  for (std::uint32_t slot = 0; slot < written.size(); ++slot) {
    if (written[slot]) image.Write(slot, slot + 1, RandomIdentity(random));
  }
  image.Put({.sequence = 3, .epoch = 1, .dropped = {{{1, 2}, 3}}});
  ASSERT_THAT(Problems(image, written), ::testing::IsEmpty());

  const ByteMap map(written);
  std::array<int, 5> hits = {};
  for (int i = 0; i < 10'000; ++i) {
    // Half of them before the payloads, where every byte is of a kind of its own.
    const std::uint64_t end = i % 2 == 0 ? image.bytes().size() : image.layout().payloads_offset();
    const std::uint64_t at = random() % end;
    const auto flip = static_cast<std::byte>(i % 4 < 2 ? 1 << random() % 8 : 1 + random() % 255);
    image.bytes()[at] ^= flip;
    const ByteMap::Place place = map.At(at);
    ++hits[static_cast<std::size_t>(place.use)];
    std::vector<ByteMap::Place> expected;
    if (place.use != ByteMap::Use::kUnused) expected.push_back(place);
    ASSERT_EQ(Problems(image, written), expected) << "offset " << at;
    image.bytes()[at] ^= flip;
  }
  for (const int count : hits) EXPECT_GT(count, 100);
}

// A crash leaves any subset of unsynced sectors. Whatever it is: the old block, the new one or
// none.
TEST(SlotFile, TornOverwritesAreOldNewOrNothing) {
  std::mt19937_64 random(9);
  SlotFileImage before(SmallLayout(1));
  before.Write(0, 1, RandomIdentity(random));
  SlotFileImage after = before;
  after.Write(0, 2, RandomIdentity(random));
  constexpr std::size_t kSector = 64;  // smaller than any drive's: more ways to tear
  int outcomes[3] = {};
  for (int i = 0; i < 3000; ++i) {
    SlotFileImage torn = before;
    const std::uint64_t keep = random() % 20;  // one in so many sectors stays old; 0: none
    for (std::size_t at = 0; at < torn.bytes().size(); at += kSector) {
      if (keep != 0 && random() % keep == 0) continue;
      std::ranges::copy(after.bytes().subspan(at, kSector), torn.bytes().begin() + at);
    }
    SlotHeader header;
    bool sound = ParseSlotHeader(torn.header(0), torn.layout(), 0, header) == HeaderState::kSound;
    for (std::uint32_t s = 0; sound && s < 3; ++s) {
      sound = SegmentSum(torn.payload(0).subspan(200 * s, 200)) == header.sum(s);
    }
    if (!sound) {
      ++outcomes[2];
      continue;
    }
    SlotFileImage& whole = header.generation == 2 ? after : before;
    ++outcomes[header.generation - 1];
    ASSERT_TRUE(std::ranges::equal(torn.payload(0), whole.payload(0)));
    ASSERT_EQ(header.identity.digest, whole.Parsed(0).identity.digest);
  }
  for (const int count : outcomes) EXPECT_GT(count, 20);
}

}  // namespace
}  // namespace tidepool
