// tidepool/block_pool.h - the state of every block, and the only writer of phases.
//
// Structure of arrays indexed by BlockId. The hot word of a block packs holds, pins, phase and
// flags into 32 bits, so that holding a 512-block prefix touches 2 KiB.
//
// Invariants (checked by Audit):
//   * a block has at most one slot per tier, and a slot at most one block;
//   * free id <=> phase kFree, no slots, no holds, no pins, not in the index (a tombstone - in the
//     index without any copy - has phase kFree but keeps its id);
//   * kAllocated, kActive, kIdle, kCandidate, kReuse => the block has an HBM slot;
//   * kAllocated and kActive are held; kFree, kIdle, kCandidate and kOffloaded are not;
//   * kActive, kIdle, kCandidate => the HBM copy is valid; kAllocated => it is being written;
//   * kClean <=> valid copies in HBM and in the tier below;
//   * counters equal a full recount.
//
// All-zero memory is a pool of free blocks, so a large pool costs no memory before it is used:
// slots are stored plus one, and the state of the HBM copy lives in the word, where Transition
// needs it.
//
// Thread contract: scheduler thread only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tidepool/block.h"
#include "tidepool/block_word.h"
#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"
#include "tidepool/lifecycle.h"
#include "tidepool/observer.h"
#include "tidepool/slot_allocator.h"
#include "tidepool/status.h"
#include "tidepool/types.h"

