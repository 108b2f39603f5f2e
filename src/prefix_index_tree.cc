// Nodes, runs, families and residency of the prefix index; see prefix_index_impl.h.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "prefix_index_impl.h"

namespace tidepool {

using internal::kAbsentZone;
using internal::kInlineIds;
using internal::kMaxRun;
using internal::kNone;
namespace node_flags = internal::node_flags;

namespace {

BlockId* AllocateIds(std::size_t count) {
  void* const memory = std::malloc(count * sizeof(BlockId));
  if (memory == nullptr) std::abort();
  return static_cast<BlockId*>(memory);
}

}  // namespace

PrefixIndex::Impl::Impl(const Options& o)
    : pool(o.pool),
      block_tokens(o.pool->block_tokens()),
      groups(std::clamp<std::uint32_t>(o.groups, 1, kMaxGroups)),
      options(o),
      digests(o.digest_seed),
      nodes(std::uint64_t{o.pool->capacity()} + internal::kMaxRoots),
      families(std::uint64_t{o.pool->capacity()} + internal::kMaxRoots) {
  const std::array<std::uint64_t, 2> seed = {o.digest_seed, 0x7469646570616773u};
  (void)XXH3_generateSecret(tag_secret.data(), tag_secret.size(), seed.data(), sizeof(seed));
}

PrefixIndex::Impl::~Impl() {
  for (const internal::RootInfo& root : roots) {
    for (std::uint32_t n = root.node; n != kNone; n = NextInPreorder(n, root.node, true)) {
      if (nodes[n].Is(node_flags::kHeapRun)) std::free(nodes[n].heap_ids);
    }
  }
}

// --- Facts. ---

bool PrefixIndex::Impl::LiveRoot(NodeId root) const noexcept {
  if (!root.valid() || root.value() >= nodes.end()) return false;
  const Node& node = nodes[root.value()];
  return node.Is(node_flags::kRoot) && !node.Is(node_flags::kRetired);
}

GroupIndex PrefixIndex::Impl::GroupOf(const Node& node, std::uint32_t offset,
                                      BlockId b) const noexcept {
  GroupIndex group = 0;
  while (group + 1u < groups && Id(node, offset, group) != b) ++group;
  return group;
}

bool PrefixIndex::Impl::OnlyGroup0(const Node& node, std::uint32_t offset) const noexcept {
  for (GroupIndex group = 1; group < groups; ++group) {
    if (Id(node, offset, group).valid()) return false;
  }
  return true;
}

// --- Content. ---

const PrefixHash* PrefixIndex::Impl::ContentOf(const Node& node, BlockId b) const noexcept {
  if (!node.Is(node_flags::kHasContent)) return nullptr;
  const auto it = contents.find(b.value());
  return it == contents.end() ? nullptr : &it->second;
}

std::uint32_t PrefixIndex::Impl::Tag(std::uint32_t parent, std::span<const Token> tokens,
                                     const PrefixHash* content) const noexcept {
  std::uint64_t hash = options.child_hash != nullptr
                           ? options.child_hash(NodeId(parent), tokens)
                           : XXH3_64bits_withSecret(tokens.data(), tokens.size_bytes(),
                                                    tag_secret.data(), tag_secret.size());
  if (options.child_hash == nullptr) {
    hash ^= parent * 0x9e3779b97f4a7c15u;
    if (content != nullptr) hash ^= content->low + content->high * 0xc2b2ae3d27d4eb4fu;
    hash *= 0x9fb21c651e98df25u;
  }
  return static_cast<std::uint32_t>(hash >> 32);
}

bool PrefixIndex::Impl::SameContent(const Node& node, BlockId b, std::span<const Token> tokens,
                                    const PrefixHash* content) const noexcept {
  if (std::memcmp(pool->tokens(b), tokens.data(), tokens.size_bytes()) != 0) return false;
  const PrefixHash* const own = ContentOf(node, b);
  if (own == nullptr || content == nullptr) return own == content;
  return *own == *content;
}

std::uint32_t PrefixIndex::Impl::FindChild(std::uint32_t parent, std::uint32_t tag,
                                           std::span<const Token> tokens,
                                           const PrefixHash* content) const noexcept {
  if (nodes[parent].family == kNone) return kNone;
  return table.Find(tag, [&](std::uint32_t n) {
    const Node& node = nodes[n];
    return node.parent == parent && SameContent(node, Id(node, 0), tokens, content);
  });
}

// --- Runs. ---

// Storage for `positions`, and for `more` that are said to follow; else a quarter more than there
// are. Keeps the ids there are.
void PrefixIndex::Impl::Reserve(Node& node, std::uint32_t positions, std::uint32_t more) {
  if (positions <= node.capacity) return;
  if (positions * groups <= kInlineIds) {
    node.capacity = static_cast<std::uint16_t>(kInlineIds / groups);
    return;
  }
  const std::uint32_t grown =
      more != 0 ? positions + std::min(more, kMaxRun) : std::max(positions, node.length * 5u / 4u);
  SetHeapRun(node, std::min(grown, kMaxRun));
}

void PrefixIndex::Impl::SetHeapRun(Node& node, std::uint32_t capacity) {
  BlockId* const ids = AllocateIds(std::size_t{capacity} * groups);
  std::memcpy(static_cast<void*>(ids), node.ids(), Ids(node).size_bytes());
  FreeHeapRun(node);
  node.heap_ids = ids;
  node.flags |= node_flags::kHeapRun;
  node.capacity = static_cast<std::uint16_t>(capacity);
  heap_bytes += std::size_t{capacity} * groups * sizeof(BlockId);
}

void PrefixIndex::Impl::FreeHeapRun(const Node& node) noexcept {
  if (!node.Is(node_flags::kHeapRun)) return;
  heap_bytes -= std::size_t{node.capacity} * groups * sizeof(BlockId);
  std::free(node.heap_ids);
}

// Forgets the positions from `length` on; gives memory back once half of it is unused.
void PrefixIndex::Impl::TruncateRun(Node& node, std::uint32_t length) {
  node.length = static_cast<std::uint16_t>(length);
  for (std::uint16_t& end : node.resident_end) end = std::min(end, node.length);
  if (!node.Is(node_flags::kHeapRun) || length > node.capacity / 2u) return;
  if (length * groups > kInlineIds) return SetHeapRun(node, length);
  const Node old = node;
  node.flags &= static_cast<std::uint8_t>(~node_flags::kHeapRun);
  node.capacity = static_cast<std::uint16_t>(kInlineIds / groups);
  std::memcpy(static_cast<void*>(node.ids()), old.ids(), Ids(node).size_bytes());
  FreeHeapRun(old);
}

// --- Families. ---

void PrefixIndex::Impl::LinkChild(std::uint32_t child, std::uint8_t zone) {
  Node& node = nodes[child];
  std::uint32_t& kin = nodes[node.parent].family;
  if (kin == kNone) kin = families.Take();
  node.kin = kin;
  ++families[kin].children;
  Enlist(child, zone);
}

// Puts a node at the head of a list of its kin.
void PrefixIndex::Impl::Enlist(std::uint32_t child, std::uint8_t zone) noexcept {
  Node& node = nodes[child];
  Family::List& list = families[node.kin].zones[zone];
  node.zone = zone;
  node.prev = kNone;
  node.next = list.head;
  (list.head != kNone ? nodes[list.head].prev : list.tail) = child;
  list.head = child;
}

void PrefixIndex::Impl::Delist(std::uint32_t child) noexcept {
  const Node& node = nodes[child];
  Family::List& list = families[node.kin].zones[node.zone];
  (node.prev != kNone ? nodes[node.prev].next : list.head) = node.next;
  (node.next != kNone ? nodes[node.next].prev : list.tail) = node.prev;
}

void PrefixIndex::Impl::Relink(std::uint32_t child, std::uint8_t zone) noexcept {
  Delist(child);
  Enlist(child, zone);
}

void PrefixIndex::Impl::MoveToZone(std::uint32_t child, std::uint8_t zone) noexcept {
  if (nodes[child].zone != zone) Relink(child, zone);
}

std::uint32_t PrefixIndex::Impl::FirstChild(std::uint32_t node) const noexcept {
  if (nodes[node].family == kNone) return kNone;
  for (const Family::List& list : families[nodes[node].family].zones) {
    if (list.head != kNone) return list.head;
  }
  return kNone;
}

std::uint32_t PrefixIndex::Impl::NextSibling(std::uint32_t n) const noexcept {
  const Node& node = nodes[n];
  if (node.next != kNone) return node.next;
  if (node.kin == kNone) return kNone;
  const Family& family = families[node.kin];
  for (std::size_t zone = node.zone + 1u; zone < family.zones.size(); ++zone) {
    if (family.zones[zone].head != kNone) return family.zones[zone].head;
  }
  return kNone;
}

std::uint32_t PrefixIndex::Impl::NextInPreorder(std::uint32_t node, std::uint32_t top,
                                                bool descend) const noexcept {
  if (descend) {
    const std::uint32_t child = FirstChild(node);
    if (child != kNone) return child;
  }
  for (; node != top; node = nodes[node].parent) {
    const std::uint32_t sibling = NextSibling(node);
    if (sibling != kNone) return sibling;
  }
  return kNone;
}

// --- Nodes. ---

std::uint32_t PrefixIndex::Impl::NewNode(std::uint32_t parent) {
  const std::uint32_t n = nodes.Take();
  if (n == kNone) return kNone;
  Node& node = nodes[n];
  const Node& above = nodes[parent];
  node.parent = parent;
  node.root = above.root;
  node.position = above.position + above.length;
  node.capacity = static_cast<std::uint16_t>(kInlineIds / groups);
  return n;
}

// `upper` has taken [0, at) of the run that `lower` keeps the rest of: the ids are moved already.
void PrefixIndex::Impl::RecountAfterSplit(Node& upper, Node& lower) {
  for (std::size_t tier = 0; tier < kMaxTiers; ++tier) {
    const std::uint16_t end = lower.resident_end[tier];
    upper.resident_end[tier] = std::min(end, upper.length);
    lower.resident_end[tier] =
        end >= upper.length ? static_cast<std::uint16_t>(end - upper.length) : std::uint16_t{0};
  }
  if (lower.pending == 0 && lower.tombstones == 0) return;
  for (BlockId b : Ids(upper)) {
    if (!b.valid()) continue;
    upper.pending += pool->Has(b, word::kPending) ? 1 : 0;
    if (tombstones.contains(b.value())) ++upper.tombstones;
  }
  lower.pending -= upper.pending;
  lower.tombstones = static_cast<std::uint16_t>(lower.tombstones - upper.tombstones);
}

// `upper` takes the place of its coming child `lower` among the siblings and in the table.
void PrefixIndex::Impl::TakePlaceOf(std::uint32_t upper_id, std::uint32_t lower_id) {
  const Node& lower = nodes[lower_id];
  Node& upper = nodes[upper_id];
  upper.next = lower.next;
  upper.prev = lower.prev;
  upper.zone = lower.zone;
  upper.kin = lower.kin;
  Family::List& list = families[upper.kin].zones[upper.zone];
  (upper.prev != kNone ? nodes[upper.prev].next : list.head) = upper_id;
  (upper.next != kNone ? nodes[upper.next].prev : list.tail) = upper_id;
  upper.tag = lower.tag;
  table.Replace(upper.tag, lower_id, upper_id);
}

void PrefixIndex::Impl::SetPlaces(std::uint32_t n) noexcept {
  const std::span<const BlockId> ids = Ids(nodes[n]);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!ids[i].valid()) continue;
    pool->set_node(ids[i], NodeId(n), static_cast<std::uint32_t>(i / groups));
  }
}

