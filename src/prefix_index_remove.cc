// Removing blocks, and what is left of retired trees; see prefix_index_impl.h.
#include <algorithm>

#include "prefix_index_impl.h"

namespace tidepool {

using internal::kNone;
namespace node_flags = internal::node_flags;

// The block is private from now on; its place in the run is the caller's business.
void PrefixIndex::Impl::Unpublish(Node& node, BlockId b) noexcept {
  if (pool->Has(b, word::kPending)) --node.pending;
  pool->ClearFlag(b, word::kPublished | word::kPending | word::kOrphan | word::kChosen);
  if (pool->claim_priority(b) != Priority::kBackground) {
    pool->set_claim_priority(b, Priority::kBackground);
  }
  if (node.Is(node_flags::kHasContent)) contents.erase(b.value());
  --blocks;
}

void PrefixIndex::Impl::FreeTombstone(Node& node, BlockId b) noexcept {
  tombstones.erase(b.value());
  --node.tombstones;
  Unpublish(node, b);
  pool->FreeId(b);
}

bool PrefixIndex::Impl::Remove(BlockId b, std::vector<BlockId>* orphans) {
  const Place at = PlaceOf(b);
  if (at.node == kNone) return true;
  Node& node = nodes[at.node];
  const GroupIndex group = GroupOf(node, at.offset, b);
  const bool tail = at.offset + 1u == node.length && node.family == kNone;
  if (group != 0) {
    Unpublish(node, b);
    node.ids()[at.offset * groups + group] = BlockId();
    if (tail) CutTail(at.node);
    return true;
  }
  if (tail && OnlyGroup0(node, at.offset)) {
    Unpublish(node, b);
    if (at.offset == 0) {
      node.length = 0;
    } else {
      TruncateRun(node, at.offset);
    }
    CutTail(at.node);
    return true;
  }
  if (IsTombstone(node, b)) return false;
  if (pool->Has(b, word::kPending)) --node.pending;
  pool->ClearFlag(b, word::kPending | word::kChosen);
  tombstones.insert(b.value());
  ++node.tombstones;
  RefreshResidency(at.node, at.offset);
  FlagOrphans(at, orphans);
  return false;
}

// Cleans up behind a tail that left: tombstones that nothing lives below, nodes without blocks.
// REQUIRES: `n` has no children.
void PrefixIndex::Impl::CutTail(std::uint32_t n) {
  while (n != kNone && !IsRoot(n)) {
    Node& node = nodes[n];
    while (node.length > 0) {
      const std::uint32_t last = node.length - 1u;
      const BlockId b = Id(node, last);
      if (!IsTombstone(node, b) || !OnlyGroup0(node, last)) return;
      FreeTombstone(node, b);
      TruncateRun(node, last);
    }
    n = DeleteNode(n);
  }
  if (n != kNone && nodes[n].Is(node_flags::kRetired)) FreeRoot(n);
}

// Calls `visit` for the blocks at and behind `from` in a run, up to its next tombstone. Returns
// whether there was none.
template <typename Visit>
bool PrefixIndex::Impl::VisitRun(std::uint32_t n, std::uint32_t from, const Visit& visit) const {
  const Node& node = nodes[n];
  for (std::uint32_t offset = from; offset < node.length; ++offset) {
    if (IsTombstone(node, Id(node, offset))) return false;
    for (GroupIndex group = 0; group < groups; ++group) {
      if (Id(node, offset, group).valid()) visit(Id(node, offset, group));
    }
  }
  return true;
}

// Calls `visit` for everything below group 0's block at `above` that no further tombstone hides.
template <typename Visit>
void PrefixIndex::Impl::VisitBelow(Place above, const Visit& visit) const {
  for (GroupIndex group = 1; group < groups; ++group) {
    const BlockId b = Id(nodes[above.node], above.offset, group);
    if (b.valid()) visit(b);
  }
  if (!VisitRun(above.node, above.offset + 1, visit)) return;
  std::uint32_t n = NextInPreorder(above.node, above.node, true);
  while (n != kNone) n = NextInPreorder(n, above.node, VisitRun(n, 0, visit));
}

void PrefixIndex::Impl::FlagOrphans(Place tombstone, std::vector<BlockId>* orphans) {
  VisitBelow(tombstone, [&](BlockId b) {
    if (pool->Has(b, word::kOrphan)) return;
    pool->SetFlag(b, word::kOrphan);
    if (orphans != nullptr) orphans->push_back(b);
  });
}

void PrefixIndex::Impl::ReviveOrphans(Place filled, std::vector<BlockId>* revived) {
  VisitBelow(filled, [&](BlockId b) {
    if (!pool->Has(b, word::kOrphan)) return;
    pool->ClearFlag(b, word::kOrphan);
    if (revived != nullptr) revived->push_back(b);
  });
}

// --- Whole trees. ---

void PrefixIndex::Impl::FreeRoot(std::uint32_t root) {
  const auto it = std::find(retired.begin(), retired.end(), root);
  if (stale_node == root) stale_node = kNone;
  *it = retired.back();
  retired.pop_back();
  if (stale_tree == retired.size()) stale_tree = static_cast<std::size_t>(it - retired.begin());

  const std::uint32_t info = nodes[root].tag;
  roots[info] = roots.back();
  nodes[roots[info].node].tag = info;
  roots.pop_back();
  nodes.Give(root);
}

std::uint32_t PrefixIndex::Impl::FirstInPostorder(std::uint32_t node) const noexcept {
  for (std::uint32_t child = node; child != kNone; child = FirstChild(child)) node = child;
  return node;
}

std::uint32_t PrefixIndex::Impl::NextInPostorder(std::uint32_t node) const noexcept {
  const std::uint32_t sibling = NextSibling(node);
  return sibling == kNone ? nodes[node].parent : FirstInPostorder(sibling);
}

// A block at the end of a childless run that no holder and no transfer uses.
BlockId PrefixIndex::Impl::UnprotectedTail(const Node& node) const noexcept {
  if (node.family != kNone || node.length == 0) return {};
  for (std::uint32_t group = groups; group-- > 0;) {
    const BlockId b = Id(node, node.length - 1u, static_cast<GroupIndex>(group));
    if (!b.valid() || IsTombstone(node, b)) continue;
    return pool->holds(b) == 0 && pool->pins(b) == 0 ? b : BlockId();
  }
  return {};
}

BlockId PrefixIndex::Impl::NextStale() noexcept {
  for (; stale_tree < retired.size(); ++stale_tree, stale_node = kNone) {
    const std::uint32_t root = retired[stale_tree];
    if (stale_node == kNone) stale_node = FirstInPostorder(root);
    for (; stale_node != root; stale_node = NextInPostorder(stale_node)) {
      const BlockId b = UnprotectedTail(nodes[stale_node]);
      if (!b.valid() || b == stale_last) continue;
      stale_last = b;
      return b;
    }
  }
  stale_tree = 0;
  stale_last = BlockId();
  return {};
}

}  // namespace tidepool
