// prefix_index_impl.h - the data of the prefix index and the steps its sources share. Private.
//
// Words used here:
//   position   one place in a prefix; it has one id per cache group, group 0's carries the tokens
//   run        the positions of one node
//   family     what a node with children knows about them
//   zone       a child's list in its family: the topmost tier with a copy of its first block
//   tombstone  a position that lost its last copy while something below it lives
//
// Invariants (Audit checks them all):
//   * children hang off the end of a run only; a node has a family exactly when it has children;
//   * the child table has each node but the roots, under Tag(parent, first block);
//   * a zone's list is in order of recency, head = most recently touched; so the coldest child that
//     counts in a tier is the tail of one of at most kMaxTiers lists;
//   * coverage[p] of a node is the number of claims of priority p whose path covers it; a claim is
//     listed at its deepest node only, never at a root.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

#include "prefix_index_table.h"
#include "tidepool/prefix_index.h"
#include "zeroed_array.h"

namespace tidepool::internal {

inline constexpr std::uint32_t kNone = 0xffffffff;

/// Zone of a child whose first block has no copy that counts.
inline constexpr std::uint8_t kAbsentZone = kMaxTiers;

/// Positions in a run at most: offsets are 16 bits wide in the pool's records.
inline constexpr std::uint32_t kMaxRun = 65535;

/// Roots alive at once, retired ones included.
inline constexpr std::uint32_t kMaxRoots = 1u << 18;

namespace node_flags {
inline constexpr std::uint8_t kRoot = 1;
inline constexpr std::uint8_t kRetired = 2;     // roots only
inline constexpr std::uint8_t kHeapRun = 4;     // ids are in heap_ids
inline constexpr std::uint8_t kHasContent = 8;  // some block may have a content key
inline constexpr unsigned kHitShift = 4;        // admissions served from the run, up to 3
inline constexpr std::uint8_t kHitOne = 1u << kHitShift;
inline constexpr std::uint8_t kHitMask = 3u << kHitShift;
}  // namespace node_flags

inline constexpr std::uint32_t kInlineIds = 8;

struct alignas(64) Node {
  // First cache line: what removing a leaf touches, of it and of its neighbours; and of a long run
  // what Match reads.
  std::uint16_t length = 0;    // positions
  std::uint16_t capacity = 0;  // positions that the run's storage can take
  std::uint16_t tombstones = 0;
  std::uint8_t flags = 0;
  std::uint8_t zone = kAbsentZone;
  std::uint32_t pending = 0;  // blocks of all groups
  std::uint32_t parent = kNone;
  std::uint32_t next = kNone;  // siblings of the same zone
  std::uint32_t prev = kNone;
  std::uint32_t kin = kNone;     // the parent's family
  std::uint32_t family = kNone;  // its own
  std::uint32_t root = kNone;
  std::uint32_t tag = 0;  // under which the child table has this node; of a root: index in roots
  std::uint32_t first_claim = kNone;
  std::array<std::uint16_t, kMaxTiers> resident_end{};
  BlockId* heap_ids = nullptr;  // if kHeapRun
  // Second line.
  std::array<BlockId, kInlineIds> inline_ids;  // else
  std::array<std::uint32_t, kPriorityCount> coverage{};
  std::uint64_t tick = 0;
  std::uint32_t position = 0;  // of the first block, in its prefix
  std::uint32_t timeline = 0;  // of the pending blocks

