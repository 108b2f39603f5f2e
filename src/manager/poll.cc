// Poll: harvest, expire, serve demands through the migrator, reclaim. Each part is bounded.
#include <algorithm>

#include "src/manager/core.h"
#include "src/manager/plan_context.h"

namespace tidepool::internal {
namespace {

constexpr std::uint32_t kStalePerPoll = 1024;  // blocks of dropped trees given back
constexpr std::uint32_t kSpacesPerPoll = 64;   // namespaces checked for an old epoch
constexpr std::uint32_t kTailsPerPoll = 1024;  // dropped to let one block before them leave
constexpr std::size_t kAwaitedDemands = 16;    // whose hits are kept out of the victims' lists

}  // namespace

// Slots of a tier that are waited for and that no copy in flight will free.
std::uint32_t ManagerCore::ShortfallOf(TierIndex tier) const noexcept {
  std::uint32_t wanted = tier == kHbmTier ? 0 : lower_short_[tier];
  if (tier == kHbmTier) {
    for (const Demand& d : demands_) wanted += d.need - std::min(d.need, d.granted);
  }
  return wanted - std::min(wanted, leaving_[tier]);
}

void ManagerCore::ExpireDemands() {
  if (demands_.empty()) return;
  std::erase_if(demands_, [&](const Demand& d) { return d.expiry <= signals_.now; });
  TrimGrants();
}

// Keeps what the waiting requests would hit out of the victims' lists: room for a request is not
// made from its own prefix. The oldest demands only, for the rest comes later anyway.
void ManagerCore::MarkAwaited() {
  for (std::size_t i = 0; i < std::min(demands_.size(), kAwaitedDemands); ++i) {
    const BlockRef& end = demands_[i].hits_end;
    if (end.block.valid() && pool_->alive(end)) MarkPath(end.block);
    if (demands_[i].owner != kNone) MarkKept(*sequences_[demands_[i].owner]);
  }
}

void ManagerCore::MarkKept(const SequenceData& seq) {
  for (const SequenceData::PrivateBlock& kept : seq.kept) {
    if (!pool_->alive(kept.ref)) continue;
    pool_->SetFlag(kept.ref.block, word::kExcluded);
    awaited_.push_back(kept.ref.block);
    awaited_ends_.push_back(kept.ref.block);
  }
}

// `end` and what stands before it, deepest first; also of blocks that are not published.
void ManagerCore::AppendPathUpwards(BlockId end, std::vector<BlockId>& out) const {
  const BlockView view(pool_.get(), index_.get());
  for (BlockId b = end; b.valid(); b = view.Parent(out.back())) {
    view.AppendUpwards(b, table_capacity_, out);
  }
}

void ManagerCore::MarkPath(BlockId end) {
  awaited_ends_.push_back(end);
  const std::size_t first = awaited_.size();
  AppendPathUpwards(end, awaited_);
  for (std::size_t k = first; k < awaited_.size(); ++k) {
    pool_->SetFlag(awaited_[k], word::kExcluded);
  }
}

// If nothing else could leave a tier, and none of these can, nothing at all can.
void ManagerCore::UnmarkAwaited() noexcept {
  const std::uint64_t left_out = LeftOut(awaited_ends_);
  for (const BlockId b : awaited_) pool_->ClearFlag(b, word::kExcluded);
  for (TierIndex t = 0; t + 1 < tiers_; ++t) {
    const CleanSearch* const last = LastSearch(t, left_out);
    if (last == nullptr || last == &few_clean_[t].all || last->found != 0) continue;
    const bool none = std::none_of(awaited_.begin(), awaited_.end(), [&](BlockId b) {
      return pool_->Clean(b, t) && AcceptCandidate(b, t, nullptr) == b;
    });
    if (none) NoteFewClean(t, LeftOut({}), 0);
  }
  awaited_.clear();
  awaited_ends_.clear();
}

// Clean victims for the demands.
void ManagerCore::GrantClean() {
  const std::uint32_t missing = ShortfallOf(kHbmTier);
  if (missing != 0) Grant(EvictClean(kHbmTier, missing, victims_));
}

void ManagerCore::ServeDemands() {
  lower_short_.fill(0);
  for (const Demand& d : demands_) {
    if (d.granted < d.need) oldest_demand_ = std::min(oldest_demand_, d.since);
  }
  ServeWaiting();
  oldest_demand_ = kNever;
}

void ManagerCore::ServeWaiting() {
  MarkAwaited();
  GrantClean();
  PlanCopies();
  const bool marked = !awaited_.empty();
  UnmarkAwaited();
  if (ShortfallOf(kHbmTier) == 0) return;
  if (marked) {  // nothing else can leave
    GrantClean();
    PlanCopies();
  }
  if (ShortfallOf(kHbmTier) != 0) DropForDemands();
}

void ManagerCore::PlanCopies() {
  PlanContext context(this);
  for (TierIndex t = 0; t + 1 < tiers_; ++t) {
    copies_.clear();
    migrator_->Plan(t, context, signals_, copies_);
    if (!copies_.empty()) ExecutePlan(t, copies_);
    context.ReturnUnused(t);
  }
}

// A link that moves nothing takes no copies (unknown bandwidth, NaN, counts as nothing).
bool ManagerCore::LinkAlive(TierIndex from) const noexcept {
  return link_signals_[LinkOf(from, static_cast<TierIndex>(from + 1))].bytes_per_second > 0;
}

// Starts as many of the planned copies as the tier below has slots for.
void ManagerCore::ExecutePlan(TierIndex tier, std::span<const PlannedCopy> plan) {
  const auto below = static_cast<TierIndex>(tier + 1);
  auto wanted = static_cast<std::uint32_t>(plan.size());
  std::uint32_t room = AcquireLower(below, wanted);
  for (const PlannedCopy& copy : plan) {
    // Making room may have dropped a block that was only looked at.
    const bool fits = room != 0 && copy.from == tier && copy.to == below &&
                      pool_->copy(copy.block, tier) == CopyState::kValid &&
                      pool_->pins(copy.block) == 0 && StartCopyDown(copy);
    if (fits) {
      migrator_->OnStarted(copy);
      --room;
      --wanted;
      if (!copy.release && pool_->Has(copy.block, word::kChosen)) Unchoose({&copy.block, 1}, tier);
    } else if (pool_->Has(copy.block, word::kChosen) && pool_->pins(copy.block) == 0) {
      Unchoose({&copy.block, 1}, tier);  // not one that the plan names twice and that is leaving
    }
  }
  lower_short_[below] = SlotsGrantable(below) ? wanted : 0;
}

// Nothing below can take a copy and nothing in flight will change that: what is demanded is worth
// more than what would be lost.
void ManagerCore::DropForDemands() {
  for (TierIndex t = 0; t < tiers_; ++t) {
    if (leaving_[t] != 0) return;
  }
  if (lower_short_[1] == 0 && SlotsGrantable(1) && LinkAlive(kHbmTier)) return;  // nothing to copy
  const std::uint32_t missing = ShortfallOf(kHbmTier);
  victims_.clear();
  PlanVictims(kHbmTier, missing, nullptr, victims_);
  std::vector<BlockId> interior;  // the last copy of what something below continues
  std::erase_if(victims_, [&](BlockId b) {
    const bool stands_before = pool_->valid_mask(b) == 1u && pool_->Has(b, word::kPublished) &&
                               !index_->IsResidentTail(b, last_tier());
    if (stands_before) interior.push_back(b);
    return stands_before;
  });
  Unchoose(interior, kHbmTier);
  auto n = static_cast<std::uint32_t>(victims_.size());
  EvictChosen(victims_, kHbmTier);
  if (n == 0) n = DropWithTails(interior);
  Grant(n);
}

// The first of these blocks that can leave once all that continues it has. Returns how many slots
// of HBM that made free.
std::uint32_t ManagerCore::DropWithTails(std::span<const BlockId> blocks) {
  const std::uint32_t before = pool_->free_slots(kHbmTier);
  std::uint32_t dropped = 0;
  for (const BlockId b : blocks) {
    const BlockRef ref = pool_->ref(b);
    while (pool_->alive(ref) && dropped++ < kTailsPerPoll) {
      const BlockId tail = index_->ResidentTail(b, last_tier());
      if (!tail.valid() || pool_->holds(tail) != 0 || pool_->pins(tail) != 0) break;
      DropEverywhere({&tail, 1}, EvictReason::kCapacity);
    }
    if (pool_->free_slots(kHbmTier) != before) break;
  }
  return pool_->free_slots(kHbmTier) - before;
}

void ManagerCore::Poll() {
  BindThread();
  signals_.now = Now();
  Harvest();
  ++polls_;
  if (!held_.empty()) ReleaseHeld();
  ExpireTransfers();
  ExpireDemands();
  RefreshSignals();
  RefreshWriteBudgets();
  for (const auto& policy : policies_) policy->OnTimeAdvanced(signals_);
  if (tiers_ > 1) {
    ServeDemands();
    PlanPrefetches();
  }
  if (stale_hint_ != 0) ReclaimStale(kStalePerPoll);
  const auto spaces = static_cast<std::uint32_t>(namespaces_.size());
  for (std::uint32_t i = 0; i < kSpacesPerPoll && epoch_sweep_ < spaces; ++i, ++epoch_sweep_) {
    NamespaceData& ns = namespaces_[epoch_sweep_];
    if (ns.root.valid() && ns.root_epoch != epoch_) Root(epoch_sweep_);
  }
  ProgressResize();
  SweepSessions();
  if (!unsubmitted_.empty()) Pump();
}

Status ManagerCore::Resize(TierIndex tier, std::uint32_t slots) {
  BindThread();
  if (tier >= tiers_) {
    return absl::OutOfRangeError("tier " + std::to_string(tier) + " does not exist");
  }
  if (Status s = pool_->Resize(tier, slots); !s.ok()) return s;
  policies_[tier]->Attach(BlockView(pool_.get(), index_.get()), tier, slots);
  size_goal_[tier] = slots;
  shrinking_ |= 1u << tier;
  if (tier != kHbmTier && tier == stored_tier_) {
    std::vector<SlotId> beyond;
    stored_.TakeBeyond(slots, beyond);
    ReturnStored(beyond);
  }
  ProgressResize();
  TrimGrants();
  return absl::OkStatus();
}

// A shrinking tier is emptied above its limit: what can leave now leaves, the rest is tried again.
void ManagerCore::ProgressResize() {
  for (TierIndex t = 0; shrinking_ != 0 && t < tiers_; ++t) {
    if (((shrinking_ >> t) & 1u) == 0) continue;
    const std::vector<BlockId> beyond = pool_->BlocksBeyondLimit(t);
    if (beyond.empty()) {
      shrinking_ &= ~(1u << t);
      continue;
    }
    victims_.clear();
    const bool last = t == last_tier();
    for (const BlockId b : beyond) {
      // Everything below it goes first; then the block itself.
      for (BlockId v = AcceptCandidate(b, t, nullptr); v.valid();
           v = AcceptCandidate(b, t, nullptr)) {
        if (!last && !pool_->Clean(v, t) && !index_->IsResidentTail(v, last_tier())) break;
        Choose(v, t);
        victims_.push_back(v);
        if (v == b) break;
      }
    }
    EvictChosen(victims_, t);
  }
}

}  // namespace tidepool::internal