std::uint32_t PrefixIndex::Impl::Split(std::uint32_t lower_id, std::uint32_t at) {
  const std::uint32_t upper_id = NewNode(nodes[lower_id].parent);
  Node& lower = nodes[lower_id];
  Node& upper = nodes[upper_id];
  upper.flags = lower.flags & (node_flags::kHasContent | node_flags::kHitMask);
  upper.timeline = lower.timeline;
  upper.coverage = lower.coverage;
  upper.tick = lower.tick;
  TakePlaceOf(upper_id, lower_id);

  const std::size_t cut = std::size_t{at} * groups;
  Reserve(upper, at, 0);
  std::memcpy(static_cast<void*>(upper.ids()), lower.ids(), cut * sizeof(BlockId));
  upper.length = static_cast<std::uint16_t>(at);
  RecountAfterSplit(upper, lower);
  std::memmove(static_cast<void*>(lower.ids()), lower.ids() + cut,
               Ids(lower).size_bytes() - cut * sizeof(BlockId));
  TruncateRun(lower, lower.length - at);
  for (std::size_t tier = 0; tier < pool->tier_count(); ++tier) ExtendResidency(lower, tier);
  SetPlaces(upper_id);
  SetPlaces(lower_id);

  lower.parent = upper_id;
  lower.position += at;
  const BlockId first = Id(lower, 0);
  lower.tag = Tag(upper_id, TokensOf(first), ContentOf(lower, first));
  table.Insert(lower.tag, lower_id);
  LinkChild(lower_id, PlannedTier(lower, first));
  return upper_id;
}