  [[nodiscard]] bool Is(std::uint8_t flag) const noexcept { return (flags & flag) != 0; }
  [[nodiscard]] const BlockId* ids() const noexcept {
    return Is(node_flags::kHeapRun) ? heap_ids : inline_ids.data();
  }
  [[nodiscard]] BlockId* ids() noexcept {
    return Is(node_flags::kHeapRun) ? heap_ids : inline_ids.data();
  }
};
static_assert(sizeof(Node) == 128 && offsetof(Node, inline_ids) == 64);

struct alignas(64) Family {
  struct List {
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
  };
  std::array<List, kMaxTiers + 1> zones;
  std::uint32_t children = 0;
};
static_assert(sizeof(Family) == 64);

/// Records named by dense numbers that are used again; their addresses never change.
template <typename T>
class Store {
 public:
  explicit Store(std::uint64_t capacity) : records_(capacity) {}
  [[nodiscard]] T& operator[](std::uint32_t i) const noexcept { return records_[i]; }
  [[nodiscard]] std::uint32_t live() const noexcept {
    return end_ - static_cast<std::uint32_t>(free_.size());
  }
  [[nodiscard]] std::uint32_t end() const noexcept { return end_; }
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept {
    return end_ * sizeof(T) + free_.capacity() * sizeof(std::uint32_t);
  }
  /// A record in its default state, or kNone if all are taken.
  [[nodiscard]] std::uint32_t Take() {
    std::uint32_t i = end_;
    if (!free_.empty()) {
      i = free_.back();
      free_.pop_back();
    } else if (end_ == records_.size()) {
      return kNone;
    } else {
      ++end_;
    }
    records_[i] = T{};
    return i;
  }
  void Give(std::uint32_t i) { free_.push_back(i); }

 private:
  ZeroedArray<T> records_;
  std::vector<std::uint32_t> free_;
  std::uint32_t end_ = 0;
};

struct RootInfo {
  std::uint32_t node = kNone;
  NamespaceId ns;
  PrefixHash digest;
};

struct Claim {
  std::uint32_t node = kNone;  // deepest node covered, kNone: nothing
  std::uint32_t next = kNone;  // claims that end at the same node
  std::uint32_t prev = kNone;
  Priority priority = Priority::kBackground;
};

[[nodiscard]] inline Priority StrongestClaim(const Node& node) noexcept {
  for (std::size_t p = kPriorityCount; p-- > 1;) {
    if (node.coverage[p] != 0) return static_cast<Priority>(p);
  }
  return Priority::kBackground;
}

[[nodiscard]] inline std::uint32_t ClaimCount(const Node& node) noexcept {
  return node.coverage[0] + node.coverage[1] + node.coverage[2] + node.coverage[3];
}

}  // namespace tidepool::internal

namespace tidepool {

struct PrefixIndex::Impl {
  using Node = internal::Node;
  using Family = internal::Family;
  /// A position: `offset` may be the run's length, where the next block would go.
  struct Place {
    std::uint32_t node = internal::kNone;
    std::uint32_t offset = 0;
  };

  explicit Impl(const Options& options);
  ~Impl();

