// The public face of the prefix index; see prefix_index_impl.h.
#include "tidepool/prefix_index.h"

#include "prefix_index_impl.h"

namespace tidepool {

using internal::kNone;
namespace node_flags = internal::node_flags;

PrefixIndex::PrefixIndex(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
PrefixIndex::~PrefixIndex() = default;

NodeId PrefixIndex::AddRoot(const NamespaceKey& key, std::uint64_t epoch, NamespaceId ns) {
  Impl& i = *impl_;
  if (i.roots.size() >= internal::kMaxRoots) return {};
  const std::uint32_t root = i.nodes.Take();
  if (root == kNone) return {};
  i.nodes[root].flags = node_flags::kRoot;
  i.nodes[root].root = root;
  i.nodes[root].tag = static_cast<std::uint32_t>(i.roots.size());
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

std::uint32_t PrefixIndex::Claims(BlockId block) const noexcept { return impl_->Claims(block); }
std::uint32_t PrefixIndex::StrongestClaim(BlockId block) const noexcept {
  return impl_->StrongestClaimAt(block);
}
bool PrefixIndex::IsOnlyChild(BlockId block, TierIndex tier) const noexcept {
  return impl_->IsOnlyChild(block, tier);
}
void PrefixIndex::AppendUpwards(BlockId block, std::uint32_t count,
                                std::vector<BlockId>& out) const {
  impl_->AppendUpwards(block, count, out);
}
void PrefixIndex::SetClaim(std::uint32_t claim, BlockId deepest, Priority priority,
                           std::vector<BlockId>* changed, MovedClaim* moved) {
  impl_->SetClaim(claim, deepest, priority, changed, moved);
}
void PrefixIndex::ClearClaim(std::uint32_t claim, std::vector<BlockId>* changed,
                             MovedClaim* moved) {
  impl_->SetClaim(claim, BlockId(), Priority::kBackground, changed, moved);
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

// What stands before a run has served at least as many: a full count ends the walk.
void PrefixIndex::CountHit(BlockId deepest) noexcept {
  for (std::uint32_t n = impl_->PlaceOf(deepest).node; n != kNone;) {
    internal::Node& node = impl_->nodes[n];
    if ((node.flags & node_flags::kHitMask) == node_flags::kHitMask) return;
    node.flags = static_cast<std::uint8_t>(node.flags + node_flags::kHitOne);
    n = node.parent;
  }
}

std::uint32_t PrefixIndex::Hits(BlockId block) const noexcept {
  const std::uint32_t n = impl_->PlaceOf(block).node;
  if (n == kNone) return 0;
  return (impl_->nodes[n].flags & node_flags::kHitMask) >> node_flags::kHitShift;
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

PrefixHash PrefixIndex::RootDigest(NodeId root) const noexcept {
  return impl_->RootOf(impl_->nodes[root.value()]).digest;
}

const PrefixHash* PrefixIndex::Content(BlockId block) const noexcept {
  const Impl::Place at = impl_->PlaceOf(block);
  return at.node == kNone ? nullptr : impl_->ContentOf(impl_->nodes[at.node], block);
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
