// tidepool/prefix_index.h - which published blocks continue which: a compressed radix tree of block
// runs, one tree per namespace, compared token by token on every match.
//
// A node is a run of consecutive blocks; children are keyed by their first block. A position holds
// one block per cache group. Tokens live with the blocks (BlockPool::tokens), so a match is one
// memcmp-speed pass and an equal hash can never serve a wrong block.
//
// Invariants (checked by Audit):
//   * every block in a node is published and says so (node, offset);
//   * resident_end(tier) of a node is the length of its leading part with a valid copy in that tier
//     or above; children are listed by the topmost tier that has a copy of their first block;
//   * no two children of a node start with the same block content;
//   * a node without blocks does not exist (roots excepted); a tail without any copy does not
//   exist;
//   * priority of a node = strongest claim whose path covers it.
//
// A block that lost its last copy while something below it lives stays as a tombstone: it keeps its
// id and tokens, never matches, and everything below it is an orphan. Publishing the same tokens
// again fills the place and the orphans match again.
//
// Several groups: the tokens, the residency and the order of eviction are those of group 0's
// blocks. Blocks of other groups (windows, recurrent state) may leave in any order; without group
// 0's block a position is a tombstone.
//
// Thread contract: scheduler thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/block_pool.h"
#include "tidepool/export.h"
#include "tidepool/status.h"
#include "tidepool/types.h"

namespace tidepool {

/// Identity of a key space. Each field is typed and length-framed in the digest, so that a tenant
/// called "x" and an adapter called "x" never meet.
struct NamespaceKey {
  std::string tenant;   ///< salt: blocks are never shared across tenants
  std::string adapter;  ///< LoRA or similar
  std::string model;    ///< model fingerprint
  std::string layout;   ///< layout fingerprint (dtype, shard, block size)
  friend bool operator==(const NamespaceKey&, const NamespaceKey&) = default;
};

/// Extra content of one block (image, audio embedding): part of its identity.
struct BlockContent {
  std::uint32_t block = 0;  ///< index in the prompt; a span of these is sorted and unique
  PrefixHash key;
};

/// Keyed, versioned XXH3-128 chain: digest(block) = H(seed, version, parent, tokens, content).
/// Test vectors: docs/digest.md. COMPLEXITY: about 12 ns for 16 tokens.
class TIDEPOOL_EXPORT DigestScheme {
 public:
  explicit DigestScheme(std::uint64_t seed);
  [[nodiscard]] PrefixHash Root(const NamespaceKey& key, std::uint64_t epoch) const;
  [[nodiscard]] PrefixHash Block(PrefixHash parent, std::span<const Token> tokens,
                                 const PrefixHash* content) const noexcept;

 private:
  [[nodiscard]] PrefixHash AnyBlock(PrefixHash parent, std::span<const Token> tokens,
                                    const PrefixHash* content) const noexcept;
  alignas(64) unsigned char secret_[192];
};

struct Segment {
  std::uint32_t first = 0;  ///< block index in the prompt
  std::uint32_t count = 0;
  TierIndex tier = 0;  ///< where the topmost valid copy is
  friend bool operator==(const Segment&, const Segment&) = default;
};

struct MatchQuery {
  NodeId root;
  std::span<const Token> tokens;  ///< whole prompt; only full blocks and one tail are matched
  std::span<const BlockContent> content{};
  TimelineId timeline{};  ///< pending blocks of this timeline count as present
  GroupIndex group = 0;
  bool partial_tail = false;   ///< look for a block that shares part of the next tokens
  bool partial_ready = false;  ///< and that is valid in HBM and not pending
  bool report_holes = false;   ///< go on behind absent blocks (segments tell the gaps)
  std::uint32_t max_blocks = 0xffffffff;
};

struct MatchResult {
  std::vector<BlockId> blocks;    ///< matched blocks in order; an absent one (holes) is invalid
  std::vector<Segment> segments;  ///< of present blocks, in order, maximal
  std::uint32_t pending = 0;      ///< how many of `blocks` are pending
  NodeId node;                    ///< node of the last matched position (the root if none)
  std::uint32_t node_blocks = 0;  ///< matched length inside that node
  BlockId partial;                ///< block whose leading tokens equal the prompt's next ones
  std::uint32_t partial_tokens = 0;
  void clear() noexcept {
    blocks.clear();
    segments.clear();
    pending = 0, node = NodeId(), node_blocks = 0, partial = BlockId(), partial_tokens = 0;
  }
};

/// Where a sequence's published prefix ends; what Publish continues from. Stays valid while the
/// sequence holds the block before it (node splits keep (node, offset) of blocks up to date, so a
/// cursor is re-derived from the last block when one is given).
struct PublishCursor {
  NodeId root;
  BlockId last;             ///< last block of the prefix that the index knows, invalid at the root
  std::uint32_t check = 0;  ///< Publish's own: tells that `last` was freed since; 0 = unknown
};

enum class PublishResult : std::uint8_t {
  kPublished,  ///< now in the index
  kDuplicate,  ///< an earlier block has the same content: this one stays private
  kDetached,   ///< the prefix before it left the index or its tree was retired: stays private
};

class TIDEPOOL_EXPORT PrefixIndex {
 public:
  struct Options {
    BlockPool* pool = nullptr;
    std::uint64_t digest_seed = 0;
    GroupIndex groups = 1;
    /// Test seam: replaces the hash of child lookup; null = XXH3.
    std::uint64_t (*child_hash)(NodeId parent, std::span<const Token> tokens) = nullptr;
    /// Test seam: replaces block digests; null = DigestScheme.
    PrefixHash (*block_digest)(const PrefixHash& parent, std::span<const Token> tokens) = nullptr;
  };
  explicit PrefixIndex(const Options& options);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  /// A new, empty tree. Invalid when 262,144 trees are alive, retired ones that are not yet drained
  /// included.
  NodeId AddRoot(const NamespaceKey& key, std::uint64_t epoch, NamespaceId ns);
  [[nodiscard]] NamespaceId root_namespace(NodeId node) const noexcept;
  [[nodiscard]] NodeId root_of(NodeId node) const noexcept;

