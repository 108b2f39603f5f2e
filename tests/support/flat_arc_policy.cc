#include "tests/support/flat_arc_policy.h"

#include <algorithm>

namespace tidepool::testing {

void FlatArcPolicy::GhostList::Add(const PrefixHash& digest) {
  Remove(digest);
  places[digest] = order.insert(order.end(), digest);
}

bool FlatArcPolicy::GhostList::Remove(PrefixHash digest) {
  const auto found = places.find(digest);
  if (found == places.end()) return false;
  order.erase(found->second);
  places.erase(found);
  counted.erase(digest);
  return true;
}

void FlatArcPolicy::Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) {
  view_ = blocks;
  tier_ = tier;
  capacity_ = slots;
  target_ = std::min(target_, static_cast<double>(slots));
  TrimGhosts();
}

void FlatArcPolicy::Order(BlockId block, Entry& entry) {
  Unorder(entry);
  entry.place = order_[entry.list].insert(order_[entry.list].end(), block);
  entry.ordered = true;
  entry.priority = view_.ClaimPriority(block);
}

void FlatArcPolicy::Unorder(Entry& entry) {
  if (entry.ordered) order_[entry.list].erase(entry.place);
  entry.ordered = false;
}

void FlatArcPolicy::MoveTo(List list, Entry& entry) {
  Unorder(entry);
  --size_[entry.list];
  ++size_[list];
  entry.list = list;
}

// Cases II to IV of the paper: a key that a ghost list knows has now been seen again.
FlatArcPolicy::Entry& FlatArcPolicy::Classify(BlockId block) {
  const auto [found, fresh] = entries_.try_emplace(block);
  Entry& entry = found->second;
  const PrefixHash digest = view_.Digest(block);
  Count(digest);
  const bool seen = ghosts_[kT1].Remove(digest) || ghosts_[kT2].Remove(digest);
  if (fresh) {
    entry.list = seen ? kT2 : kT1;
    ++size_[entry.list];
  } else if (seen) {
    const bool ordered = entry.ordered;
    MoveTo(kT2, entry);
    if (ordered) Order(block, entry);
  }
  TrimGhosts();
  return entry;
}

void FlatArcPolicy::OnInserted(std::span<const BlockId> blocks) noexcept {
  for (const BlockId b : blocks) Classify(b);
  if (tier_ != kHbmTier) OnEvictable(blocks);
}

// Case I. A held block takes its place in T2's order when the last hold leaves.
void FlatArcPolicy::OnAccessed(std::span<const BlockId> blocks) noexcept {
  for (const BlockId b : blocks) {
    const auto found = entries_.find(b);
    Entry& entry = found == entries_.end() ? Classify(b) : found->second;
    MoveTo(kT2, entry);
  }
  if (tier_ != kHbmTier) OnEvictable(blocks);
}

double FlatArcPolicy::Adapted(double target, const PrefixHash& digest) const {
  const auto step = [this](List more, List less) {
    return std::max(1.0, static_cast<double>(ghosts(less)) / static_cast<double>(ghosts(more)));
  };
  if (ghosts_[kT1].Has(digest) && ghosts_[kT1].counted.count(digest) == 0) {
    return std::min(target + step(kT1, kT2), static_cast<double>(capacity_));
  }
  if (ghosts_[kT2].Has(digest) && ghosts_[kT2].counted.count(digest) == 0) {
    return std::max(target - step(kT2, kT1), 0.0);
  }
  return target;
}

void FlatArcPolicy::Count(const PrefixHash& digest) {
  target_ = Adapted(target_, digest);
  for (GhostList& list : ghosts_) {
    if (list.Has(digest)) list.counted.insert(digest);
  }
}

void FlatArcPolicy::OnMissed(std::span<const PrefixHash> digests) noexcept {
  for (const PrefixHash& digest : digests) Count(digest);
}

void FlatArcPolicy::OnProtected(std::span<const BlockId> blocks) noexcept {
  for (BlockId b : blocks) {
    const auto found = entries_.find(b);
    if (found != entries_.end()) Unorder(found->second);
  }
}

void FlatArcPolicy::OnEvictable(std::span<const BlockId> blocks) noexcept {
  for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) {
    const auto found = entries_.find(*b);
    Order(*b, found == entries_.end() ? Classify(*b) : found->second);
  }
}

void FlatArcPolicy::OnPriorityChanged(std::span<const BlockId> blocks, Priority priority) noexcept {
  for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) {
    const auto found = entries_.find(*b);
    if (found == entries_.end() || !found->second.ordered) continue;
    if (found->second.priority != priority) Order(*b, found->second);
  }
}

void FlatArcPolicy::OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept {
  const bool remembered = reason == EvictReason::kCapacity || reason == EvictReason::kDemoted;
  for (BlockId b : blocks) {
    const auto found = entries_.find(b);
    if (found == entries_.end()) continue;
    Entry& entry = found->second;
    Unorder(entry);
    --size_[entry.list];
    const PrefixHash digest = view_.Digest(b);
    if (remembered && digest != PrefixHash{}) ghosts_[entry.list].Add(digest);
    entries_.erase(found);
  }
}

// |T1| + |B1| <= c and all four <= 2c. The paper trims before it inserts, which leaves the same.
void FlatArcPolicy::TrimGhosts() {
  while (ghosts(kT1) > 0 && size_[kT1] + ghosts(kT1) > capacity_) ghosts_[kT1].RemoveOldest();
  const std::size_t most = std::size_t{2} * capacity_;
  while (ghosts(kT2) > 0 && size_[kT1] + size_[kT2] + ghosts(kT1) + ghosts(kT2) > most) {
    ghosts_[kT2].RemoveOldest();
  }
}

void FlatArcPolicy::SelectVictims(const VictimQuery& query, const SchedulingSignals& /*signals*/,
                                  std::vector<BlockId>& victims) noexcept {
  std::unordered_set<BlockId> named;
  double target = target_;
  std::size_t t1 = size_[kT1];
  const auto candidate = [&](List list, Priority priority) {
    return std::find_if(order_[list].begin(), order_[list].end(), [&](BlockId b) {
      return view_.ClaimPriority(b) == priority && named.count(b) == 0 &&
             view_.Evictable(b, tier_) && (query.filter == nullptr || query.filter->Allows(b));
    });
  };
  for (std::uint32_t i = 0, lowest = 0; i < query.blocks && lowest < kPriorityCount;) {
    const auto priority = static_cast<Priority>(lowest);
    const std::array<std::list<BlockId>::iterator, 2> next = {candidate(kT1, priority),
                                                              candidate(kT2, priority)};
    if (next[kT1] == order_[kT1].end() && next[kT2] == order_[kT2].end()) {
      ++lowest;
      continue;
    }
    bool in_b2 = false;
    if (i < query.incoming.size()) {
      target = Adapted(target, query.incoming[i]);
      in_b2 = ghosts_[kT2].Has(query.incoming[i]);
    }
    const double size = static_cast<double>(t1);
    List from = t1 > 0 && (size > target || (in_b2 && size == target)) ? kT1 : kT2;
    if (next[from] == order_[from].end()) from = from == kT1 ? kT2 : kT1;
    victims.push_back(*next[from]);
    named.insert(*next[from]);
    if (from == kT1) --t1;
    ++i;
  }
}

ArcState FlatArcPolicy::State() const noexcept {
  const auto size = [](std::size_t n) { return static_cast<std::uint32_t>(n); };
  return {.recent = size(size_[kT1]),
          .frequent = size(size_[kT2]),
          .recent_ghosts = size(ghosts(kT1)),
          .frequent_ghosts = size(ghosts(kT2)),
          .target = target_,
          .capacity = capacity_};
}

std::uint64_t FlatArcPolicy::MemoryBytes() const noexcept {
  return entries_.size() * sizeof(Entry) +
         (ghosts(kT1) + ghosts(kT2)) * (sizeof(PrefixHash) + 4 * sizeof(void*));
}

std::unique_ptr<EvictionPolicy> MakeFlatArcPolicy() { return std::make_unique<FlatArcPolicy>(); }

}  // namespace tidepool::testing
