// Publishing; see prefix_index_impl.h.
#include <algorithm>
#include <cstring>
#include <utility>

#include "prefix_index_impl.h"

namespace tidepool {

using internal::kMaxRun;
using internal::kNone;
namespace node_flags = internal::node_flags;

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
  if (ClaimCount(node) != 0) pool->set_claim_priority(b, internal::StrongestClaim(node));
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

PrefixHash PrefixIndex::BlockDigest(PrefixHash parent, std::span<const Token> tokens,
                                    const PrefixHash* content) const noexcept {
  return impl_->BlockDigest(parent, tokens, content);
}

}  // namespace tidepool
