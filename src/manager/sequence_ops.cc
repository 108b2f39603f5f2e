// Append, truncate, fork, window, pause, finish: what a running sequence may do, and how
// its blocks are let go of once the device can no longer touch them.
#include <algorithm>

#include "src/manager/core.h"

namespace tidepool::internal {

// --- Growing and shrinking. ---

// Writing behind the last token must not be seen by others, nor disturb a copy of the whole block.
bool ManagerCore::TailNeedsCopy(const SequenceData& seq) const noexcept {
  if (seq.tokens.size() % block_tokens_ == 0) return false;
  const BlockId tail = seq.blocks[seq.tokens.size() / block_tokens_];
  return pool_->Has(tail, word::kPublished) || pool_->holds(tail) > 1 ||
         (pool_->writing_mask(tail) & ~1u) != 0 || IsKept(tail);
}

void ManagerCore::Keep(SequenceData& seq, std::uint32_t position, BlockId block) {
  seq.kept.push_back({position, pool_->ref(block)});
  if (seq.forked) ++keepers_[KeeperKey(seq.kept.back().ref)];
}

void ManagerCore::ForgetKept(SequenceData& seq) {
  for (const SequenceData::PrivateBlock& p : seq.kept) {
    if (!seq.forked) break;
    const auto it = keepers_.find(KeeperKey(p.ref));
    if (--it->second == 0) keepers_.erase(it);
  }
  seq.kept.clear();
}

// The block that the next token goes to is replaced by a copy of its own.
void ManagerCore::CopyTail(SequenceData& seq) {
  const auto length = static_cast<std::uint32_t>(seq.tokens.size());
  const std::uint32_t at = length / block_tokens_;
  const BlockId old = seq.blocks[at];
  const std::vector<BlockId> rest(seq.blocks.begin() + at + 1, seq.blocks.end());
  seq.blocks.resize(at);
  TakeFresh(seq, 1);
  AppendIds(seq.blocks, rest);
  QueueCopy(old, seq.blocks[at], length % block_tokens_);
  if (seq.committed > at * block_tokens_) {
    pool_->Transition({&seq.blocks[at], 1}, {.to = Phase::kActive, .cause = Cause::kCommit});
  }
  if (!seq.loads.empty()) {  // its own has ended, others' may not have; nobody waits for what left
    std::erase_if(seq.loads, [&](const BlockRef& ref) { return ref.block == old; });
    seq.load_cursor = 0;
  }
  ReleaseFenced(seq, {old}, TailAction::kFree);
  SetTable(seq, at);
}

Outcome ManagerCore::Append(SequenceData& seq, std::span<const Token> tokens) {
  if (seq.state != SequenceState::kRunning) return Outcome::kPaused;
  if (seq.cut_unseen) return TellLoadFailed(seq);  // the tokens would follow the wrong ones
  const std::uint64_t length = seq.tokens.size() + tokens.size();
  if (length > (1u << 30)) return Outcome::kNeverFits;
  const std::uint32_t blocks = BlocksFor(length);
  const auto have = static_cast<std::uint32_t>(seq.blocks.size());
  const bool copy = !tokens.empty() && TailNeedsCopy(seq);
  if (blocks > have || copy) {
    BindThread();
    const std::uint32_t grow = blocks > have ? blocks - have : 0;
    const Outcome limit = CheckLimits(blocks - seq.dropped, blocks, seq.ns.value());
    if (limit != Outcome::kOk) return limit;
    if (copy) {
      const BlockId tail = seq.blocks[seq.tokens.size() / block_tokens_];
      if (!ReadyFor(seq, tail)) return Outcome::kStillLoading;
      if (!CanQueueCopy(tail)) return Outcome::kBusy;
    }
    const RoomRequest room{.slots = grow + (copy ? 1 : 0),
                           .priority = seq.priority,
                           .request = seq.request,
                           .session = seq.session_id,
                           .sequence = seq.serial,
                           .owner = seq.index,
                           .ns = seq.ns.value(),
                           .running = true};
    if (!FitsNow(room)) {
      if (active_transfers_ != 0) Harvest();
      if (seq.cut_unseen) return TellLoadFailed(seq);
      Shortfall shortfall;
      misses_.clear();
      if (!EnsureRoom(room, shortfall)) return Outcome::kBusy;
    }
    EraseDemand(seq);
    if (copy) CopyTail(seq);
    TakeFresh(seq, grow);
    TrimGrants();
    SetTable(seq, have);
  }
  seq.tokens.insert(seq.tokens.end(), tokens.begin(), tokens.end());
  if (!tokens.empty()) seq.load_failed = false;
  return Outcome::kOk;
}

Outcome ManagerCore::Truncate(SequenceData& seq, std::uint32_t n) {
  if (seq.state != SequenceState::kRunning) return Outcome::kPaused;
  if (n > seq.tokens.size() || n < seq.dropped * block_tokens_) return Outcome::kBeyondLength;
  if (n < seq.committed && StillLoading(seq)) return Outcome::kStillLoading;
  seq.tokens.resize(n);
  seq.committed = std::min(seq.committed, n);
  LimitPublished(seq, n / block_tokens_);
  ReleaseFrom(seq, BlocksFor(n), TailAction::kFree);
  return Outcome::kOk;
}

ForkResult ManagerCore::Fork(SequenceData& parent) {
  ForkResult result;
  if (parent.state != SequenceState::kRunning) {
    result.outcome = Outcome::kPaused;
    return result;
  }
  if (StillLoading(parent)) {
    result.outcome = Outcome::kStillLoading;
    return result;
  }
  SequenceData* child = NewSequence();
  if (child == nullptr) {
    result.outcome = Outcome::kBusy;
    return result;
  }
  const std::uint32_t blocks = BlocksFor(parent.committed);
  child->blocks.assign(parent.blocks.begin(), parent.blocks.begin() + blocks);
  const auto shared = std::span<const BlockId>(child->blocks)
                          .subspan(std::min<std::size_t>(parent.dropped, blocks));
  if (!shared.empty() &&
      pool_->Transition(shared, {.to = Phase::kActive, .cause = Cause::kMatch, .hold = 1}) !=
          Outcome::kOk) {
    child->blocks.clear();
    FreeSequence(*child);
    result.outcome = Outcome::kBusy;
    return result;
  }
  child->forked = parent.forked = true;
  child->publish = parent.publish;
  child->copies_below = parent.copies_below;
  child->session = parent.session;
  child->session_id = parent.session_id;
  child->request = RequestId();
  child->ns = parent.ns;
  child->root = parent.root;
  child->root_version = parent.root_version;
  child->epoch = parent.epoch;
  child->timeline = parent.timeline;
  child->priority = parent.priority;
  child->tokens.assign(parent.tokens.begin(), parent.tokens.begin() + parent.committed);
  child->dropped = std::min(parent.dropped, blocks);
  child->committed = parent.committed;
  child->cut_unseen = parent.cut_unseen;
  child->publish_blocks = parent.publish_blocks;
  child->cursor = parent.cursor;
  child->content = parent.content;
  child->last_fence = parent.last_fence;
  std::copy_n(parent.table.get(), blocks, child->table.get());
  NoteTable(*child, 0);
  child->table_changed_from = 0;
  ++child->table_version;
  if (child->session != kNone) ++session_sequences_[child->session];
  result.outcome = Outcome::kOk;
  control_->Ref();
  result.sequence.control_ = control_;
  result.sequence.index_ = child->index;
  result.sequence.generation_ = child->generation;
  return result;
}

Outcome ManagerCore::DropLeading(SequenceData& seq, std::uint32_t blocks) {
  if (seq.state != SequenceState::kRunning) return Outcome::kPaused;
  if (blocks < seq.dropped) return Outcome::kNotMonotonic;
  if (blocks > seq.committed / block_tokens_ || blocks >= seq.blocks.size()) {
    return Outcome::kBeyondLength;
  }
  if (StillLoading(seq)) return Outcome::kStillLoading;
  std::vector<BlockId> gone(seq.blocks.begin() + seq.dropped, seq.blocks.begin() + blocks);
  for (std::uint32_t i = seq.dropped; i < blocks; ++i) {
    seq.blocks[i] = BlockId();
    seq.table[i] = 0;
  }
  seq.table_changed_from = std::min(seq.table_changed_from, seq.dropped);
  ++seq.table_version;
  seq.dropped = blocks;
  ReleaseFenced(seq, std::move(gone), TailAction::kFree);
  return Outcome::kOk;
}

BlockTable ManagerCore::Table(SequenceData& seq) {
  const BlockTable table{.slots = seq.table.get(),
                         .size = static_cast<std::uint32_t>(seq.blocks.size()),
                         .dropped = seq.dropped,
                         .changed_from = seq.table_changed_from,
                         .version = seq.table_version};
  seq.table_changed_from = table.size;
  return table;
}

// --- Ending a turn. ---

Outcome ManagerCore::Pause(SequenceData& seq, const PauseHint& hint) {
  BindThread();
  if (seq.state != SequenceState::kRunning) return Outcome::kAlreadyPaused;
  EndTurn(seq, hint);
  EraseDemand(seq);
  ReleaseFrom(seq, 0, TailAction::kKeep);
  seq.state = SequenceState::kPaused;
  return Outcome::kOk;
}

Outcome ManagerCore::Finish(SequenceData& seq, Fence fence, const PauseHint& wait) {
  BindThread();
  if (!fence.done() && fence.timeline != seq.timeline) return Outcome::kInvalidArgument;
  if (!fence.done() && (seq.last_fence.done() || seq.last_fence.step < fence.step)) {
    seq.last_fence = fence;
  }
  EndSequence(seq, wait);
  return Outcome::kOk;
}

void ManagerCore::EndSequence(SequenceData& seq, const PauseHint& wait) {
  if (seq.state == SequenceState::kRunning) {
    EndTurn(seq, wait);
    ReleaseFrom(seq, 0, TailAction::kFree);
  } else {
    const std::vector<SequenceData::PrivateBlock> kept = seq.kept;
    ForgetKept(seq);
    for (const SequenceData::PrivateBlock& p : kept) DropKept(p);
  }
  EraseDemand(seq);
  if (seq.session != kNone && --session_sequences_[seq.session] == 0 &&
      sessions_[seq.session].state == SessionState::kCompleted) {
    ForgetSession(seq.session);
  }
  ++stats_.finished;
  FreeSequence(seq);
}

// Starts the idle gap and claims the published path.
void ManagerCore::EndTurn(SequenceData& seq, const PauseHint& wait) {
  if (seq.session == kNone) return;
  SessionSignals& session = sessions_[seq.session];
  if (session.state == SessionState::kCompleted) {
    SetClaim(seq);  // so that what ends is the claim on all of it
    return;
  }
  session.idle_since = Now();
  const bool known = wait.expected_return != Duration::max();
  session.expected_return = known ? After(session.idle_since, wait.expected_return) : kNever;
  session.expected_return_log_sd = wait.expected_return_log_sd;
  session.wait_class = wait.wait;
  session.tool = wait.tool;
  session.state = WaitingFor(wait.wait);
  NotifySession(seq.session);
  SetClaim(seq);
}

void ManagerCore::SetClaim(SequenceData& seq) {
  if (!seq.publish || seq.publish_blocks == 0 || !InCurrentTree(seq) || !RecoverCursor(seq) ||
      !seq.cursor.block.valid()) {
    return;
  }
  SessionSignals& session = sessions_[seq.session];
  session.deepest = seq.cursor.block;
  session.prefix_hash = pool_->digest(session.deepest);
  session.blocks = seq.publish_blocks;
  changed_.clear();
  index_->SetClaim(seq.session, session.deepest, seq.priority, &changed_, MovedClaimIfWanted());
  NotifyMovedClaim(seq.session);
  NotifyPriorities(changed_);
}

void ManagerCore::NotifyPriorities(std::span<const BlockId> blocks) {
  while (!blocks.empty()) {
    const Priority priority = pool_->claim_priority(blocks.front());
    std::size_t n = 1;
    while (n < blocks.size() && pool_->claim_priority(blocks[n]) == priority) ++n;
    for (const auto& policy : policies_) policy->OnPriorityChanged(blocks.first(n), priority);
    blocks = blocks.subspan(n);
  }
}

// --- Letting go of blocks. ---

// Releases positions from `position` on. With kKeep and kOffload private committed blocks survive
// without a holder and are remembered in seq.kept; private duplicates of published blocks do not.
void ManagerCore::ReleaseFrom(SequenceData& seq, std::uint32_t position, TailAction action) {
  if (position >= seq.blocks.size()) return;
  std::vector<BlockId> keep;
  std::vector<BlockId> rest;
  const std::uint32_t first = std::max(position, seq.dropped);
  const auto last = static_cast<std::uint32_t>(seq.blocks.size());
  const std::uint32_t may_keep =
      action == TailAction::kFree ? last : std::clamp(seq.publish_blocks, first, last);
  AppendIds(rest, std::span(seq.blocks).subspan(first, may_keep - first));
  for (std::uint32_t i = may_keep; i < last; ++i) {
    const BlockId b = seq.blocks[i];
    const bool kept = !pool_->Has(b, word::kPublished) && i < BlocksFor(seq.committed);
    (kept ? keep : rest).push_back(b);
    if (kept) Keep(seq, i, b);
  }
  seq.blocks.resize(position);
  if (!seq.loads.empty()) {
    std::erase_if(seq.loads, [&](const BlockRef& ref) {
      return std::find(rest.begin(), rest.end(), ref.block) != rest.end() ||
             std::find(keep.begin(), keep.end(), ref.block) != keep.end();
    });
    seq.load_cursor = 0;
    if (seq.loads.empty()) std::erase(loading_, seq.index);
  }
  seq.table_changed_from = std::min(seq.table_changed_from, position);
  ++seq.table_version;
  // Tails first: kept private blocks stand behind the published ones.
  if (!keep.empty()) ReleaseFenced(seq, std::move(keep), action);
  if (!rest.empty()) ReleaseFenced(seq, std::move(rest), TailAction::kFree);
}

void ManagerCore::ReleaseFenced(SequenceData& seq, std::vector<BlockId> blocks, TailAction action) {
  AbandonComputed(seq, blocks);
  if (Passed(seq.last_fence)) {
    ReleaseNow(blocks, action, seq.forked);
    return;
  }
  // No step has touched what is still being loaded: that is let go of at once. What a step computes
  // instead may have been read by later ones.
  const auto loading = std::stable_partition(blocks.begin(), blocks.end(), [&](BlockId b) {
    return pool_->phase(b) != Phase::kReuse || ReadyFor(seq, b);
  });
  const std::vector<BlockId> cancelled(loading, blocks.end());
  blocks.erase(loading, blocks.end());
  if (!cancelled.empty()) ReleaseNow(cancelled, action, seq.forked);
  if (blocks.empty()) return;
  std::deque<Timeline::Release>& releases = TimelineOf(seq.last_fence.timeline).releases;
  auto at = releases.end();
  while (at != releases.begin() && std::prev(at)->step > seq.last_fence.step) --at;
  releases.insert(at, {seq.last_fence.step, std::move(blocks), action, seq.forked});
}

void ManagerCore::ReleaseNow(std::span<const BlockId> blocks, TailAction action, bool forked) {
  while (!blocks.empty()) {  // maximal spans of the same kind, tails first
    const std::size_t alike = pool_->AlikeTail(blocks, word::kPublished | word::kPhaseMask);
    const auto span = blocks.last(alike);
    blocks = blocks.first(blocks.size() - alike);
    if (pool_->Has(span[0], word::kPublished)) {
      if (pool_->phase(span[0]) == Phase::kReuse) {
        ReleaseLoading(span);
      } else {
        ReleasePublished(span);
      }
    } else if (action == TailAction::kFree && std::all_of(span.begin(), span.end(), [&](BlockId b) {
                 return pool_->holds(b) == 1 && pool_->pins(b) == 0 &&
                        pool_->phase(b) != Phase::kReuse && !IsKept(b);
               })) {
      pool_->Transition(span, {.to = Phase::kFree, .cause = Cause::kAbandon, .hold = -1});
      Discard(span);
    } else {
      for (const BlockId b : span) ReleasePrivate(b, action, forked);
    }
  }
}

void ManagerCore::ReleasePublished(std::span<const BlockId> blocks) {
  pool_->Transition(blocks, {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1}, &changed_);
  if (changed_.empty()) return;
  index_->Touch(changed_.back(), ++tick_);
  policies_[kHbmTier]->OnEvictable(changed_);
  if (index_->IsStale(changed_.front())) ++stale_hint_;
}

void ManagerCore::ReleaseLoading(std::span<const BlockId> blocks) {
  pool_->Transition(blocks, {.to = Phase::kOffloaded, .cause = Cause::kCancel, .hold = -1},
                    &changed_);
  const std::vector<BlockId> cancelled = changed_;
  CancelLoads(cancelled);
}

// The fork that kept the block may have gone while another held it: then nobody keeps it.
void ManagerCore::ReleasePrivate(BlockId block, TailAction action, bool forked) {
  const bool last = pool_->holds(block) == 1;
  const bool abandoned = pool_->Has(block, word::kAbandoned);
  if (!last) {
    pool_->Transition({&block, 1}, {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1});
    return;
  }
  if (IsKept(block)) {
    action = TailAction::kKeep;
  } else if (forked) {
    action = TailAction::kFree;
  }
  const Phase phase = pool_->phase(block);
  if (phase == Phase::kReuse) {  // a preempted tail on its way back
    pool_->Transition({&block, 1}, {.to = Phase::kOffloaded, .cause = Cause::kCancel, .hold = -1});
    if (action == TailAction::kFree || abandoned) FreePrivate(block);
    return;
  }
  pool_->Transition({&block, 1}, {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1});
  if (action == TailAction::kFree || abandoned) {
    FreePrivate(block);
    return;
  }
  policies_[kHbmTier]->OnEvictable({&block, 1});
  if (action == TailAction::kOffload && pool_->pins(block) == 0 &&
      pool_->copy(block, 1) == CopyState::kAbsent && AcquireLower(1, 1) != 0) {
    StartCopyDown(
        {.block = block, .to = 1, .transfer_class = TransferClass::kSpill, .release = true});
  }
}

// What a paused sequence kept is not wanted any more; a fork may have published it, hold it or keep
// it too.
void ManagerCore::DropKept(const SequenceData::PrivateBlock& kept) {
  if (!pool_->alive(kept.ref) || pool_->Has(kept.ref.block, word::kPublished)) return;
  if (IsKept(kept.ref.block)) return;
  const BlockId block = kept.ref.block;
  if (pool_->holds(block) == 0) return FreePrivate(block);
  for (const Timeline& timeline : timelines_) {
    for (const Timeline::Release& release : timeline.releases) {
      if (release.action == TailAction::kFree) continue;
      if (std::find(release.blocks.begin(), release.blocks.end(), block) == release.blocks.end()) {
        continue;
      }
      pool_->SetFlag(block, word::kAbandoned);  // that release, when its fence passes, frees it
    }
  }
}

// A private block without holders. While a transfer or device copy still reads it, it waits.
void ManagerCore::FreePrivate(BlockId block) {
  const auto reads = [block](const QueuedCopy& copy) { return copy.source == block; };
  if (pool_->pins(block) != 0 &&
      std::none_of(device_copies_.begin(), device_copies_.end(), reads)) {
    ForgetCopies(block);
  }
  if (pool_->pins(block) != 0) {
    pool_->SetFlag(block, word::kAbandoned);
    return;
  }
  pool_->Transition({&block, 1}, {.to = Phase::kFree, .cause = Cause::kAbandon});
  Discard({&block, 1});
}

// Private blocks in no phase: their slots and ids go back.
void ManagerCore::Discard(std::span<const BlockId> blocks) {
  NotifyEvicted(blocks, kHbmTier, EvictReason::kReleased);
  const bool plain = !quotas_ && device_zeros_.empty() &&
                     std::all_of(blocks.begin(), blocks.end(), [&](BlockId b) {
                       return pool_->slot(b, kHbmTier).valid() &&
                              ((pool_->valid_mask(b) | pool_->writing_mask(b)) & ~1u) == 0;
                     });
  if (plain) {
    pool_->FreeBlocks(blocks);
    return;
  }
  for (const BlockId b : blocks) {
    const std::uint32_t copies = pool_->valid_mask(b) | pool_->writing_mask(b);
    for (TierIndex t = 0; t < tiers_; ++t) {
      if (((copies >> t) & 1u) == 0) continue;
      if (t != kHbmTier) NotifyEvicted({&b, 1}, t, EvictReason::kReleased);
      DetachCopy(b, t);
    }
    pool_->ClearFlag(b, word::kAbandoned);
    pool_->FreeId(b);
  }
}

void ManagerCore::AfterUnpin(BlockId block) {
  if (pool_->Has(block, word::kAbandoned) && pool_->pins(block) == 0 && pool_->holds(block) == 0) {
    FreePrivate(block);
  }
}

// What was counted as a hit at admission turned out not to be one.
void ManagerCore::UncountHits(const SequenceData& seq, std::uint32_t position) {
  for (std::size_t i = position; i < BlocksFor(seq.committed); ++i) {
    const std::uint32_t lower = pool_->valid_mask(seq.blocks[i]) & ~1u;
    const auto tier = lower != 0 ? static_cast<std::size_t>(__builtin_ctz(lower)) : kHbmTier;
    std::uint64_t& hits = seq.resumed ? stats_.readmit_hit_tokens : stats_.hit_tokens[tier];
    hits -= std::min<std::uint64_t>(hits, block_tokens_);
    if (!seq.resumed) stats_.recomputed_tokens += block_tokens_;
  }
}

// A load failed: the sequence ends where its valid tokens end.
void ManagerCore::CutBack(SequenceData& seq, std::uint32_t position) {
  UncountHits(seq, position);
  seq.tokens.resize(std::size_t{position} * block_tokens_);
  seq.committed = std::min(seq.committed, position * block_tokens_);
  LimitPublished(seq, position);
  seq.load_failed = true;
  seq.cut_unseen = true;
  ReleaseFrom(seq, position, TailAction::kFree);
}

}  // namespace tidepool::internal