  // --- Facts of a node (inline, hot). ---
  [[nodiscard]] BlockId Id(const Node& node, std::uint32_t offset,
                           GroupIndex group = 0) const noexcept {
    return node.ids()[offset * groups + group];
  }
  [[nodiscard]] std::span<const BlockId> Ids(const Node& node) const noexcept {
    return {node.ids(), std::size_t{node.length} * groups};
  }
  [[nodiscard]] bool IsTombstone(const Node& node, BlockId b) const noexcept {
    return node.tombstones != 0 && tombstones.contains(b.value());
  }
  /// Topmost tier with a valid copy, or kAbsentZone.
  [[nodiscard]] std::uint8_t TopTier(const Node& node, BlockId b) const noexcept {
    const std::uint32_t valid = pool->valid_mask(b);
    if (valid == 0 || IsTombstone(node, b)) return internal::kAbsentZone;
    return static_cast<std::uint8_t>(__builtin_ctz(valid));
  }
  /// Where a block counts once its victims' plan is carried out: a chosen block has lost its
  /// topmost copy.
  [[nodiscard]] std::uint8_t PlannedTier(const Node& node, BlockId b) const noexcept {
    const std::uint8_t top = TopTier(node, b);
    return pool->Has(b, word::kChosen) ? TierBelow(top) : top;
  }
  [[nodiscard]] std::uint8_t TierBelow(std::uint8_t tier) const noexcept {
    return tier + 1 < pool->tier_count() ? static_cast<std::uint8_t>(tier + 1)
                                         : internal::kAbsentZone;
  }
  [[nodiscard]] std::span<const Token> TokensOf(BlockId b) const noexcept {
    return {pool->tokens(b), block_tokens};
  }
  [[nodiscard]] const PrefixHash* ContentOf(const Node& node, BlockId b) const noexcept;
  [[nodiscard]] const internal::RootInfo& RootOf(const Node& node) const noexcept {
    return roots[nodes[node.root].tag];
  }
  [[nodiscard]] bool Retired(const Node& node) const noexcept {
    return nodes[node.root].Is(internal::node_flags::kRetired);
  }
  [[nodiscard]] bool IsRoot(std::uint32_t node) const noexcept {
    return nodes[node].Is(internal::node_flags::kRoot);
  }
  [[nodiscard]] bool LiveRoot(NodeId root) const noexcept;
  /// The published place of a block; node is kNone for a private block.
  [[nodiscard]] Place PlaceOf(BlockId b) const noexcept {
    const NodeId node = pool->node(b);
    return node.valid() ? Place{node.value(), pool->offset(b)} : Place{};
  }
  [[nodiscard]] GroupIndex GroupOf(const Node& node, std::uint32_t offset,
                                   BlockId b) const noexcept;
  /// True if no group but group 0 has a block at the position.
  [[nodiscard]] bool OnlyGroup0(const Node& node, std::uint32_t offset) const noexcept;

  // --- prefix_index_tree.cc: nodes, runs, families, residency. ---
  [[nodiscard]] std::uint32_t Tag(std::uint32_t parent, std::span<const Token> tokens,
                                  const PrefixHash* content) const noexcept;
  [[nodiscard]] bool SameContent(const Node& node, BlockId b, std::span<const Token> tokens,
                                 const PrefixHash* content) const noexcept;
  [[nodiscard]] std::uint32_t FindChild(std::uint32_t parent, std::uint32_t tag,
                                        std::span<const Token> tokens,
                                        const PrefixHash* content) const noexcept;
  /// A node without blocks below `parent`, in no list and no table yet; kNone if all are taken.
  [[nodiscard]] std::uint32_t NewNode(std::uint32_t parent);
  void Reserve(Node& node, std::uint32_t positions, std::uint32_t more);
  void SetHeapRun(Node& node, std::uint32_t capacity);
  void FreeHeapRun(const Node& node) noexcept;
  void TruncateRun(Node& node, std::uint32_t length);
  void LinkChild(std::uint32_t child, std::uint8_t zone);
  void Enlist(std::uint32_t child, std::uint8_t zone) noexcept;
  void Delist(std::uint32_t child) noexcept;
  void Relink(std::uint32_t child, std::uint8_t zone) noexcept;
  void MoveToZone(std::uint32_t child, std::uint8_t zone) noexcept;
  /// Cuts a run before `at`: the new node takes the positions before it, `lower` keeps the rest,
  /// its children and the claims that end in it. Returns the new node.
  std::uint32_t Split(std::uint32_t lower, std::uint32_t at);
  std::uint32_t DeleteNode(std::uint32_t node);
  void RecountAfterSplit(Node& upper, Node& lower);
  void TakePlaceOf(std::uint32_t upper, std::uint32_t lower);
  void SetPlaces(std::uint32_t node) noexcept;
  void ExtendResidency(Node& node, std::size_t tier) noexcept;
  void RefreshResidency(std::uint32_t node, std::uint32_t offset) noexcept;
  /// The node after `node` in the preorder of its subtree's tree, kNone at the end of `top`'s.
  [[nodiscard]] std::uint32_t NextInPreorder(std::uint32_t node, std::uint32_t top,
                                             bool descend) const noexcept;
  [[nodiscard]] std::uint32_t FirstChild(std::uint32_t node) const noexcept;
  [[nodiscard]] std::uint32_t NextSibling(std::uint32_t node) const noexcept;

