#include "src/recency_log.h"

#include <algorithm>

#include "src/block_spans.h"

namespace tidepool::internal {
namespace {

// A sweep moves this many words for each word filed, so that it ends before the log has grown by
// another fifteenth. It starts at a quarter of garbage; a log whose every block keeps being filed
// anew, one by one, then has 1.36 words a block at its worst, for 3.8 moves a block filed.
constexpr std::size_t kSweepRate = 16;
// A sweep looks at every live block; this many blocks pay for one more word of garbage.
constexpr std::size_t kBlocksPerGarbageWord = 64;
constexpr std::size_t kMinGarbageWords = 256;

// A scan of the whole order is rare; its scratch is not kept.
constexpr std::size_t kMaxScratch = 8192;

constexpr std::size_t kDequeNodeBytes = 512;
constexpr std::size_t kNodeOverheadBytes = 24;  // allocator header and the deque's pointer to it

}  // namespace

RecencyLog::RecencyLog(std::uint32_t block_capacity) : stamps_(block_capacity) {
  for (std::uint32_t i = 0; i < kQueues; ++i) {
    queues_[i].older.tag = i;
    queues_[i].newer.tag = i | kQueues;
    PlanSweep(queues_[i]);
  }
}

void RecencyLog::Append(std::uint32_t queue, std::span<const BlockId> blocks) {
  Queue& q = queues_[queue];
  const std::size_t before = q.newer.words.size();
  while (!blocks.empty()) {
    const std::size_t run = TrailingRun(blocks);
    PushBack(q.newer, blocks.back().value(), static_cast<std::uint32_t>(run));
    blocks = blocks.first(blocks.size() - run);
  }
  const std::size_t added = q.newer.words.size() - before;
  if (!q.sweeping && q.newer.words.size() > q.sweep_at) {
    q.sweeping = true;
    q.older.first_place = kFirstPlace;
  }
  if (q.sweeping) Sweep(q, added * kSweepRate);
}

void RecencyLog::Erase(std::span<const BlockId> blocks) noexcept {
  for (BlockId b : blocks) live_ -= std::exchange(stamps_[b.value()], 0u) != 0;
}

void RecencyLog::PushBack(Log& log, std::uint32_t last, std::uint32_t count) {
  const std::uint32_t place = log.end_place();
  log.words.push_back(last | (count > 1 ? kSpan : 0));
  if (count > 1) log.words.push_back(count);
  SetStamps(last, count, log.Stamp(place));
}

void RecencyLog::SetStamps(std::uint32_t last, std::uint32_t count, std::uint32_t stamp) noexcept {
  live_ += FillWords(&stamps_[last + 1 - count], count, stamp);
}

// The dead before the first kept block go. Dead ones behind it go too when they are the majority:
// the kept are then filed anew before the rest, at a cost that the dead, met for the last time,
// pay.
void RecencyLog::TidyHead(Log& log, const Tally& dead) {
  if (dead.interior <= kept_.size()) return DropLeading(log, dead.leading);
  DropLeading(log, dead.leading + dead.interior + static_cast<std::uint32_t>(kept_.size()));
  PushFront(log, kept_);
}

void RecencyLog::ResetScratch() {
  if (kept_.capacity() > kMaxScratch) kept_ = std::vector<std::uint32_t>();
  kept_.clear();
}

void RecencyLog::DropLeading(Log& log, std::uint32_t blocks) {
  while (blocks > 0) {
    const bool span = (log.words[0] & kSpan) != 0;
    const std::uint32_t count = span ? log.words[1] : 1;
    if (count > blocks) {
      log.words[0] -= blocks;  // what stays keeps its place, and with it its stamps
      log.words[1] -= blocks;
      return;
    }
    blocks -= count;
    log.words.pop_front();
    if (span) log.words.pop_front();
    log.first_place += span ? 2 : 1;
  }
}

void RecencyLog::PushFront(Log& log, std::span<const std::uint32_t> kept) {
  while (!kept.empty()) {
    std::size_t begin = kept.size() - 1;
    while (begin > 0 && kept[begin - 1] == kept[begin] + 1) --begin;
    const std::uint32_t count = static_cast<std::uint32_t>(kept.size() - begin);
    if (count > 1) log.words.push_front(count);
    log.words.push_front(kept[begin] | (count > 1 ? kSpan : 0));
    log.first_place -= count > 1 ? 2 : 1;
    SetStamps(kept[begin], count, log.Stamp(log.first_place));
    kept = kept.first(begin);
  }
}

// Moves live entries from the old end of `newer` to the new end of `older`: order is kept at every
// step, and the garbage stays behind.
void RecencyLog::Sweep(Queue& q, std::size_t words) {
  std::size_t left = q.newer.words.size();
  const std::size_t goal = left - std::min(left, words);
  for (; left > goal; left = q.newer.words.size()) {
    if (left > static_cast<std::size_t>(kAhead)) {
      const std::uint32_t id = q.newer.words[kAhead] & ~kSpan;
      if (id < stamps_.size()) __builtin_prefetch(&stamps_[id], 1);
    }
    MoveOldest(q);
  }
  if (left > 0) return;
  std::swap(q.older, q.newer);
  q.sweeping = false;
  PlanSweep(q);
}

void RecencyLog::MoveOldest(Queue& q) {
  Log& log = q.newer;
  const std::uint32_t stamp = log.Stamp(log.first_place);
  const std::uint32_t last = log.words[0] & ~kSpan;
  const std::uint32_t count = (log.words[0] & kSpan) != 0 ? log.words[1] : 1;
  for (std::uint32_t i = 0; i < count;) {
    i += DifferingSuffix(&stamps_[last - i] + 1, count - i, stamp);
    const std::uint32_t begin = i;
    while (i < count && stamps_[last - i] == stamp) ++i;
    if (i > begin) PushBack(q.older, last - begin, i - begin);
  }
  DropLeading(log, count);
}

void RecencyLog::PlanSweep(Queue& q) const {
  const std::size_t words = q.newer.words.size();
  const std::size_t garbage = words / 4 + live_ / kBlocksPerGarbageWord + kMinGarbageWords;
  const std::size_t places_left = kLastPlace - q.newer.end_place();
  q.sweep_at = std::min(words + garbage, words + places_left / 2);
}

std::uint64_t RecencyLog::MemoryBytes() const noexcept {
  std::uint64_t bytes = sizeof(*this) + stamps_.bytes() + kept_.capacity() * sizeof(kept_[0]);
  for (const Queue& q : queues_) {
    for (const Log* log : {&q.older, &q.newer}) {
      const std::size_t nodes = log->words.size() * sizeof(std::uint32_t) / kDequeNodeBytes + 1;
      bytes += nodes * (kDequeNodeBytes + kNodeOverheadBytes);
    }
  }
  return bytes;
}

}  // namespace tidepool::internal
