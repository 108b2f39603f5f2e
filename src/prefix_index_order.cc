// Order of eviction and claims; see prefix_index_impl.h.
#include <algorithm>

#include "prefix_index_impl.h"

namespace tidepool {

using internal::kNone;

// --- Order of eviction. ---

// The place of a block that takes part in the order, which is kept for group 0.
PrefixIndex::Impl::Place PrefixIndex::Impl::OrderedPlace(BlockId b) const noexcept {
  const Place at = PlaceOf(b);
  return at.node != kNone && Id(nodes[at.node], at.offset) == b ? at : Place{};
}

bool PrefixIndex::Impl::IsResidentTail(BlockId block, TierIndex tier) const noexcept {
  const Place at = OrderedPlace(block);
  if (at.node == kNone) return true;
  const Node& node = nodes[at.node];
  if (at.offset + 1u < node.length) {
    return PlannedTier(node, Id(node, at.offset + 1)) > tier;
  }
  return ColdestChild(node, tier) == kNone;
}

// Of the children that count in `tier`, the least recently touched.
std::uint32_t PrefixIndex::Impl::ColdestChild(const Node& node, TierIndex tier) const noexcept {
  if (node.family == kNone) return kNone;
  const Family& family = families[node.family];
  std::uint32_t coldest = kNone;
  for (std::size_t zone = 0; zone <= tier; ++zone) {
    const std::uint32_t child = family.zones[zone].tail;
    if (child == kNone) continue;
    if (coldest == kNone || nodes[child].tick < nodes[coldest].tick) coldest = child;
  }
  return coldest;
}

// Behind the last of the positions from `from` on that count in `tier` without a gap; at least
// behind `from`.
std::uint32_t PrefixIndex::Impl::PlannedEnd(const Node& node, std::uint32_t from,
                                            TierIndex tier) const noexcept {
  std::uint32_t end = node.resident_end[tier];
  if (end > from) {
    while (end > from + 1 && PlannedTier(node, Id(node, end - 1)) > tier) --end;
    return end;
  }
  end = from + 1;
  while (end < node.length && PlannedTier(node, Id(node, end)) <= tier) ++end;
  return end;
}

bool PrefixIndex::Impl::IsOnlyChild(BlockId block, TierIndex tier) const noexcept {
  const Place at = OrderedPlace(block);
  if (at.node == kNone || at.offset != 0 || IsRoot(nodes[at.node].parent)) return true;
  const Family& family = families[nodes[at.node].kin];
  for (std::size_t zone = 0; zone <= tier; ++zone) {
    const Family::List& list = family.zones[zone];
    if (list.head != list.tail) return false;
    if (list.head != kNone && list.head != at.node) return false;
  }
  return true;
}

void PrefixIndex::Impl::AppendUpwards(BlockId block, std::uint32_t count,
                                      std::vector<BlockId>& out) const {
  const Place at = OrderedPlace(block);
  if (at.node == kNone) {
    if (count != 0) out.push_back(block);
    return;
  }
  const std::span<const BlockId> run = Ids(nodes[at.node]).first(at.offset + std::size_t{1});
  const std::span<const BlockId> last = run.last(std::min<std::size_t>(run.size(), count));
  out.insert(out.end(), last.rbegin(), last.rend());
}

BlockId PrefixIndex::Impl::ResidentTail(BlockId block, TierIndex tier) const noexcept {
  Place at = OrderedPlace(block);
  BlockId tail = block;
  if (at.node != kNone && PlannedTier(nodes[at.node], block) > tier) return {};
  while (at.node != kNone) {
    const Node& node = nodes[at.node];
    const std::uint32_t end = PlannedEnd(node, at.offset, tier);
    tail = Id(node, end - 1);
    at = {end == node.length ? ColdestChild(node, tier) : kNone, 0};
  }
  return pool->Evictable(tail, tier) ? tail : BlockId();
}

void PrefixIndex::Impl::MarkChosen(BlockId block, TierIndex tier) noexcept {
  pool->SetFlag(block, word::kChosen);
  const Place at = OrderedPlace(block);
  if (at.node == kNone || at.offset != 0 || nodes[at.node].zone != tier) return;
  MoveToZone(at.node, TierBelow(tier));
}

void PrefixIndex::Impl::UnmarkChosen(BlockId block) noexcept {
  pool->ClearFlag(block, word::kChosen);
  const Place at = OrderedPlace(block);
  if (at.node == kNone || at.offset != 0) return;
  MoveToZone(at.node, TopTier(nodes[at.node], block));
}

void PrefixIndex::Impl::Touch(BlockId deepest, std::uint64_t tick) noexcept {
  std::uint32_t n = PlaceOf(deepest).node;
  for (; n != kNone && !IsRoot(n); n = nodes[n].parent) {
    nodes[n].tick = tick;
    if (nodes[n].prev != kNone) Relink(n, nodes[n].zone);
  }
}

// --- Claims. ---

void PrefixIndex::Impl::ListClaim(std::uint32_t c, std::uint32_t n) {
  internal::Claim& claim = claims[c];
  claim.node = n;
  claim.prev = kNone;
  claim.next = kNone;
  if (n == kNone) return;
  claim.next = nodes[n].first_claim;
  if (claim.next != kNone) claims[claim.next].prev = c;
  nodes[n].first_claim = c;
}

void PrefixIndex::Impl::UnlistClaim(std::uint32_t c) {
  const internal::Claim& claim = claims[c];
  if (claim.node == kNone) return;
  (claim.prev != kNone ? claims[claim.prev].next : nodes[claim.node].first_claim) = claim.next;
  if (claim.next != kNone) claims[claim.next].prev = claim.prev;
}

// The node dies: its claims end at the parent, whose coverage counts them already.
void PrefixIndex::Impl::HandClaimsUp(std::uint32_t n) {
  const std::uint32_t to = IsRoot(nodes[n].parent) ? kNone : nodes[n].parent;
  while (nodes[n].first_claim != kNone) {
    const std::uint32_t c = nodes[n].first_claim;
    UnlistClaim(c);
    ListClaim(c, to);
  }
}

// One claim of the node changes from priority `from` to `to`; kUncovered = none. Appends the blocks
// whose strongest claim changes, deepest first.
void PrefixIndex::Impl::Recover(std::uint32_t n, std::size_t from, std::size_t to,
                                std::vector<BlockId>* changed) {
  Node& node = nodes[n];
  const Priority before = internal::StrongestClaim(node);
  if (from < kPriorityCount) --node.coverage[from];
  if (to < kPriorityCount) ++node.coverage[to];
  const Priority after = internal::StrongestClaim(node);
  if (after == before) return;
  const std::span<const BlockId> ids = Ids(node);
  for (std::size_t i = ids.size(); i-- > 0;) {
    if (!ids[i].valid() || IsTombstone(node, ids[i])) continue;
    pool->set_claim_priority(ids[i], after);
    if (changed != nullptr) changed->push_back(ids[i]);
  }
}

// Recovers the nodes from `n` up to, but without, `top`. Appends what changes in prefix order.
void PrefixIndex::Impl::RecoverPath(std::uint32_t n, std::uint32_t top, std::size_t from,
                                    std::size_t to, std::vector<BlockId>* changed) {
  const std::size_t begin = changed != nullptr ? changed->size() : 0;
  for (; n != top && !IsRoot(n); n = nodes[n].parent) Recover(n, from, to, changed);
  if (changed == nullptr) return;
  std::reverse(changed->begin() + static_cast<std::ptrdiff_t>(begin), changed->end());
}

// The deepest node on both paths, or kNone; either may be kNone.
std::uint32_t PrefixIndex::Impl::CommonNode(std::uint32_t a, std::uint32_t b) const noexcept {
  const auto end = [this](std::uint32_t n) {
    return std::uint64_t{nodes[n].position} + nodes[n].length;
  };
  while (a != b) {
    if (a == kNone || b == kNone) return kNone;
    std::uint32_t& deeper = end(a) >= end(b) ? a : b;
    deeper = nodes[deeper].parent;
  }
  return a;
}

std::uint32_t PrefixIndex::Impl::Claims(BlockId block) const noexcept {
  const Place at = PlaceOf(block);
  if (at.node == kNone) return 0;
  std::uint32_t count = 0;
  for (const std::uint32_t n : nodes[at.node].coverage) count += n;
  return count;
}

std::uint32_t PrefixIndex::Impl::StrongestClaimAt(BlockId block) const noexcept {
  const Place at = PlaceOf(block);
  if (at.node == kNone) return kNoClaim;
  std::uint32_t best = kNoClaim;
  std::uint32_t c = nodes[at.node].first_claim;
  for (int looked = 0; looked < 8 && c != kNone; ++looked, c = claims[c].next) {
    if (best == kNoClaim || claims[c].priority > claims[best].priority) best = c;
  }
  return best;
}

// Appends the blocks of the nodes from `n` up to, but without, `top`, in prefix order.
void PrefixIndex::Impl::AppendPathBelow(std::uint32_t n, std::uint32_t top,
                                        std::vector<BlockId>& out) const {
  const std::size_t begin = out.size();
  for (; n != kNone && n != top && !IsRoot(n); n = nodes[n].parent) {
    const std::span<const BlockId> ids = Ids(nodes[n]);
    for (std::size_t i = ids.size(); i-- > 0;) {
      if (ids[i].valid() && !IsTombstone(nodes[n], ids[i])) out.push_back(ids[i]);
    }
  }
  std::reverse(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end());
}

void PrefixIndex::Impl::SetClaim(std::uint32_t c, BlockId deepest, Priority priority,
                                 std::vector<BlockId>* changed, MovedClaim* moved) {
  if (c >= claims.size()) claims.resize(c + std::size_t{1});
  Place at = deepest.valid() ? PlaceOf(deepest) : Place{};
  if (at.node != kNone && at.offset + 1u < nodes[at.node].length) {
    at.node = Split(at.node, at.offset + 1);
  }
  const std::uint32_t old = claims[c].node;
  const auto from = static_cast<std::size_t>(claims[c].priority);
  const auto to = static_cast<std::size_t>(priority);
  const std::uint32_t common = CommonNode(old, at.node);
  if (old != kNone) RecoverPath(old, common, from, kUncovered, changed);
  if (at.node != kNone) RecoverPath(at.node, common, kUncovered, to, changed);
  if (common != kNone && from != to) RecoverPath(common, kNone, from, to, changed);
  if (moved != nullptr) {
    moved->claimed.clear();
    moved->unclaimed.clear();
    AppendPathBelow(at.node, common, moved->claimed);
    AppendPathBelow(old, common, moved->unclaimed);
  }
  UnlistClaim(c);
  ListClaim(c, at.node);
  claims[c].priority = priority;
}

BlockId PrefixIndex::Impl::ClaimedTail(std::uint32_t c) const noexcept {
  if (c >= claims.size() || claims[c].node == kNone) return {};
  for (std::uint32_t n = claims[c].node; !IsRoot(n); n = nodes[n].parent) {
    for (std::uint32_t offset = nodes[n].length; offset-- > 0;) {
      if (!IsTombstone(nodes[n], Id(nodes[n], offset))) return Id(nodes[n], offset);
    }
  }
  return {};
}

void PrefixIndex::Impl::AppendPath(BlockId deepest, std::vector<BlockId>& out) const {
  const Place at = PlaceOf(deepest);
  if (at.node == kNone) return;
  const GroupIndex group = GroupOf(nodes[at.node], at.offset, deepest);
  const std::size_t begin = out.size();
  std::uint32_t end = at.offset + 1;
  for (std::uint32_t n = at.node; !IsRoot(n); n = nodes[n].parent, end = nodes[n].length) {
    for (std::uint32_t offset = end; offset-- > 0;) {
      const BlockId b = Id(nodes[n], offset, group);
      if (b.valid() && !IsTombstone(nodes[n], b)) out.push_back(b);
    }
  }
  std::reverse(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end());
}

// --- Cache hints. ---

void PrefixIndex::Impl::PrefetchNode(BlockId block) const noexcept {
  const NodeId n = pool->node(block);
  if (!n.valid()) return;
  const auto* const node = reinterpret_cast<const char*>(&nodes[n.value()]);
  __builtin_prefetch(node);
  __builtin_prefetch(node + 64);
}

void PrefixIndex::Impl::PrefetchForRemoval(BlockId block) const noexcept {
  const NodeId n = pool->node(block);
  if (!n.valid() || nodes[n.value()].length > 1) return;
  const Node& node = nodes[n.value()];
  if (node.next != kNone) __builtin_prefetch(&nodes[node.next]);
  if (node.prev != kNone) __builtin_prefetch(&nodes[node.prev]);
  __builtin_prefetch(&families[node.kin]);
  table.Prefetch(node.tag);
}

}  // namespace tidepool