  // --- prefix_index.cc: publishing and removing, whole trees. ---
  [[nodiscard]] bool Resolve(const PublishCursor& cursor, Place* next) const noexcept;
  [[nodiscard]] bool TimelineFits(const Node& node, const PublishArgs& args) const noexcept;
  [[nodiscard]] bool MayExtend(const Node& node, const PublishArgs& args) const noexcept;
  [[nodiscard]] std::uint32_t NewFlags(const PublishCursor& cursor, const Node& node,
                                       const PublishArgs& args) const noexcept;
  [[nodiscard]] PrefixHash BlockDigest(PrefixHash parent, std::span<const Token> tokens,
                                       const PrefixHash* content) const noexcept;
  void Seal(std::span<const BlockId> position, std::span<const Token> tokens,
            PrefixHash digest) noexcept;
  void Settle(Place at, GroupIndex group, BlockId b, std::uint32_t flags) noexcept;
  void Append(std::uint32_t node, std::span<const BlockId> position, std::uint32_t flags) noexcept;
  void SetContent(Node& node, BlockId b, const PrefixHash* content);
  std::uint32_t Extend(PublishCursor& cursor, const PublishArgs& args);
  void MoveTo(PublishCursor& cursor, BlockId last) const noexcept;
  PublishResult Publish(PublishCursor& cursor, const PublishArgs& args);
  void AppendOne(std::uint32_t node, const PublishArgs& args, std::uint32_t flags);
  void AddChild(std::uint32_t parent, const PublishArgs& args, std::uint32_t flags);
  [[nodiscard]] PublishResult Join(Place at, PublishCursor& cursor, const PublishArgs& args,
                                   std::uint32_t flags);
  [[nodiscard]] Place Isolate(Place at, const PublishArgs& args);
  void FillTombstone(Place at, const PublishArgs& args, std::uint32_t flags);
  void Confirm(std::span<const BlockId> published) noexcept;
  void Unpublish(Node& node, BlockId b) noexcept;
  void FreeTombstone(Node& node, BlockId b) noexcept;
  bool Remove(BlockId b, std::vector<BlockId>* orphans);
  void CutTail(std::uint32_t node);
  template <typename Visit>
  bool VisitRun(std::uint32_t node, std::uint32_t from, const Visit& visit) const;
  template <typename Visit>
  void VisitBelow(Place above, const Visit& visit) const;
  void FlagOrphans(Place tombstone, std::vector<BlockId>* orphans);
  void ReviveOrphans(Place filled, std::vector<BlockId>* revived);
  void FreeRoot(std::uint32_t root);
  [[nodiscard]] std::uint32_t FirstInPostorder(std::uint32_t node) const noexcept;
  [[nodiscard]] std::uint32_t NextInPostorder(std::uint32_t node) const noexcept;
  [[nodiscard]] BlockId UnprotectedTail(const Node& node) const noexcept;
  [[nodiscard]] BlockId NextStale() noexcept;

  // --- prefix_index_match.cc ---
  void Match(const MatchQuery& query, MatchResult& result) const;
  [[nodiscard]] std::uint32_t EqualPositions(const Node& node, std::uint32_t limit,
                                             const Token* tokens) const noexcept;
  [[nodiscard]] std::uint32_t EqualContents(const Node& node, std::uint32_t limit,
                                            std::uint32_t first_block,
                                            const MatchQuery& query) const noexcept;
  [[nodiscard]] std::uint8_t VisibleTier(const Node& node, std::uint32_t offset,
                                         const MatchQuery& query) const noexcept;
  std::uint32_t TakePositions(const Node& node, std::uint32_t count, const MatchQuery& query,
                              MatchResult& result) const;
  void AppendIds(const Node& node, std::uint32_t count, std::vector<BlockId>& out) const;
  void OfferPartial(const MatchQuery& query, Place at, MatchResult& result) const;
  void MatchPartial(const MatchQuery& query, MatchResult& result) const;