  /// Longest match. Reads only: no recency, no holds. `result` is cleared and reused; nothing
  /// matches under a root that is retired or was never added.
  /// The partial tail is the best of the exact next block and the 64 children of the matched node
  /// that are highest in the tiers and, there, most recently touched; blocks with content are not
  /// offered.
  /// COMPLEXITY: memcmp of the matched tokens + O(nodes on the path); a node with content keys, or
  /// with absent or pending blocks, costs some ns a block.
  void Match(const MatchQuery& query, MatchResult& result) const;

  /// Publishes one block after `cursor` and moves the cursor to the block that now stands there
  /// (this one, or the earlier duplicate; nothing moves on kDetached). `tokens` are the block's
  /// block_tokens() tokens; they are copied into the pool and the digest is set, also for a
  /// duplicate. `blocks` has one id per group; those of groups other than 0 may be invalid. With
  /// several groups, a position that is there already takes the blocks of groups that it lacks
  /// (kPublished; the others stay private: kPublished flag).
  /// REQUIRES: the pool knows the block's copies already.
  /// `pending` marks it as matchable only on `timeline` until ConfirmPublished.
  /// `may_extend_claimed`: the run may be extended in place although one session claims it (the
  /// publisher's own session); otherwise a claimed run gets a child.
  /// A tombstone with the same content is filled: descendants stop being orphans (they are appended
  /// to *revived when not null).
  struct PublishArgs {
    std::span<const BlockId> blocks;
    std::span<const Token> tokens;
    const PrefixHash* content = nullptr;
    bool pending = false;
    TimelineId timeline;
    bool may_extend_claimed = false;
    std::vector<BlockId>* revived = nullptr;
    std::uint32_t more = 0;  ///< hint: blocks the caller publishes behind this one right away
  };
  PublishResult Publish(PublishCursor& cursor, const PublishArgs& args);
  /// Publishes consecutive blocks for as long as they just lengthen the cursor's run; args.blocks
  /// and args.tokens then hold any number of positions. Returns how many it took. Go on with
  /// Publish for the next one: it may be a duplicate, have content or begin a node. COMPLEXITY:
  /// about 20 ns a block, digest included.
  std::uint32_t Extend(PublishCursor& cursor, const PublishArgs& args);
  /// The commit fence passed: matchable by everyone.
  void ConfirmPublished(std::span<const BlockId> blocks) noexcept;

  /// Copies changed (the pool has already been updated).
  /// COMPLEXITY: O(1), + the resident blocks that join the leading part behind this one.
  void OnCopyChanged(BlockId block) noexcept;

  /// Takes a block out of the index: a retraction, or its last copy is gone. The tail of a
  /// childless run becomes private (kPublished cleared); any other block becomes a tombstone, and
  /// every block below is flagged kOrphan and appended to *orphans (may be null). Tombstones that
  /// nothing lives below any more are cleaned up, their ids freed through the pool.
  /// Returns true if the block left the index (the caller may free its id).
  /// REQUIRES: a block that is not a tail has no copies, holds or pins, and phase kFree.
  /// COMPLEXITY: O(1) for a tail, else O(blocks below).
  bool Remove(BlockId block, std::vector<BlockId>* orphans);

  // --- Order of eviction (of group 0's blocks; all others count as tails). ---
  /// True if no block right below has a copy in `tier` or above (chosen victims count as gone).
  /// COMPLEXITY: O(1).
  [[nodiscard]] bool IsResidentTail(BlockId block, TierIndex tier) const noexcept;
  /// The coldest resident tail at or below `block`: in a run its last resident block, among
  /// children the least recently touched. Invalid if that one is not BlockPool::Evictable, or if
  /// `block` has no copy in `tier` or above.
  /// COMPLEXITY: O(nodes below) + the chosen victims at the ends of their runs.
  [[nodiscard]] BlockId ResidentTail(BlockId block, TierIndex tier) const noexcept;
  /// True if no sibling of the block counts in `tier`, its parent's other continuations.
  [[nodiscard]] bool IsOnlyChild(BlockId block, TierIndex tier) const noexcept;
  /// Appends `block` and up to `count` - 1 blocks before it in its run, deepest first.
  void AppendUpwards(BlockId block, std::uint32_t count, std::vector<BlockId>& out) const;
  /// Marks a planned victim of `tier` (kChosen): from now on its parent's IsResidentTail sees it
  /// gone from its topmost tier. UnmarkChosen ends that, before or after the eviction;
  /// OnCopyChanged follows the eviction as ever. Only one plan at a time may choose a block.
  void MarkChosen(BlockId block, TierIndex tier) noexcept;
  void UnmarkChosen(BlockId block, TierIndex tier) noexcept;
  /// Recency of the nodes on the block's path, for ResidentTail; ticks only grow.
  /// COMPLEXITY: O(nodes on the path).
  void Touch(BlockId deepest, std::uint64_t tick) noexcept;

