// tidepool/transfer/slot_file.h - the file of a tier that is kept across restarts: a superblock,
// two pages of state, headers of all slots, payloads of all slots. docs/nvme_format.md has every
// byte.
//
// Everything here is untrusted input when it is read: sizes are checked before they are used, and
// nothing is allocated that a page or a header does not bound.
//
// Thread contract: plain values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/export.h"
#include "tidepool/status.h"
#include "tidepool/transfer/stored_block.h"
#include "tidepool/types.h"

namespace tidepool {

inline constexpr std::uint32_t kSlotFileVersion = 1;
inline constexpr std::uint64_t kSlotFilePageBytes = 4096;
inline constexpr std::size_t kMaxIdentityBytes = 1024;
inline constexpr std::uint32_t kMaxFileSegments = 256;
inline constexpr std::uint32_t kMaxFileSlots = 1u << 28;
inline constexpr std::uint32_t kMaxStoredTokens = 1u << 16;  ///< of one block

using SlotFilePage = std::array<std::byte, kSlotFilePageBytes>;

/// What all slots of a file have in common: the superblock, page 0.
struct TIDEPOOL_EXPORT SlotFileLayout {
  std::string identity;            ///< whose bytes: weights, dtype, shard; at most 1,024 bytes
  std::uint64_t digest_check = 0;  ///< equal for equal digest seeds
  std::uint32_t slots = 0;         ///< 1 to kMaxFileSlots
  std::uint32_t layers = 1;        ///< equal parts of slot_bytes
  std::uint32_t block_tokens = 0;
  bool stores_tokens = true;      ///< false: headers have digests only
  std::uint64_t slot_bytes = 0;   ///< payload of one block
  std::uint64_t slot_stride = 0;  ///< distance of payloads: slot_bytes and padding
  /// Where the segments of a payload end, each with a checksum of its own: growing, at most
  /// kMaxFileSegments, the last one is slot_bytes.
  std::vector<std::uint64_t> segment_ends;

  [[nodiscard]] std::uint32_t segments() const noexcept {
    return static_cast<std::uint32_t>(segment_ends.size());
  }
  [[nodiscard]] std::uint32_t header_bytes() const noexcept;  ///< of one slot, a multiple of 64
  [[nodiscard]] static constexpr std::uint64_t headers_offset() noexcept {
    return 3 * kSlotFilePageBytes;
  }
  [[nodiscard]] std::uint64_t HeaderOffset(std::uint32_t slot) const noexcept {
    return headers_offset() + std::uint64_t{slot} * header_bytes();
  }
  /// A multiple of the page, and of the stride's alignment up to 1 MiB.
  [[nodiscard]] std::uint64_t payloads_offset() const noexcept;
  [[nodiscard]] std::uint64_t PayloadOffset(std::uint32_t slot) const noexcept {
    return payloads_offset() + std::uint64_t{slot} * slot_stride;
  }
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return PayloadOffset(slots); }
  /// Hash of all fields. Each header has it, so that none counts that another file left behind on
  /// the same device. REQUIRES: CheckLayout.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept;
  friend bool operator==(const SlotFileLayout&, const SlotFileLayout&) = default;
};

/// OK, or what is out of range, with its value.
TIDEPOOL_EXPORT Status CheckLayout(const SlotFileLayout& layout);
/// OK if a file of layout `found` serves who wants `wanted`, or which fields differ, both values.
TIDEPOOL_EXPORT Status SameLayout(const SlotFileLayout& found, const SlotFileLayout& wanted);
/// REQUIRES: CheckLayout.
TIDEPOOL_EXPORT SlotFilePage EncodeSuperblock(const SlotFileLayout& layout);
/// kNotFound: no superblock here (the magic differs); kUnimplemented: another version, or flags
/// that it does not have; kDataLoss: damaged.
TIDEPOOL_EXPORT StatusOr<SlotFileLayout> ParseSuperblock(std::span<const std::byte> page);

/// Which headers count although they are sound. Two pages take turns; the sound one of the higher
/// sequence holds.
struct SlotFileState {
  std::uint64_t sequence = 0;
  std::uint64_t epoch = 0;             ///< headers of other epochs do not count
  std::uint64_t least_generation = 1;  ///< nor do those written before this
  struct Dropped {
    PrefixHash root;               ///< of a namespace
    std::uint64_t generation = 0;  ///< its headers written before this do not count
    friend bool operator==(const Dropped&, const Dropped&) = default;
  };
  static constexpr std::size_t kMaxDropped = 160;
  std::vector<Dropped> dropped;
  friend bool operator==(const SlotFileState&, const SlotFileState&) = default;
};
[[nodiscard]] constexpr std::uint64_t StatePageOffset(std::uint64_t sequence) noexcept {
  return (1 + sequence % 2) * kSlotFilePageBytes;
}
/// REQUIRES: at most kMaxDropped entries.
TIDEPOOL_EXPORT SlotFilePage EncodeState(const SlotFileState& state);
/// kNotFound: never written (zeros); kDataLoss: damaged.
TIDEPOOL_EXPORT StatusOr<SlotFileState> ParseState(std::span<const std::byte> page);
/// Of both state pages, as they lie in the file, the one that holds. A page in the other's place
/// does not count. kNotFound: neither was written; kDataLoss: neither is sound.
TIDEPOOL_EXPORT StatusOr<SlotFileState> ParseStatePages(std::span<const std::byte> pages);

/// One slot's header, as it lies in the file. Views point into those bytes.
struct TIDEPOOL_EXPORT SlotHeader {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;  ///< of the write: grows over the life of the file
  BlockIdentity identity;
  std::span<const std::byte> sums;  ///< XXH3-64 of each segment, 8 bytes each

  [[nodiscard]] std::uint64_t sum(std::uint32_t segment) const noexcept;
};

enum class HeaderState : std::uint8_t {
  kEmpty,      ///< never written: zeros
  kTorn,       ///< damaged, or half written
  kMisplaced,  ///< sound, but of another slot
  kForeign,    ///< sound, but not of this layout
  kSound,
};
TIDEPOOL_EXPORT std::string_view ToString(HeaderState state) noexcept;

/// Writes header.identity, sums and the rest into `bytes`, layout.header_bytes() of them.
/// REQUIRES: as many sums as segments and, if the layout stores tokens, block_tokens tokens.
TIDEPOOL_EXPORT void EncodeSlotHeader(const SlotHeader& header, const SlotFileLayout& layout,
                                      std::span<std::byte> bytes);
/// Reads what stands at `slot`; `header` is set for kSound only, and its views are good while
/// `bytes` is. REQUIRES: `bytes` is aligned for a Token. COMPLEXITY: one pass of hashing.
TIDEPOOL_EXPORT HeaderState ParseSlotHeader(std::span<const std::byte> bytes,
                                            const SlotFileLayout& layout, std::uint32_t slot,
                                            SlotHeader& header);
/// Whether a sound header counts under a state.
enum class HeaderStanding : std::uint8_t {
  kCurrent,
  kOtherEpoch,  ///< of an epoch that is not the state's
  kCleared,     ///< written before least_generation
  kDropped,     ///< its namespace was dropped after it was written
};
TIDEPOOL_EXPORT std::string_view ToString(HeaderStanding standing) noexcept;
/// COMPLEXITY: O(dropped namespaces).
TIDEPOOL_EXPORT HeaderStanding StandingOf(const SlotHeader& header, const SlotFileState& state);

/// XXH3-64, the sum of a segment.
TIDEPOOL_EXPORT std::uint64_t SegmentSum(std::span<const std::byte> bytes) noexcept;

}  // namespace tidepool
