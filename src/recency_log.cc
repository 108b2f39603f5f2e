#include "src/recency_log.h"

#include <algorithm>
#include <utility>

namespace tidepool::internal {
namespace {

// A sweep moves this many words for each word filed, so that it ends before the log has grown by
// another fifteenth. It starts at a quarter of garbage; a log whose every block keeps being filed
// anew, one by one, then has 1.36 words a block at its worst, for 3.8 moves a block filed.
constexpr std::size_t kSweepRate = 16;
// A sweep looks at every live block; this many blocks pay for one more word of garbage.
constexpr std::size_t kBlocksPerGarbageWord = 64;
constexpr std::size_t kMinGarbageWords = 1024;

// A scan of the whole order is rare; its scratch is not kept.
constexpr std::size_t kMaxScratch = 8192;

constexpr std::size_t kChunkOverheadBytes = 24;  // allocator header and the pointer to it

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
  const std::size_t before = q.newer.words();
  while (!blocks.empty()) {
    const auto run = static_cast<std::uint32_t>(TrailingRun(blocks));
    const std::uint32_t last = blocks.back().value();
    SetStamps(last, run, q.newer.PushBack(last, run));
    blocks = blocks.first(blocks.size() - run);
  }
  const std::size_t added = q.newer.words() - before;
  if (!q.sweeping && q.SweepIsDue()) {
    q.sweeping = true;
    q.older.first_chunk = kFirstChunk;
  }
  if (q.sweeping) Sweep(q, added * kSweepRate);
}

void RecencyLog::Erase(std::span<const BlockId> blocks) noexcept {
  for (BlockId b : blocks) live_ -= std::exchange(stamps_[b.value()], 0u) != 0;
}

void RecencyLog::SetStamps(std::uint32_t last, std::uint32_t count, std::uint32_t stamp) noexcept {
  if (count == 1) {
    live_ += std::exchange(stamps_[last], stamp) == 0;
  } else {
    live_ += FillWords(&stamps_[last + 1 - count], count, stamp);
  }
}

std::uint32_t RecencyLog::Log::PushBack(std::uint32_t last, std::uint32_t count) {
  const std::uint32_t need = count > 1 ? 2 : 1;
  if (tail + need > kChunkWords) {
    if (tail < kChunkWords) (*chunks.back())[tail] = kPad;
    chunks.push_back(std::make_unique_for_overwrite<Chunk>());
    tail = 0;
  }
  std::uint32_t* const word = &(*chunks.back())[tail];
  const std::uint32_t stamp = Stamp(chunks.size() - 1, tail);
  tail += need;
  word[0] = last;
  if (count > 1) word[0] |= kSpan, word[1] = count;
  return stamp;
}

std::uint32_t RecencyLog::Log::PushFront(std::uint32_t last, std::uint32_t count) {
  const std::uint32_t need = count > 1 ? 2 : 1;
  if (head < need) {
    if (head == 1) (*chunks.front())[0] = kPad;
    chunks.push_front(std::make_unique_for_overwrite<Chunk>());
    --first_chunk;
    head = kChunkWords;
  }
  head -= need;
  std::uint32_t* const word = &(*chunks.front())[head];
  word[0] = last;
  if (count > 1) word[0] |= kSpan, word[1] = count;
  return Stamp(0, head);
}

// What stays of a trimmed entry keeps its place, and with it its stamps.
void RecencyLog::Log::Cut(std::size_t chunk, std::uint32_t offset, std::uint32_t blocks) {
  for (std::size_t i = 0; i < chunk; ++i) chunks.pop_front();
  first_chunk += static_cast<std::uint32_t>(chunk);
  head = offset;
  if (!chunks.empty() && blocks > 0) {
    std::uint32_t* const word = &(*chunks.front())[head];
    const Entry entry = Entry::At(word);
    if (blocks == entry.count) {
      head += entry.words;
    } else {
      word[0] -= blocks;
      word[1] -= blocks;
    }
  }
  if (!chunks.empty() && head == end_of(0)) {
    chunks.pop_front();
    ++first_chunk;
    head = 0;
  }
  if (chunks.empty()) head = 0, tail = kChunkWords;
}

// The dead before the first kept block go. Dead ones behind it go too when they are the majority:
// the kept are then filed anew before the rest, at a cost that the dead, met for the last time,
// pay.
void RecencyLog::TidyHead(Log& log, const ScanState& state) {
  const bool refile =
      state.interior > kept_.size() && kept_.size() < std::size_t{kFirstChunk} * kChunkWords;
  const Position& to = kept_.empty() || refile ? state.at : state.first_kept;
  log.Cut(to.chunk, to.chunk < log.chunks.size() ? to.offset : 0, to.blocks);
  if (refile) RefileKept(log);
  if (kept_.capacity() > kMaxScratch) kept_ = std::vector<std::uint32_t>();
  kept_.clear();
}

void RecencyLog::RefileKept(Log& log) {
  std::span<const std::uint32_t> kept = kept_;
  while (!kept.empty()) {
    std::size_t begin = kept.size() - 1;
    while (begin > 0 && kept[begin - 1] == kept[begin] + 1) --begin;
    const auto count = static_cast<std::uint32_t>(kept.size() - begin);
    SetStamps(kept[begin], count, log.PushFront(kept[begin], count));
    kept = kept.first(begin);
  }
}

// Moves live entries from the old end of `newer` to the new end of `older`: order is kept at every
// step, and the garbage stays behind.
void RecencyLog::Sweep(Queue& q, std::size_t words) {
  Log& log = q.newer;
  while (words > 0 && !log.chunks.empty()) {
    const std::uint32_t* const chunk = log.chunks.front()->data();
    const std::uint32_t end = log.end_of(0);
    std::uint32_t at = log.head;
    const auto stop = static_cast<std::uint32_t>(std::min<std::size_t>(end, at + words));
    const std::uint32_t begin = at;
    while (at < stop) {
      const std::uint32_t ahead = chunk[std::min(at + kAhead, end - 1)] & ~kSpan;
      if (ahead < stamps_.size()) __builtin_prefetch(&stamps_[ahead], 1);
      const Entry entry = Entry::At(chunk + at);
      MoveLive(q, entry, log.Stamp(0, at));
      at += entry.words;
    }
    words -= std::min<std::size_t>(words, at - begin);
    log.Cut(0, at, 0);
  }
  if (!log.chunks.empty()) return;
  std::swap(q.older, q.newer);
  q.sweeping = false;
  PlanSweep(q);
}

void RecencyLog::MoveLive(Queue& q, const Entry& entry, std::uint32_t stamp) {
  for (std::uint32_t i = 0; i < entry.count;) {
    i += DifferingSuffix(&stamps_[entry.last - i] + 1, entry.count - i, stamp);
    const std::uint32_t begin = i;
    while (i < entry.count && stamps_[entry.last - i] == stamp) ++i;
    if (i == begin) continue;
    SetStamps(entry.last - begin, i - begin, q.older.PushBack(entry.last - begin, i - begin));
  }
}

void RecencyLog::PlanSweep(Queue& q) const {
  const std::size_t words = q.newer.words();
  q.sweep_at = words + words / 4 + live_ / kBlocksPerGarbageWord + kMinGarbageWords;
}

std::uint64_t RecencyLog::MemoryBytes() const noexcept {
  std::uint64_t bytes = sizeof(*this) + stamps_.bytes() + kept_.capacity() * sizeof(kept_[0]);
  for (const Queue& q : queues_) {
    const std::size_t chunks = q.older.chunks.size() + q.newer.chunks.size();
    bytes += chunks * (sizeof(Log::Chunk) + kChunkOverheadBytes);
  }
  return bytes;
}

}  // namespace tidepool::internal