namespace tidepool {

/// HBM slots by class; the classes sum to the tier's usable slots.
struct PoolCounts {
  std::uint32_t free = 0;         ///< slots nobody has
  std::uint32_t held = 0;         ///< a running sequence holds the block
  std::uint32_t cached = 0;       ///< findable, unheld
  std::uint32_t claimed = 0;      ///< private, unheld: a paused sequence's
  std::uint32_t moving = 0;       ///< unheld, a transfer or device copy reads or writes it
  std::uint32_t quarantined = 0;  ///< no block, waiting for a fence or a late completion
  friend bool operator==(const PoolCounts&, const PoolCounts&) = default;
};

class TIDEPOOL_EXPORT BlockPool {
 public:
  struct Options {
    std::uint32_t block_tokens = 16;
    std::vector<std::uint32_t> slots;  ///< per tier, HBM first; at most 2^28 in all
    bool reserve_null_slot = false;    ///< HBM slot 0 (one of slots[0]) is the engine's
    Observer* observer = nullptr;      ///< may be null
    const Clock* clock = nullptr;      ///< used only when an observer is set
  };
  explicit BlockPool(const Options& options);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // --- Facts. Inline: the hot path of index, policies and manager. ---
  /// False if the options are out of range or the address space is short: the pool is then empty
  /// (no ids, no slots) and must not be used.
  [[nodiscard]] bool valid() const noexcept { return capacity_ != 0; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::uint32_t block_tokens() const noexcept { return block_tokens_; }
  [[nodiscard]] TierIndex tier_count() const noexcept { return tier_count_; }
  [[nodiscard]] std::uint32_t word(BlockId b) const noexcept { return words_[b.value()]; }
  [[nodiscard]] Phase phase(BlockId b) const noexcept {
    return static_cast<Phase>((word(b) & word::kPhaseMask) >> word::kPhaseShift);
  }
  [[nodiscard]] std::uint32_t holds(BlockId b) const noexcept { return word(b) & word::kHoldMask; }
  [[nodiscard]] std::uint32_t pins(BlockId b) const noexcept {
    return (word(b) & word::kPinMask) >> word::kPinShift;
  }
  [[nodiscard]] bool Has(BlockId b, std::uint32_t flag) const noexcept {
    return (word(b) & flag) != 0;
  }
  [[nodiscard]] Priority claim_priority(BlockId b) const noexcept {
    return static_cast<Priority>((word(b) & word::kClassMask) >> word::kClassShift);
  }
  [[nodiscard]] std::uint32_t generation(BlockId b) const noexcept {
    return records_[b.value()].generation;
  }
  [[nodiscard]] BlockRef ref(BlockId b) const noexcept { return {b, generation(b)}; }
  [[nodiscard]] bool alive(BlockRef r) const noexcept {
    return r.block.value() < capacity_ && generation(r.block) == r.generation &&
           phase(r.block) != Phase::kFree;
  }
  /// Invalid when the block has no slot there.
  [[nodiscard]] SlotId slot(BlockId b, TierIndex tier) const noexcept {
    return SlotId((tier == kHbmTier ? records_[b.value()].hbm_slot_plus1
                                    : lower_slots_[tier - 1u][b.value()]) -
                  1u);
  }
  [[nodiscard]] CopyState copy(BlockId b, TierIndex tier) const noexcept {
    if (((valid_mask(b) >> tier) & 1u) != 0) return CopyState::kValid;
    return slot(b, tier).valid() ? CopyState::kWriting : CopyState::kAbsent;
  }
  /// Bit t set: valid copy in tier t.
  [[nodiscard]] std::uint32_t valid_mask(BlockId b) const noexcept {
    return (records_[b.value()].lower_copies & ((1u << kMaxTiers) - 1)) | (word(b) >> 31);
  }
  /// Bit t set: a copy is being written into tier t.
  [[nodiscard]] std::uint32_t writing_mask(BlockId b) const noexcept {
    const Record& record = records_[b.value()];
    const bool hbm = record.hbm_slot_plus1 != 0 && !Has(b, word::kHbmValid);
    return (std::uint32_t{record.lower_copies} >> kMaxTiers) | (hbm ? 1u : 0u);
  }
  /// Topmost tier with a valid copy, or tier_count() when there is none.
  [[nodiscard]] TierIndex best_tier(BlockId b) const noexcept {
    const std::uint32_t valid = valid_mask(b);
    return valid == 0 ? tier_count_ : static_cast<TierIndex>(__builtin_ctz(valid));
  }
  /// Giving up the copy in `tier` loses nothing: HBM has a valid copy one tier down; a lower tier
  /// has one in any tier above or one tier down.
  [[nodiscard]] bool Clean(BlockId b, TierIndex tier) const noexcept {
    if (tier == kHbmTier) return Has(b, word::kClean);
    return (valid_mask(b) & (((1u << tier) - 1) | (2u << tier))) != 0;
  }
  /// `tier` could give the block up now: a valid copy there, no pin, not wanted or taken by the
  /// plan in progress and, in HBM, phase kIdle and no hold. (Holds do not protect lower copies.)
  [[nodiscard]] bool Evictable(BlockId b, TierIndex tier) const noexcept {
    const std::uint32_t w = word(b);
    if (tier == kHbmTier) {
      return (w & (word::kEvictableMask | word::kScratchMask)) == word::kEvictable;
    }
    return (w & (word::kPinMask | word::kScratchMask)) == 0 && ((valid_mask(b) >> tier) & 1u) != 0;
  }

  /// The block's tokens, block_tokens() of them; valid once sealed.
  [[nodiscard]] const Token* tokens(BlockId b) const noexcept {
    return tokens_ + static_cast<std::size_t>(b.value()) * block_tokens_;
  }
  [[nodiscard]] Token* mutable_tokens(BlockId b) noexcept {
    return tokens_ + static_cast<std::size_t>(b.value()) * block_tokens_;
  }
  [[nodiscard]] PrefixHash digest(BlockId b) const noexcept { return digests_[b.value()]; }
  void set_digest(BlockId b, PrefixHash d) noexcept { digests_[b.value()] = d; }

  /// Place in the index. `node` is invalid for private blocks, whose `position` (block index in
  /// their sequence) is kept in the same field.
  [[nodiscard]] NodeId node(BlockId b) const noexcept {
    return Has(b, word::kPublished) ? NodeId(records_[b.value()].node_or_position) : NodeId();
  }
  [[nodiscard]] std::uint32_t offset(BlockId b) const noexcept {
    return records_[b.value()].offset;
  }
  void set_node(BlockId b, NodeId node, std::uint32_t offset) noexcept {
    records_[b.value()].node_or_position = node.value();
    records_[b.value()].offset = static_cast<std::uint16_t>(offset);
  }
  [[nodiscard]] std::uint32_t private_position(BlockId b) const noexcept {
    return records_[b.value()].node_or_position;
  }
  void set_private_position(BlockId b, std::uint32_t position) noexcept {
    records_[b.value()].node_or_position = position;
  }
  /// For kPublished, kAbandoned, kPending, kOrphan and the scratch flags; the others are the
  /// pool's.
  void SetFlag(BlockId b, std::uint32_t flag) noexcept {
    const std::uint32_t old = words_[b.value()];
    words_[b.value()] = old | flag;
    if ((flag & ~old & word::kPublished) != 0 && (old & word::kRestMask) == word::kRest) {
      ++cached_, --claimed_;
    }
  }
  void ClearFlag(BlockId b, std::uint32_t flag) noexcept {
    const std::uint32_t old = words_[b.value()];
    words_[b.value()] = old & ~flag;
    if ((flag & old & word::kPublished) != 0 && (old & word::kRestMask) == word::kRest) {
      --cached_, ++claimed_;
    }
  }
  void set_claim_priority(BlockId b, Priority p) noexcept {
    words_[b.value()] = (words_[b.value()] & ~word::kClassMask) |
                        (static_cast<std::uint32_t>(p) << word::kClassShift);
  }
  /// How many of the span's last blocks have the very last one's word in the bits of `mask`.
  /// REQUIRES: not empty.
  [[nodiscard]] std::size_t AlikeTail(std::span<const BlockId> blocks,
                                      std::uint32_t mask) const noexcept;
  /// Fetches what Evictable(b, tier) reads.
  void Prefetch(BlockId b, TierIndex tier) const noexcept {
    __builtin_prefetch(&words_[b.value()]);
    if (tier != kHbmTier) __builtin_prefetch(&records_[b.value()]);
  }

  // --- Ids and slots. ---
  [[nodiscard]] std::uint32_t free_slots(TierIndex tier) const noexcept;
  [[nodiscard]] std::uint32_t slots(TierIndex tier) const noexcept;  ///< usable, null slot excluded
  [[nodiscard]] std::uint32_t free_blocks() const noexcept;

  /// Takes out.size() fresh blocks, each with an HBM slot and one hold, phase kAllocated.
  /// All or nothing: returns false and changes nothing if ids or slots are short.
  /// One observer call. COMPLEXITY: <= 20 ns a block singly, less in bulk.
  bool Allocate(std::span<BlockId> out) noexcept;

  /// Takes fresh ids without a slot, phase kFree, generation current; for sources that create a
  /// block below HBM. The caller attaches copies and publishes.
  bool AllocateIds(std::span<BlockId> out) noexcept;

  /// Gives a slot in `tier` to a block that has none there: copy state kWriting.
  /// Returns false (nothing changed) if the tier is full, or if `tier` is a lower one and the block
  /// is kAllocated (there is nothing to copy yet). The phase is the caller's business.
  bool AttachSlot(BlockId b, TierIndex tier) noexcept;
  /// kWriting -> kValid. REQUIRES: copy(b, tier) == kWriting.
  void CommitCopy(BlockId b, TierIndex tier) noexcept;
  /// Takes the copy (valid or being written) and its slot away. With `quarantine` the slot is not
  /// free until ReturnQuarantined. Returns the slot. The phase is the caller's business.
  SlotId DetachSlot(BlockId b, TierIndex tier, bool quarantine = false) noexcept;
  void ReturnQuarantined(TierIndex tier, std::span<const SlotId> slots) noexcept;
  /// Puts a free slot of a lower tier into quarantine: bytes that no block has yet are in it. False
  /// if it is not free.
  bool SetAside(TierIndex tier, SlotId slot) noexcept;
  /// Gives such a slot to a block, as a valid copy. REQUIRES: the block has none in `tier`.
  void AttachSetAside(BlockId b, TierIndex tier, SlotId slot) noexcept;

  /// Gives the id back: REQUIRES no slots, no holds, no pins, phase kFree, not published.
  /// The generation grows, so that every BlockRef to it is dead.
  void FreeId(BlockId b) noexcept;
  /// DetachSlot(b, kHbmTier) and FreeId for each, in one pass. REQUIRES: what FreeId requires, save
  /// for the HBM slot.
  void FreeBlocks(std::span<const BlockId> blocks) noexcept;

  // --- Phases and references. ---
  struct Move {
    Phase to;
    Cause cause;
    /// Another phase passed through at once (kIdle -> kReuse -> kActive on an HBM hit); kFree =
    /// none.
    Phase via = Phase::kFree;
    Cause via_cause = Cause::kMatch;
    /// +1: each block gains a hold, and only blocks that had none change phase.
    /// -1: each loses one, and only blocks that have none left change phase.
    int hold = 0;
  };

  /// The only writer of phases. Every block whose hold rule lets it change must have a legal edge
  /// (legal to `via` and on to `to` if set) that keeps the invariants above; otherwise returns
  /// kIllegalTransition, or kBusy if a block's holds are used up (16,383), and nothing has changed,
  /// in every build. A block already in phase `to` with hold == 0 is an illegal edge too.
  /// Leaving kAllocated for kActive or kIdle makes the HBM copy valid. A slot in HBM comes before
  /// the phase that needs it (AttachSlot, then kReuse) and goes after (kFree, then DetachSlot).
  /// REQUIRES: the blocks are distinct.
  /// The observer hears of each edge once per span. `changed`, if not null, gets the blocks whose
  /// phase changed, in order (cleared first). COMPLEXITY: about 1 ns a block.
  Outcome Transition(std::span<const BlockId> blocks, const Move& move,
                     std::vector<BlockId>* changed = nullptr) noexcept;

  /// A transfer or queued device copy uses the block. False, and nothing changes, when the pins are
  /// used up (31): try later.
  bool Pin(BlockId b) noexcept;
  /// False, and nothing changes, if there is no pin.
  bool Unpin(BlockId b) noexcept;

  // --- Accounts. ---
  [[nodiscard]] PoolCounts Counts() const noexcept;  ///< HBM
  [[nodiscard]] std::uint32_t quarantined(TierIndex tier) const noexcept;
  /// HBM residents that nothing protects / of those, clean. May include interior blocks.
  [[nodiscard]] std::uint32_t evictable() const noexcept { return evictable_; }
  [[nodiscard]] std::uint32_t evictable_clean() const noexcept { return evictable_clean_; }
  /// Copies in a tier below HBM whose loss would lose nothing, protected ones included.
  [[nodiscard]] std::uint32_t clean_copies(TierIndex tier) const noexcept {
    return clean_copies_[tier];
  }
  /// Grows whenever a clean copy in `tier`, not the last one, gains what it needs to be evictable,
  /// and with CountArrivals.
  [[nodiscard]] std::uint64_t clean_arrivals(TierIndex tier) const noexcept {
    return clean_arrivals_[tier];
  }
  /// Counts, as arrivals in their tiers (bit t of `tiers`: tier t), the clean copies of a block
  /// that are evictable but for the plan in progress: what else kept them from leaving has ended.
  void CountArrivals(BlockId b, std::uint32_t tiers = ~0u) noexcept;
  /// Slots in use by a copy (valid or being written), per tier.
  [[nodiscard]] std::uint32_t used(TierIndex tier) const noexcept;

  /// Changes the usable slots of a tier; growth is limited by the capacity given at creation.
  /// Shrinking withdraws slots as they become free: slots(tier) falls until it meets the target.
  Status Resize(TierIndex tier, std::uint32_t slots);
  /// Slots at or above the limit that a block still occupies (what Resize waits for).
  [[nodiscard]] std::vector<BlockId> BlocksBeyondLimit(TierIndex tier) const;

  /// Snapshot version that transitions report (set by the manager at each snapshot).
  void set_signals_version(std::uint64_t version) noexcept { signals_version_ = version; }

  /// Full recount against the counters and every invariant above; OK or the first violation.
  [[nodiscard]] Status Audit() const;
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept;  ///< tokens excluded
  [[nodiscard]] std::uint64_t TokenBytes() const noexcept;

 private:
  struct Record {
    std::uint32_t node_or_position;
    std::uint32_t hbm_slot_plus1;
    std::uint32_t generation;
    std::uint16_t offset;
    std::uint16_t lower_copies;  // by tier: bits 1-5 valid, 7-11 being written; HBM: see the word
  };
  static_assert(sizeof(Record) == 16);

  struct Impl;
  [[nodiscard]] Outcome CheckRun(std::span<const BlockId> run, const Move& move,
                                 std::uint32_t* new_word) const noexcept;
  void ApplyRun(std::span<const BlockId> run, std::uint32_t new_word) noexcept;
  Outcome TransitionMixed(std::span<const BlockId> blocks, const Move& move,
                          std::vector<BlockId>* changed) noexcept;
  void Announce(std::span<const BlockId> blocks, Phase from, const Move& move,
                std::vector<BlockId>* changed) noexcept;
  void Report(std::span<const BlockId> blocks, Phase from, const Move& move) noexcept;
  void Account(std::uint32_t old_word, std::uint32_t new_word, std::uint32_t count) noexcept;
  void SetWord(BlockId b, std::uint32_t new_word) noexcept;
  void CountCleanCopies(BlockId b, std::uint32_t one) noexcept;
  void Equip(std::uint32_t id, std::uint32_t slot) noexcept;
  void EquipAll(std::span<const BlockId> blocks) noexcept;
  std::uint32_t Strip(std::uint32_t id) noexcept;
  [[nodiscard]] std::uint32_t& SlotField(BlockId b, TierIndex tier) noexcept;

  // Implementation detail of block_pool.cc; arrays are huge-page friendly raw mappings.
  std::uint32_t* words_ = nullptr;
  Record* records_ = nullptr;
  PrefixHash* digests_ = nullptr;
  Token* tokens_ = nullptr;
  std::array<std::uint32_t*, kMaxTiers - 1> lower_slots_{};

  std::uint32_t capacity_ = 0;
  std::uint32_t block_tokens_ = 0;
  TierIndex tier_count_ = 0;
  std::uint32_t evictable_ = 0;
  std::uint32_t evictable_clean_ = 0;
  std::array<std::uint64_t, kMaxTiers> clean_arrivals_{};
  std::array<std::uint32_t, kMaxTiers> clean_copies_{};  // below HBM
  std::uint32_t held_ = 0;
  std::uint32_t cached_ = 0;   // at rest, published
  std::uint32_t claimed_ = 0;  // at rest, private
  std::uint64_t signals_version_ = 0;
  Observer* observer_ = nullptr;
  const Clock* clock_ = nullptr;

  Impl* impl_ = nullptr;  // slot allocators, id allocator, quarantine counts
};

}  // namespace tidepool
