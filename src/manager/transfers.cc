// Transfers: created with both ends pinned, submitted in class order, ended exactly once.
#include <algorithm>

#include "src/manager/calls.h"

namespace tidepool::internal {
namespace {

constexpr std::size_t kSubmitBatch = 256;  // copies offered to the engine at a time

}  // namespace

Transfer& ManagerCore::NewTransfer(BlockId block, TierIndex from, TierIndex to, TransferClass cls,
                                   TimePoint deadline) {
  std::uint32_t index;
  if (!free_transfers_.empty()) {
    index = free_transfers_.back();
    free_transfers_.pop_back();
  } else {
    index = static_cast<std::uint32_t>(transfers_.size());
    transfers_.emplace_back();
  }
  Transfer& t = transfers_[index];
  const std::uint32_t generation = t.generation + 1;
  t = Transfer{};
  t.generation = generation;
  t.active = true;
  t.block = pool_->ref(block);
  t.from = from;
  t.to = to;
  t.source = pool_->slot(block, from);
  t.destination = pool_->slot(block, to);
  t.transfer_class = cls;
  t.tenant = namespaces_[NamespaceOf(block)].tenant;
  t.order = next_transfer_++;
  t.deadline = deadline;
  pool_->Pin(block);
  ++active_transfers_;
  ++in_flight_[from];
  ++in_flight_[to];
  unsubmitted_.Push({from, to}, SubmitEntry(t, index));
  NoteCopy(t);
  return t;
}

Transfer* ManagerCore::LoadOf(BlockId block) noexcept {
  const auto it = load_of_block_.find(block.value());
  return it == load_of_block_.end() ? nullptr : &transfers_[it->second];
}

// The caller has made sure of a free slot in the tier below. With `release` the block is on its
// way out: phase kOffloaded, marked chosen so that its parent counts as a tail.
bool ManagerCore::StartCopyDown(const PlannedCopy& copy) {
  const BlockId block = copy.block;
  const TierIndex from = copy.from;
  if (!AttachCopy(block, copy.to, NamespaceOf(block))) {
    ++stats_.offloads_refused;
    return false;
  }
  write_budget_[copy.to] -= static_cast<double>(block_bytes_);
  Transfer& t = NewTransfer(block, from, copy.to, copy.transfer_class, DeadlineOf(copy));
  t.release = copy.release;
  t.withdrawable = copy.withdraw_on_return;
  if (t.withdrawable) {
    withdrawable_[block.value()] = static_cast<std::uint32_t>(&t - transfers_.data());
  }
  ++stats_.offloads;
  if (!copy.release) return true;
  ++leaving_[from];
  if (!pool_->Has(block, word::kChosen)) Choose(block, from);
  UncoverParent(block, 1u << pool_->best_tier(block));
  if (from == kHbmTier) {
    pool_->Transition({&block, 1}, {.to = Phase::kOffloaded,
                                    .cause = Cause::kOffload,
                                    .via = Phase::kCandidate,
                                    .via_cause = Cause::kSelectVictim});
  }
  return true;
}

// A copy that a demand waits for should be done as soon as the demand came; one ahead of need,
// before the session that has the strongest claim on its block comes back.
TimePoint ManagerCore::DeadlineOf(const PlannedCopy& copy) const noexcept {
  if (copy.release) return oldest_demand_;
  const std::uint32_t session = index_->StrongestClaim(copy.block);
  if (session >= sessions_.size()) return kNever;
  const SessionSignals& owner = sessions_[session];
  const bool known = owner.state != SessionState::kRunning && owner.expected_return > signals_.now;
  return known ? owner.expected_return : kNever;
}

// Hands what waits to the engine, most urgent first. A refusal leaves the rest of its direction for
// the next Poll.
void ManagerCore::Pump() {
  unsubmitted_.Open();
  for (;;) {
    unsubmitted_.Front(kSubmitBatch, submitting_);
    if (submitting_.empty()) return;
    requests_.clear();
    for (const SubmitQueue::Entry& entry : submitting_) {
      const Transfer& t = transfers_[entry.transfer];
      requests_.push_back({.id = IdOf(entry.transfer, t.generation),
                           .block = t.block.block,
                           .generation = t.block.generation,
                           .from = t.from,
                           .to = t.to,
                           .source = t.source,
                           .destination = t.destination,
                           .transfer_class = t.transfer_class,
                           .deadline = t.deadline,
                           .tenant = t.tenant,
                           .order = t.order});
      const bool kept = t.to != kHbmTier && t.to == stored_tier_;
      if (kept) requests_.back().identity = IdentityOf(t.block.block);
    }
    const std::size_t accepted = std::min(engine_->Submit(requests_), requests_.size());
    for (std::size_t k = 0; k < accepted; ++k) OnSubmitted(submitting_[k]);
    if (accepted < requests_.size()) {
      unsubmitted_.Shut({requests_[accepted].from, requests_[accepted].to});
    }
  }
}

void ManagerCore::OnSubmitted(const SubmitQueue::Entry& entry) {
  Transfer& t = transfers_[entry.transfer];
  unsubmitted_.Erase({t.from, t.to}, entry);
  t.submitted = true;
  if (observer_ == nullptr) return;
  observer_->OnTransferStart({signals_.now, IdOf(entry.transfer, t.generation), t.block.block,
                              t.from, t.to, block_bytes_, TransferResult::kOk});
}

void ManagerCore::Harvest() {
  completions_.clear();
  engine_->Poll(completions_);
  if (completions_.empty()) return;
  std::vector<Completion> batch;
  batch.swap(completions_);
  for (const Completion& c : batch) {
    const auto index = static_cast<std::uint32_t>(c.id.value());
    const auto generation = static_cast<std::uint32_t>(c.id.value() >> 32);
    if (index >= transfers_.size() || !transfers_[index].active ||
        transfers_[index].generation != generation || !transfers_[index].submitted) {
      ++stats_.late_completions;
      continue;
    }
    Transfer& t = transfers_[index];
    if (!c.terminal) {
      t.layers_done = std::max(t.layers_done, std::min(c.layers_done, layers_));
      continue;
    }
    Complete(t, c.result);
  }
  MakeSpace();
  ReleaseCopied();
  AdvanceLoads();
  batch.swap(completions_);
}

void ManagerCore::Complete(Transfer& transfer, TransferResult result) {
  const Transfer t = transfer;  // its slot may be reused by what follows
  const auto index = static_cast<std::uint32_t>(&transfer - transfers_.data());
  if (observer_ != nullptr && t.submitted) {
    observer_->OnTransferEnd({signals_.now, IdOf(index, t.generation), t.block.block, t.from, t.to,
                              block_bytes_, t.expired ? TransferResult::kTimedOut : result});
  }
  EndTransfer(index);
  if (t.expired) {  // nobody waits any more; the destination was in quarantine
    pool_->ReturnQuarantined(t.to, {&t.destination, 1});
    if (t.to != kHbmTier) engine_->OnSlotFreed(t.to, t.destination);
    if (t.detached) {
      pool_->ReturnQuarantined(t.from, {&t.source, 1});
      if (t.from != kHbmTier) engine_->OnSlotFreed(t.from, t.source);
      return;
    }
    pool_->Unpin(t.block.block);
    AfterUnpin(t.block.block);
    return;
  }
  pool_->Unpin(t.block.block);
  if (result == TransferResult::kNoSpace && t.to != kHbmTier && RetryCopyDown(t)) return;
  if (t.computed) {
    --computed_;
  } else if (result == TransferResult::kOk) {
    stats_.bytes_out[t.from] += block_bytes_;
    stats_.bytes_in[t.to] += block_bytes_;
    CountMoved(t);
  }
  if (t.to == kHbmTier) {
    load_of_block_.erase(t.block.block.value());
    Transfer done = t;
    if (result == TransferResult::kCancelled && pool_->holds(t.block.block) != 0) {
      // Somebody joined after the cancel: load it again.
      Transfer& again =
          NewTransfer(t.block.block, t.from, t.to, TransferClass::kDemandLoad, t.deadline);
      again.expiry = t.expiry;
      const auto next = static_cast<std::uint32_t>(&again - transfers_.data());
      load_of_block_[t.block.block.value()] = next;
      if (t.taker != kNone && !t.computed) HoldBack(next, t.taker);
      return;
    }
    if (result == TransferResult::kCancelled) {
      DetachCopy(t.block.block, kHbmTier);
      AfterUnpin(t.block.block);
      return;
    }
    CompleteLoad(done, result == TransferResult::kOk);
  } else {
    Transfer done = t;
    CompleteCopyDown(done, result);
  }
}

void ManagerCore::CompleteLoad(Transfer& t, bool ok) {
  const BlockId b = t.block.block;
  if (!ok) {
    ++stats_.loads_failed;
    FailLoad(b, t.from, true);
    return;
  }
  const bool published = pool_->Has(b, word::kPublished);
  pool_->CommitCopy(b, kHbmTier);
  if (published) index_->OnCopyChanged(b);
  policies_[kHbmTier]->OnInserted({&b, 1});
  NotifyCopy(b, kHbmTier, CopyState::kValid);
  LogEvent(EventKind::kStored, b, kHbmTier, EvictReason::kCapacity, false);
  if (t.transfer_class == TransferClass::kCertainPrefetch ||
      t.transfer_class == TransferClass::kPredictedPrefetch) {
    NotePrefetched(b);
  }
  if (pool_->holds(b) != 0) {
    pool_->Transition({&b, 1}, {.to = Phase::kActive, .cause = Cause::kReady});
    return;
  }
  if (pool_->Has(b, word::kAbandoned)) {
    AfterUnpin(b);
    return;
  }
  pool_->Transition({&b, 1}, {.to = Phase::kIdle, .cause = Cause::kCancel});
  policies_[kHbmTier]->OnEvictable({&b, 1});
  if (published && index_->IsStale(b)) ++stale_hint_;
}

// The copy in `source` is given up while it is being copied on: that copy is worth nothing either.
// Its two slots stay out of use until the engine has let go of them; the block need not live so
// long. Returns whether the slot in `source` has to wait.
bool ManagerCore::DetachCopiesFrom(BlockId block, TierIndex source) {
  bool waits = false;
  for (std::uint32_t i = 0; i < transfers_.size(); ++i) {
    Transfer& t = transfers_[i];
    if (!t.active || t.expired || t.block.block != block || t.from != source) continue;
    ++stats_.offloads_failed;
    if (t.release) --leaving_[source];
    StopWithdrawing(t);
    if (pool_->Has(block, word::kChosen)) Unchoose({&block, 1}, source);
    DetachCopy(block, t.to, t.submitted);
    pool_->Unpin(block);
    if (!t.submitted) {
      ForgetTransfer(i);
      continue;
    }
    waits = t.expired = t.detached = true;
    engine_->Cancel(IdOf(i, t.generation));
  }
  return waits;
}

// One that the engine never had.
void ManagerCore::ForgetTransfer(std::uint32_t index) {
  const Transfer& t = transfers_[index];
  unsubmitted_.Erase({t.from, t.to}, SubmitEntry(t, index));
  EndTransfer(index);
}

void ManagerCore::EndTransfer(std::uint32_t index) {
  Transfer& t = transfers_[index];
  StopWithdrawing(t);
  t.active = false;
  free_transfers_.push_back(index);
  --active_transfers_;
  --in_flight_[t.from];
  --in_flight_[t.to];
}

// The destination's bytes are undefined: waiters are cut back, and the source is given up when it
// is to blame.
void ManagerCore::FailLoad(BlockId b, TierIndex source, bool drop_source) {
  const BlockRef ref = pool_->ref(b);
  const std::vector<std::uint32_t> waiting = loading_;
  for (const std::uint32_t i : waiting) {
    SequenceData& seq = *sequences_[i];
    if (seq.state != SequenceState::kRunning) continue;
    const auto at = std::find(seq.blocks.begin(), seq.blocks.end(), b);
    if (at != seq.blocks.end()) CutBack(seq, static_cast<std::uint32_t>(at - seq.blocks.begin()));
  }
  if (!pool_->alive(ref)) return;  // a private block went with its last sequence
  if (pool_->copy(b, kHbmTier) == CopyState::kWriting) DetachCopy(b, kHbmTier);
  if (!drop_source) return;
  const bool last = pool_->valid_mask(b) == (1u << source);
  LogEvent(EventKind::kRemoved, b, source, EvictReason::kFailed, last);
  NotifyEvicted({&b, 1}, source, EvictReason::kFailed);
  const bool waits = DetachCopiesFrom(b, source);
  if (pool_->Has(b, word::kChosen)) Unchoose({&b, 1}, source);  // a copy down has just ended
  DetachCopy(b, source, waits);
  ++stats_.evicted[source];
  if (!last) {
    if (pool_->Has(b, word::kPublished)) index_->OnCopyChanged(b);
    NotifyCopy(b, source, CopyState::kAbsent);
    return;
  }
  ++stats_.dropped_blocks;
  if (pool_->phase(b) != Phase::kFree) {
    pool_->Transition({&b, 1}, {.to = Phase::kFree, .cause = Cause::kLoadFailed});
  }
  Vanish(b);
}

void ManagerCore::CompleteCopyDown(Transfer& t, TransferResult result) {
  const BlockId b = t.block.block;
  const bool ok = result == TransferResult::kOk;
  const bool withdrawn = t.withdrawn && result == TransferResult::kCancelled;
  if (withdrawn) ++stats_.withdrawn;
  const bool published = pool_->Has(b, word::kPublished);
  if (t.release) --leaving_[t.from];
  if (!t.superseded && !withdrawn) NoteCopyResult(t.to, ok);
  if (!ok || t.superseded) {
    if (!ok && !withdrawn) ++stats_.offloads_failed;
    DetachCopy(b, t.to);
    if (t.superseded) DropLowerCopies(b);
    if (pool_->Has(b, word::kChosen)) Unchoose({&b, 1}, t.from);
    if (pool_->Has(b, word::kAbandoned)) {
      AfterUnpin(b);
    } else if (t.from == kHbmTier && pool_->phase(b) == Phase::kOffloaded) {
      pool_->Transition({&b, 1}, {.to = Phase::kIdle, .cause = Cause::kReprieve});
    }
    return;
  }
  pool_->CommitCopy(b, t.to);
  if (published) index_->OnCopyChanged(b);
  policies_[t.to]->OnInserted({&b, 1});
  NotifyCopy(b, t.to, CopyState::kValid);
  LogEvent(EventKind::kStored, b, t.to, EvictReason::kCapacity, false);
  if (pool_->Has(b, word::kAbandoned)) {
    if (pool_->Has(b, word::kChosen)) Unchoose({&b, 1}, t.from);
    AfterUnpin(b);
    return;
  }
  if (t.release) copied_.emplace_back(t.block, t.from);
}

// Copies that have arrived below may leave above, tails first; what stays has become clean.
void ManagerCore::ReleaseCopied() {
  if (copied_.empty()) return;
  std::vector<std::pair<BlockRef, TierIndex>> waiting;
  std::vector<std::pair<BlockRef, TierIndex>> stays;
  waiting.swap(copied_);
  for (bool progress = true; progress && !waiting.empty();) {
    progress = false;
    std::vector<std::pair<BlockRef, TierIndex>> next;
    for (auto it = waiting.rbegin(); it != waiting.rend(); ++it) {
      const auto& [ref, tier] = *it;
      const BlockId b = ref.block;
      if (!pool_->alive(ref)) continue;
      const bool leaving =
          pool_->Has(b, word::kChosen) &&
          (tier == kHbmTier ? pool_->phase(b) == Phase::kOffloaded && pool_->holds(b) == 0
                            : pool_->copy(b, tier) == CopyState::kValid);
      if (!leaving) continue;     // rescued meanwhile
      if (pool_->pins(b) != 0) {  // a load or a device copy reads it
        stays.push_back(*it);
        continue;
      }
      if (pool_->Has(b, word::kPublished) && !options_.tiers[tier].holes_allowed &&
          !index_->IsResidentTail(b, tier)) {
        next.emplace_back(ref, tier);
        continue;
      }
      FinishRelease(b, tier);
      progress = true;
    }
    waiting.assign(next.rbegin(), next.rend());
  }
  stays.insert(stays.end(), waiting.begin(), waiting.end());  // something below came back
  for (const auto& [ref, tier] : stays) {                     // it is clean now
    Unchoose({&ref.block, 1}, tier);
    if (tier == kHbmTier) {
      pool_->Transition({&ref.block, 1}, {.to = Phase::kIdle, .cause = Cause::kReprieve});
    }
  }
}

void ManagerCore::FinishRelease(BlockId b, TierIndex tier) {
  ClearChoice(b, tier);
  LogEvent(EventKind::kRemoved, b, tier, EvictReason::kDemoted, false);
  NotifyEvicted({&b, 1}, tier, EvictReason::kDemoted);
  DetachCopy(b, tier);
  pool_->CountArrivals(b);  // what it has below
  if (pool_->Has(b, word::kPublished)) index_->OnCopyChanged(b);
  NotifyCopy(b, tier, CopyState::kAbsent);
  ++stats_.evicted[tier];
  if (tier == kHbmTier) Grant(1);
}

// Loads that nobody waits for any more: told to the engine, forgotten if it never had them.
void ManagerCore::CancelLoads(std::span<const BlockId> blocks) {
  for (const BlockId b : blocks) {
    Transfer* t = LoadOf(b);
    if (t == nullptr || pool_->holds(b) != 0) continue;
    const auto index = static_cast<std::uint32_t>(t - transfers_.data());
    if (t->computed) continue;  // ends with its step
    if (t->submitted) {
      engine_->Cancel(IdOf(index, t->generation));
      continue;
    }
    unsubmitted_.Erase({t->from, t->to}, SubmitEntry(*t, index));
    Complete(*t, TransferResult::kCancelled);
  }
}

// --- Sessions that come back early. ---

// Copies of these blocks that have not started are not made: their sessions are back, so that the
// blocks will not leave soon. What has started goes on and makes its block clean.
void ManagerCore::WithdrawCopies(std::span<const BlockId> blocks) {
  for (const BlockId b : blocks) {
    if (withdrawable_.empty()) return;
    if (pool_->writing_mask(b) != 0) WithdrawCopy(b);
  }
}

// A copy that is to free a slot of HBM stays, unless a holder has rescued the block: somebody waits
// for that slot. What is to free a slot further down always stays.
void ManagerCore::WithdrawCopy(BlockId b) {
  const auto it = withdrawable_.find(b.value());
  if (it == withdrawable_.end()) return;
  const std::uint32_t index = it->second;
  Transfer& t = transfers_[index];
  if (t.release && (t.from != kHbmTier || pool_->holds(b) == 0)) return;
  StopWithdrawing(t);
  if (t.submitted) {
    t.withdrawn = true;
    engine_->Withdraw(IdOf(index, t.generation));
    return;
  }
  ++stats_.withdrawn;
  if (t.release) --leaving_[t.from];
  DetachCopy(b, t.to);
  pool_->Unpin(b);
  ForgetTransfer(index);
}

void ManagerCore::StopWithdrawing(Transfer& t) {
  if (!t.withdrawable) return;
  t.withdrawable = false;
  withdrawable_.erase(t.block.block.value());
}

// The session waits in the engine's queue: what it claims is about to be used.
void ManagerCore::WithdrawCopiesOf(std::uint32_t session) {
  if (withdrawable_.empty()) return;
  returning_.clear();
  AppendPathUpwards(index_->ClaimedTail(session), returning_);
  WithdrawCopies(returning_);
}

void ManagerCore::ExpireTransfers() {
  if (signals_.now < next_expiry_) return;
  next_expiry_ = kNever;
  for (std::uint32_t i = 0; i < transfers_.size(); ++i) {
    Transfer& t = transfers_[i];
    if (!t.active || t.expired || t.expiry == kNever) continue;
    if (signals_.now < t.expiry) {
      next_expiry_ = std::min(next_expiry_, t.expiry);
      continue;
    }
    ++stats_.loads_timed_out;
    const BlockId b = t.block.block;
    if (!t.submitted) {
      load_of_block_.erase(b.value());
      ForgetTransfer(i);
      pool_->Unpin(b);
      FailLoad(b, t.from, false);
      continue;
    }
    engine_->Cancel(IdOf(i, t.generation));
    t.expired = true;
    load_of_block_.erase(b.value());
    DetachCopy(b, kHbmTier, true);
    FailLoad(b, t.from, false);
  }
  AdvanceLoads();
}

// Moves the sequence's cursor over the loads that have become ready.
bool ManagerCore::StillLoading(SequenceData& seq) const noexcept {
  while (seq.load_cursor < seq.loads.size() && ReadyFor(seq, seq.loads[seq.load_cursor].block)) {
    ++seq.load_cursor;
  }
  return seq.load_cursor < seq.loads.size();
}

void ManagerCore::AdvanceLoads() {
  for (std::size_t i = 0; i < loading_.size();) {
    SequenceData& seq = *sequences_[loading_[i]];
    if (StillLoading(seq)) {
      ++i;
      continue;
    }
    seq.loads.clear();
    seq.load_cursor = 0;
    loading_[i] = loading_.back();
    loading_.pop_back();
  }
}

Outcome ManagerCore::TellLoadFailed(SequenceData& seq) noexcept {
  seq.cut_unseen = false;
  return Outcome::kLoadFailed;
}

// A failure is told when what is left is settled, so that the sequence can go on at once.
Outcome ManagerCore::Ready(SequenceData& seq, std::uint32_t layer) const noexcept {
  if (seq.load_failed) return StillLoading(seq) ? Outcome::kPending : TellLoadFailed(seq);
  for (std::size_t i = seq.load_cursor; i < seq.loads.size(); ++i) {
    const BlockId b = seq.loads[i].block;
    if (ReadyFor(seq, b)) continue;
    const auto it = load_of_block_.find(b.value());
    if (it == load_of_block_.end() || layer + 1 >= layers_ ||  // the last one has to be verified
        transfers_[it->second].layers_done <= layer) {
      return Outcome::kPending;
    }
  }
  return Outcome::kOk;
}

Outcome ManagerCore::WaitReady(std::uint32_t index, std::uint32_t generation, std::uint32_t layer,
                               Duration timeout) {
  for (;;) {
    Call<&ManagerCore::Poll>(*this);
    SequenceData* seq = Find(index, generation);
    if (seq == nullptr) return Outcome::kStaleHandle;
    const Outcome outcome = Call<&ManagerCore::Ready>(*this, *seq, layer);
    if (outcome != Outcome::kPending || !engine_->Wait(timeout)) return outcome;
  }
}

bool ManagerCore::WaitIdle(Duration timeout) {
  for (;;) {
    Call<&ManagerCore::Poll>(*this);
    if (active_transfers_ == computed_) return true;
    if (!engine_->Wait(timeout)) {
      Call<&ManagerCore::Poll>(*this);
      return active_transfers_ == computed_;
    }
  }
}

// --- Copies the engine asks for. ---

KvCacheManager::OffloadResult ManagerCore::Offload(std::span<const Token> tokens, NamespaceId id) {
  BindThread();
  KvCacheManager::OffloadResult result;
  const std::uint32_t ns = Mapped(id);
  if (ns == kNone) return {.outcome = Outcome::kUnknownNamespace};
  if (tiers_ == 1) return {.outcome = Outcome::kInvalidArgument};
  StampSignals();
  if (active_transfers_ != 0) Harvest();
  MatchResult match;
  index_->Match({.root = Root(ns), .tokens = tokens}, match);
  if (match.blocks.empty()) return {.outcome = Outcome::kNotFound};
  for (const BlockId b : match.blocks) pool_->SetFlag(b, word::kExcluded);
  awaited_ends_.push_back(match.blocks.back());
  bool refused = false;
  for (const BlockId b : match.blocks) {
    const bool below = (pool_->valid_mask(b) & ~1u) != 0 || (pool_->writing_mask(b) & ~1u) != 0;
    if (!refused && !below) {
      refused = AcquireLower(1, 1) == 0 ||
                !StartCopyDown({.block = b, .to = 1, .transfer_class = TransferClass::kShadowCopy});
    }
    ++(refused ? result.refused : result.accepted);
  }
  for (const BlockId b : match.blocks) pool_->ClearFlag(b, word::kExcluded);
  awaited_ends_.clear();
  if (refused) result.outcome = Outcome::kBusy;
  Pump();
  return result;
}

KvCacheManager::OffloadResult ManagerCore::Onboard(std::span<const Token> tokens, NamespaceId id) {
  BindThread();
  KvCacheManager::OffloadResult result;
  const std::uint32_t ns = Mapped(id);
  if (ns == kNone) return {.outcome = Outcome::kUnknownNamespace};
  StampSignals();
  if (active_transfers_ != 0) Harvest();
  AdoptStored({.tokens = tokens}, ns);
  AdmitPlan& plan = plan_;
  plan.clear();
  index_->Match({.root = Root(ns), .tokens = tokens}, plan.match);
  if (plan.match.blocks.empty()) return {.outcome = Outcome::kNotFound};
  Classify(plan);
  if (plan.load.empty() && plan.join.empty()) return {.outcome = Outcome::kAlreadyResident};
  Shortfall shortfall;
  misses_.clear();
  const RoomRequest room{.slots = static_cast<std::uint32_t>(plan.load.size()),
                         .priority = Priority::kBackground,
                         .ns = ns};
  if (!MakeRoom(room, plan, shortfall)) {
    return {.outcome = Outcome::kBusy, .refused = room.slots};
  }
  StartLoads(plan.load, nullptr, TransferClass::kCertainPrefetch);
  OwnSlots(plan.load, ns, true);
  TrimGrants();
  result.accepted = plan.matched;
  Pump();
  return result;
}

}  // namespace tidepool::internal
