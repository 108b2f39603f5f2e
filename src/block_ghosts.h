// block_ghosts.h - digests of blocks that have left, in two lists, each in the order it was added
// to. Private; the ghost lists of policies that learn from what they gave up too early.
//
// A list is a log of digests; one hash table finds an entry's place in its log. Entries are 8
// bytes, probed in line, so that a lookup costs about one cache line, which Prefetch can fetch
// ahead. A ghost removed from the middle leaves its digest behind in the log, dead.
//
// Invariants:
//   * an entry's place in its log holds the digest it was added for, and no two entries agree;
//   * a log's place is live exactly when an entry names it;
//   * no log is more than half dead and 1,024 places.
//
// Cost: 16 to 32 bytes a ghost for the logs, 13 to 27 for the table. All calls are O(1), amortised.
//
// Thread contract: scheduler thread only.
#pragma once

#include <array>
#include <cstdint>
#include <deque>

#include "src/zeroed_array.h"
#include "tidepool/types.h"

namespace tidepool::internal {

class BlockGhosts {
 public:
  /// Of a ghost, until the next call that adds or removes one.
  using Place = std::uint32_t;
  static constexpr Place kNone = 0xffffffffu;

  BlockGhosts();

  [[nodiscard]] std::uint32_t size(std::uint32_t list) const noexcept { return logs_[list].live; }
  /// The ghost with that digest, in either list, or kNone.
  [[nodiscard]] Place Find(const PrefixHash& digest) const noexcept;
  void Prefetch(const PrefixHash& digest) const noexcept {
    __builtin_prefetch(&table_[HomeOf(TagOf(digest))]);
  }
  [[nodiscard]] std::uint32_t list(Place place) const noexcept {
    return table_[place].at >> kListShift;
  }
  /// A mark for the caller's use; not set on a new ghost.
  [[nodiscard]] bool marked(Place place) const noexcept { return (table_[place].at & kMark) != 0; }
  void SetMark(Place place) noexcept { table_[place].at |= kMark; }

  /// Makes the digest the newest of `list`, 0 or 1.
  void Add(std::uint32_t list, const PrefixHash& digest);
  void Remove(Place place);
  /// REQUIRES: size(list) != 0.
  void RemoveOldest(std::uint32_t list);

  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept;

 private:
  static constexpr std::uint32_t kListShift = 31;
  static constexpr std::uint32_t kMark = 1u << 30;
  static constexpr std::uint32_t kPositionMask = kMark - 1;

  struct Entry {
    std::uint32_t tag;  // 0: no entry
    std::uint32_t at;   // list, mark, position in the list's log
  };
  struct Log {
    std::deque<PrefixHash> digests;
    std::uint32_t first = 0;  // position of the front; positions wrap around
    std::uint32_t live = 0;
  };

  [[nodiscard]] static std::uint32_t TagOf(const PrefixHash& digest) noexcept {
    const std::uint64_t x = (digest.high * 0x9E3779B97F4A7C15u ^ digest.low) * 0xC2B2AE3D27D4EB4Fu;
    const auto tag = static_cast<std::uint32_t>(x >> 32);
    return tag == 0 ? 1 : tag;
  }
  [[nodiscard]] std::uint32_t HomeOf(std::uint32_t tag) const noexcept { return tag >> shift_; }
  [[nodiscard]] std::uint32_t mask() const noexcept {
    return static_cast<std::uint32_t>(table_.size() - 1);
  }
  [[nodiscard]] const PrefixHash& DigestOf(const Entry& entry) const noexcept;
  [[nodiscard]] bool NamedBy(Place place, std::uint32_t list,
                             std::uint32_t position) const noexcept;
  void Insert(const Entry& entry) noexcept;
  void Erase(Place place) noexcept;
  void Grow();
  void Compact(std::uint32_t list);

  std::array<Log, 2> logs_;
  ZeroedArray<Entry> table_;
  std::uint32_t shift_;
};

}  // namespace tidepool::internal
