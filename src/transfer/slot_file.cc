// The bytes of a kept file; docs/nvme_format.md defines them.
#include "tidepool/transfer/slot_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <type_traits>

#include "src/str_cat.h"

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace tidepool {
namespace {

using internal::StrCat;

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr std::array<char, 8> kSuperblockMagic = {'T', 'I', 'D', 'E', 'P', 'O', 'O', 'L'};
constexpr std::array<char, 8> kStateMagic = {'T', 'P', 'S', 'T', 'A', 'T', 'E', '1'};
constexpr std::array<char, 4> kHeaderMagic = {'T', 'P', 'S', 'H'};

// Superblock.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kIdentityBytesAt = 12;
constexpr std::size_t kSlotsAt = 16;
constexpr std::size_t kLayersAt = 20;
constexpr std::size_t kBlockTokensAt = 24;
constexpr std::size_t kSegmentsAt = 28;
constexpr std::size_t kSlotBytesAt = 32;
constexpr std::size_t kSlotStrideAt = 40;
constexpr std::size_t kDigestCheckAt = 48;
constexpr std::size_t kFlagsAt = 56;
constexpr std::size_t kIdentityAt = 64;
constexpr std::size_t kSegmentEndsAt = kIdentityAt + kMaxIdentityBytes;
constexpr std::size_t kPageSumAt = kSlotFilePageBytes - sizeof(std::uint64_t);
static_assert(kSegmentEndsAt + kMaxFileSegments * sizeof(std::uint64_t) <= kPageSumAt);
constexpr std::uint64_t kStoresTokens = 1;

// State.
constexpr std::size_t kSequenceAt = 8;
constexpr std::size_t kEpochAt = 16;
constexpr std::size_t kLeastGenerationAt = 24;
constexpr std::size_t kDroppedCountAt = 32;
constexpr std::size_t kDroppedAt = 40;
constexpr std::size_t kDroppedBytes = 24;
static_assert(kDroppedAt + SlotFileState::kMaxDropped * kDroppedBytes <= kPageSumAt);

// Slot header. The checksum is its last word.
constexpr std::size_t kHeaderVersionAt = 4;
constexpr std::size_t kSlotAt = 8;
constexpr std::size_t kPositionAt = 12;
constexpr std::size_t kGenerationAt = 16;
constexpr std::size_t kHeaderEpochAt = 24;
constexpr std::size_t kRootAt = 32;
constexpr std::size_t kParentAt = 48;
constexpr std::size_t kDigestAt = 64;
constexpr std::size_t kContentAt = 80;
constexpr std::size_t kTokenCountAt = 96;
constexpr std::size_t kSumCountAt = 100;
constexpr std::size_t kPayloadBytesAt = 104;
constexpr std::size_t kFingerprintAt = 112;
constexpr std::size_t kHeaderReservedAt = 120;
constexpr std::size_t kSumsAt = 128;
constexpr std::size_t kHeaderUnit = 64;
constexpr std::uint64_t kLargestPayloadUnit = 1u << 20;

// The tokens follow the sums.
std::size_t TokensAt(const SlotFileLayout& layout) {
  return kSumsAt + layout.segments() * sizeof(std::uint64_t);
}

constexpr std::uint64_t RoundUp(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

template <typename T>
void Put(std::span<std::byte> bytes, std::size_t at, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

template <typename T>
T Get(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

void PutHash(std::span<std::byte> bytes, std::size_t at, const PrefixHash& hash) {
  Put(bytes, at, hash.high);
  Put(bytes, at + 8, hash.low);
}

PrefixHash GetHash(std::span<const std::byte> bytes, std::size_t at) {
  return {Get<std::uint64_t>(bytes, at), Get<std::uint64_t>(bytes, at + 8)};
}

template <std::size_t N>
bool HasMagic(std::span<const std::byte> bytes, const std::array<char, N>& magic) {
  return bytes.size() >= N && std::memcmp(bytes.data(), magic.data(), N) == 0;
}

void SealPage(SlotFilePage& page) {
  Put(page, kPageSumAt, SegmentSum(std::span(page).first(kPageSumAt)));
}

Status CheckPage(std::span<const std::byte> page, std::string_view what) {
  if (page.size() < kSlotFilePageBytes) {
    return absl::DataLossError(StrCat(what, ": ", page.size(), " bytes of ", kSlotFilePageBytes));
  }
  const auto sum = Get<std::uint64_t>(page, kPageSumAt);
  if (sum != SegmentSum(page.first(kPageSumAt))) {
    return absl::DataLossError(StrCat(what, ": checksum mismatch"));
  }
  return absl::OkStatus();
}

// Each byte is the one before it, and the first is zero.
bool AllZero(std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  return bytes[0] == std::byte{0} &&
         std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

// Bytes 8 to 63 of a superblock.
void PutLayoutFields(std::span<std::byte> page, const SlotFileLayout& layout) {
  Put(page, kVersionAt, kSlotFileVersion);
  Put(page, kIdentityBytesAt, static_cast<std::uint32_t>(layout.identity.size()));
  Put(page, kSlotsAt, layout.slots);
  Put(page, kLayersAt, layout.layers);
  Put(page, kBlockTokensAt, layout.block_tokens);
  Put(page, kSegmentsAt, layout.segments());
  Put(page, kSlotBytesAt, layout.slot_bytes);
  Put(page, kSlotStrideAt, layout.slot_stride);
  Put(page, kDigestCheckAt, layout.digest_check);
  Put(page, kFlagsAt, std::uint64_t{layout.stores_tokens ? kStoresTokens : 0});
}

// What the format does not use is zero, so that a page has one meaning and a meaning has one page.
Status CheckCanonical(std::span<const std::byte> page, const SlotFilePage& encoded,
                      std::string_view what) {
  if (std::memcmp(page.data(), encoded.data(), encoded.size()) == 0) return absl::OkStatus();
  return absl::DataLossError(StrCat(what, ": unused bytes are not zero"));
}

Status OutOfRange(std::string_view field, std::uint64_t value, std::string_view range) {
  return absl::InvalidArgumentError(StrCat(field, " is ", value, ", not ", range));
}

}  // namespace

std::uint64_t SegmentSum(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

// --- Superblock. ---

std::uint32_t SlotFileLayout::header_bytes() const noexcept {
  const std::uint64_t tokens = stores_tokens ? block_tokens : 0;
  const std::uint64_t bytes = TokensAt(*this) + tokens * sizeof(Token) + sizeof(std::uint64_t);
  return static_cast<std::uint32_t>(RoundUp(bytes, kHeaderUnit));
}

std::uint64_t SlotFileLayout::payloads_offset() const noexcept {
  const std::uint64_t unit =
      std::clamp(slot_stride & (0 - slot_stride), kSlotFilePageBytes, kLargestPayloadUnit);
  return RoundUp(HeaderOffset(slots), unit);
}

std::uint64_t SlotFileLayout::fingerprint() const noexcept {
  std::array<std::byte, kPageSumAt> bytes;
  PutLayoutFields(bytes, *this);
  auto end = std::ranges::copy(std::as_bytes(std::span(identity)), bytes.begin() + kIdentityAt).out;
  end = std::ranges::copy(std::as_bytes(std::span(segment_ends)), end).out;
  return SegmentSum({bytes.begin() + kVersionAt, end});
}

Status CheckLayout(const SlotFileLayout& layout) {
  constexpr std::uint64_t kMaxSlotBytes = std::uint64_t{1} << 40;
  constexpr std::uint64_t kMaxPayloadsBytes = std::uint64_t{1} << 62;  // offsets are signed
  if (layout.identity.size() > kMaxIdentityBytes) {
    return OutOfRange("identity", layout.identity.size(), "at most 1024 bytes");
  }
  if (layout.slots == 0 || layout.slots > kMaxFileSlots) {
    return OutOfRange("slots", layout.slots, "1 to 2^28");
  }
  if (layout.slot_bytes == 0 || layout.slot_bytes > kMaxSlotBytes) {
    return OutOfRange("slot_bytes", layout.slot_bytes, "1 to 2^40");
  }
  if (layout.slot_stride < layout.slot_bytes || layout.slot_stride > 2 * kMaxSlotBytes ||
      layout.slot_stride % kSlotFilePageBytes != 0) {
    return OutOfRange("slot_stride", layout.slot_stride, "whole pages that hold a slot");
  }
  if (layout.slot_stride > kMaxPayloadsBytes / layout.slots) {
    return OutOfRange("slot_stride", layout.slot_stride, "at most 2^62 / slots");
  }
  if (layout.layers == 0 || layout.slot_bytes % layout.layers != 0) {
    return OutOfRange("layers", layout.layers, "a divisor of slot_bytes");
  }
  if (layout.block_tokens == 0 || layout.block_tokens > kMaxStoredTokens) {
    return OutOfRange("block_tokens", layout.block_tokens, "1 to 65536");
  }
  if (layout.segment_ends.empty() || layout.segments() > kMaxFileSegments) {
    return OutOfRange("segments", layout.segments(), "1 to 256");
  }
  const bool growing = std::ranges::is_sorted(layout.segment_ends, std::less_equal<>{});
  if (!growing || layout.segment_ends.front() == 0) {
    return absl::InvalidArgumentError("segment ends do not grow");
  }
  if (layout.segment_ends.back() != layout.slot_bytes) {
    return OutOfRange("last segment end", layout.segment_ends.back(), "slot_bytes");
  }
  return absl::OkStatus();
}

Status SameLayout(const SlotFileLayout& found, const SlotFileLayout& wanted) {
  std::string text;
  const auto compare = [&text](std::string_view field, const auto& is, const auto& should) {
    if (is == should) return;
    text += StrCat(text.empty() ? "" : ", ", field, " ", is, " (", should, " wanted)");
  };
  compare("identity", StrCat("\"", found.identity, "\""), StrCat("\"", wanted.identity, "\""));
  compare("slots", found.slots, wanted.slots);
  compare("layers", found.layers, wanted.layers);
  compare("block_tokens", found.block_tokens, wanted.block_tokens);
  compare("slot_bytes", found.slot_bytes, wanted.slot_bytes);
  compare("slot_stride", found.slot_stride, wanted.slot_stride);
  compare("stored tokens", found.stores_tokens, wanted.stores_tokens);
  compare("segments", found.segments(), wanted.segments());
  if (found.digest_check != wanted.digest_check) {
    text += StrCat(text.empty() ? "" : ", ", "another digest seed");
  } else if (text.empty() && found.segment_ends != wanted.segment_ends) {
    text = "other segment boundaries";
  }
  if (text.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat("holds blocks of another layout: ", text));
}

SlotFilePage EncodeSuperblock(const SlotFileLayout& layout) {
  SlotFilePage page{};
  std::ranges::copy(std::as_bytes(std::span(kSuperblockMagic)), page.begin());
  PutLayoutFields(page, layout);
  std::ranges::copy(std::as_bytes(std::span(layout.identity)),
                    page.begin() + static_cast<std::ptrdiff_t>(kIdentityAt));
  std::ranges::copy(std::as_bytes(std::span(layout.segment_ends)),
                    page.begin() + static_cast<std::ptrdiff_t>(kSegmentEndsAt));
  SealPage(page);
  return page;
}

StatusOr<SlotFileLayout> ParseSuperblock(std::span<const std::byte> page) {
  if (!HasMagic(page, kSuperblockMagic)) return absl::NotFoundError("no superblock");
  if (Status status = CheckPage(page, "superblock"); !status.ok()) return status;
  if (const auto version = Get<std::uint32_t>(page, kVersionAt); version != kSlotFileVersion) {
    return absl::UnimplementedError(
        StrCat("format version is ", version, "; this library reads ", kSlotFileVersion));
  }
  const auto flags = Get<std::uint64_t>(page, kFlagsAt);
  if ((flags & ~kStoresTokens) != 0) {
    return absl::UnimplementedError(
        StrCat("format flags are ", flags, ", of which this library ", "knows ", kStoresTokens));
  }
  const auto identity_bytes = Get<std::uint32_t>(page, kIdentityBytesAt);
  const auto segments = Get<std::uint32_t>(page, kSegmentsAt);
  if (identity_bytes > kMaxIdentityBytes || segments > kMaxFileSegments) {
    return absl::DataLossError(
        StrCat("superblock: identity of ", identity_bytes, " bytes, ", segments, " segments"));
  }
  SlotFileLayout layout;
  layout.identity.resize(identity_bytes);
  std::ranges::copy(page.subspan(kIdentityAt, identity_bytes),
                    std::as_writable_bytes(std::span(layout.identity)).begin());
  layout.slots = Get<std::uint32_t>(page, kSlotsAt);
  layout.layers = Get<std::uint32_t>(page, kLayersAt);
  layout.block_tokens = Get<std::uint32_t>(page, kBlockTokensAt);
  layout.slot_bytes = Get<std::uint64_t>(page, kSlotBytesAt);
  layout.slot_stride = Get<std::uint64_t>(page, kSlotStrideAt);
  layout.digest_check = Get<std::uint64_t>(page, kDigestCheckAt);
  layout.stores_tokens = flags == kStoresTokens;
  layout.segment_ends.resize(segments);
  std::ranges::copy(page.subspan(kSegmentEndsAt, segments * sizeof(std::uint64_t)),
                    std::as_writable_bytes(std::span(layout.segment_ends)).begin());
  if (Status status = CheckLayout(layout); !status.ok()) {
    return absl::DataLossError(StrCat("superblock: ", std::string(status.message())));
  }
  Status status = CheckCanonical(page, EncodeSuperblock(layout), "superblock");
  if (!status.ok()) return status;
  return layout;
}

// --- State. ---

SlotFilePage EncodeState(const SlotFileState& state) {
  SlotFilePage page{};
  std::ranges::copy(std::as_bytes(std::span(kStateMagic)), page.begin());
  Put(page, kSequenceAt, state.sequence);
  Put(page, kEpochAt, state.epoch);
  Put(page, kLeastGenerationAt, state.least_generation);
  Put(page, kDroppedCountAt, static_cast<std::uint32_t>(state.dropped.size()));
  for (std::size_t i = 0; i < state.dropped.size(); ++i) {
    PutHash(page, kDroppedAt + i * kDroppedBytes, state.dropped[i].root);
    Put(page, kDroppedAt + i * kDroppedBytes + 16, state.dropped[i].generation);
  }
  SealPage(page);
  return page;
}

StatusOr<SlotFileState> ParseState(std::span<const std::byte> page) {
  if (AllZero(page)) return absl::NotFoundError("state page: never written");
  if (!HasMagic(page, kStateMagic)) return absl::DataLossError("state page: no magic");
  if (Status status = CheckPage(page, "state page"); !status.ok()) return status;
  SlotFileState state;
  state.sequence = Get<std::uint64_t>(page, kSequenceAt);
  state.epoch = Get<std::uint64_t>(page, kEpochAt);
  state.least_generation = Get<std::uint64_t>(page, kLeastGenerationAt);
  const auto dropped = Get<std::uint32_t>(page, kDroppedCountAt);
  if (dropped > SlotFileState::kMaxDropped) {
    return absl::DataLossError(StrCat("state page: ", dropped, " dropped namespaces"));
  }
  for (std::size_t i = 0; i < dropped; ++i) {
    state.dropped.push_back({GetHash(page, kDroppedAt + i * kDroppedBytes),
                             Get<std::uint64_t>(page, kDroppedAt + i * kDroppedBytes + 16)});
  }
  Status status = CheckCanonical(page, EncodeState(state), "state page");
  if (!status.ok()) return status;
  return state;
}

StatusOr<SlotFileState> ParseStatePages(std::span<const std::byte> pages) {
  StatusOr<SlotFileState> holds = absl::NotFoundError("state pages: never written");
  for (std::uint64_t at = 0; at < 2 * kSlotFilePageBytes; at += kSlotFilePageBytes) {
    const auto page = pages.subspan(std::min<std::size_t>(at, pages.size()));
    StatusOr<SlotFileState> state = ParseState(page);
    if (state.ok() && StatePageOffset(state->sequence) != kSlotFilePageBytes + at) {
      state = absl::DataLossError("state page: in the place of the other");
    }
    const bool found = !absl::IsNotFound(state.status());
    const bool newer = state.ok() && (!holds.ok() || state->sequence > holds->sequence);
    if (newer || (absl::IsNotFound(holds.status()) && found)) holds = std::move(state);
  }
  return holds;
}

// --- Slot headers. ---

std::string_view ToString(HeaderState state) noexcept {
  switch (state) {
    case HeaderState::kEmpty:
      return "empty";
    case HeaderState::kTorn:
      return "torn";
    case HeaderState::kMisplaced:
      return "misplaced";
    case HeaderState::kForeign:
      return "foreign";
    case HeaderState::kSound:
      return "sound";
  }
  return "unknown header state";
}

std::uint64_t SlotHeader::sum(std::uint32_t segment) const noexcept {
  return Get<std::uint64_t>(sums, segment * sizeof(std::uint64_t));
}

void EncodeSlotHeader(const SlotHeader& header, const SlotFileLayout& layout,
                      std::span<std::byte> bytes) {
  const BlockIdentity& who = header.identity;
  std::ranges::fill(bytes, std::byte{0});
  std::ranges::copy(std::as_bytes(std::span(kHeaderMagic)), bytes.begin());
  Put(bytes, kHeaderVersionAt, kSlotFileVersion);
  Put(bytes, kSlotAt, header.slot);
  Put(bytes, kPositionAt, who.position);
  Put(bytes, kGenerationAt, header.generation);
  Put(bytes, kHeaderEpochAt, who.epoch);
  PutHash(bytes, kRootAt, who.root);
  PutHash(bytes, kParentAt, who.parent);
  PutHash(bytes, kDigestAt, who.digest);
  PutHash(bytes, kContentAt, who.content);
  const std::span<const Token> tokens =
      layout.stores_tokens ? who.tokens : std::span<const Token>{};
  Put(bytes, kTokenCountAt, static_cast<std::uint32_t>(tokens.size()));
  Put(bytes, kSumCountAt, layout.segments());
  Put(bytes, kPayloadBytesAt, layout.slot_bytes);
  Put(bytes, kFingerprintAt, layout.fingerprint());
  const auto end = std::ranges::copy(header.sums, bytes.subspan(kSumsAt).begin()).out;
  std::ranges::copy(std::as_bytes(tokens), end);
  const std::size_t sum_at = bytes.size() - sizeof(std::uint64_t);
  Put(bytes, sum_at, SegmentSum(bytes.first(sum_at)));
}

HeaderState ParseSlotHeader(std::span<const std::byte> bytes, const SlotFileLayout& layout,
                            std::uint32_t slot, SlotHeader& header) {
  if (bytes.size() < layout.header_bytes()) return HeaderState::kTorn;
  bytes = bytes.first(layout.header_bytes());
  if (!HasMagic(bytes, kHeaderMagic)) {
    return AllZero(bytes) ? HeaderState::kEmpty : HeaderState::kTorn;
  }
  const std::size_t sum_at = bytes.size() - sizeof(std::uint64_t);
  if (Get<std::uint64_t>(bytes, sum_at) != SegmentSum(bytes.first(sum_at))) {
    return HeaderState::kTorn;
  }
  const std::uint32_t tokens = layout.stores_tokens ? layout.block_tokens : 0;
  if (Get<std::uint32_t>(bytes, kHeaderVersionAt) != kSlotFileVersion ||
      Get<std::uint32_t>(bytes, kTokenCountAt) != tokens ||
      Get<std::uint32_t>(bytes, kSumCountAt) != layout.segments() ||
      Get<std::uint64_t>(bytes, kPayloadBytesAt) != layout.slot_bytes ||
      Get<std::uint64_t>(bytes, kFingerprintAt) != layout.fingerprint() ||
      !AllZero(bytes.subspan(kHeaderReservedAt, kSumsAt - kHeaderReservedAt)) ||
      !AllZero(bytes.first(sum_at).subspan(TokensAt(layout) + tokens * sizeof(Token)))) {
    return HeaderState::kForeign;
  }
  if (Get<std::uint32_t>(bytes, kSlotAt) != slot) return HeaderState::kMisplaced;
  header.slot = slot;
  header.generation = Get<std::uint64_t>(bytes, kGenerationAt);
  BlockIdentity& who = header.identity;
  who.position = Get<std::uint32_t>(bytes, kPositionAt);
  who.epoch = Get<std::uint64_t>(bytes, kHeaderEpochAt);
  who.root = GetHash(bytes, kRootAt);
  who.parent = GetHash(bytes, kParentAt);
  who.digest = GetHash(bytes, kDigestAt);
  who.content = GetHash(bytes, kContentAt);
  header.sums = bytes.subspan(kSumsAt, TokensAt(layout) - kSumsAt);
  who.tokens = {reinterpret_cast<const Token*>(bytes.data() + TokensAt(layout)), tokens};
  return HeaderState::kSound;
}

std::string_view ToString(HeaderStanding standing) noexcept {
  switch (standing) {
    case HeaderStanding::kCurrent:
      return "current";
    case HeaderStanding::kOtherEpoch:
      return "other epoch";
    case HeaderStanding::kCleared:
      return "cleared";
    case HeaderStanding::kDropped:
      return "dropped";
  }
  return "unknown header standing";
}

HeaderStanding StandingOf(const SlotHeader& header, const SlotFileState& state) {
  if (header.generation < state.least_generation) return HeaderStanding::kCleared;
  if (header.identity.epoch != state.epoch) return HeaderStanding::kOtherEpoch;
  const bool dropped = std::ranges::any_of(state.dropped, [&](const SlotFileState::Dropped& entry) {
    return entry.root == header.identity.root && header.generation < entry.generation;
  });
  return dropped ? HeaderStanding::kDropped : HeaderStanding::kCurrent;
}

}  // namespace tidepool
