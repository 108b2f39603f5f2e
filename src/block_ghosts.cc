#include "src/block_ghosts.h"

#include <utility>

namespace tidepool::internal {
namespace {

constexpr std::uint32_t kFirstBits = 10;
constexpr std::size_t kMinDead = 1024;

}  // namespace

BlockGhosts::BlockGhosts() : table_(std::uint64_t{1} << kFirstBits), shift_(32 - kFirstBits) {}

const PrefixHash& BlockGhosts::DigestOf(const Entry& entry) const noexcept {
  const Log& log = logs_[entry.at >> kListShift];
  return log.digests[(entry.at - log.first) & kPositionMask];
}

BlockGhosts::Place BlockGhosts::Find(const PrefixHash& digest) const noexcept {
  const std::uint32_t tag = TagOf(digest);
  for (std::uint32_t i = HomeOf(tag); table_[i].tag != 0; i = (i + 1) & mask()) {
    if (table_[i].tag == tag && DigestOf(table_[i]) == digest) return i;
  }
  return kNone;
}

void BlockGhosts::Insert(const Entry& entry) noexcept {
  std::uint32_t i = HomeOf(entry.tag);
  while (table_[i].tag != 0) i = (i + 1) & mask();
  table_[i] = entry;
}

// Closes the gap with entries that would be found no more.
void BlockGhosts::Erase(Place place) noexcept {
  std::uint32_t gap = place;
  for (std::uint32_t i = (gap + 1) & mask(); table_[i].tag != 0; i = (i + 1) & mask()) {
    const std::uint32_t probed = (i - HomeOf(table_[i].tag)) & mask();
    if (probed < ((i - gap) & mask())) continue;
    table_[gap] = table_[i];
    gap = i;
  }
  table_[gap] = Entry{};
}

// Homes are the tags' top bits, so entries keep their order and the new table is written in line.
void BlockGhosts::Grow() {
  const ZeroedArray<Entry> old = std::exchange(table_, ZeroedArray<Entry>(table_.size() * 2));
  --shift_;
  for (std::uint64_t i = 0; i < old.size(); ++i) {
    if (old[i].tag != 0) Insert(old[i]);
  }
}

void BlockGhosts::Add(std::uint32_t list, const PrefixHash& digest) {
  if ((std::uint64_t{size(0)} + size(1) + 1) * 5 > table_.size() * 3) Grow();
  const std::uint32_t tag = TagOf(digest);
  std::uint32_t place = HomeOf(tag);
  for (; table_[place].tag != 0; place = (place + 1) & mask()) {
    if (table_[place].tag != tag || DigestOf(table_[place]) != digest) continue;
    Remove(place);  // moves others about
    return Add(list, digest);
  }
  Log& log = logs_[list];
  const std::uint32_t position =
      (log.first + static_cast<std::uint32_t>(log.digests.size())) & kPositionMask;
  log.digests.push_back(digest);
  ++log.live;
  table_[place] = {.tag = tag, .at = list << kListShift | position};
}

void BlockGhosts::Remove(Place place) {
  const std::uint32_t from = list(place);
  Log& log = logs_[from];
  --log.live;
  Erase(place);
  if (log.digests.size() - log.live > log.live + kMinDead) Compact(from);
}

bool BlockGhosts::NamedBy(Place place, std::uint32_t list, std::uint32_t position) const noexcept {
  return place != kNone && (table_[place].at & ~kMark) == (list << kListShift | position);
}

void BlockGhosts::RemoveOldest(std::uint32_t list) {
  Log& log = logs_[list];
  for (bool live = false; !live;) {
    const Place place = Find(log.digests.front());
    live = NamedBy(place, list, log.first);
    if (live) Erase(place);
    log.digests.pop_front();
    log.first = (log.first + 1) & kPositionMask;
    if (!log.digests.empty()) Prefetch(log.digests.front());  // the next to go
  }
  --log.live;
}

// Moves live digests forwards in place, so that entries are valid at every step.
void BlockGhosts::Compact(std::uint32_t list) {
  Log& log = logs_[list];
  std::uint32_t to = 0;
  for (std::uint32_t from = 0; from < log.digests.size(); ++from) {
    const Place place = Find(log.digests[from]);
    if (!NamedBy(place, list, (log.first + from) & kPositionMask)) continue;
    log.digests[to] = log.digests[from];
    const std::uint32_t mark = table_[place].at & kMark;
    table_[place].at = list << kListShift | mark | ((log.first + to++) & kPositionMask);
  }
  log.digests.resize(to);
}

std::uint64_t BlockGhosts::MemoryBytes() const noexcept {
  return table_.bytes() +
         (logs_[0].digests.size() + logs_[1].digests.size()) * (sizeof(PrefixHash) + 1);
}

}  // namespace tidepool::internal