  /// Cache hints for callers that remove many blocks: call each stage for a batch of blocks, some
  /// tens, before the next (BlockPool::Prefetch, PrefetchNode, PrefetchForRemoval, Remove).
  void PrefetchNode(BlockId block) const noexcept;
  void PrefetchForRemoval(BlockId block) const noexcept;

  // --- Claims. ---
  /// Sets claim `claim` (dense, the library's session index) to the path that ends with `deepest`
  /// (invalid: none), with `priority`. A run is split where the claim ends inside it. The claim
  /// follows evictions upwards. Blocks whose priority changed are appended to *changed.
  /// Which blocks the claim covers anew and no longer goes to *moved (may be null), in prefix
  /// order.
  struct MovedClaim {
    std::vector<BlockId> claimed, unclaimed;
  };
  void SetClaim(std::uint32_t claim, BlockId deepest, Priority priority,
                std::vector<BlockId>* changed, MovedClaim* moved = nullptr);
  void ClearClaim(std::uint32_t claim, std::vector<BlockId>* changed, MovedClaim* moved = nullptr);
  /// Deepest block that the claim still covers, tombstones passed over, or invalid.
  [[nodiscard]] BlockId ClaimedTail(std::uint32_t claim) const noexcept;
  /// Of the claims that end in the block's run (8 are looked at), one of the strongest priority;
  /// kNoClaim if none ends there.
  static constexpr std::uint32_t kNoClaim = 0xffffffff;
  [[nodiscard]] std::uint32_t StrongestClaim(BlockId block) const noexcept;
  /// How many claims cover the block. COMPLEXITY: O(1).
  [[nodiscard]] std::uint32_t Claims(BlockId block) const noexcept;
  /// Appends the path of blocks (prefix order) that ends with `deepest`, tombstones left out.
  void AppendPath(BlockId deepest, std::vector<BlockId>& out) const;

  // --- Reuse. ---
  /// An admission was served down to `deepest`: one more for its run and the runs before it.
  /// COMPLEXITY: O(nodes on the path) the first three times, then O(1).
  void CountHit(BlockId deepest) noexcept;
  /// Admissions that the block's run has served, up to 3.
  [[nodiscard]] std::uint32_t Hits(BlockId block) const noexcept;

  // --- Whole trees. ---
  /// Cuts a tree off: its root no longer matches or takes blocks (the caller has made a new root);
  /// the id is used again once the tree is empty. NextStale then yields its blocks leaf first.
  /// COMPLEXITY: O(1).
  void Retire(NodeId root);
  /// Next tail block of a retired tree that has no hold and no pin, any tier. The caller evicts it
  /// from every tier and calls Remove; one that it leaves alone comes again in the next pass.
  /// Invalid at the end of a pass. COMPLEXITY: O(1) a block, + O(protected tails) a pass.
  [[nodiscard]] BlockId NextStale() noexcept;
  /// True if the block's tree was retired.
  [[nodiscard]] bool IsStale(BlockId block) const noexcept;

  // --- Facts. ---
  [[nodiscard]] std::uint32_t blocks() const noexcept;  ///< published, tombstones included
  [[nodiscard]] std::uint32_t nodes() const noexcept;
  [[nodiscard]] std::uint32_t tombstones() const noexcept;
  [[nodiscard]] std::uint64_t Position(
      BlockId block) const noexcept;                           ///< block index in its prefix
  [[nodiscard]] BlockId Parent(BlockId block) const noexcept;  ///< invalid at the root
  [[nodiscard]] PrefixHash ParentDigest(BlockId block) const noexcept;
  [[nodiscard]] PrefixHash RootDigest(NodeId root) const noexcept;
  /// Key of the block's content, or null.
  [[nodiscard]] const PrefixHash* Content(BlockId block) const noexcept;
  /// What a block of these tokens behind `parent` would have.
  [[nodiscard]] PrefixHash BlockDigest(PrefixHash parent, std::span<const Token> tokens,
                                       const PrefixHash* content) const noexcept;
  /// Calls `visit(context, block)` for every published block with a copy, parents first; pending
  /// and stale ones too.
  void ForEach(void (*visit)(void*, BlockId), void* context) const;

  /// Checks every invariant above and every node against a full walk; OK or the first violation.
  [[nodiscard]] Status Audit() const;
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool
