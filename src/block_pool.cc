#include "tidepool/block_pool.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "src/block_pool_internal.h"
#include "src/block_spans.h"

namespace tidepool {
namespace {

using internal::Numbers;
using internal::TierSlots;

// What Transition looks at. Blocks with equal keys take the same edge, so a run of them is checked
// once, and changed by one XOR each.
constexpr std::uint32_t kKeyMask = word::kHoldMask | word::kPinMask | word::kPhaseMask |
                                   word::kPublished | word::kClean | word::kHbmValid;

// Slots taken or returned at a time, on the stack.
constexpr std::size_t kBatch = 256;

// What a block that is given back must not have.
constexpr std::uint32_t kBareMask =
    word::kHoldMask | word::kPinMask | word::kPhaseMask | word::kPublished | word::kHbmValid;

constexpr std::uint32_t PhaseBits(Phase phase) {
  return static_cast<std::uint32_t>(phase) << word::kPhaseShift;
}
constexpr Phase PhaseOf(std::uint32_t word) {
  return static_cast<Phase>((word & word::kPhaseMask) >> word::kPhaseShift);
}

constexpr std::uint32_t PhaseSet(std::initializer_list<Phase> phases) {
  std::uint32_t set = 0;
  for (Phase phase : phases) set |= 1u << static_cast<unsigned>(phase);
  return set;
}
constexpr bool In(Phase phase, std::uint32_t set) {
  return ((set >> static_cast<unsigned>(phase)) & 1u) != 0;
}
constexpr std::uint32_t kHeldPhases = PhaseSet({Phase::kAllocated, Phase::kActive});
constexpr std::uint32_t kUnheldPhases =
    PhaseSet({Phase::kFree, Phase::kIdle, Phase::kCandidate, Phase::kOffloaded});
constexpr std::uint32_t kValidPhases = PhaseSet({Phase::kActive, Phase::kIdle, Phase::kCandidate});
constexpr std::uint32_t kSlotlessPhases = PhaseSet({Phase::kFree, Phase::kOffloaded});

// What an edge does to the HBM copy, beside the phase.
enum EdgeRule : std::uint8_t { kIllegal = 0, kLegal = 1, kCommits = 2, kNeedsValid = 4 };

constexpr std::uint8_t RuleOf(Phase from, Phase to) {
  if (!IsLegal(from, to)) return kIllegal;
  if (from == Phase::kAllocated && to != Phase::kFree) return kLegal | kCommits;
  return In(to, kValidPhases) ? kLegal | kNeedsValid : kLegal;
}

constexpr auto kRules = [] {
  std::array<std::array<std::uint8_t, 8>, 8> rules{};
  for (std::size_t from = 0; from < kPhaseCount; ++from) {
    for (std::size_t to = 0; to < kPhaseCount; ++to) {
      rules[from][to] = RuleOf(static_cast<Phase>(from), static_cast<Phase>(to));
    }
  }
  return rules;
}();

// Moves `word` along one edge; false if there is no such edge or the bytes it needs are not there.
bool TakeEdge(std::uint32_t& word, Phase to) {
  const std::uint8_t rule =
      kRules[(word & word::kPhaseMask) >> word::kPhaseShift][static_cast<std::size_t>(to) & 7];
  if (rule == kIllegal) return false;
  if ((rule & kCommits) != 0) word |= word::kHbmValid;
  if ((rule & kNeedsValid) != 0 && (word & word::kHbmValid) == 0) return false;
  word = (word & ~word::kPhaseMask) | PhaseBits(to);
  return true;
}

// What `move` makes of a block whose word is `word`; kOk and *next, or why not.
Outcome NextWord(std::uint32_t word, const BlockPool::Move& move, std::uint32_t* next) {
  const std::uint32_t holds = word & word::kHoldMask;
  *next = word + static_cast<std::uint32_t>(move.hold);
  if (move.hold > 0) {
    if (holds == word::kHoldMask) return Outcome::kBusy;
    if (holds > 0) return Outcome::kOk;
  } else if (move.hold < 0) {
    if (holds == 0) return Outcome::kIllegalTransition;
    if (holds > 1) return Outcome::kOk;
  }
  if (move.via != Phase::kFree && !TakeEdge(*next, move.via)) return Outcome::kIllegalTransition;
  if (!TakeEdge(*next, move.to)) return Outcome::kIllegalTransition;
  const bool held = (*next & word::kHoldMask) != 0;
  return In(move.to, held ? kUnheldPhases : kHeldPhases) ? Outcome::kIllegalTransition
                                                         : Outcome::kOk;
}

// How many leading blocks take the same edge. One block is the case of appends: no vector set-up.
std::size_t RunLength(const std::uint32_t* words, std::span<const BlockId> blocks) {
  return blocks.size() == 1 ? 1 : internal::AlikePrefix(words, blocks, kKeyMask);
}

// Ids exceed slots by a little, for tombstones; 0 if the options are out of range.
std::uint32_t IdCapacity(const BlockPool::Options& options) {
  constexpr std::uint64_t kMaxSlots = std::uint64_t{1} << 28;
  if (options.slots.empty() || options.slots.size() > kMaxTiers || options.block_tokens == 0) {
    return 0;
  }
  std::uint64_t total = 0;
  for (std::uint32_t slots : options.slots) total += slots;
  if (total == 0 || total > kMaxSlots) return 0;
  return static_cast<std::uint32_t>(total + total / 64 + 64);
}

}  // namespace

BlockPool::BlockPool(const Options& options)
    : block_tokens_(options.block_tokens),
      observer_(options.observer),
      clock_(options.clock),
      impl_(new Impl) {
  const std::uint32_t capacity = IdCapacity(options);
  if (capacity == 0 || !impl_->Map(options, capacity)) return;
  capacity_ = capacity;
  tier_count_ = static_cast<TierIndex>(options.slots.size());
  for (std::uint32_t slots : options.slots) {
    const bool null_slot = impl_->tiers.empty() && options.reserve_null_slot;
    impl_->tiers.emplace_back(slots, null_slot ? 1u : 0u);
  }
  impl_->ids = SlotAllocator(capacity);
  words_ = impl_->words.data();
  records_ = impl_->records.data();
  digests_ = impl_->digests.data();
  tokens_ = impl_->tokens.data();
  for (std::size_t i = 0; i < lower_slots_.size(); ++i) {
    lower_slots_[i] = impl_->lower_slots[i].data();
  }
}

BlockPool::~BlockPool() { delete impl_; }

std::uint32_t BlockPool::free_slots(TierIndex tier) const noexcept {
  return impl_->tiers[tier].allocator.free();
}
std::uint32_t BlockPool::slots(TierIndex tier) const noexcept { return impl_->tiers[tier].usable; }
std::uint32_t BlockPool::free_blocks() const noexcept { return impl_->ids.free(); }
std::uint32_t BlockPool::quarantined(TierIndex tier) const noexcept {
  return impl_->tiers[tier].quarantined;
}
std::uint32_t BlockPool::used(TierIndex tier) const noexcept { return impl_->tiers[tier].used(); }

bool BlockPool::Allocate(std::span<BlockId> out) noexcept {
  SlotAllocator& slots = impl_->tiers[kHbmTier].allocator;
  if (out.size() > slots.free() || out.size() > impl_->ids.free()) return false;
  if (out.size() == 1) {
    out[0] = BlockId(impl_->ids.TakeOne());
    Equip(out[0].value(), slots.TakeOne());
  } else {
    impl_->ids.Take({Numbers(out), out.size()});
    EquipAll(out);
  }
  held_ += static_cast<std::uint32_t>(out.size());
  if (observer_ != nullptr) Report(out, Phase::kFree, {Phase::kAllocated, Cause::kReserve});
  return true;
}

void BlockPool::Equip(std::uint32_t id, std::uint32_t slot) noexcept {
  words_[id] = PhaseBits(Phase::kAllocated) | 1u;  // one hold
  records_[id].hbm_slot_plus1 = slot + 1;
}

void BlockPool::EquipAll(std::span<const BlockId> blocks) noexcept {
  std::array<std::uint32_t, kBatch> slots;
  while (!blocks.empty()) {
    const std::size_t n = std::min(blocks.size(), kBatch);
    impl_->tiers[kHbmTier].allocator.Take({slots.data(), n});
    const std::uint32_t* const ids = Numbers(blocks);
    for (std::size_t i = 0; i < n; ++i) Equip(ids[i], slots[i]);
    blocks = blocks.subspan(n);
  }
}

bool BlockPool::AllocateIds(std::span<BlockId> out) noexcept {
  if (out.size() > impl_->ids.free()) return false;
  impl_->ids.Take({Numbers(out), out.size()});
  return true;
}

std::uint32_t& BlockPool::SlotField(BlockId b, TierIndex tier) noexcept {
  return tier == kHbmTier ? records_[b.value()].hbm_slot_plus1 : lower_slots_[tier - 1u][b.value()];
}

bool BlockPool::AttachSlot(BlockId b, TierIndex tier) noexcept {
  SlotAllocator& slots = impl_->tiers[tier].allocator;
  std::uint32_t& field = SlotField(b, tier);
  assert(field == 0);
  if (field != 0 || slots.free() == 0) return false;
  if (tier != kHbmTier) {
    if (phase(b) == Phase::kAllocated) return false;
    records_[b.value()].lower_copies |= static_cast<std::uint16_t>(1u << (tier + kMaxTiers));
  }
  field = slots.TakeOne() + 1;
  return true;
}

// Adds `one`, which may be minus one, wherever a lower copy of the block is clean.
void BlockPool::CountCleanCopies(BlockId b, std::uint32_t one) noexcept {
  std::uint32_t lower = valid_mask(b) & ~1u;
  for (; lower != 0; lower &= lower - 1) {
    const auto tier = static_cast<TierIndex>(__builtin_ctz(lower));
    if (Clean(b, tier)) clean_copies_[tier] += one;
  }
}

// A wish of the plan in progress (kExcluded) does not count: it is over before the next.
void BlockPool::CountArrivals(BlockId b, std::uint32_t tiers) noexcept {
  const std::uint32_t w = word(b);
  if ((w & (word::kPinMask | word::kChosen)) != 0) return;
  const std::uint32_t valid = valid_mask(b);
  if ((valid & (valid - 1)) == 0) return;  // an only copy
  const bool hbm = (w & (word::kEvictableMask | word::kClean)) == (word::kEvictable | word::kClean);
  if (hbm && (tiers & 1u) != 0) {
    ++clean_arrivals_[kHbmTier];
  }
  for (TierIndex t = 1; t + 1 < tier_count_; ++t) {
    if (((valid & tiers) >> t & 1u) != 0 && Clean(b, t)) ++clean_arrivals_[t];
  }
}

void BlockPool::CommitCopy(BlockId b, TierIndex tier) noexcept {
  assert(copy(b, tier) == CopyState::kWriting);
  CountCleanCopies(b, ~0u);
  std::uint16_t& lower = records_[b.value()].lower_copies;
  std::uint32_t next = word(b);
  if (tier == kHbmTier) {
    next |= word::kHbmValid;
  } else {
    lower = static_cast<std::uint16_t>((lower & ~(1u << (tier + kMaxTiers))) | (1u << tier));
  }
  if ((next & word::kHbmValid) != 0 && ((lower >> 1) & 1u) != 0) next |= word::kClean;
  SetWord(b, next);
  CountCleanCopies(b, 1);
  CountArrivals(b);
}

SlotId BlockPool::DetachSlot(BlockId b, TierIndex tier, bool quarantine) noexcept {
  const std::uint32_t stored = std::exchange(SlotField(b, tier), 0u);
  assert(stored != 0);
  if (stored == 0) return {};
  CountCleanCopies(b, ~0u);
  std::uint32_t next = word(b);
  if (tier == kHbmTier) {
    next &= ~(word::kHbmValid | word::kClean);
  } else {
    const std::uint32_t bits = (1u << tier) | (1u << (tier + kMaxTiers));
    records_[b.value()].lower_copies &= static_cast<std::uint16_t>(~bits);
    if (tier == 1) next &= ~word::kClean;
  }
  SetWord(b, next);
  CountCleanCopies(b, 1);
  TierSlots& slots = impl_->tiers[tier];
  if (quarantine) {
    ++slots.quarantined;
  } else {
    slots.Return(stored - 1);
  }
  return SlotId(stored - 1);
}

void BlockPool::ReturnQuarantined(TierIndex tier, std::span<const SlotId> slots) noexcept {
  TierSlots& pool = impl_->tiers[tier];
  assert(slots.size() <= pool.quarantined);
  pool.quarantined -= static_cast<std::uint32_t>(slots.size());
  for (SlotId slot : slots) pool.Return(slot.value());
}

bool BlockPool::SetAside(TierIndex tier, SlotId slot) noexcept {
  TierSlots& pool = impl_->tiers[tier];
  if (!pool.allocator.Withdraw(slot.value())) return false;
  ++pool.quarantined;
  return true;
}

void BlockPool::AttachSetAside(BlockId b, TierIndex tier, SlotId slot) noexcept {
  assert(tier != kHbmTier && copy(b, tier) == CopyState::kAbsent);
  --impl_->tiers[tier].quarantined;
  SlotField(b, tier) = slot.value() + 1;
  records_[b.value()].lower_copies |= static_cast<std::uint16_t>(1u << (tier + kMaxTiers));
  CommitCopy(b, tier);
}

void BlockPool::FreeId(BlockId b) noexcept {
  Record& record = records_[b.value()];
  const bool bare =
      (word(b) & kBareMask) == 0 && record.hbm_slot_plus1 == 0 && record.lower_copies == 0;
  assert(bare);
  if (!bare) return;
  words_[b.value()] = 0;
  record.node_or_position = 0;
  record.offset = 0;
  ++record.generation;
  impl_->ids.Give(b.value());
}

void BlockPool::FreeBlocks(std::span<const BlockId> blocks) noexcept {
  TierSlots& hbm = impl_->tiers[kHbmTier];
  std::array<std::uint32_t, kBatch> slots;
  while (!blocks.empty()) {
    const std::size_t alike = RunLength(words_, blocks.first(std::min(blocks.size(), kBatch)));
    const std::span<const BlockId> batch = blocks.first(alike);
    assert((word(batch[0]) & kBareMask & ~word::kHbmValid) == 0);
    Account(word(batch[0]), 0, static_cast<std::uint32_t>(alike));
    if (alike == 1) {
      hbm.Return(Strip(batch[0].value()));
      impl_->ids.Give(batch[0].value());
    } else {
      for (std::size_t i = 0; i < alike; ++i) slots[i] = Strip(batch[i].value());
      hbm.Return({slots.data(), alike});
      impl_->ids.Give({Numbers(batch), alike});
    }
    blocks = blocks.subspan(alike);
  }
}

// Makes all of a block's state zero but the generation, which grows; returns its HBM slot.
std::uint32_t BlockPool::Strip(std::uint32_t id) noexcept {
  Record& record = records_[id];
  const std::uint32_t stored = record.hbm_slot_plus1;
  assert(stored != 0 && record.lower_copies == 0);
  words_[id] = 0;
  record = {.node_or_position = 0,
            .hbm_slot_plus1 = 0,
            .generation = record.generation + 1,
            .offset = 0,
            .lower_copies = 0};
  return stored - 1;
}

std::size_t BlockPool::AlikeTail(std::span<const BlockId> blocks,
                                 std::uint32_t mask) const noexcept {
  return internal::AlikeSuffix(words_, blocks, mask);
}

// Besides the word's own rules: a phase that needs an HBM slot is entered only with one, and
// kAllocated, where nothing is committed, only without copies below.
Outcome BlockPool::CheckRun(std::span<const BlockId> run, const Move& move,
                            std::uint32_t* new_word) const noexcept {
  const std::uint32_t old_word = word(run[0]);
  const Outcome outcome = NextWord(old_word, move, new_word);
  if (outcome != Outcome::kOk) return outcome;
  const bool needs_slot = In(PhaseOf(old_word), kSlotlessPhases) &&
                          !In(PhaseOf(*new_word), kSlotlessPhases) &&
                          (old_word & word::kHbmValid) == 0;
  if (!needs_slot) return Outcome::kOk;
  const bool fresh = PhaseOf(old_word) == Phase::kFree;
  const bool fit = std::all_of(run.begin(), run.end(), [&](BlockId b) {
    const Record& record = records_[b.value()];
    return record.hbm_slot_plus1 != 0 && !(fresh && record.lower_copies != 0);
  });
  return fit ? Outcome::kOk : Outcome::kIllegalTransition;
}

void BlockPool::ApplyRun(std::span<const BlockId> run, std::uint32_t new_word) noexcept {
  const std::uint32_t old_word = word(run[0]);
  internal::FlipWords(words_, run, old_word ^ new_word);
  Account(old_word, new_word, static_cast<std::uint32_t>(run.size()));
}

Outcome BlockPool::Transition(std::span<const BlockId> blocks, const Move& move,
                              std::vector<BlockId>* changed) noexcept {
  if (changed != nullptr) changed->clear();
  if (move.hold < -1 || move.hold > 1) return Outcome::kInvalidArgument;
  if (blocks.empty()) return Outcome::kOk;
  const std::span<const BlockId> first = blocks.first(RunLength(words_, blocks));
  std::uint32_t new_word = 0;
  Outcome outcome = CheckRun(first, move, &new_word);
  if (outcome != Outcome::kOk) return outcome;
  if (first.size() < blocks.size()) return TransitionMixed(blocks, move, changed);
  const Phase from = phase(first[0]);
  ApplyRun(first, new_word);
  const bool watched = observer_ != nullptr || changed != nullptr;
  if (watched && from != PhaseOf(new_word)) Announce(first, from, move, changed);
  return Outcome::kOk;
}

Outcome BlockPool::TransitionMixed(std::span<const BlockId> blocks, const Move& move,
                                   std::vector<BlockId>* changed) noexcept {
  std::uint32_t new_word = 0;
  const auto run_at = [&](std::size_t i) {
    return blocks.subspan(i, RunLength(words_, blocks.subspan(i)));
  };
  for (std::size_t i = 0; i < blocks.size();) {
    const std::span<const BlockId> run = run_at(i);
    const Outcome outcome = CheckRun(run, move, &new_word);
    if (outcome != Outcome::kOk) return outcome;
    i += run.size();
  }
  // Blocks [begin, i) took the edge from `group_from` and are not announced yet.
  std::size_t begin = 0;
  Phase group_from = move.to;
  for (std::size_t i = 0; i < blocks.size();) {
    const std::span<const BlockId> run = run_at(i);
    const Phase from = phase(run[0]);
    (void)CheckRun(run, move, &new_word);
    ApplyRun(run, new_word);
    const Phase edge_from = from == PhaseOf(new_word) ? move.to : from;
    if (edge_from != group_from) {
      Announce(blocks.subspan(begin, i - begin), group_from, move, changed);
      begin = i;
      group_from = edge_from;
    }
    i += run.size();
  }
  Announce(blocks.subspan(begin), group_from, move, changed);
  return Outcome::kOk;
}

void BlockPool::Announce(std::span<const BlockId> blocks, Phase from, const Move& move,
                         std::vector<BlockId>* changed) noexcept {
  if (blocks.empty() || from == move.to) return;
  if (changed != nullptr) internal::AppendIds(*changed, blocks);
  if (observer_ != nullptr) Report(blocks, from, move);
}

void BlockPool::Report(std::span<const BlockId> blocks, Phase from, const Move& move) noexcept {
  const TimePoint now = clock_ != nullptr ? clock_->Now() : TimePoint{};
  if (move.via != Phase::kFree) {
    observer_->OnTransition({now, blocks, from, move.via, move.via_cause, signals_version_});
    from = move.via;
  }
  observer_->OnTransition({now, blocks, from, move.to, move.cause, signals_version_});
}

void BlockPool::Account(std::uint32_t old_word, std::uint32_t new_word,
                        std::uint32_t count) noexcept {
  const auto add = [this](std::uint32_t w, std::uint32_t n) {
    if ((w & word::kHoldMask) != 0) held_ += n;
    if ((w & word::kRestMask) != word::kRest) return;
    ((w & word::kPublished) != 0 ? cached_ : claimed_) += n;
    if ((w & word::kPhaseMask) != PhaseBits(Phase::kIdle)) return;
    evictable_ += n;
    if ((w & word::kClean) != 0) evictable_clean_ += n;
  };
  add(old_word, 0u - count);
  const std::uint32_t clean = evictable_clean_;
  add(new_word, count);
  clean_arrivals_[kHbmTier] += evictable_clean_ - clean;
}

void BlockPool::SetWord(BlockId b, std::uint32_t new_word) noexcept {
  Account(std::exchange(words_[b.value()], new_word), new_word, 1);
}

bool BlockPool::Pin(BlockId b) noexcept {
  if ((word(b) & word::kPinMask) == word::kPinMask) return false;
  SetWord(b, word(b) + word::kPinOne);
  return true;
}

bool BlockPool::Unpin(BlockId b) noexcept {
  if ((word(b) & word::kPinMask) == 0) return false;
  SetWord(b, word(b) - word::kPinOne);
  CountArrivals(b);
  return true;
}

PoolCounts BlockPool::Counts() const noexcept {
  const TierSlots& hbm = impl_->tiers[kHbmTier];
  return {.free = hbm.allocator.free(),
          .held = held_,
          .cached = cached_,
          .claimed = claimed_,
          .moving = hbm.used() - held_ - cached_ - claimed_,
          .quarantined = hbm.quarantined};
}

Status BlockPool::Resize(TierIndex tier, std::uint32_t slots) {
  if (tier >= tier_count_) {
    return absl::OutOfRangeError("tier is " + std::to_string(tier) + ", but the pool has " +
                                 std::to_string(tier_count_));
  }
  TierSlots& pool = impl_->tiers[tier];
  const std::uint32_t most = pool.allocator.capacity() - pool.first;
  if (slots > most) {
    return absl::OutOfRangeError("slots is " + std::to_string(slots) +
                                 ", but the tier was created for " + std::to_string(most));
  }
  pool.SetLimit(slots + pool.first);
  return absl::OkStatus();
}

std::vector<BlockId> BlockPool::BlocksBeyondLimit(TierIndex tier) const {
  std::vector<BlockId> beyond;
  if (tier >= tier_count_) return beyond;
  const std::uint32_t limit = impl_->tiers[tier].limit;
  for (std::uint32_t b = 0; b < capacity_; ++b) {
    const SlotId at = slot(BlockId(b), tier);
    if (at.valid() && at.value() >= limit) beyond.push_back(BlockId(b));
  }
  return beyond;
}

std::uint64_t BlockPool::MemoryBytes() const noexcept {
  std::uint64_t bytes = sizeof(*this) + sizeof(*impl_) + impl_->words.bytes() +
                        impl_->records.bytes() + impl_->digests.bytes() + impl_->ids.MemoryBytes();
  for (const auto& slots : impl_->lower_slots) bytes += slots.bytes();
  for (const TierSlots& tier : impl_->tiers) {
    bytes += sizeof(tier) + tier.allocator.MemoryBytes() + tier.withdrawn.capacity() / 8;
  }
  return bytes;
}

std::uint64_t BlockPool::TokenBytes() const noexcept { return impl_->tokens.bytes(); }

}  // namespace tidepool
