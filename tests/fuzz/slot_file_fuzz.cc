// Feeds the readers of a kept file (slot_file.h, slot_file_reader.h) with any bytes, as a file.
//
// Checksums would stop nearly everything, so each input is read three times: as it is, with all
// checksums made right, and with fingerprints made right too. Besides not crashing:
//
// - what parses is encoded to the same bytes again: nothing in a page or header goes unread;
// - offsets of a layout that parses do not wrap around;
// - the reader finds what parsing the bytes in place finds, and its sums are those of the bytes.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tidepool/transfer/slot_file.h"
#include "tidepool/transfer/slot_file_reader.h"

namespace tidepool {
namespace {

constexpr std::size_t kLargestInput = 1u << 20;
constexpr std::size_t kFingerprintAt = 112;

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

void Reseal(std::span<std::byte> bytes) {
  const std::size_t at = bytes.size() - sizeof(std::uint64_t);
  const std::uint64_t sum = SegmentSum(bytes.first(at));
  std::memcpy(bytes.data() + at, &sum, sizeof(sum));
}

void ResealPages(std::span<std::byte> image) {
  for (std::size_t page = 0; page < 3; ++page) {
    if (image.size() < (page + 1) * kSlotFilePageBytes) return;
    Reseal(image.subspan(page * kSlotFilePageBytes, kSlotFilePageBytes));
  }
}

std::uint32_t SlotsWithin(const SlotFileLayout& layout, std::size_t bytes) {
  if (bytes < SlotFileLayout::headers_offset()) return 0;
  const std::uint64_t count = (bytes - SlotFileLayout::headers_offset()) / layout.header_bytes();
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(count, layout.slots));
}

void ResealHeaders(std::span<std::byte> image, bool fingerprints) {
  const StatusOr<SlotFileLayout> layout = ParseSuperblock(image);
  if (!layout.ok()) return;
  const std::uint64_t fingerprint = layout->fingerprint();
  for (std::uint32_t slot = 0; slot < SlotsWithin(*layout, image.size()); ++slot) {
    const auto header = image.subspan(layout->HeaderOffset(slot), layout->header_bytes());
    if (header.front() == std::byte{0}) continue;
    if (fingerprints) {
      std::memcpy(header.data() + kFingerprintAt, &fingerprint, sizeof(fingerprint));
    }
    Reseal(header);
  }
}

bool Equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

void CheckLayoutOf(const SlotFileLayout& layout, std::span<const std::byte> image) {
  Require(CheckLayout(layout).ok(), "a layout that parses is in range");
  Require(Equal(EncodeSuperblock(layout), image.first(kSlotFilePageBytes)),
          "a superblock has one encoding");
  Require(layout.HeaderOffset(layout.slots) <= layout.payloads_offset() &&
              layout.payloads_offset() < layout.file_bytes() &&
              layout.file_bytes() <= std::uint64_t{INT64_MAX} &&
              (layout.file_bytes() - layout.payloads_offset()) / layout.slots == layout.slot_stride,
          "offsets do not wrap around");
  Require(layout.segment_ends.back() == layout.slot_bytes, "segments cover the payload");
  Require(SameLayout(layout, layout).ok(), "a layout is the same as itself");
}

void CheckStates(std::span<const std::byte> image) {
  for (std::size_t at = kSlotFilePageBytes; at <= 2 * kSlotFilePageBytes;
       at += kSlotFilePageBytes) {
    const auto page = image.subspan(std::min(at, image.size()));
    const StatusOr<SlotFileState> state = ParseState(page);
    if (!state.ok()) continue;
    Require(Equal(EncodeState(*state), page.first(kSlotFilePageBytes)),
            "a state page has one encoding");
  }
}

// A copy of exact size, so that reading past its end is seen.
struct HeaderCopy {
  HeaderCopy(std::span<const std::byte> image, const SlotFileLayout& layout, std::uint32_t slot) {
    const auto source = image.subspan(layout.HeaderOffset(slot), layout.header_bytes());
    bytes.assign(source.begin(), source.end());
    state = ParseSlotHeader(bytes, layout, slot, header);
  }
  std::vector<std::byte> bytes;
  HeaderState state = HeaderState::kEmpty;
  SlotHeader header;
};

void CheckHeader(const HeaderCopy& copy, const SlotFileLayout& layout,
                 const StatusOr<SlotFileState>& state) {
  if (copy.state != HeaderState::kSound) return;
  const SlotHeader& header = copy.header;
  Require(header.sums.size() == layout.segments() * sizeof(std::uint64_t),
          "a sum for each segment");
  Require(header.identity.tokens.size() == (layout.stores_tokens ? layout.block_tokens : 0),
          "a whole block of tokens, or none");
  std::vector<std::byte> again(layout.header_bytes());
  EncodeSlotHeader(header, layout, again);
  Require(Equal(again, copy.bytes), "a header has one encoding");
  if (state.ok()) Require(!ToString(StandingOf(header, *state)).empty(), "a standing");
}

std::vector<std::uint32_t> MismatchedIn(std::span<const std::byte> image,
                                        const SlotFileLayout& layout, const SlotHeader& header) {
  std::vector<std::uint32_t> mismatched;
  std::uint64_t begin = 0;
  for (std::uint32_t i = 0; i < layout.segments(); ++i) {
    const std::uint64_t end = layout.segment_ends[i];
    const std::uint64_t at = layout.PayloadOffset(header.slot);
    const bool within = at + end <= image.size();
    if (!within || SegmentSum(image.subspan(at + begin, end - begin)) != header.sum(i)) {
      mismatched.push_back(i);
    }
    begin = end;
  }
  return mismatched;
}

StatusOr<SlotFileReader> OpenAsFile(std::span<const std::byte> image) {
  static const int fd = ::memfd_create("slot_file_fuzz", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const bool written =
      ::ftruncate(fd, static_cast<off_t>(image.size())) == 0 &&
      ::pwrite(fd, image.data(), image.size(), 0) == static_cast<ssize_t>(image.size());
  Require(written, "the input can be written to a file");
  return SlotFileReader::Open(path);
}

void CheckImage(std::span<const std::byte> image) {
  CheckStates(image);
  const StatusOr<SlotFileLayout> layout =
      ParseSuperblock(image.first(std::min(image.size(), std::size_t{kSlotFilePageBytes})));
  StatusOr<SlotFileReader> reader = OpenAsFile(image);
  Require(reader.ok() == layout.ok(), "the reader opens what has a superblock");
  if (!layout.ok()) return;
  CheckLayoutOf(*layout, image);
  Require(reader->layout() == *layout, "the reader has the superblock's layout");

  std::uint32_t slots = 0;
  for (SlotFileReader::Entry entry; reader->Next(entry); ++slots) {
    const HeaderCopy copy(image, *layout, slots);
    Require(entry.slot == slots && entry.state == copy.state, "the reader sees the same headers");
    CheckHeader(copy, *layout, reader->state());
    if (copy.state != HeaderState::kSound) continue;
    const auto mismatched = reader->MismatchedSegments(entry.header);
    Require(mismatched.ok() && *mismatched == MismatchedIn(image, *layout, copy.header),
            "the reader sees the same sums");
  }
  Require(reader->status().ok() && slots == SlotsWithin(*layout, image.size()),
          "the reader sees all headers");
}

}  // namespace
}  // namespace tidepool

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > tidepool::kLargestInput) return -1;
  const auto input = std::as_bytes(std::span(data, size));
  std::vector<std::byte> image(input.begin(), input.end());
  tidepool::CheckImage(image);
  tidepool::ResealPages(image);
  tidepool::ResealHeaders(image, false);
  tidepool::CheckImage(image);
  tidepool::ResealHeaders(image, true);
  tidepool::CheckImage(image);
  return 0;
}