  // --- prefix_index_order.cc: order of eviction, claims. ---
  static constexpr std::size_t kUncovered = kPriorityCount;
  [[nodiscard]] Place OrderedPlace(BlockId b) const noexcept;
  [[nodiscard]] bool IsResidentTail(BlockId block, TierIndex tier) const noexcept;
  [[nodiscard]] BlockId ResidentTail(BlockId block, TierIndex tier) const noexcept;
  [[nodiscard]] std::uint32_t PlannedEnd(const Node& node, std::uint32_t from,
                                         TierIndex tier) const noexcept;
  [[nodiscard]] std::uint32_t ColdestChild(const Node& node, TierIndex tier) const noexcept;
  void MarkChosen(BlockId block, TierIndex tier) noexcept;
  void UnmarkChosen(BlockId block) noexcept;
  void Touch(BlockId deepest, std::uint64_t tick) noexcept;
  [[nodiscard]] std::uint32_t Claims(BlockId block) const noexcept;
  [[nodiscard]] std::uint32_t StrongestClaimAt(BlockId block) const noexcept;
  [[nodiscard]] bool IsOnlyChild(BlockId block, TierIndex tier) const noexcept;
  void AppendUpwards(BlockId block, std::uint32_t count, std::vector<BlockId>& out) const;
  void AppendPathBelow(std::uint32_t n, std::uint32_t top, std::vector<BlockId>& out) const;
  void SetClaim(std::uint32_t claim, BlockId deepest, Priority priority,
                std::vector<BlockId>* changed, MovedClaim* moved);
  void Recover(std::uint32_t node, std::size_t from, std::size_t to, std::vector<BlockId>* changed);
  void RecoverPath(std::uint32_t node, std::uint32_t top, std::size_t from, std::size_t to,
                   std::vector<BlockId>* changed);
  [[nodiscard]] std::uint32_t CommonNode(std::uint32_t a, std::uint32_t b) const noexcept;
  void ListClaim(std::uint32_t claim, std::uint32_t node);
  void UnlistClaim(std::uint32_t claim);
  void HandClaimsUp(std::uint32_t node);
  [[nodiscard]] BlockId ClaimedTail(std::uint32_t claim) const noexcept;
  void AppendPath(BlockId deepest, std::vector<BlockId>& out) const;
  void PrefetchNode(BlockId block) const noexcept;
  void PrefetchForRemoval(BlockId block) const noexcept;

  // --- prefix_index_audit.cc ---
  struct Auditor;
  [[nodiscard]] Status Audit() const;

  BlockPool* pool;
  std::uint32_t block_tokens;
  std::uint32_t groups;
  Options options;
  DigestScheme digests;
  alignas(64) std::array<unsigned char, 192> tag_secret;

  internal::Store<Node> nodes;
  internal::Store<Family> families;
  internal::ChildTable table;
  std::vector<internal::RootInfo> roots;
  std::vector<internal::Claim> claims;
  absl::flat_hash_map<std::uint32_t, PrefixHash> contents;  // by group 0's block
  absl::flat_hash_set<std::uint32_t> tombstones;            // group 0's blocks
  std::uint64_t heap_bytes = 0;                             // of runs
  std::uint32_t blocks = 0;                                 // of all groups

  // NextStale: passes over the retired trees in postorder. stale_node is the next node to look at,
  // kNone = start with retired[stale_tree]; a pass ends behind the last tree.
  std::vector<std::uint32_t> retired;
  std::size_t stale_tree = 0;
  std::uint32_t stale_node = internal::kNone;
  BlockId stale_last;
};

}  // namespace tidepool