// REQUIRES: no blocks and no children. Its claims end at the parent from now on. Returns the parent
// if this was its last child, else kNone.
std::uint32_t PrefixIndex::Impl::DeleteNode(std::uint32_t n) {
  const Node& node = nodes[n];
  if (stale_node == n) stale_node = NextInPostorder(n);
  if (node.first_claim != kNone) HandClaimsUp(n);
  table.Erase(node.tag, n);
  Delist(n);
  FreeHeapRun(node);
  nodes.Give(n);
  if (--families[node.kin].children != 0) return kNone;
  families.Give(node.kin);
  nodes[node.parent].family = kNone;
  return node.parent;
}

// --- Residency. ---

// Lets resident_end grow over the positions behind it that have a copy.
void PrefixIndex::Impl::ExtendResidency(Node& node, std::size_t tier) noexcept {
  std::uint16_t& end = node.resident_end[tier];
  while (end < node.length && TopTier(node, Id(node, end)) <= tier) ++end;
}

// The copies of group 0's block at `offset` changed.
void PrefixIndex::Impl::RefreshResidency(std::uint32_t n, std::uint32_t offset) noexcept {
  Node& node = nodes[n];
  const std::uint8_t top = TopTier(node, Id(node, offset));
  for (std::size_t tier = 0; tier < pool->tier_count(); ++tier) {
    std::uint16_t& end = node.resident_end[tier];
    if (top > tier) {
      end = std::min(end, static_cast<std::uint16_t>(offset));
    } else if (end == offset) {
      ExtendResidency(node, tier);
    }
  }
  if (offset == 0) MoveToZone(n, top);
}

}  // namespace tidepool
