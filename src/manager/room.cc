// Room in HBM and below: victims in the policy's order, mapped to tails, planned before anything
// is evicted; and the ledger of demands that could not be met.
#include <algorithm>
#include <limits>

#include "src/manager/core.h"

namespace tidepool::internal {
namespace {

constexpr std::uint32_t kEvictBatch = 64;      // blocks whose cache misses overlap
constexpr std::size_t kFetchRecord = 24;       // candidates ahead: the block's record, which has...
constexpr std::size_t kFetchNode = 10;         // ...the address of its node
constexpr std::size_t kFetchKin = 4;           // which names its siblings
constexpr std::uint32_t kStaleBound = 4096;    // dead blocks given back in one go
constexpr std::uint32_t kMaxCopyFailures = 4;  // in a row: the tier is out of service...
constexpr Duration kFirstRetry = std::chrono::seconds(1);  // ...for so long...
constexpr std::uint32_t kMaxRetryDoublings = 6;            // ...or twice that, at most so often
constexpr std::uint32_t kMaxOvertaken = 4;  // admissions in front of a request that waits

/// Victims that lose nothing by leaving. In a single tier that is every block.
class CleanFilter final : public VictimFilter {
 public:
  CleanFilter(const BlockPool* pool, TierIndex tier, bool last)
      : pool_(pool), tier_(tier), last_(last) {}
  bool Allows(BlockId block) const noexcept override { return last_ || pool_->Clean(block, tier_); }

 private:
  const BlockPool* pool_;
  TierIndex tier_;
  bool last_;
};

/// Last copies whose loss costs less than a copy down and up.
class CheapFilter final : public VictimFilter {
 public:
  CheapFilter(const BlockPool* pool, const PrefixIndex* index, CostModel cost, double reload_s)
      : pool_(pool), index_(index), cost_(cost), reload_s_(reload_s) {}
  bool Allows(BlockId block) const noexcept override {
    return !pool_->Clean(block, kHbmTier) &&
           cost_.BlockSeconds(index_->Position(block) * pool_->block_tokens()) <= reload_s_;
  }

 private:
  const BlockPool* pool_;
  const PrefixIndex* index_;
  CostModel cost_;
  double reload_s_;
};

/// Only blocks of tenants over their share, on top of another filter.
class ShareFilter final : public VictimFilter {
 public:
  ShareFilter(const std::vector<NamespaceData>* namespaces, const std::vector<std::uint32_t>* owner,
              TierIndex tier, std::uint32_t only, const VictimFilter* next)
      : namespaces_(namespaces), owner_(owner), tier_(tier), only_(only), next_(next) {}
  bool Allows(BlockId block) const noexcept override {
    const std::uint32_t ns = (*owner_)[block.value()];
    const NamespaceData& data = (*namespaces_)[ns];
    const bool over = data.quota[tier_].soft != 0 && data.used[tier_] > data.quota[tier_].soft;
    return (only_ != kNone ? ns == only_ : over) && next_->Allows(block);
  }

 private:
  const std::vector<NamespaceData>* namespaces_;
  const std::vector<std::uint32_t>* owner_;
  TierIndex tier_;
  std::uint32_t only_;
  const VictimFilter* next_;
};

bool SameKey(const Demand& d, RequestId request, SessionId session) {
  if (d.request.valid() || request.valid()) return d.request == request;
  return d.session.valid() && d.session == session;
}

/// A sequence's demand is its own, whatever its request and session.
bool IsOf(const Demand& d, const RoomRequest& room) {
  if (d.sequence != 0 || room.sequence != 0) return d.sequence == room.sequence;
  return SameKey(d, room.request, room.session);
}

/// What is kept out of the hands of those who rank behind the demand. A sequence has its whole need
/// reserved: parked, it must be able to come back. A request that was never admitted may be
/// overtaken a few times by others that fit into what it cannot use yet.
std::uint32_t ReservedFor(const Demand& d) {
  const bool due = d.sequence != 0 || d.overtaken >= kMaxOvertaken;
  return due ? std::max(d.slots, d.granted) : d.granted;
}

}  // namespace

// --- Demands. ---
//
// Demands rank by priority and order (RanksBefore). A sequence's order is its serial; a request
// draws one when it is first refused and keeps it when it is admitted. A sequence's demand that
// lapses comes back with the same rank, a request's with a new one. What a running sequence appends
// yields to higher priorities only: it holds blocks that those before it may be waiting for, so the
// sooner it ends the better.

Demand* ManagerCore::FindDemand(const RoomRequest& room) noexcept {
  for (Demand& d : demands_) {
    if (IsOf(d, room)) return &d;
  }
  return nullptr;
}

// Slots that must be left to the demands that rank before this request.
std::uint64_t ManagerCore::Reserved(const RoomRequest& room) const noexcept {
  if (demands_.empty()) return 0;
  std::uint64_t order = room.sequence != 0 ? room.sequence : ~std::uint64_t{0};
  for (const Demand& d : demands_) {
    if (IsOf(d, room)) order = d.order;
  }
  std::uint64_t reserved = 0;
  for (const Demand& d : demands_) {
    if (IsOf(d, room)) continue;
    if (room.running) {
      if (d.priority > room.priority) reserved += d.granted;
    } else if (RanksBefore(d.rank(), {room.priority, order})) {
      reserved += ReservedFor(d);
    }
  }
  return reserved;
}

// Free slots that this request may take.
std::uint32_t ManagerCore::Available(const RoomRequest& room) const noexcept {
  const std::uint32_t free = pool_->free_slots(kHbmTier);
  return free - static_cast<std::uint32_t>(std::min<std::uint64_t>(free, Reserved(room)));
}

void ManagerCore::RegisterDemand(const RoomRequest& room, const Refusal& refusal) {
  if (room.sequence == 0 && !room.request.valid() && !room.session.valid()) {
    return;  // nobody to set slots aside for
  }
  Demand* d = FindDemand(room);
  if (d == nullptr) {
    demands_.emplace_back();
    d = &demands_.back();
    d->request = room.request;
    d->session = room.session;
    d->sequence = room.sequence;
    d->owner = room.owner;
    d->order = room.sequence != 0 ? room.sequence : next_serial_++;
    d->since = signals_.now;
  }
  d->priority = room.priority;
  d->running = room.running;
  d->slots = refusal.over_quota ? 0 : room.slots;
  d->hits_end = room.hits_end.valid() ? pool_->ref(room.hits_end) : BlockRef();
  d->need = d->granted + refusal.missing;
  NoteDemand(Decision::kDemand, *d, refusal.missing);
  d->expiry = After(signals_.now, options_.demand_ttl);
}

// Room for it is not made from its own prefix.
void ManagerCore::ProtectDemand(const SequenceData& seq) noexcept {
  for (Demand& d : demands_) {
    if (d.sequence != seq.serial || seq.publish_blocks <= seq.dropped) continue;
    d.hits_end = pool_->ref(seq.blocks[seq.publish_blocks - 1]);
  }
}

void ManagerCore::EraseDemand(const SequenceData& seq) {
  if (demands_.empty()) return;
  std::erase_if(demands_, [&](const Demand& d) { return d.sequence == seq.serial; });
  TrimGrants();
}

// The admission is granted: its demand ends, and those that it has overtaken are told. Returns the
// serial of its sequence, a new one being the last that was drawn.
std::uint64_t ManagerCore::TakeDemand(const RoomRequest& room) {
  const Demand* own = FindDemand(room);
  const std::uint64_t drawn = room.sequence != 0 ? room.sequence : next_serial_ - 1;
  const std::uint64_t serial = own != nullptr ? own->order : drawn;
  // Back in its place, it still lacks what it could not append.
  if (own != nullptr && !own->running) demands_.erase(demands_.begin() + (own - demands_.data()));
  for (Demand& d : demands_) {
    if (!IsOf(d, room) && RanksBefore(d.rank(), {room.priority, serial})) ++d.overtaken;
  }
  TrimGrants();
  return serial;
}

void ManagerCore::CancelDemand(RequestId request, SessionId session) {
  std::erase_if(demands_, [&](const Demand& d) { return SameKey(d, request, session); });
  TrimGrants();
}

// Slots that write-back has freed go to the strongest demand, the oldest among equals.
void ManagerCore::Grant(std::uint32_t slots) {
  std::uint32_t free = pool_->free_slots(kHbmTier);
  for (const Demand& d : demands_) free -= std::min(free, d.granted);
  slots = std::min(slots, free);
  while (slots != 0) {
    Demand* best = nullptr;
    for (Demand& d : demands_) {
      if (d.granted >= d.need) continue;
      if (best == nullptr || RanksBefore(d.rank(), best->rank())) best = &d;
    }
    if (best == nullptr) return;
    const std::uint32_t n = std::min(slots, best->need - best->granted);
    best->granted += n;
    NoteDemand(Decision::kGrant, *best, n);
    slots -= n;
  }
}

// A stronger request may have taken slots that were set aside: the weakest demand loses first.
void ManagerCore::TrimGrants() {
  std::uint64_t granted = 0;
  for (const Demand& d : demands_) granted += d.granted;
  while (granted > pool_->free_slots(kHbmTier)) {
    Demand* weakest = nullptr;
    for (Demand& d : demands_) {
      if (d.granted == 0) continue;
      if (weakest == nullptr || RanksBefore(weakest->rank(), d.rank())) weakest = &d;
    }
    const auto over = static_cast<std::uint32_t>(granted - pool_->free_slots(kHbmTier));
    const std::uint32_t n = std::min(over, weakest->granted);
    weakest->granted -= n;
    NoteDemand(Decision::kTakeGrantBack, *weakest, n);
    granted -= n;
  }
}

// --- Room in HBM. ---

// Appends victims of the request's own namespace when its hard cap leaves no other way.
bool ManagerCore::PlanQuota(const RoomRequest& room) {
  const NamespaceData& data = namespaces_[room.ns];
  const std::uint32_t hard = data.quota[kHbmTier].hard;
  if (hard == 0 || data.used[kHbmTier] + room.slots <= hard) return true;
  const std::uint32_t excess = data.used[kHbmTier] + room.slots - hard;
  const CleanFilter clean(pool_.get(), kHbmTier, tiers_ == 1);
  const ShareFilter own(&namespaces_, &block_ns_, kHbmTier, room.ns, &clean);
  PlanVictims(kHbmTier, excess, &own, victims_);
  return victims_.size() >= excess;
}

// Of one block, without what is queued.
double ManagerCore::CopySeconds(TierIndex from, TierIndex to) const noexcept {
  const double rate = link_signals_[LinkOf(from, to)].bytes_per_second;
  return rate > 0 ? static_cast<double>(block_bytes_) / rate
                  : std::numeric_limits<double>::infinity();
}
double ManagerCore::RoundTripSeconds() const noexcept {
  return CopySeconds(kHbmTier, 1) + CopySeconds(1, kHbmTier);
}

// False if PlanCheap would look for what is not there: even the first block of a prompt is dearer.
bool ManagerCore::MayPlanCheap() const noexcept {
  return options_.recompute.known() && options_.recompute.BlockSeconds(0) <= RoundTripSeconds();
}

// Victims whose recomputation costs less than the two copies that would save it. What is queued on
// the links now does not count: a return is minutes away, and n blocks wait for one queue once.
void ManagerCore::PlanCheap(std::uint32_t n) {
  const CheapFilter cheap(pool_.get(), index_.get(), options_.recompute, RoundTripSeconds());
  PlanVictims(kHbmTier, n, &cheap, victims_);
  std::erase_if(victims_, [&](BlockId b) {  // a last copy may leave only behind everything else
    const bool interior = pool_->valid_mask(b) == 1u && pool_->Has(b, word::kPublished) &&
                          !index_->IsResidentTail(b, last_tier());
    if (interior) Unchoose({&b, 1}, kHbmTier);
    return interior;
  });
}

// Finds the victims that make room, in victims_ and marked chosen; evicts only what is dead. On
// refusal nothing is chosen.
bool ManagerCore::PlanRoom(const RoomRequest& room, Shortfall& shortfall, Refusal& refusal) {
  victims_.clear();
  if (room.slots > pool_->free_blocks()) ReclaimOrphans(kNone);  // tombstones keep ids
  // Those that rank before it must be able to fit too, although its hits can then not leave.
  const std::uint64_t wanted = room.slots + Reserved(room);
  const auto missing = [&] {
    const auto freed = std::count_if(victims_.begin(), victims_.end(),
                                     [&](BlockId b) { return FreesSlot(b, kHbmTier); });
    const std::uint64_t have = pool_->free_slots(kHbmTier) + static_cast<std::uint64_t>(freed);
    return static_cast<std::uint32_t>(wanted - std::min(wanted, have));
  };
  if (missing() != 0 && stale_hint_ != 0) ReclaimStale(missing());
  if (missing() != 0) ReclaimOrphans(missing());
  const std::uint32_t available = Available(room);
  std::uint32_t few = kNone;  // clean blocks that could leave, if a search has found too few
  const bool possible = !quotas_ || PlanQuota(room);
  const auto plan = [&](const VictimFilter& filter) {
    std::size_t before;
    do {  // more than once only in a shrinking tier
      before = victims_.size();
      PlanVictims(kHbmTier, missing(), &filter, victims_);
    } while (missing() != 0 && shrinking_ != 0 && victims_.size() != before);
  };
  refusal = {.missing = room.slots - std::min(room.slots, available), .over_quota = !possible};
  const bool cheap = tiers_ > 1 && MayPlanCheap();
  const BlockId ends[] = {room.hits_end, room.partial};
  const std::uint64_t left_out = room.hits_end.valid() ? LeftOut(ends) : 0;  // 0: has no name
  const CleanSearch* const last = LastSearch(kHbmTier, left_out);
  const bool none = tiers_ == 1 ? pool_->evictable() == 0
                                : pool_->evictable_clean() == 0 || (last && last->found == 0);
  const bool known = last && !quotas_ && shrinking_ == 0 && !cheap && missing() > last->found;
  if (possible && !known) {
    const CleanFilter clean(pool_.get(), kHbmTier, tiers_ == 1);
    if (missing() != 0 && !none) {
      if (quotas_) plan(ShareFilter(&namespaces_, &block_ns_, kHbmTier, kNone, &clean));
      plan(clean);
    }
    few = static_cast<std::uint32_t>(victims_.size());
    if (missing() != 0 && cheap) PlanCheap(missing());
    if (missing() == 0) return true;
  }
  shortfall = {.needed = room.slots,
               .available = available,
               .evictable = pool_->evictable(),
               .in_flight = leaving_[kHbmTier]};
  Unchoose(victims_, kHbmTier);
  if (few != kNone && left_out != 0) NoteFewClean(kHbmTier, left_out, few);
  return false;
}

bool ManagerCore::EnsureRoom(const RoomRequest& room, Shortfall& shortfall) {
  do {  // a shrinking tier keeps some of the slots that victims leave: look again
    Refusal refusal;
    if (!PlanRoom(room, shortfall, refusal)) {
      if (refusal.missing != 0) RegisterDemand(room, refusal);
      return false;
    }
    EvictChosen(victims_, kHbmTier);
  } while (room.slots > Available(room));
  return room.slots <= pool_->free_blocks();
}

// --- Victims. ---

// The block that leaves when a policy names `candidate`, or an invalid id.
BlockId ManagerCore::AcceptCandidate(BlockId candidate, TierIndex tier,
                                     const VictimFilter* filter) {
  BlockId b = candidate;
  if (pool_->Has(b, word::kPublished) && !options_.tiers[tier].holes_allowed) {
    const bool duplicate = tier != kHbmTier && pool_->best_tier(b) < tier;
    if (!duplicate && !index_->IsResidentTail(b, tier)) b = index_->ResidentTail(b, tier);
    if (!b.valid()) return b;
  }
  if (!pool_->Evictable(b, tier) || (filter != nullptr && !filter->Allows(b))) return BlockId();
  return b;
}

// False for a slot that a shrinking tier withdraws as soon as it is free.
bool ManagerCore::FreesSlot(BlockId block, TierIndex tier) const noexcept {
  if (((shrinking_ >> tier) & 1u) == 0) return true;
  const std::uint32_t first = tier == kHbmTier && options_.reserve_null_slot ? 1 : 0;
  return pool_->slot(block, tier).value() < first + size_goal_[tier];
}

// Appends up to `n` victims of `tier` to `out`, marked chosen. Evicts nothing.
void ManagerCore::PlanVictims(TierIndex tier, std::uint32_t n, const VictimFilter* filter,
                              std::vector<BlockId>& out) {
  std::uint32_t ask = n;
  std::uint32_t got = 0;
  std::vector<BlockId> vain;  // what the last round named, if none of it could leave
  bool again = false;         // a candidate stood in front of others: it may follow them
  while (got < n) {
    candidates_.clear();
    policies_[tier]->SelectVictims({.blocks = ask, .incoming = misses_, .filter = filter}, signals_,
                                   candidates_);
    const auto fetch_record = [this](BlockId b) { pool_->Prefetch(b, 1); };
    const std::uint32_t before = got;
    const std::size_t count = candidates_.size();
    const auto first = static_cast<std::size_t>(
        std::mismatch(vain.begin(), vain.end(), candidates_.begin(), candidates_.end()).first -
        vain.begin());
    again = again && first != 0;
    for (std::size_t i = first; i < std::min(count, first + kFetchRecord); ++i) {
      fetch_record(candidates_[i]);
    }
    for (std::size_t i = first; i < std::min(count, first + kFetchNode); ++i) {
      index_->PrefetchNode(candidates_[i]);
    }
    for (std::size_t i = first; i < count && got < n; ++i) {
      if (i + kFetchRecord < count) fetch_record(candidates_[i + kFetchRecord]);
      if (i + kFetchNode < count) index_->PrefetchNode(candidates_[i + kFetchNode]);
      if (i + kFetchKin < count) index_->PrefetchForRemoval(candidates_[i + kFetchKin]);
      const BlockId b = AcceptCandidate(candidates_[i], tier, filter);
      again |= b != candidates_[i] && !pool_->Has(candidates_[i], word::kChosen);
      if (!b.valid()) continue;
      Choose(b, tier);
      out.push_back(b);
      ++got;
    }
    const bool exhausted = candidates_.size() < ask;
    again |= got != before && policies_[tier]->needs().repeat;
    if (exhausted && !again) return;  // the policy has no more to offer
    if (got != before) {
      ask = n - got;
      vain.clear();
      continue;
    }
    if (exhausted) return;
    ask *= 2;  // all of these stand in front of protected blocks
    vain.swap(candidates_);
  }
}

// From now on the block before it counts as a tail.
void ManagerCore::Choose(BlockId block, TierIndex tier) {
  if (pool_->Has(block, word::kPublished)) {
    index_->MarkChosen(block, tier);
  } else {
    pool_->SetFlag(block, word::kChosen);
  }
}

void ManagerCore::ClearChoice(BlockId block, TierIndex tier) {
  if (pool_->Has(block, word::kPublished)) {
    index_->UnmarkChosen(block, tier);
  } else {
    pool_->ClearFlag(block, word::kChosen);
  }
}

// They stay.
void ManagerCore::Unchoose(std::span<const BlockId> blocks, TierIndex tier) {
  for (const BlockId b : blocks) {
    ClearChoice(b, tier);
    pool_->CountArrivals(b);
  }
}

void ManagerCore::EvictChosen(std::span<const BlockId> blocks, TierIndex tier) {
  while (!blocks.empty()) {
    const std::size_t n = std::min<std::size_t>(blocks.size(), kEvictBatch);
    EvictBatch(blocks.first(n), tier);
    blocks = blocks.subspan(n);
  }
}

// Victims that still have a copy elsewhere lose this one; the others are gone.
void ManagerCore::EvictBatch(std::span<const BlockId> blocks, TierIndex tier) {
  demoted_.clear();
  dropped_.clear();
  for (const BlockId b : blocks) index_->PrefetchForRemoval(b);
  for (const BlockId b : blocks) {
    ((pool_->valid_mask(b) & ~(1u << tier)) != 0 ? demoted_ : dropped_).push_back(b);
  }
  stats_.evicted[tier] += blocks.size();
  // The index counts them as gone already, and is told about the real thing below.
  for (const BlockId b : blocks) pool_->ClearFlag(b, word::kChosen);
  if (!demoted_.empty()) {
    if (tier == kHbmTier) {
      pool_->Transition(demoted_, {.to = Phase::kOffloaded,
                                   .cause = Cause::kEvict,
                                   .via = Phase::kCandidate,
                                   .via_cause = Cause::kSelectVictim});
    }
    NotifyEvicted(demoted_, tier, EvictReason::kDemoted);
    for (const BlockId b : demoted_) {
      LogEvent(EventKind::kRemoved, b, tier, EvictReason::kDemoted, false);
      DetachCopy(b, tier);
      if (pool_->Has(b, word::kPublished)) index_->OnCopyChanged(b);
    }
    NotifyCopies(demoted_, tier, CopyState::kAbsent);
  }
  if (dropped_.empty()) return;
  stats_.dropped_blocks += dropped_.size();
  if (tier != last_tier()) stats_.dropped_dirty += dropped_.size();
  pool_->Transition(dropped_, tier == kHbmTier
                                  ? BlockPool::Move{.to = Phase::kFree,
                                                    .cause = Cause::kDrop,
                                                    .via = Phase::kCandidate,
                                                    .via_cause = Cause::kSelectVictim}
                                  : BlockPool::Move{.to = Phase::kFree, .cause = Cause::kDrop});
  NotifyEvicted(dropped_, tier, EvictReason::kCapacity);
  NotifyCopies(dropped_, tier, CopyState::kAbsent);
  for (const BlockId b : dropped_) {
    LogEvent(EventKind::kRemoved, b, tier, EvictReason::kCapacity, true);
    DetachCopy(b, tier);
    Vanish(b);
  }
}

// The last copy is gone and so is the phase: out of the index, and the id is free again. What
// stood below becomes orphaned.
void ManagerCore::Vanish(BlockId block) {
  if (!pool_->Has(block, word::kPublished)) {
    pool_->ClearFlag(block, word::kAbandoned);
    pool_->FreeId(block);
    return;
  }
  lost_.clear();
  if (index_->Remove(block, &lost_)) pool_->FreeId(block);
  for (const BlockId orphan : lost_) orphans_.push_back(pool_->ref(orphan));
}

// Every copy of unprotected blocks, tails first.
void ManagerCore::DropEverywhere(std::span<const BlockId> blocks, EvictReason reason) {
  for (const BlockId b : blocks) {
    const std::uint32_t copies = pool_->valid_mask(b);
    pool_->Transition({&b, 1}, {.to = Phase::kFree, .cause = Cause::kInvalidate});
    for (TierIndex t = 0; t < tiers_; ++t) {
      if (((copies >> t) & 1u) == 0) continue;
      LogEvent(EventKind::kRemoved, b, t, reason, (copies >> (t + 1)) == 0);
      NotifyEvicted({&b, 1}, t, reason);
      NotifyCopy(b, t, CopyState::kAbsent);
      DetachCopy(b, t);
      ++stats_.evicted[t];
    }
    ++stats_.dropped_blocks;
    Vanish(b);
  }
}

// Blocks of dropped namespaces and old epochs. Returns how many HBM slots that freed.
std::uint32_t ManagerCore::ReclaimStale(std::uint32_t n, EvictReason reason) {
  const std::uint32_t before = pool_->free_slots(kHbmTier);
  for (std::uint32_t i = 0; i < kStaleBound || n == kNone; ++i) {
    if (pool_->free_slots(kHbmTier) - before >= n) break;
    BlockId b = index_->NextStale();
    if (!b.valid()) b = index_->NextStale();  // that was the end of the last pass
    if (!b.valid()) {
      stale_hint_ = 0;
      break;
    }
    DropEverywhere({&b, 1}, reason);
  }
  return pool_->free_slots(kHbmTier) - before;
}

std::uint32_t ManagerCore::ReclaimOrphans(std::uint32_t n, TierIndex tier) {
  const std::uint32_t before = pool_->free_slots(tier);
  std::vector<BlockRef> busy;
  while (!orphans_.empty() && pool_->free_slots(tier) - before < n) {
    const BlockRef ref = orphans_.back();  // deepest first
    orphans_.pop_back();
    if (!pool_->alive(ref) || !pool_->Has(ref.block, word::kOrphan)) continue;
    if (pool_->holds(ref.block) != 0 || pool_->pins(ref.block) != 0 ||
        pool_->Has(ref.block, word::kExcluded | word::kChosen)) {
      busy.push_back(ref);
      continue;
    }
    DropEverywhere({&ref.block, 1}, EvictReason::kInvalidated);
  }
  orphans_.insert(orphans_.end(), busy.rbegin(), busy.rend());
  return pool_->free_slots(tier) - before;
}

std::uint32_t ManagerCore::Evict(TierIndex tier, std::uint32_t blocks) {
  BindThread();
  if (tier >= tiers_) return 0;
  StampSignals();
  misses_.clear();
  victims_.clear();
  if (stale_hint_ != 0) ReclaimStale(blocks);
  std::uint32_t orphans = ReclaimOrphans(blocks, tier);
  if (orphans < blocks) orphans += GiveUpStored(tier, blocks - orphans);
  blocks -= std::min(blocks, orphans);
  const CleanFilter clean(pool_.get(), tier, tier == last_tier());
  PlanVictims(tier, blocks, &clean, victims_);
  const auto n = static_cast<std::uint32_t>(victims_.size());
  EvictChosen(victims_, tier);
  return n + orphans;
}

// --- Room below HBM. ---

// A tier that has refused several copies in a row is left alone for a while, longer each time.
void ManagerCore::NoteCopyResult(TierIndex tier, bool ok) noexcept {
  std::uint32_t& failures = copy_failures_[tier];
  failures = ok ? 0 : failures + 1;
  if (failures < kMaxCopyFailures) return;
  const std::uint32_t doublings = std::min(failures - kMaxCopyFailures, kMaxRetryDoublings);
  copy_retry_at_[tier] = After(signals_.now, kFirstRetry * (1u << doublings));
}

bool ManagerCore::SlotsGrantable(TierIndex tier) const noexcept {
  if (WriteBudgetBlocks(tier) == 0) return false;
  return copy_failures_[tier] < kMaxCopyFailures || signals_.now >= copy_retry_at_[tier];
}

// Slots of a lower tier that can be had now, up to `n`: free ones, then clean victims.
std::uint32_t ManagerCore::AcquireLower(TierIndex tier, std::uint32_t n) {
  if (!SlotsGrantable(tier)) return 0;
  n = std::min(n, WriteBudgetBlocks(tier));
  if (pool_->free_slots(tier) < n) ReclaimOrphans(n - pool_->free_slots(tier), tier);
  if (pool_->free_slots(tier) < n) GiveUpStored(tier, n - pool_->free_slots(tier));
  if (pool_->free_slots(tier) < n) {
    std::vector<BlockId> victims;
    EvictClean(tier, n - pool_->free_slots(tier), victims);
  }
  return std::min(n, pool_->free_slots(tier));
}

// --- Clean victims. ---
//
// A search that finds too few has looked at the whole tier. It is not made again before
// BlockPool::clean_arrivals says that another clean copy may leave: one became clean or unpinned
// or was let go of by a plan (the pool and Unchoose count that), or what stood behind it has left
// or is about to (UncoverParent). Arrivals may count too much, never too little. In the last tier
// anything may leave and each search finds something.

// `block` has ceased to count in these tiers (a bit each): a clean block before it may follow.
void ManagerCore::UncoverParent(BlockId block, std::uint32_t tiers) noexcept {
  if (tiers == 0) return;
  const BlockId parent = index_->Parent(block);
  if (parent.valid()) pool_->CountArrivals(parent, tiers);
}

// Where the block has ceased to count with its copy in `tier`: down to its next copy, and in that
// tier too if it is chosen.
std::uint32_t ManagerCore::TiersLeft(BlockId block, TierIndex tier) const noexcept {
  const std::uint32_t from = ~0u << tier;
  const std::uint32_t copies = pool_->valid_mask(block);
  if ((copies & ~from) != 0) return 0;  // a better copy counts
  if (copies == 0) return from;
  const std::uint32_t top = copies & (0u - copies);
  return from & (pool_->Has(block, word::kChosen) ? 2 * top - 1 : top - 1);
}

// What is left out of a search, the paths to `ends`, as a number that is not 0.
std::uint64_t ManagerCore::LeftOut(std::span<const BlockId> ends) const noexcept {
  std::uint64_t digest = 1;
  for (const BlockId end : ends) {
    const BlockRef ref = end.valid() ? pool_->ref(end) : BlockRef();
    digest = (digest ^ KeeperKey(ref)) * 0x9e3779b97f4a7c15u;
    digest ^= digest >> 32;
  }
  return digest | 1u;
}

// The search that tells what another one would find, or null.
const CleanSearch* ManagerCore::LastSearch(TierIndex tier, std::uint64_t left_out) const noexcept {
  if (tier == last_tier()) return nullptr;
  if (tier != kHbmTier && policies_[tier]->needs().repeat) return nullptr;  // may not name them all
  const CleanSearches& few = few_clean_[tier];
  const auto holds = [&](const CleanSearch& search) {
    return search.left_out != 0 && search.arrivals == pool_->clean_arrivals(tier);
  };
  if (holds(few.all) && (few.all.found == 0 || few.all.left_out == left_out)) return &few.all;
  for (const CleanSearch& search : few.partial) {
    if (holds(search) && search.left_out == left_out) return &search;
  }
  return nullptr;
}

void ManagerCore::NoteFewClean(TierIndex tier, std::uint64_t left_out,
                               std::uint32_t found) noexcept {
  CleanSearches& few = few_clean_[tier];
  CleanSearch& search =
      left_out == LeftOut({}) ? few.all : few.partial[few.next++ % few.partial.size()];
  search = {.left_out = left_out, .arrivals = pool_->clean_arrivals(tier), .found = found};
}

// Evicts up to `n` blocks that lose nothing by it, in `victims`.
std::uint32_t ManagerCore::EvictClean(TierIndex tier, std::uint32_t n,
                                      std::vector<BlockId>& victims) {
  const bool last = tier == last_tier();
  if (!last && (tier == kHbmTier ? pool_->evictable_clean() : pool_->clean_copies(tier)) == 0) {
    return 0;
  }
  const std::uint64_t left_out = LeftOut(awaited_ends_);
  const CleanSearch* const known = LastSearch(tier, left_out);
  victims.clear();
  const CleanFilter clean(pool_.get(), tier, last);
  if (known != nullptr && known->found == 0) return 0;
  PlanVictims(tier, n, &clean, victims);
  const auto evicted = static_cast<std::uint32_t>(victims.size());
  EvictChosen(victims, tier);
  if (evicted < n) NoteFewClean(tier, left_out, 0);
  return evicted;
}

}  // namespace tidepool::internal
