// Probe, Admit and Resume: plan from the index, find room, then commit without a way to fail.
#include <algorithm>

#include "src/manager/core.h"
#include "src/time_math.h"

namespace tidepool::internal {
namespace {

Priority Effective(const AdmitRequest& request) {
  return request.critical_path ? Priority::kCritical : request.priority;
}

BlockId Partial(const AdmitPlan& plan) {
  return plan.partial_tokens == 0 ? BlockId() : plan.match.partial;
}

BlockId HitsEnd(const AdmitPlan& plan) {
  return plan.match.blocks.empty() ? BlockId() : plan.match.blocks.back();
}

}  // namespace

void AdmitPlan::clear() noexcept {
  match.clear();
  ready.clear();
  join.clear();
  load.clear();
  kept.clear();
  matched = spared = partial_tokens = fresh = 0;
}

Outcome ManagerCore::CheckRequest(const AdmitRequest& request, std::uint32_t& ns) const {
  if (request.tokens.empty() || request.tokens.size() > (1u << 30) ||
      request.lookahead_tokens > (1u << 30) ||
      static_cast<std::size_t>(request.priority) >= kPriorityCount) {
    return Outcome::kInvalidArgument;
  }
  for (std::size_t i = 1; i < request.content.size(); ++i) {
    if (request.content[i - 1].block >= request.content[i].block) return Outcome::kInvalidArgument;
  }
  ns = Mapped(request.ns);
  return ns == kNone ? Outcome::kUnknownNamespace : Outcome::kOk;
}

void ManagerCore::Match(const AdmitRequest& request, std::uint32_t ns, std::uint32_t max_blocks,
                        bool partial, MatchResult& match) {
  index_->Match({.root = Root(ns),
                 .tokens = request.tokens,
                 .content = request.content,
                 .timeline = request.timeline,
                 .partial_tail = partial,
                 .partial_ready = partial,
                 .report_holes = false,
                 .max_blocks = max_blocks},
                match);
}

// Sorts the matched blocks by what they need. One tier-0 segment is the common case.
void ManagerCore::Classify(AdmitPlan& plan) const {
  const MatchResult& m = plan.match;
  plan.matched = static_cast<std::uint32_t>(m.blocks.size());
  if (m.segments.size() == 1 && m.segments[0].tier == kHbmTier &&
      m.segments[0].count == plan.matched) {
    AppendIds(plan.ready, m.blocks);
    return;
  }
  for (const BlockId b : m.blocks) {
    switch (pool_->copy(b, kHbmTier)) {
      case CopyState::kValid:
        plan.ready.push_back(b);
        break;
      case CopyState::kWriting:
        plan.join.push_back(b);
        break;
      case CopyState::kAbsent:
        plan.load.push_back(b);
        break;
    }
  }
}

// How many of the matched blocks to keep so that loads, one link beside the other, and then the
// computation of the rest end soonest: all, or fewer by some of the last that HBM lacks.
std::uint32_t ManagerCore::SoonestSplit(const AdmitPlan& plan) const {
  std::array<std::uint32_t, kMaxTiers> loads{};
  for (const BlockId b : plan.load) ++loads[pool_->best_tier(b)];
  const auto load_seconds = [&] {
    double longest = 0;
    for (TierIndex t = 1; t < tiers_; ++t) {
      if (loads[t] == 0) continue;
      const LinkSignals& link = link_signals_[LinkOf(t, kHbmTier)];
      longest = std::max(longest, link.SecondsFor(loads[t], block_bytes_));
    }
    return longest;
  };
  double computing = 0;
  double soonest = load_seconds();
  std::uint32_t split = plan.matched;
  for (std::uint32_t i = plan.matched; i-- > 0;) {
    const BlockId b = plan.match.blocks[i];
    if (pool_->copy(b, kHbmTier) != CopyState::kAbsent) break;
    --loads[pool_->best_tier(b)];
    computing += options_.recompute.BlockSeconds(std::uint64_t{i} * block_tokens_);
    const double seconds = load_seconds() + computing;
    if (seconds < soonest) {
      soonest = seconds;
      split = i;
    }
  }
  return split;
}

void ManagerCore::SpareLoads(const AdmitRequest& request, std::uint32_t ns, AdmitPlan& plan) {
  const std::uint32_t matched = plan.matched;
  const std::uint32_t split = SoonestSplit(plan);
  if (split == matched) return;
  plan.clear();
  Match(request, ns, split, false, plan.match);
  Classify(plan);
  plan.spared = matched - split;
}

void ManagerCore::PlanAdmission(const AdmitRequest& request, std::uint32_t ns, AdmitPlan& plan) {
  plan.clear();
  const auto length = static_cast<std::uint32_t>(request.tokens.size());
  // Something is left to compute: the last token is never a hit.
  Match(request, ns, (length - 1) / block_tokens_, options_.match_partial_tail, plan.match);
  Classify(plan);
  if (request.recompute_if_sooner && !plan.load.empty() && options_.recompute.known()) {
    SpareLoads(request, ns, plan);
  }
  const BlockId partial = plan.match.partial;
  if (partial.valid() && CanQueueCopy(partial)) {
    const std::uint32_t left = length - 1 - plan.matched * block_tokens_;
    plan.partial_tokens = std::min(plan.match.partial_tokens, left);
  }
  plan.fresh = BlocksFor(std::uint64_t{length} + request.lookahead_tokens) - plan.matched;
}

// Limits that waiting cannot change.
Outcome ManagerCore::CheckLimits(std::uint64_t blocks, std::uint64_t table,
                                 std::uint32_t ns) const {
  if (blocks > size_goal_[kHbmTier] || table > table_capacity_) return Outcome::kNeverFits;
  const std::uint32_t hard = namespaces_[ns].quota[kHbmTier].hard;
  return hard != 0 && blocks > hard ? Outcome::kNeverFits : Outcome::kOk;
}

// Keeps what the plan wants out of the victims' list.
void ManagerCore::MarkWanted(const AdmitPlan& plan, bool wanted) {
  const auto each = [&](BlockId b) {
    if (wanted) {
      pool_->SetFlag(b, word::kExcluded);
    } else {
      pool_->ClearFlag(b, word::kExcluded);
    }
  };
  for (const BlockId b : plan.match.blocks) each(b);
  for (const BlockId b : plan.kept) each(b);
  if (plan.partial_tokens != 0) each(plan.match.partial);
}

bool ManagerCore::MakeRoom(const RoomRequest& room, const AdmitPlan& plan, Shortfall& shortfall) {
  if (FitsNow(room)) return true;
  MarkWanted(plan, true);
  const bool fits = EnsureRoom(room, shortfall);
  MarkWanted(plan, false);
  return fits;
}

// What MakeRoom would answer.
bool ManagerCore::HasRoom(const RoomRequest& room, const AdmitPlan& plan) {
  if (FitsNow(room)) return true;
  MarkWanted(plan, true);
  Shortfall shortfall;
  Refusal refusal;
  const bool fits = PlanRoom(room, shortfall, refusal);
  if (fits) Unchoose(victims_, kHbmTier);
  MarkWanted(plan, false);
  return fits;
}

ProbeResult ManagerCore::Probe(const AdmitRequest& request) {
  ProbeResult result;
  std::uint32_t ns = 0;
  result.outcome = CheckRequest(request, ns);
  if (result.outcome != Outcome::kOk) return result;
  MatchResult& match = match_;
  index_->Match({.root = Root(ns),
                 .tokens = request.tokens,
                 .content = request.content,
                 .timeline = request.timeline,
                 .partial_tail = false,
                 .report_holes = options_.report_holes},
                match);
  std::uint32_t next = 0;  // contiguous blocks only count as a hit
  std::uint32_t loads = 0;
  const std::uint32_t full =
      (static_cast<std::uint32_t>(request.tokens.size()) - 1) / block_tokens_;
  for (const Segment& s : match.segments) {
    if (s.first != next) break;
    next += s.count;
    result.tokens_by_tier[s.tier] += s.count * block_tokens_;
    if (s.tier == kHbmTier) continue;
    for (std::uint32_t i = s.first; i < s.first + s.count; ++i) {
      const BlockId b = match.blocks[i];
      const CopyState hbm = pool_->copy(b, kHbmTier);
      if (hbm == CopyState::kWriting) result.loading_tokens += block_tokens_;
      if (hbm == CopyState::kAbsent && i < full) ++loads;
    }
  }
  if (next == match.blocks.size() && !options_.report_holes) {
    const std::uint32_t stored = CountStored(request, ns, match);
    if (stored != 0) {
      match.segments.push_back({.first = next, .count = stored, .tier = stored_tier_});
      result.tokens_by_tier[stored_tier_] += stored * block_tokens_;
      loads += std::min(next + stored, full) - std::min(next, full);
      next += stored;
    }
  }
  result.tokens = next * block_tokens_;
  result.pending_tokens = std::min(match.pending, next) * block_tokens_;
  result.segments = match.segments;
  const std::uint32_t total =
      BlocksFor(std::uint64_t{request.tokens.size()} + request.lookahead_tokens);
  result.fresh_blocks = total - std::min(next, full);
  const RoomRequest room{.slots = result.fresh_blocks + loads,
                         .priority = Effective(request),
                         .request = request.request,
                         .session = request.session,
                         .ns = ns};
  if (CheckLimits(total, total, ns) != Outcome::kOk) {
    result.fit = Fit::kNeverFits;
  } else if (!HasSequence()) {
    result.fit = Fit::kBusy;
  } else if (!FitsNow(room)) {
    PlanAdmission(request, ns, plan_);
    FindMisses(request, ns, plan_);
    result.fit = HasRoom(room, plan_) ? Fit::kFits : Fit::kBusy;
  }
  double load = 0;
  for (TierIndex t = 1; t < tiers_; ++t) {
    if (result.tokens_by_tier[t] == 0) continue;
    const std::uint32_t blocks = result.tokens_by_tier[t] / block_tokens_;
    load += link_signals_[LinkOf(t, kHbmTier)].SecondsFor(blocks, block_bytes_);
  }
  result.load_time = ToDuration(load);
  double seconds = 0;
  for (std::uint32_t i = std::min(next, full); i < total; ++i) {
    seconds += options_.recompute.BlockSeconds(std::uint64_t{i} * block_tokens_);
  }
  result.recompute_time = ToDuration(seconds);
  return result;
}

SequenceData* ManagerCore::NewSequence() {
  if (free_sequences_.empty()) {
    if (sequences_.size() >= options_.max_sequences) return nullptr;
    sequences_.push_back(std::make_unique<SequenceData>());
    sequences_.back()->index = static_cast<std::uint32_t>(sequences_.size() - 1);
    sequences_.back()->table.reset(new std::uint32_t[table_capacity_]);  // touched as it is used
    free_sequences_.push_back(sequences_.back()->index);
  }
  SequenceData& seq = *sequences_[free_sequences_.back()];
  free_sequences_.pop_back();
  seq.serial = next_serial_++;
  seq.state = SequenceState::kRunning;
  return &seq;
}

void ManagerCore::FreeSequence(SequenceData& seq) {
  std::erase(loading_, seq.index);
  ++seq.generation;
  seq.state = SequenceState::kFree;
  seq.publish = true;
  seq.resumed = false;
  seq.load_failed = false;
  seq.cut_unseen = false;
  seq.copies_below = false;
  seq.advanced = false;
  seq.preemptions = 0;
  seq.tokens.clear();
  seq.blocks.clear();
  seq.content.clear();
  seq.loads.clear();
  ForgetKept(seq);
  seq.forked = false;
  seq.taken = 0;
  seq.two_ended = false;
  seq.dropped = seq.committed = seq.publish_blocks = seq.load_cursor = seq.table_changed_from = 0;
  seq.cursor = BlockRef();
  seq.last_fence = Fence::Done();
  free_sequences_.push_back(seq.index);
}

// Holds what the plan matched, in prefix order, and starts the loads.
void ManagerCore::TakeHits(AdmitPlan& plan, SequenceData& seq) {
  NoteUsed(plan.ready);
  for (const BlockId b : plan.ready) {  // rescued from a write-back that is still running
    if (active_transfers_ == 0) break;
    if (!pool_->Has(b, word::kChosen) || pool_->phase(b) != Phase::kOffloaded) continue;
    Unchoose({&b, 1}, kHbmTier);
    ++stats_.rescued;
  }
  if (!plan.ready.empty()) {
    pool_->Transition(plan.ready,
                      {.to = Phase::kActive,
                       .cause = Cause::kReady,
                       .via = Phase::kReuse,
                       .via_cause = Cause::kMatch,
                       .hold = 1},
                      &changed_);
    policies_[kHbmTier]->OnProtected(changed_);
    policies_[kHbmTier]->OnAccessed(plan.ready);
    WithdrawCopies(plan.ready);
  }
  if (!plan.join.empty()) {
    pool_->Transition(plan.join, {.to = Phase::kReuse, .cause = Cause::kMatch, .hold = 1});
    stats_.loads_joined += plan.join.size();
    for (const BlockId b : plan.join) seq.loads.push_back(pool_->ref(b));
  }
  if (!plan.load.empty()) {
    if (seq.two_ended) std::reverse(plan.load.begin(), plan.load.end());
    StartLoads(plan.load, &seq, TransferClass::kDemandLoad);
  }
  if (!plan.match.blocks.empty()) index_->CountHit(plan.match.blocks.back());
  AppendIds(seq.blocks, plan.match.blocks);
  AppendIds(seq.blocks, plan.kept);
  if (!plan.join.empty() || !plan.load.empty()) {  // back into prefix order
    seq.loads.clear();
    for (const BlockId b : seq.blocks) {
      if (pool_->copy(b, kHbmTier) == CopyState::kWriting) seq.loads.push_back(pool_->ref(b));
    }
    seq.load_cursor = 0;
    loading_.push_back(seq.index);
  }
}

void ManagerCore::StartLoads(std::span<const BlockId> blocks, SequenceData* seq,
                             TransferClass cls) {
  const TimePoint now = Now();  // which is when a load should be done
  const TimePoint expiry = After(now, options_.load_ttl);
  for (const BlockId b : blocks) {
    const TierIndex from = pool_->best_tier(b);
    policies_[from]->OnAccessed({&b, 1});
    AttachCopy(b, kHbmTier, quotas_ ? block_ns_[b.value()] : 0);
    Transfer& transfer = NewTransfer(b, from, kHbmTier, cls, now);
    transfer.expiry = expiry;
    next_expiry_ = std::min(next_expiry_, expiry);
    load_of_block_[b.value()] = static_cast<std::uint32_t>(&transfer - transfers_.data());
    ++stats_.loads;
  }
  if (seq != nullptr) {
    pool_->Transition(blocks, {.to = Phase::kReuse, .cause = Cause::kOnboard, .hold = 1});
    OwnSlots(blocks, seq->ns.value(), true);
  }
}

void ManagerCore::TakeFresh(SequenceData& seq, std::uint32_t count) {
  if (count == 0) return;
  const auto first = static_cast<std::uint32_t>(seq.blocks.size());
  seq.blocks.resize(first + count);
  const std::span<BlockId> fresh = std::span(seq.blocks).subspan(first);
  pool_->Allocate(fresh);
  admitted_slots_[kHbmTier] += count;
  for (std::uint32_t i = 0; i < count; ++i) pool_->set_private_position(fresh[i], first + i);
  if (quotas_) {
    for (const BlockId b : fresh) block_ns_[b.value()] = seq.ns.value();
    namespaces_[seq.ns.value()].used[kHbmTier] += count;
  }
  OwnSlots(fresh, seq.ns.value(), false);
}

void ManagerCore::SetTable(SequenceData& seq, std::uint32_t from) {
  for (std::size_t i = from; i < seq.blocks.size(); ++i) {
    seq.table[i] = pool_->slot(seq.blocks[i], kHbmTier).value();
  }
  seq.table_changed_from = std::min(seq.table_changed_from, from);
  ++seq.table_version;
  NoteTable(seq, from);
}

// The leading tokens of a shared block continue the match: copy them into the first fresh block.
void ManagerCore::CopyPartial(SequenceData& seq, BlockId source, std::uint32_t tokens) {
  QueueCopy(source, seq.blocks[seq.committed / block_tokens_], tokens);
  seq.committed += tokens;
}

void ManagerCore::CountHits(const AdmitPlan& plan, std::uint32_t prompt, bool resume) {
  const std::uint64_t hit = std::uint64_t{plan.matched} * block_tokens_ + plan.partial_tokens;
  if (resume) {
    ++stats_.readmitted;
    stats_.readmit_queried_tokens += prompt;
    stats_.readmit_hit_tokens += hit;
    return;
  }
  ++stats_.admitted;
  stats_.queried_tokens += prompt;
  stats_.hit_tokens[kHbmTier] +=
      std::uint64_t{plan.ready.size() + plan.join.size()} * block_tokens_ + plan.partial_tokens;
  for (const BlockId b : plan.load) stats_.hit_tokens[pool_->best_tier(b)] += block_tokens_;
  stats_.spared_loads += plan.spared;
  stats_.recomputed_tokens += prompt - hit;
}

void ManagerCore::FillAdmission(const SequenceData& seq, std::uint32_t prompt,
                                Admission& admission) {
  admission.outcome = Outcome::kOk;
  admission.recompute_tokens = prompt - seq.committed;
  std::uint32_t loading = 0;
  for (const BlockRef& ref : seq.loads) {  // a loading tail block may be partial
    const bool last = ref.block == seq.blocks[(seq.committed - 1) / block_tokens_];
    loading += last ? (seq.committed - 1) % block_tokens_ + 1 : block_tokens_;
  }
  admission.loading_tokens = loading;
  admission.ready_tokens = seq.committed - loading;
  admission.signals_version = signals_.version;
  if (!seq.loads.empty()) {
    control_->Ref();
    admission.ticket.control_ = control_;
    admission.ticket.index_ = seq.index;
    admission.ticket.generation_ = seq.generation;
  }
}

// Digests of the full blocks that nobody had, for policies with ghost lists (12 ns a block).
void ManagerCore::FindMisses(const AdmitRequest& request, std::uint32_t ns, const AdmitPlan& plan) {
  misses_.clear();
  if (!want_misses_) return;
  PrefixHash parent = EndDigest(plan.match, Root(ns));
  for (std::uint32_t i = plan.matched; i < request.tokens.size() / block_tokens_; ++i) {
    const auto tokens = request.tokens.subspan(std::size_t{i} * block_tokens_, block_tokens_);
    parent = index_->BlockDigest(parent, tokens, ContentOf(request.content, i));
    misses_.push_back(parent);
  }
}

Admission ManagerCore::Admit(const AdmitRequest& request) {
  BindThread();
  Admission admission;
  std::uint32_t ns = 0;
  admission.outcome = CheckRequest(request, ns);
  if (admission.outcome != Outcome::kOk) return admission;
  if (active_transfers_ != 0) Harvest();
  StampSignals();
  admission.signals_version = signals_.version;

  AdoptStored(request, ns);
  AdmitPlan& plan = plan_;
  PlanAdmission(request, ns, plan);
  const auto length = static_cast<std::uint32_t>(request.tokens.size());
  admission.outcome = CheckLimits(plan.matched + plan.fresh, plan.matched + plan.fresh, ns);
  if (admission.outcome != Outcome::kOk) {
    ++stats_.never_fits;
    return admission;
  }
  const RoomRequest room{.slots = plan.fresh + static_cast<std::uint32_t>(plan.load.size()),
                         .priority = Effective(request),
                         .request = request.request,
                         .session = request.session,
                         .ns = ns,
                         .hits_end = HitsEnd(plan),
                         .partial = Partial(plan)};
  FindMisses(request, ns, plan);
  if (!HasSequence() || !MakeRoom(room, plan, admission.shortfall)) {
    ++stats_.busy;
    (void)SessionArrived(request.session);
    admission.outcome = Outcome::kBusy;
    return admission;
  }
  SequenceData* seq = NewSequence();
  if (!demands_.empty()) seq->serial = TakeDemand(room);
  if (!misses_.empty()) policies_[kHbmTier]->OnMissed(misses_);
  CountHits(plan, length, false);
  seq->session = SessionIndex(request.session, true);
  seq->session_id = request.session;
  seq->request = request.request;
  seq->ns = NamespaceId(ns);
  seq->root = namespaces_[ns].root;
  seq->root_version = namespaces_[ns].root_version;
  seq->epoch = epoch_;
  seq->timeline = request.timeline;
  seq->priority = room.priority;
  seq->publish = request.publish;
  seq->tokens.assign(request.tokens.begin(), request.tokens.end());
  seq->content.assign(request.content.begin(), request.content.end());
  seq->two_ended = request.two_ended;
  TakeHits(plan, *seq);
  seq->publish_blocks = plan.matched;
  seq->cursor = plan.matched != 0 ? pool_->ref(plan.match.blocks.back()) : BlockRef();
  TakeFresh(*seq, plan.fresh);
  TrimGrants();
  seq->committed = plan.matched * block_tokens_;
  if (plan.partial_tokens != 0) {
    const std::uint32_t before = seq->committed;
    CopyPartial(*seq, plan.match.partial, plan.partial_tokens);
    ActivateCommitted(*seq, before, seq->committed);
  }
  SetTable(*seq, 0);
  if (seq->session != kNone) {
    SessionSignals& session = sessions_[seq->session];
    ++session.turn;
    ++session_sequences_[seq->session];
    session.state = SessionState::kRunning;
    session.priority = request.priority;
    session.critical_path = request.critical_path;
    NotifySession(seq->session);
  }
  FillAdmission(*seq, length, admission);
  control_->Ref();
  admission.sequence.control_ = control_;
  admission.sequence.index_ = seq->index;
  admission.sequence.generation_ = seq->generation;
  if (!unsubmitted_.empty()) Pump();
  return admission;
}

// Adds the private blocks of a paused sequence that survived behind the match, and returns how many
// tokens are committed with them.
std::uint32_t ManagerCore::PlanKept(const SequenceData& seq, AdmitPlan& plan) const {
  const auto length = static_cast<std::uint32_t>(seq.tokens.size());
  const bool same_epoch = seq.epoch == epoch_;
  std::uint32_t committed = plan.matched * block_tokens_;
  for (const SequenceData::PrivateBlock& p : seq.kept) {
    if (!same_epoch || p.position < plan.matched) continue;
    const auto next = plan.matched + static_cast<std::uint32_t>(plan.kept.size());
    if (p.position != next || !pool_->alive(p.ref)) break;
    // The engine writes on in a partial tail: not while others hold, find or copy it.
    const bool written = length > seq.committed && seq.committed < (next + 1) * block_tokens_;
    const bool kept_too = seq.forked && Keepers(p.ref) > 1;
    if (written && (kept_too || InUseByOthers(seq, p.ref.block))) break;
    plan.kept.push_back(p.ref.block);
    committed = std::min((next + 1) * block_tokens_, std::max(seq.committed, committed));
    switch (pool_->copy(p.ref.block, kHbmTier)) {
      case CopyState::kValid:
        plan.ready.push_back(p.ref.block);
        break;
      case CopyState::kWriting:
        plan.join.push_back(p.ref.block);
        break;
      case CopyState::kAbsent:
        plan.load.push_back(p.ref.block);
        break;
    }
  }
  return committed;
}

// Like an admission of the sequence's own tokens, except that the hit may cover all of them and
// that private blocks which survived are taken back.
Admission ManagerCore::Resume(SequenceData& seq) {
  BindThread();
  Admission admission;
  if (seq.state != SequenceState::kPaused) {
    admission.outcome = Outcome::kNotPaused;
    return admission;
  }
  if (FindNamespace(seq.ns) == nullptr) {
    admission.outcome = Outcome::kUnknownNamespace;
    return admission;
  }
  if (active_transfers_ != 0) Harvest();
  StampSignals();
  admission.signals_version = signals_.version;

  AdmitPlan& plan = plan_;
  plan.clear();
  misses_.clear();
  const auto length = static_cast<std::uint32_t>(seq.tokens.size());
  if (seq.publish) {
    const AdmitRequest request{
        .tokens = seq.tokens, .timeline = seq.timeline, .content = seq.content};
    AdoptStored(request, seq.ns.value());
    Match(request, seq.ns.value(), length / block_tokens_, false, plan.match);
  }
  Classify(plan);
  const std::uint32_t committed = PlanKept(seq, plan);
  const auto have = plan.matched + static_cast<std::uint32_t>(plan.kept.size());
  plan.fresh = BlocksFor(length) - have;
  admission.outcome = CheckLimits(have + plan.fresh, have + plan.fresh, seq.ns.value());
  if (admission.outcome != Outcome::kOk) return admission;
  const RoomRequest room{.slots = plan.fresh + static_cast<std::uint32_t>(plan.load.size()),
                         .priority = seq.priority,
                         .request = seq.request,
                         .session = seq.session_id,
                         .sequence = seq.serial,
                         .owner = seq.index,
                         .ns = seq.ns.value(),
                         .hits_end = HitsEnd(plan),
                         .partial = plan.kept.empty() ? BlockId() : plan.kept.back()};
  if (!MakeRoom(room, plan, admission.shortfall)) {
    ++stats_.busy;
    (void)SessionArrived(seq.session_id);
    admission.outcome = Outcome::kBusy;
    return admission;
  }
  if (!demands_.empty()) (void)TakeDemand(room);
  CountHits(plan, length, true);
  const std::vector<SequenceData::PrivateBlock> kept = seq.kept;
  ForgetKept(seq);
  for (const SequenceData::PrivateBlock& p : kept) {
    if (std::find(plan.kept.begin(), plan.kept.end(), p.ref.block) == plan.kept.end()) {
      DropKept(p);  // the match made it superfluous
    } else {
      pool_->ClearFlag(p.ref.block, word::kAbandoned);
    }
  }
  seq.copies_below = std::any_of(plan.kept.begin(), plan.kept.end(), [&](BlockId b) {
    return ((pool_->valid_mask(b) | pool_->writing_mask(b)) & ~1u) != 0;
  });
  seq.state = SequenceState::kRunning;
  seq.root = Root(seq.ns.value());
  seq.root_version = namespaces_[seq.ns.value()].root_version;
  seq.epoch = epoch_;
  seq.load_failed = false;
  seq.advanced = false;
  seq.resumed = true;
  seq.dropped = 0;
  TakeHits(plan, seq);
  seq.committed = committed;
  seq.publish_blocks = plan.matched;
  seq.cursor = plan.matched != 0 ? pool_->ref(plan.match.blocks.back()) : BlockRef();
  TakeFresh(seq, plan.fresh);
  TrimGrants();
  SetTable(seq, 0);
  if (seq.session != kNone) {
    SessionSignals& session = sessions_[seq.session];
    ++session.turn;
    session.state = SessionState::kRunning;
    NotifySession(seq.session);
  }
  FillAdmission(seq, length, admission);
  if (!unsubmitted_.empty()) Pump();
  return admission;
}

}  // namespace tidepool::internal
