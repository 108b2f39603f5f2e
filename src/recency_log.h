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

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
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

  /// For ids below `block_capacity`, which is less than 2^29.
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
  static constexpr std::uint32_t kSpan = 1u << 31;  // another word, the length, follows
  static constexpr std::uint32_t kPad = ~0u;        // an entry of nothing
  static constexpr std::uint32_t kTagBits = 3;      // queue (2) and which of its logs (1)
  static constexpr std::uint32_t kPlaces = 1u << 29;
  static constexpr std::uint32_t kChunkWords = 1024;
  // A log starts at a quarter of the places, which leaves room for PushFront, and is swept, that is
  // moved back there, when it has come to three quarters.
  static constexpr std::uint32_t kFirstChunk = kPlaces / kChunkWords / 4;
  static constexpr std::uint32_t kFarChunk = kPlaces / kChunkWords / 4 * 3;
  static constexpr std::uint32_t kAhead = 16;

  struct Entry {
    std::uint32_t last;   // the highest id
    std::uint32_t count;  // ids last, last - 1, ...
    std::uint32_t words;
    [[nodiscard]] static Entry At(const std::uint32_t* word) noexcept {
      if ((*word & kSpan) == 0) return {*word, 1, 1};
      return *word == kPad ? Entry{0, 0, 1} : Entry{*word & ~kSpan, word[1], 2};
    }
  };

  /// Words in chunks, added at both ends; an entry lies in one chunk.
  struct Log {
    using Chunk = std::array<std::uint32_t, kChunkWords>;
    std::deque<std::unique_ptr<Chunk>> chunks;
    std::uint32_t first_chunk = kFirstChunk;  // number of chunks.front()
    std::uint32_t head = 0;                   // first word in the first chunk
    std::uint32_t tail = kChunkWords;         // end of the words in the last chunk
    std::uint32_t tag = 0;

    [[nodiscard]] std::size_t words() const noexcept {
      return chunks.empty() ? 0 : (chunks.size() - 1) * kChunkWords + tail - head;
    }
    [[nodiscard]] std::uint32_t end_of(std::size_t chunk) const noexcept {
      return chunk + 1 == chunks.size() ? tail : kChunkWords;
    }
    [[nodiscard]] std::uint32_t Stamp(std::size_t chunk, std::uint32_t offset) const noexcept {
      const auto number = first_chunk + static_cast<std::uint32_t>(chunk);
      return (number * kChunkWords + offset) << kTagBits | tag;
    }
    // Both return the new entry's stamp.
    std::uint32_t PushBack(std::uint32_t last, std::uint32_t count);
    std::uint32_t PushFront(std::uint32_t last, std::uint32_t count);
    /// Drops what is before an entry, and the first `blocks` of the entry itself.
    void Cut(std::size_t chunk, std::uint32_t offset, std::uint32_t blocks);
  };
  struct Queue {
    Log older;
    Log newer;
    bool sweeping = false;
    std::size_t sweep_at = 0;  // words in `newer` that start a sweep
    [[nodiscard]] bool SweepIsDue() const noexcept {
      return newer.words() > sweep_at || newer.first_chunk + newer.chunks.size() > kFarChunk;
    }
  };

  struct Position {
    std::size_t chunk = 0;
    std::uint32_t offset = 0;
    std::uint32_t blocks = 0;  // of the entry there, already passed
  };
  struct ScanState {
    Position at;
    Position first_kept;
    std::uint32_t interior = 0;  // dead behind the first kept
    bool stopped = false;
  };

  template <typename Visit, typename Prefetch>
  bool ScanLog(Log& log, Visit& visit, Prefetch& prefetch);
  template <typename Visit>
  void ScanEntry(const Entry& entry, std::uint32_t stamp, Visit& visit, ScanState& state);
  void TidyHead(Log& log, const ScanState& state);
  void RefileKept(Log& log);
  void SetStamps(std::uint32_t last, std::uint32_t count, std::uint32_t stamp) noexcept;
  void Sweep(Queue& q, std::size_t words);
  void MoveLive(Queue& q, const Entry& entry, std::uint32_t stamp);
  void PlanSweep(Queue& q) const;

  ZeroedArray<std::uint32_t> stamps_;
  std::array<Queue, kQueues> queues_;
  std::vector<std::uint32_t> kept_;  // scratch of ScanLog
  std::uint32_t live_ = 0;
  std::uint64_t work_ = 0;
};

template <typename Visit, typename Prefetch>
bool RecencyLog::ScanLog(Log& log, Visit& visit, Prefetch& prefetch) {
  ScanState state;
  Position& at = state.at;
  const auto fetch = [&](std::uint32_t word) {
    // A length passes for an id here; then a useless line is fetched.
    const std::uint32_t id = word & ~kSpan;
    if (id >= stamps_.size()) return;
    __builtin_prefetch(&stamps_[id]);
    prefetch(BlockId(id));
  };
  for (; at.chunk < log.chunks.size(); ++at.chunk) {
    const std::uint32_t* const words = log.chunks[at.chunk]->data();
    const std::uint32_t end = log.end_of(at.chunk);
    at.offset = at.chunk == 0 ? log.head : 0;
    for (std::uint32_t i = at.offset; i < std::min(at.offset + kAhead, end); ++i) fetch(words[i]);
    while (at.offset < end) {
      if (at.offset + kAhead < end) fetch(words[at.offset + kAhead]);
      const Entry entry = Entry::At(words + at.offset);
      ScanEntry(entry, log.Stamp(at.chunk, at.offset), visit, state);
      if (state.stopped) break;
      at.offset += entry.words;
      at.blocks = 0;
    }
    if (state.stopped) break;
  }
  TidyHead(log, state);
  return !state.stopped;
}

template <typename Visit>
void RecencyLog::ScanEntry(const Entry& entry, std::uint32_t stamp, Visit& visit,
                           ScanState& state) {
  std::uint32_t& passed = state.at.blocks;
  work_ += entry.count;
  while (passed < entry.count) {
    std::uint32_t& mark = stamps_[entry.last - passed];
    std::uint32_t dead = 1;
    if (mark != stamp) {
      if (entry.count > 1) dead = DifferingSuffix(&mark + 1, entry.count - passed, stamp);
    } else if (const Verdict verdict = visit(BlockId(entry.last - passed));
               verdict == Verdict::kDrop) {
      mark = 0;
      --live_;
    } else {
      if (kept_.empty()) state.first_kept = state.at;
      kept_.push_back(entry.last - passed++);
      if (verdict != Verdict::kStop) continue;
      state.stopped = true;
      work_ -= entry.count - passed;
      return;
    }
    passed += dead;
    if (!kept_.empty()) state.interior += dead;
  }
}

}  // namespace tidepool::internal
