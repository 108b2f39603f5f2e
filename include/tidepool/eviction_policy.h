// tidepool/eviction_policy.h - the interface a policy implements to say what leaves a tier.
//
// One policy object serves one tier. It sees ids and signals, never memory. Hooks are batched over
// spans and noexcept. SelectVictims is idempotent: called again at the same time with nothing in
// between it gives the same answer (internal caches may change); only OnEvicted commits.
//
// What the pool guarantees, so that a policy need not care:
//   * a victim list may name any resident block: a block that is protected or excluded is ignored,
//     and one that still has resident descendants is mapped to its coldest resident tail;
//   * orphans and blocks of dropped namespaces leave before any policy is asked;
//   * OnEvicted follows every loss of residency, whoever chose it.
//
// Thread contract: scheduler thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tidepool/block.h"
#include "tidepool/export.h"
#include "tidepool/scheduling_signals.h"
#include "tidepool/types.h"

namespace tidepool {

class BlockPool;
class PrefixIndex;

/// Read-only facts about blocks, for policies and planners. All calls are O(1).
class TIDEPOOL_EXPORT BlockView {
 public:
  BlockView(const BlockPool* pool, const PrefixIndex* index) noexcept
      : pool_(pool), index_(index) {}

  /// One more than the largest BlockId value there can be: the size for per-block arrays.
  [[nodiscard]] std::uint32_t capacity() const noexcept;
  /// True if `tier` could give the block up now: it has a valid copy there, no transfer reads or
  /// writes it, no plan in progress has taken it and, in HBM, no running sequence holds it.
  [[nodiscard]] bool Evictable(BlockId block, TierIndex tier) const noexcept;
  /// How many of the span's first blocks are Evictable. COMPLEXITY: about a nanosecond a block.
  [[nodiscard]] std::size_t EvictableLead(std::span<const BlockId> blocks,
                                          TierIndex tier) const noexcept;
  /// True if the plan in progress, or a write-back that has not ended, has taken the block.
  [[nodiscard]] bool Chosen(BlockId block) const noexcept;
  /// True if a running sequence holds the block.
  [[nodiscard]] bool Held(BlockId block) const noexcept;
  /// True if giving up the copy in `tier` loses nothing: HBM needs a valid copy one tier down;
  /// lower tiers need one above or one tier down.
  [[nodiscard]] bool Clean(BlockId block, TierIndex tier) const noexcept;
  [[nodiscard]] CopyState Copy(BlockId block, TierIndex tier) const noexcept;
  /// First token position of the block (block index in its prefix x block_tokens).
  [[nodiscard]] std::uint64_t Position(BlockId block) const noexcept;
  [[nodiscard]] PrefixHash Digest(BlockId block) const noexcept;

  /// The block before it in its prefix; invalid at the root and for private blocks.
  [[nodiscard]] BlockId Parent(BlockId block) const noexcept;
  /// How many admissions its run of the index has served, up to 3. A run that a session goes on
  /// with counts too.
  [[nodiscard]] std::uint32_t Hits(BlockId block) const noexcept;
  /// How many sessions claim the block.
  [[nodiscard]] std::uint32_t Claims(BlockId block) const noexcept;
  /// True if nothing right below the block has a copy in `tier` or above, so that the pool lets it
  /// leave `tier`; a copy below HBM that a tier above has too may always leave.
  [[nodiscard]] bool IsTail(BlockId block, TierIndex tier) const noexcept;
  /// True if nothing right below the block has a copy in `tier` or above, whatever may leave.
  [[nodiscard]] bool IsEnd(BlockId block, TierIndex tier) const noexcept;
  /// True if `block` is the only thing that keeps its parent from being a tail.
  [[nodiscard]] bool IsOnlyChild(BlockId block, TierIndex tier) const noexcept;
  /// Appends `block` and the blocks before it, deepest first, up to `count` and not beyond the run
  /// of the index that it stands in. COMPLEXITY: about a nanosecond a block.
  void AppendUpwards(BlockId block, std::uint32_t count, std::vector<BlockId>& out) const;

  /// The strongest priority among the block's claimants; kBackground when nobody claims it.
  [[nodiscard]] Priority ClaimPriority(BlockId block) const noexcept;

  /// How many of the span's last blocks share the very last one's ClaimPriority, so that a policy
  /// can file a whole released prefix at once. COMPLEXITY: a fraction of a nanosecond a block.
  /// REQUIRES: not empty.
  [[nodiscard]] std::size_t SameTailPriority(std::span<const BlockId> blocks) const noexcept;

