#include "tests/support/flat_arc_policy.h"

#include <algorithm>

namespace tidepool::testing {

void FlatArcPolicy::GhostList::Add(const PrefixHash& digest) {
  Remove(digest);
  places[digest] = order.insert(order.end(), digest);
}

bool FlatArcPolicy::GhostList::Remove(const PrefixHash& digest) {
  const auto found = places.find(digest);
  if (found == places.end()) return false;
  order.erase(found->second);
  places.erase(found);
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
void FlatArcPolicy::OnInserted(std::span<const BlockId> blocks) noexcept {
  for (BlockId b : blocks) {
    const auto [found, fresh] = entries_.try_emplace(b);
    if (!fresh) continue;
    Entry& entry = found->second;
    entry.digest = view_.Digest(b);
    const bool seen = ghosts_[kT1].Remove(entry.digest) || ghosts_[kT2].Remove(entry.digest);
    entry.list = seen ? kT2 : kT1;
    ++size_[entry.list];
    if (tier_ != kHbmTier || !view_.Held(b)) Order(b, entry);
    TrimGhosts();
  }
}

// Case I. A held block takes its place in T2's order when the last hold leaves.
void FlatArcPolicy::OnAccessed(std::span<const BlockId> blocks) noexcept {
  for (BlockId b : blocks) {
    const auto found = entries_.find(b);
    if (found == entries_.end()) continue;
    const bool ordered = found->second.ordered;
    MoveTo(kT2, found->second);
    if (ordered) Order(b, found->second);
  }
}

void FlatArcPolicy::OnMissed(std::span<const PrefixHash> digests) noexcept {
  const auto step = [this](List more, List less) {
    return std::max(1.0, static_cast<double>(ghosts(less)) / static_cast<double>(ghosts(more)));
  };
  for (const PrefixHash& digest : digests) {
    if (ghosts_[kT1].Has(digest)) {
      target_ = std::min(target_ + step(kT1, kT2), static_cast<double>(capacity_));
    } else if (ghosts_[kT2].Has(digest)) {
      target_ = std::max(target_ - step(kT2, kT1), 0.0);
    }
  }
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
    if (found != entries_.end()) Order(*b, found->second);
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
    if (remembered) ghosts_[entry.list].Add(entry.digest);
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
  std::array<std::list<BlockId>::const_iterator, 2> next = {order_[kT1].begin(),
                                                            order_[kT2].begin()};
  const auto candidate = [&](List list) {
    const auto fits = [&](BlockId b) {
      return view_.Evictable(b, tier_) && (query.filter == nullptr || query.filter->Allows(b));
    };
    next[list] = std::find_if(next[list], order_[list].cend(), fits);
    return next[list] != order_[list].cend();
  };
  std::size_t t1 = size_[kT1];
  for (std::uint32_t i = 0; i < query.blocks; ++i) {
    const std::size_t wanted = std::min<std::size_t>(i + 1, query.incoming.size());
    const bool in_b2 = wanted > 0 && ghosts_[kT2].Has(query.incoming[wanted - 1]);
    const double size = static_cast<double>(t1);
    List from = t1 > 0 && (size > target_ || (in_b2 && size == target_)) ? kT1 : kT2;
    if (!candidate(from)) from = from == kT1 ? kT2 : kT1;
    if (!candidate(from)) return;
    victims.push_back(*next[from]++);
    if (from == kT1) --t1;
  }
}

std::uint64_t FlatArcPolicy::MemoryBytes() const noexcept {
  return entries_.size() * sizeof(Entry) +
         (ghosts(kT1) + ghosts(kT2)) * (sizeof(PrefixHash) + 4 * sizeof(void*));
}

std::unique_ptr<EvictionPolicy> MakeFlatArcPolicy() { return std::make_unique<FlatArcPolicy>(); }

}  // namespace tidepool::testing
