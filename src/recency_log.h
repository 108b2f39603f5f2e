// recency_log.h - blocks ordered by when they were last filed, oldest first, in a few queues.
// Private; the order behind the LRU policy and others that need recency.
//
// A linked list costs a serial cache miss a block (206 ns at 1M blocks); this is an append-only log
// with lazy deletion, which is read in order and can be prefetched. An entry of the log is a span
// of consecutive ids, filed and leaving from its highest id down, so a whole released prefix costs
// 8 bytes; a single block costs 4. Each block has a stamp, the place of its one live entry: filing
// it again changes the stamp and thereby kills the old entry.
//
// Invariants:
//   * stamp(b) != 0 <=> b is in the order, and the entry at that place covers b;
//   * an entry's block is live exactly when its stamp names the entry; no later entry of the same
//     queue covers it then;
//   * `older` is empty unless a sweep (incremental compaction) runs, and everything in it was filed
//     before everything in `newer`.
//
// Thread contract: scheduler thread only.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "src/block_spans.h"
#include "src/zeroed_array.h"
#include "tidepool/types.h"

namespace tidepool::internal {

class RecencyLog {
 public:
  static constexpr std::uint32_t kQueues = 4;

  /// What a visitor makes of a block.
  enum class Verdict : std::uint8_t {
    kKeep,  ///< it stays; go on
    kDrop,  ///< take it out of the order; go on
    kStop,  ///< it stays, and the scan ends
  };

  explicit RecencyLog(std::uint32_t block_capacity = 0);

  /// Files the blocks of a span as the newest of `queue`, so that its last block leaves first. A
  /// block that was filed before moves. COMPLEXITY: a fraction of a nanosecond a block for
  /// consecutive ids, plus a bounded share of compaction.
  void Append(std::uint32_t queue, std::span<const BlockId> blocks);
  void Erase(std::span<const BlockId> blocks) noexcept;

  [[nodiscard]] bool Contains(BlockId b) const noexcept { return stamps_[b.value()] != 0; }
  /// REQUIRES: Contains(b).
  [[nodiscard]] std::uint32_t queue(BlockId b) const noexcept {
    return stamps_[b.value()] & (kQueues - 1);
  }
  [[nodiscard]] std::uint32_t size() const noexcept { return live_; }

  /// Calls `visit(block)` for the blocks of a queue, oldest first, and `prefetch(block)` some
  /// blocks ahead. Returns false if the visitor stopped it. What is dropped is never met again, so
  /// a scan costs O(blocks kept), amortised. The visitor must not change the log.
  template <typename Visit, typename Prefetch>
  bool Scan(std::uint32_t queue, Visit&& visit, Prefetch&& prefetch) {
    Queue& q = queues_[queue];
    return ScanLog(q.older, visit, prefetch) && ScanLog(q.newer, visit, prefetch);
  }

  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept;
  /// Blocks looked at by scans so far, dead ones included: what tests bound instead of time.
  [[nodiscard]] std::uint64_t work() const noexcept { return work_; }

 private:
  static constexpr std::uint32_t kSpan = 1u << 31;        // another word, the length, follows
  static constexpr std::uint32_t kTagBits = 3;            // queue (2) and which of its logs (1)
  static constexpr std::uint32_t kFirstPlace = 1u << 27;  // room before it for PushFront
  static constexpr std::uint32_t kLastPlace = (1u << 29) - 1;
  static constexpr std::ptrdiff_t kAhead = 16;

  struct Log {
    std::deque<std::uint32_t> words;
    std::uint32_t first_place = kFirstPlace;  // of words.front()
    std::uint32_t tag = 0;
    [[nodiscard]] std::uint32_t end_place() const noexcept {
      return first_place + static_cast<std::uint32_t>(words.size());
    }
    [[nodiscard]] std::uint32_t Stamp(std::uint32_t place) const noexcept {
      return place << kTagBits | tag;
    }
  };
  struct Queue {
    Log older;
    Log newer;
    bool sweeping = false;
    std::size_t sweep_at = 0;  // words in `newer` that start a sweep
  };
  using WordIterator = std::deque<std::uint32_t>::const_iterator;

  struct Tally {
    std::uint32_t leading = 0;   // dead before the first kept block
    std::uint32_t interior = 0;  // dead behind it
  };

  template <typename Visit, typename Prefetch>
  bool ScanLog(Log& log, Visit& visit, Prefetch& prefetch);
  void TidyHead(Log& log, const Tally& dead);
  void ResetScratch();
  void DropLeading(Log& log, std::uint32_t blocks);
  void PushFront(Log& log, std::span<const std::uint32_t> kept);
  void PushBack(Log& log, std::uint32_t last, std::uint32_t count);
  void SetStamps(std::uint32_t last, std::uint32_t count, std::uint32_t stamp) noexcept;
  void Sweep(Queue& q, std::size_t words);
  void MoveOldest(Queue& q);
  void PlanSweep(Queue& q) const;

  ZeroedArray<std::uint32_t> stamps_;
  std::array<Queue, kQueues> queues_;
  std::vector<std::uint32_t> kept_;  // scratch of ScanLog
  std::uint32_t live_ = 0;
  std::uint64_t work_ = 0;
};

template <typename Visit, typename Prefetch>
bool RecencyLog::ScanLog(Log& log, Visit& visit, Prefetch& prefetch) {
  Tally dead;
  bool stopped = false;
  WordIterator at = log.words.begin();
  WordIterator ahead = at;
  std::uint32_t place = log.first_place;
  const auto look_ahead = [&](std::ptrdiff_t to) {
    for (; ahead != log.words.end() && ahead - at < to; ++ahead) {
      // A length passes for an id here; then a useless line is fetched.
      const std::uint32_t id = *ahead & ~kSpan;
      if (id >= stamps_.size()) continue;
      __builtin_prefetch(&stamps_[id]);
      prefetch(BlockId(id));
    }
  };
  while (at != log.words.end() && !stopped) {
    look_ahead(kAhead);
    const std::uint32_t stamp = log.Stamp(place);
    const bool span = (*at & kSpan) != 0;
    std::uint32_t id = *at++ & ~kSpan;
    std::uint32_t left = span ? *at++ : 1;
    place += span ? 2 : 1;
    while (left > 0 && !stopped) {
      const std::uint32_t skipped = DifferingSuffix(&stamps_[id] + 1, left, stamp);
      (kept_.empty() ? dead.leading : dead.interior) += skipped;
      work_ += skipped;
      id -= skipped;
      left -= skipped;
      for (; left > 0 && !stopped && stamps_[id] == stamp; --left, --id) {
        ++work_;
        const Verdict verdict = visit(BlockId(id));
        stopped = verdict == Verdict::kStop;
        if (verdict != Verdict::kDrop) {
          kept_.push_back(id);
        } else {
          ++(kept_.empty() ? dead.leading : dead.interior);
          stamps_[id] = 0;
          --live_;
        }
      }
    }
  }
  TidyHead(log, dead);
  ResetScratch();
  return !stopped;
}

}  // namespace tidepool::internal