  /// Fetches what Evictable(block, tier) will read, for policies that walk long candidate lists.
  void Prefetch(BlockId block, TierIndex tier) const noexcept;

 private:
  const BlockPool* pool_;
  const PrefixIndex* index_;
};

enum class EvictReason : std::uint8_t {
  kCapacity,     ///< made room
  kDemoted,      ///< left this tier, a lower copy remains
  kInvalidated,  ///< epoch, namespace, retraction
  kReset,        ///< Clear
  kFailed,       ///< its bytes could not be read
  kReleased,     ///< private block freed by its owner
};

/// Decides whether one block may be a victim of the query at hand (clean-only passes, tenant
/// quotas). Cheap and pure.
class TIDEPOOL_EXPORT VictimFilter {
 public:
  virtual ~VictimFilter() = default;
  [[nodiscard]] virtual bool Allows(BlockId block) const noexcept = 0;
};

struct VictimQuery {
  std::uint32_t blocks = 0;              ///< how many are wanted
  std::span<const PrefixHash> incoming;  ///< what the room is for (ghost lists), may be empty
  const VictimFilter* filter = nullptr;  ///< null = any evictable block
};

/// Optional hooks that cost the manager work; off unless a policy asks for them.
struct PolicyNeeds {
  bool misses = false;  ///< OnMissed and VictimQuery::incoming (digests of misses, 12 ns a block)
  bool repeat = false;  ///< SelectVictims may have more to offer once its victims are chosen
  bool claims = false;  ///< OnClaimed and OnUnclaimed (1 ns a block that changes claimants)
};

class TIDEPOOL_EXPORT EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  [[nodiscard]] virtual PolicyNeeds needs() const noexcept { return {}; }

  /// Called once before any hook, and again after Resize with the new number of slots.
  virtual void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) = 0;

  /// Blocks gained a valid copy in this tier (committed in HBM, or a copy finished).
  virtual void OnInserted(std::span<const BlockId> blocks) noexcept = 0;
  /// An admission was served from this tier; once per block and admission.
  virtual void OnAccessed(std::span<const BlockId> blocks) noexcept { (void)blocks; }
  /// HBM only: digests that a granted admission wanted and no tier had, in prefix order (for ghost
  /// lists). The victims that made room for it were chosen before, with VictimQuery::incoming.
  virtual void OnMissed(std::span<const PrefixHash> digests) noexcept { (void)digests; }
  /// HBM only: the first hold arrived. Count it towards capacity, keep it out of the order.
  virtual void OnProtected(std::span<const BlockId> blocks) noexcept { (void)blocks; }
  /// HBM only: the last hold left. `blocks` is in prefix order: tails should leave first.
  virtual void OnEvictable(std::span<const BlockId> blocks) noexcept = 0;
  /// A session began to run or to wait, learned more about its return, or completed: what it is now
  /// says `session.state`. Told before the claims and releases that follow from it.
  virtual void OnSession(const SessionSignals& session, TimePoint now) noexcept {
    (void)session, (void)now;
  }
  /// The session claims its path up to `session.deepest` from now on; `blocks` are those of it that
  /// it did not claim before, in prefix order, possibly none. Claims(block) counts it already.
  virtual void OnClaimed(const SessionSignals& session, std::span<const BlockId> blocks) noexcept {
    (void)session, (void)blocks;
  }
  /// The session no longer claims these blocks (in prefix order, not empty).
  virtual void OnUnclaimed(const SessionSignals& session,
                           std::span<const BlockId> blocks) noexcept {
    (void)session, (void)blocks;
  }
  /// The strongest priority among the blocks' claimants changed (kBackground when none is left).
  virtual void OnPriorityChanged(std::span<const BlockId> blocks, Priority priority) noexcept {
    (void)blocks, (void)priority;
  }
  /// Copy state in another tier changed.
  virtual void OnCopyChanged(std::span<const BlockId> blocks, TierIndex tier,
                             CopyState state) noexcept {
    (void)blocks, (void)tier, (void)state;
  }
  virtual void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept = 0;
  virtual void OnTimeAdvanced(const SchedulingSignals& signals) noexcept { (void)signals; }

  /// Appends up to `query.blocks` candidates to `victims`, first to leave first.
  virtual void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                             std::vector<BlockId>& victims) noexcept = 0;

  /// Bytes of memory this policy uses, for the metadata account.
  [[nodiscard]] virtual std::uint64_t MemoryBytes() const noexcept = 0;
};

using PolicyFactory = std::unique_ptr<EvictionPolicy> (*)();

}  // namespace tidepool
