// Publishing and removing, and the public face of the prefix index; see prefix_index_impl.h.
#include "tidepool/prefix_index.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "prefix_index_impl.h"

namespace tidepool {

using internal::kAbsentZone;
using internal::kMaxRun;
using internal::kNone;
namespace node_flags = internal::node_flags;

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

// --- Publishing. ---

// The place after the cursor; false if the prefix before it left the index or may not grow.
inline bool PrefixIndex::Impl::Resolve(const PublishCursor& cursor, Place* next) const noexcept {
  if (!cursor.last.valid()) {
    *next = {cursor.root.value(), 0};
    return LiveRoot(cursor.root);
  }
  if (cursor.check != 0 && cursor.check != pool->generation(cursor.last) + 1) return false;
  *next = PlaceOf(cursor.last);
  ++next->offset;
  return next->node != kNone && !Retired(nodes[next->node]);
}

// A node has one timeline for its pending blocks.
inline bool PrefixIndex::Impl::TimelineFits(const Node& node,
                                            const PublishArgs& args) const noexcept {
  return !args.pending || node.pending == 0 || node.timeline == args.timeline.value();
}

inline bool PrefixIndex::Impl::MayExtend(const Node& node, const PublishArgs& args) const noexcept {
  if (node.family != kNone || node.length >= kMaxRun || node.Is(node_flags::kRoot)) return false;
  return TimelineFits(node, args) && ClaimCount(node) <= (args.may_extend_claimed ? 1u : 0u);
}

// What a block published behind the cursor is flagged with.
inline std::uint32_t PrefixIndex::Impl::NewFlags(const PublishCursor& cursor, const Node& node,
                                                 const PublishArgs& args) const noexcept {
  const std::uint32_t flags = word::kPublished | (args.pending ? word::kPending : 0u);
  if (!cursor.last.valid()) return flags;
  const bool lost = IsTombstone(node, cursor.last);
  return flags | (lost ? word::kOrphan : pool->word(cursor.last) & word::kOrphan);
}

inline PrefixHash PrefixIndex::Impl::BlockDigest(PrefixHash parent, std::span<const Token> tokens,
                                                 const PrefixHash* content) const noexcept {
  if (options.block_digest != nullptr) return options.block_digest(parent, tokens);
  return digests.Block(parent, tokens, content);
}

// Group 0's block keeps the tokens; all have the digest.
inline void PrefixIndex::Impl::Seal(std::span<const BlockId> position,
                                    std::span<const Token> tokens, PrefixHash digest) noexcept {
  Token* const own = pool->mutable_tokens(position[0]);
  if (own != tokens.data()) std::memcpy(own, tokens.data(), tokens.size_bytes());
  for (BlockId b : position) {
    if (b.valid()) pool->set_digest(b, digest);
  }
}

// Puts a block at a position that has none of its group.
inline void PrefixIndex::Impl::Settle(Place at, GroupIndex group, BlockId b,
                                      std::uint32_t flags) noexcept {
  Node& node = nodes[at.node];
  node.ids()[at.offset * groups + group] = b;
  if (!b.valid()) return;
  ++blocks;
  node.pending += (flags & word::kPending) != 0 ? 1 : 0;
  pool->set_node(b, NodeId(at.node), at.offset);
  pool->SetFlag(b, flags);
  if (ClaimCount(node) != 0) pool->set_claim_priority(b, StrongestClaim(node));
}

// Appends a position to a run that has room for it.
inline void PrefixIndex::Impl::Append(std::uint32_t n, std::span<const BlockId> position,
                                      std::uint32_t flags) noexcept {
  Node& node = nodes[n];
  const std::uint32_t offset = node.length++;
  Settle({n, offset}, 0, position[0], flags);
  for (GroupIndex group = 1; group < groups; ++group) {
    Settle({n, offset}, group, group < position.size() ? position[group] : BlockId(), flags);
  }
  for (std::size_t tier = TopTier(node, position[0]); tier < pool->tier_count(); ++tier) {
    std::uint16_t& end = node.resident_end[tier];
    end = static_cast<std::uint16_t>(end + (end == offset ? 1 : 0));
  }
}

void PrefixIndex::Impl::SetContent(Node& node, BlockId b, const PrefixHash* content) {
  if (content == nullptr) return;
  node.flags |= node_flags::kHasContent;
  contents[b.value()] = *content;
}

std::uint32_t PrefixIndex::Impl::Extend(PublishCursor& cursor, const PublishArgs& args) {
  Place at;
  if (!cursor.last.valid() || args.content != nullptr || args.tokens.size() < block_tokens ||
      !Resolve(cursor, &at)) {
    return 0;
  }
  Node& node = nodes[at.node];
  if (at.offset != node.length || !MayExtend(node, args)) return 0;
  const auto positions = static_cast<std::uint32_t>(
      std::min<std::size_t>(args.tokens.size() / block_tokens, kMaxRun - node.length));
  Reserve(node, node.length + positions, args.more);
  if (args.pending) node.timeline = args.timeline.value();
  const std::uint32_t flags = NewFlags(cursor, node, args);
  const std::size_t ids = args.blocks.size() * block_tokens / args.tokens.size();
  PrefixHash digest = pool->digest(cursor.last);
  for (std::uint32_t i = 0; i < positions; ++i) {
    const std::span<const Token> tokens =
        args.tokens.subspan(std::size_t{i} * block_tokens, block_tokens);
    const std::span<const BlockId> position = args.blocks.subspan(i * ids, ids);
    digest = BlockDigest(digest, tokens, nullptr);
    Seal(position, tokens, digest);
    Append(at.node, position, flags);
  }
  MoveTo(cursor, Id(node, node.length - 1u));
  return positions;
}

void PrefixIndex::Impl::MoveTo(PublishCursor& cursor, BlockId last) const noexcept {
  cursor.last = last;
  cursor.check = pool->generation(last) + 1;
}

PublishResult PrefixIndex::Impl::Publish(PublishCursor& cursor, const PublishArgs& args) {
  if (Extend(cursor, args) != 0) return PublishResult::kPublished;
  Place at;
  if (!Resolve(cursor, &at)) return PublishResult::kDetached;
  const std::uint32_t flags = NewFlags(cursor, nodes[at.node], args);
  const bool inside = at.offset < nodes[at.node].length;
  const std::uint32_t child = inside ? kNone
                                     : FindChild(at.node, Tag(at.node, args.tokens, args.content),
                                                 args.tokens, args.content);
  if (child != kNone) at = {child, 0};
  const Node& node = nodes[at.node];
  if (child != kNone ||
      (inside && SameContent(node, Id(node, at.offset), args.tokens, args.content))) {
    return Join(at, cursor, args, flags);
  }
  const PrefixHash parent = cursor.last.valid() ? pool->digest(cursor.last) : RootOf(node).digest;
  Seal(args.blocks, args.tokens, BlockDigest(parent, args.tokens, args.content));
  if (!inside && MayExtend(node, args)) {
    Reserve(nodes[at.node], node.length + 1u, args.more);
    AppendOne(at.node, args, flags);
  } else {
    AddChild(inside ? Split(at.node, at.offset) : at.node, args, flags);
  }
  MoveTo(cursor, args.blocks[0]);
  return PublishResult::kPublished;
}

void PrefixIndex::Impl::AppendOne(std::uint32_t n, const PublishArgs& args, std::uint32_t flags) {
  Node& node = nodes[n];
  if (args.pending) node.timeline = args.timeline.value();
  Append(n, args.blocks, flags);
  SetContent(node, args.blocks[0], args.content);
}

void PrefixIndex::Impl::AddChild(std::uint32_t parent, const PublishArgs& args,
                                 std::uint32_t flags) {
  const std::uint32_t n = NewNode(parent);
  Node& node = nodes[n];
  node.tick = nodes[parent].tick;
  AppendOne(n, args, flags);
  node.tag = Tag(parent, args.tokens, args.content);
  table.Insert(node.tag, n);
  LinkChild(n, TopTier(node, args.blocks[0]));
}

// The position is there already: fills what is empty of it.
PublishResult PrefixIndex::Impl::Join(Place at, PublishCursor& cursor, const PublishArgs& args,
                                      std::uint32_t flags) {
  const BlockId standing = Id(nodes[at.node], at.offset);
  Seal(args.blocks, args.tokens, pool->digest(standing));
  const bool lost = IsTombstone(nodes[at.node], standing);
  const auto fills = [&](std::uint32_t group) {
    return args.blocks[group].valid() &&
           !Id(nodes[at.node], at.offset, static_cast<GroupIndex>(group)).valid();
  };
  const auto given = static_cast<std::uint32_t>(std::min<std::size_t>(groups, args.blocks.size()));
  bool any = lost;
  for (std::uint32_t group = 1; group < given; ++group) any = any || fills(group);
  if (any) at = Isolate(at, args);
  if (any && !TimelineFits(nodes[at.node], args)) {  // another group's block is pending elsewhere
    if (lost) return PublishResult::kDetached;
    any = false;
  }
  MoveTo(cursor, lost ? args.blocks[0] : standing);
  if (!any) return PublishResult::kDuplicate;
  if (args.pending) nodes[at.node].timeline = args.timeline.value();
  for (std::uint32_t group = 1; group < given; ++group) {
    if (fills(group)) Settle(at, static_cast<GroupIndex>(group), args.blocks[group], flags);
  }
  if (lost) FillTombstone(at, args, flags);
  return PublishResult::kPublished;
}

// A position whose pending blocks need another timeline than its node's becomes a node.
PrefixIndex::Impl::Place PrefixIndex::Impl::Isolate(Place at, const PublishArgs& args) {
  if (TimelineFits(nodes[at.node], args)) return at;
  if (at.offset + 1u < nodes[at.node].length) at.node = Split(at.node, at.offset + 1);
  if (at.offset > 0) (void)Split(at.node, std::exchange(at.offset, 0u));
  return at;
}

void PrefixIndex::Impl::FillTombstone(Place at, const PublishArgs& args, std::uint32_t flags) {
  Node& node = nodes[at.node];
  FreeTombstone(node, Id(node, at.offset));
  Settle(at, 0, args.blocks[0], flags);
  SetContent(node, args.blocks[0], args.content);
  RefreshResidency(at.node, at.offset);
  if ((flags & word::kOrphan) == 0) ReviveOrphans(at, args.revived);
}

void PrefixIndex::Impl::Confirm(std::span<const BlockId> published) noexcept {
  for (BlockId b : published) {
    if (!pool->Has(b, word::kPublished) || !pool->Has(b, word::kPending)) continue;
    pool->ClearFlag(b, word::kPending);
    --nodes[PlaceOf(b).node].pending;
  }
}

// --- Removing. ---

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
    TruncateRun(node, at.offset);
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
void PrefixIndex::Impl::CutTail(std::uint32_t n) {
  while (nodes[n].family == kNone && !IsRoot(n)) {
    Node& node = nodes[n];
    while (node.length > 0) {
      const std::uint32_t last = node.length - 1u;
      const BlockId b = Id(node, last);
      if (!IsTombstone(node, b) || !OnlyGroup0(node, last)) return;
      FreeTombstone(node, b);
      TruncateRun(node, last);
    }
    const std::uint32_t parent = node.parent;
    DeleteNode(n);
    n = parent;
  }
  if (nodes[n].Is(node_flags::kRetired) && nodes[n].family == kNone) FreeRoot(n);
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

  const std::uint32_t info = nodes[root].run.root_info;
  roots[info] = roots.back();
  nodes[roots[info].node].run.root_info = info;
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

// --- The public face. ---

PrefixIndex::PrefixIndex(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
PrefixIndex::~PrefixIndex() = default;

NodeId PrefixIndex::AddRoot(const NamespaceKey& key, std::uint64_t epoch, NamespaceId ns) {
  Impl& i = *impl_;
  if (i.roots.size() >= internal::kMaxRoots) return {};
  const std::uint32_t root = i.nodes.Take();
  if (root == kNone) return {};
  i.nodes[root].flags = node_flags::kRoot;
  i.nodes[root].root = root;
  i.nodes[root].run.root_info = static_cast<std::uint32_t>(i.roots.size());
  i.roots.push_back({.node = root, .ns = ns, .digest = i.digests.Root(key, epoch)});
  return NodeId(root);
}

NamespaceId PrefixIndex::root_namespace(NodeId node) const noexcept {
  return impl_->RootOf(impl_->nodes[node.value()]).ns;
}
NodeId PrefixIndex::root_of(NodeId node) const noexcept {
  return NodeId(impl_->nodes[node.value()].root);
}

void PrefixIndex::Match(const MatchQuery& query, MatchResult& result) const {
  impl_->Match(query, result);
}
PublishResult PrefixIndex::Publish(PublishCursor& cursor, const PublishArgs& args) {
  return impl_->Publish(cursor, args);
}
std::uint32_t PrefixIndex::Extend(PublishCursor& cursor, const PublishArgs& args) {
  return impl_->Extend(cursor, args);
}
void PrefixIndex::ConfirmPublished(std::span<const BlockId> blocks) noexcept {
  impl_->Confirm(blocks);
}

void PrefixIndex::OnCopyChanged(BlockId block) noexcept {
  const Impl::Place at = impl_->PlaceOf(block);
  if (at.node == kNone || impl_->Id(impl_->nodes[at.node], at.offset) != block) return;
  impl_->RefreshResidency(at.node, at.offset);
}

bool PrefixIndex::Remove(BlockId block, std::vector<BlockId>* orphans) {
  return impl_->Remove(block, orphans);
}

bool PrefixIndex::IsResidentTail(BlockId block, TierIndex tier) const noexcept {
  return impl_->IsResidentTail(block, tier);
}
BlockId PrefixIndex::ResidentTail(BlockId block, TierIndex tier) const noexcept {
  return impl_->ResidentTail(block, tier);
}
void PrefixIndex::MarkChosen(BlockId block, TierIndex tier) noexcept {
  impl_->MarkChosen(block, tier);
}
void PrefixIndex::UnmarkChosen(BlockId block, TierIndex) noexcept { impl_->UnmarkChosen(block); }
void PrefixIndex::Touch(BlockId deepest, std::uint64_t tick) noexcept {
  impl_->Touch(deepest, tick);
}

void PrefixIndex::SetClaim(std::uint32_t claim, BlockId deepest, Priority priority,
                           std::vector<BlockId>* changed) {
  impl_->SetClaim(claim, deepest, priority, changed);
}
void PrefixIndex::ClearClaim(std::uint32_t claim, std::vector<BlockId>* changed) {
  impl_->SetClaim(claim, BlockId(), Priority::kBackground, changed);
}
BlockId PrefixIndex::ClaimedTail(std::uint32_t claim) const noexcept {
  return impl_->ClaimedTail(claim);
}
void PrefixIndex::AppendPath(BlockId deepest, std::vector<BlockId>& out) const {
  impl_->AppendPath(deepest, out);
}

void PrefixIndex::Retire(NodeId root) {
  if (!impl_->LiveRoot(root)) return;
  Impl::Node& node = impl_->nodes[root.value()];
  node.flags |= node_flags::kRetired;
  impl_->retired.push_back(root.value());
  if (node.family == kNone) impl_->FreeRoot(root.value());
}
BlockId PrefixIndex::NextStale() noexcept { return impl_->NextStale(); }
bool PrefixIndex::IsStale(BlockId block) const noexcept {
  const Impl::Place at = impl_->PlaceOf(block);
  return at.node != kNone && impl_->Retired(impl_->nodes[at.node]);
}

void PrefixIndex::PrefetchNode(BlockId block) const noexcept { impl_->PrefetchNode(block); }
void PrefixIndex::PrefetchForRemoval(BlockId block) const noexcept {
  impl_->PrefetchForRemoval(block);
}

std::uint32_t PrefixIndex::blocks() const noexcept { return impl_->blocks; }
std::uint32_t PrefixIndex::nodes() const noexcept {
  return impl_->nodes.live() - static_cast<std::uint32_t>(impl_->roots.size());
}
std::uint32_t PrefixIndex::tombstones() const noexcept {
  return static_cast<std::uint32_t>(impl_->tombstones.size());
}

std::uint64_t PrefixIndex::Position(BlockId block) const noexcept {
  const Impl::Place at = impl_->PlaceOf(block);
  if (at.node == kNone) return impl_->pool->private_position(block);
  return std::uint64_t{impl_->nodes[at.node].position} + at.offset;
}

BlockId PrefixIndex::Parent(BlockId block) const noexcept {
  const Impl::Place at = impl_->PlaceOf(block);
  if (at.node == kNone) return {};
  const Impl::Node& node = impl_->nodes[at.node];
  const GroupIndex group = impl_->GroupOf(node, at.offset, block);
  if (at.offset > 0) return impl_->Id(node, at.offset - 1, group);
  const Impl::Node& parent = impl_->nodes[node.parent];
  return parent.length == 0 ? BlockId() : impl_->Id(parent, parent.length - 1u, group);
}

PrefixHash PrefixIndex::ParentDigest(BlockId block) const noexcept {
  const Impl::Place at = impl_->PlaceOf(block);
  if (at.node == kNone) return {};
  const Impl::Node& node = impl_->nodes[at.node];
  if (at.offset > 0) return impl_->pool->digest(impl_->Id(node, at.offset - 1));
  const Impl::Node& parent = impl_->nodes[node.parent];
  if (parent.length == 0) return impl_->RootOf(node).digest;
  return impl_->pool->digest(impl_->Id(parent, parent.length - 1u));
}

void PrefixIndex::ForEach(void (*visit)(void*, BlockId), void* context) const {
  for (const internal::RootInfo& root : impl_->roots) {
    for (std::uint32_t n = root.node; n != kNone; n = impl_->NextInPreorder(n, root.node, true)) {
      if (impl_->IsRoot(n)) continue;
      for (BlockId b : impl_->Ids(impl_->nodes[n])) {
        if (b.valid() && impl_->pool->valid_mask(b) != 0) visit(context, b);
      }
    }
  }
}

Status PrefixIndex::Audit() const { return impl_->Audit(); }

std::uint64_t PrefixIndex::MemoryBytes() const noexcept {
  constexpr std::uint64_t kContentEntry = 25;  // slot and control byte, at the usual load
  constexpr std::uint64_t kTombstoneEntry = 6;
  return impl_->nodes.MemoryBytes() + impl_->families.MemoryBytes() + impl_->table.MemoryBytes() +
         impl_->heap_bytes + impl_->roots.capacity() * sizeof(internal::RootInfo) +
         impl_->claims.capacity() * sizeof(internal::Claim) +
         impl_->contents.capacity() * kContentEntry +
         impl_->tombstones.capacity() * kTombstoneEntry;
}

}  // namespace tidepool
