// The operations of ModelWorld: each predicts the outcome, calls the manager, and tells the
// reference what happened.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tests/support/model_world.h"

namespace tidepool::testing {
namespace {

constexpr std::size_t kMaxLive = 12;

const std::array<NamespaceKey, 5> kKeys = {
    NamespaceKey{},
    NamespaceKey{.tenant = "x", .adapter = "", .model = "", .layout = ""},
    NamespaceKey{.tenant = "", .adapter = "x", .model = "", .layout = ""},
    NamespaceKey{.tenant = "x", .adapter = "y", .model = "", .layout = ""},
    NamespaceKey{.tenant = "z", .adapter = "", .model = "m", .layout = "l"},
};

std::string Num(std::uint64_t n) { return std::to_string(n); }

}  // namespace

void ModelWorld::Apply(const ModelOp& op) {
  if (!failure_.empty()) return;
  ++steps_;
  const auto kind = op.kind;
  switch (kind) {
    case ModelOpKind::kAdmit:
      Admit(op);
      break;
    case ModelOpKind::kAppend:
      Append(op);
      break;
    case ModelOpKind::kStep:
      Step(op);
      break;
    case ModelOpKind::kTruncate:
      Truncate(op);
      break;
    case ModelOpKind::kFork:
      Fork(op);
      break;
    case ModelOpKind::kDropLeading:
      DropLeading(op);
      break;
    case ModelOpKind::kPause:
      Pause(op);
      break;
    case ModelOpKind::kResume:
      Resume(op);
      break;
    case ModelOpKind::kPreempt:
      Preempt(op);
      break;
    case ModelOpKind::kFinish:
    case ModelOpKind::kDropHandle:
      Finish(op);
      break;
    case ModelOpKind::kCompleteSession:
      (void)manager_->CompleteSession(SessionId(op.arg[0] % kModelSessions));
      break;
    case ModelOpKind::kProbe:
      Probe(op);
      break;
    case ModelOpKind::kEvict:
      Evict(op);
      break;
    case ModelOpKind::kOffload:
      MovePrefix(op, true);
      break;
    case ModelOpKind::kOnboard:
      MovePrefix(op, false);
      break;
    case ModelOpKind::kCompleteStep:
      CompleteStep(op);
      break;
    case ModelOpKind::kRunDevice:
      device_.RunOne(TimelineId(op.arg[0] % kModelTimelines));
      break;
    case ModelOpKind::kPoll:
      manager_->Poll();
      break;
    case ModelOpKind::kClock:
      clock_.Advance(
          std::chrono::milliseconds(op.arg[0] % 8 == 0 ? op.arg[1] % 30'000 : op.arg[1] % 600) -
          std::chrono::milliseconds(op.arg[2] % 8 == 0 ? 700 : 0));
      break;
    case ModelOpKind::kAdvanceEpoch:
      (void)manager_->AdvanceEpoch();
      reference_.AdvanceEpoch();
      Expect(manager_->epoch() == reference_.epoch(), "epoch() is wrong");
      break;
    case ModelOpKind::kNamespace:
      Namespace(op);
      break;
    case ModelOpKind::kClear:
      (void)manager_->Clear();
      reference_.ClearSpaces();
      break;
    case ModelOpKind::kResize:
      Resize(op);
      break;
    case ModelOpKind::kQuota:
      SetQuota(op);
      break;
    case ModelOpKind::kSignals:
      Signals(op);
      break;
    case ModelOpKind::kPlanReclaim:
      PlanReclaim(op);
      break;
    case ModelOpKind::kCancelDemand:
      manager_->CancelDemand(RequestId(op.arg[0] % 8), SessionId(op.arg[1] % kModelSessions));
      break;
    case ModelOpKind::kArrive:
      (void)manager_->SessionArrived(SessionId(op.arg[0] % kModelSessions));
      break;
    case ModelOpKind::kTierFault:
      TierFault(op);
      break;
    case ModelOpKind::kTakeLoads:
      TakeLoads(op);
      break;
    case ModelOpKind::kCommitTaken:
      CommitTaken(op);
      break;
    case ModelOpKind::kLinkLimit:
      LinkLimit(op);
      break;
    case ModelOpKind::kMisuse:
      Misuse(op);
      break;
  }
  if (!failure_.empty()) return;
  Sync();
  if (failure_.empty()) CheckAll();
}

// --- Admission. -----------------------------------------------------------------------------

void ModelWorld::Admit(const ModelOp& op) {
  if (live_.size() >= kMaxLive) return Finish(op);
  const ModelText text = Prompt(op.arg[0], op.arg[1], op.arg[2]);
  const AdmitRequest request = Request(text, op);
  // Most admissions meet a quiet engine, so that the probe just before must be exactly right.
  const bool exact = op.arg[3] >> 28 != 0;
  if (exact) {
    engine_->set_automatic(false);
    manager_->Poll();
    Sync();
    if (!failure_.empty()) return;
  }
  const State before = Look();
  const ProbeResult probe = manager_->Probe(request);
  CheckProbe(request, text, before, probe);
  if (!failure_.empty()) return;
  Admission admission = manager_->Admit(request);
  engine_->set_automatic(true);
  if (exact) {
    ++tally_.exact;
    const Outcome expected = probe.outcome != Outcome::kOk  ? probe.outcome
                             : probe.fit == Fit::kNeverFits ? Outcome::kNeverFits
                             : probe.fit == Fit::kBusy      ? Outcome::kBusy
                                                            : Outcome::kOk;
    ExpectOutcome(admission.outcome, expected, "Admit after Probe");
    if (!failure_.empty()) return;
  }
  if (!admission.granted()) {
    ++(admission.outcome == Outcome::kBusy ? tally_.busy : tally_.never_fits);
    if (exact) CheckRefused(before, "Admit");
    if (admission.outcome == Outcome::kBusy && exact && before.sizes.demands == 0 &&
        !config_.quotas) {
      Expect(admission.shortfall.needed > before.counts.free, "Admit: busy, but there is room");
    }
    return;
  }
  ++tally_.granted;
  auto live = std::make_unique<Live>();
  live->id = next_live_++;
  ModelSequence& m = live->model;
  m.text = text;
  m.incarnation = reference_.incarnation(text.space);
  m.timeline = request.timeline;
  m.publish = request.publish;
  m.committed = admission.ready_tokens + admission.loading_tokens;
  live->handle = std::move(admission.sequence);
  live->ticket = std::move(admission.ticket);
  live->loading = admission.loading_tokens != 0;
  live->takeable = admission.loading_tokens;
  SetText(*live);
  live->table = live->handle.block_table();
  m.slots.assign(live->table.slots, live->table.slots + live->table.size);
  m.loading = LoadingSlots(*live);
  live_.push_back(std::move(live));
  if (exact) CheckGrant(request, *live_.back(), before, probe, admission);
}

void ModelWorld::CheckGrant(const AdmitRequest& request, const Live& live, const State& before,
                            const ProbeResult& probe, const Admission& admission) {
  const ModelText& text = live.model.text;
  const auto length = static_cast<std::uint32_t>(text.tokens.size());
  Expect(admission.ready_tokens + admission.loading_tokens + admission.recompute_tokens == length,
         "Admit: the prompt is not ready + loading + recompute");
  Expect(admission.recompute_tokens != 0, "Admit: a hit covers the whole prompt");
  const std::uint32_t found = probe.tokens / config_.block_tokens;
  const std::uint32_t findable = std::min(found, (length - 1) / config_.block_tokens);
  const auto spared = static_cast<std::uint32_t>(manager_->stats().spared_loads - before.spared);
  Expect(spared == 0 || (request.recompute_if_sooner && config_.recompute && spared <= findable),
         "Admit spared " + Num(spared) + " loads");
  if (!failure_.empty()) return;
  const std::uint32_t matched = findable - spared;
  const std::uint32_t hit = live.model.committed;
  tally_.hit_tokens += hit;
  Expect(spared == 0 || hit == matched * config_.block_tokens, "Admit: a partial hit is computed");
  Expect(hit >= matched * config_.block_tokens && hit < (matched + 1) * config_.block_tokens,
         "Admit hit " + Num(hit) + " tokens, Probe found " + Num(matched) + " blocks");
  Expect(config_.partial_tail || hit % config_.block_tokens == 0, "Admit: an unwanted partial hit");
  const SeenIndex& seen = before.seen[text.space];
  const std::vector<PrefixHash> digests = reference_.Digests(text);
  std::uint32_t loading = 0;
  bool pending = false;
  for (std::uint32_t i = 0; i < matched; ++i) {
    const SeenBlock& block = seen.at(digests[i]);
    loading += (block.tiers & 1u) == 0 ? config_.block_tokens : 0;
    pending |= block.pending;
  }
  for (std::uint32_t i = matched; i < findable; ++i) {
    const SeenBlock& block = seen.at(digests[i]);
    Expect((block.tiers & 1u) == 0 && !block.loading, "Admit computes what HBM has");
  }
  Expect(loading == admission.loading_tokens,
         "Admit: loads " + Num(admission.loading_tokens) + " tokens, not " + Num(loading));
  Expect(live.table.size == BlocksFor(std::uint64_t{length} + request.lookahead_tokens),
         "Admit: the table has " + Num(live.table.size) + " entries");
  Expect(live.table.size - findable == probe.fresh_blocks, "Admit took other than Probe said");
  if (loading == 0 && !config_.queued_work) VerifyBlocks(live, 0, live.table.size);
  if (loading == 0 && config_.queued_work && !pending) VerifyBlocks(live, 0, matched);
}

void ModelWorld::Probe(const ModelOp& op) {
  const ModelText text = Prompt(op.arg[0], op.arg[1], op.arg[2]);
  const AdmitRequest request = Request(text, op);
  const State before = Look();
  const ProbeResult first = manager_->Probe(request);
  CheckProbe(request, text, before, first);
  const ProbeResult second = manager_->Probe(request);
  Expect(first.fit == second.fit && first.tokens == second.tokens &&
             first.fresh_blocks == second.fresh_blocks && first.segments == second.segments,
         "a second Probe differs from the first");
  CheckRefused(before, "Probe");
}

// --- A running sequence. --------------------------------------------------------------------

void ModelWorld::Append(const ModelOp& op) {
  Live* live = PickLive(op.arg[0], [](const Live& l) { return l.model.running; });
  if (live == nullptr) return;
  ModelSequence& m = live->model;
  const auto length = static_cast<std::uint32_t>(m.text.tokens.size());
  if (BlocksFor(length) > 2 * config_.max_blocks) return;
  const std::uint32_t count = op.arg[1] % 4 != 0 ? 1 : op.arg[1] / 4 % (2 * config_.block_tokens);
  const std::vector<Token> tokens = Continuation(length, op.arg[2], count);
  engine_->set_automatic(false);
  const bool exact = op.arg[3] >> 28 != 0;  // as in Admit
  if (exact) {
    manager_->Poll();
    Sync();
    if (!failure_.empty() || m.text.tokens.size() != length) return engine_->set_automatic(true);
  }
  const State before = Look();
  const std::uint32_t have = live->table.size;
  const Outcome outcome = live->handle.Append(tokens);
  engine_->set_automatic(true);
  if (outcome == Outcome::kOk) {
    m.text.tokens.insert(m.text.tokens.end(), tokens.begin(), tokens.end());
    if (count != 0) m.load_failed = false;
    return SetText(*live);
  }
  if (outcome == Outcome::kLoadFailed) {  // while it looked for room
    Expect(m.cut_untold || (live->loading && live->handle.tokens() < length),
           "Append speaks of a failed load, but nothing was cut");
    SyncCut(*live);
    m.cut_untold = false;
    return;
  }
  if (outcome == Outcome::kStillLoading) {
    Expect(live->loading && length % config_.block_tokens != 0 && length == m.committed,
           "Append: still loading, but not the tail");
    return CheckRefused(before, "Append");
  }
  const std::uint32_t blocks = BlocksFor(length + count);
  const bool never = blocks - m.dropped > hbm_slots_ || blocks > config_.slots[0] ||
                     Hard(m.text.space, blocks - m.dropped);
  ExpectOutcome(outcome, never ? Outcome::kNeverFits : Outcome::kBusy, "Append");
  Expect(blocks > have || length % config_.block_tokens != 0, "Append: refused without a need");
  if (exact) CheckRefused(before, "Append");
}

// One step of the engine: compute some of the tokens that are not committed, and commit them.
void ModelWorld::Step(const ModelOp& op) {
  Live* live = PickLive(op.arg[0], [](const Live& l) { return l.model.running; });
  if (live == nullptr) return;
  ModelSequence& m = live->model;
  const auto length = static_cast<std::uint32_t>(m.text.tokens.size());
  const std::uint32_t open = length - m.committed;
  const std::uint32_t n = m.committed + (op.arg[1] % 3 != 0 ? open : op.arg[1] / 3 % (open + 1));
  if (live->loading) {
    const Outcome outcome = live->handle.Commit(n, Fence::Done());
    if (outcome == Outcome::kLoadFailed || live->ticket.Ready() != Outcome::kPending) return;
    return ExpectOutcome(outcome, Outcome::kStillLoading, "Commit");
  }
  const std::uint32_t drafts = op.arg[2] % 4 == 0 ? length : n;  // written, not committed
  const Fence fence{m.timeline, ++launched_[m.timeline]};
  DrainWork(fence);
  LaunchStep(*live, drafts, fence);
  const bool wait = op.arg[3] % 3 == 0;
  if (wait) device_.RunAll();
  if (!failure_.empty()) return;
  ExpectOutcome(live->handle.Commit(length + 1, fence),
                m.load_failed ? Outcome::kLoadFailed : Outcome::kBeyondLength,
                "Commit past the end");
  if (m.load_failed) m.cut_untold = false;
  if (m.committed != 0) {
    ExpectOutcome(live->handle.Commit(m.committed - 1, fence), Outcome::kNotMonotonic,
                  "Commit backwards");
  }
  // A step whose drafts are in flight needs its fence even if everything committed is written.
  const Fence said = wait && drafts == n ? Fence::Done() : fence;
  ExpectOutcome(live->handle.Commit(n, said), Outcome::kOk, "Commit");
  live->detached |= !reference_.MayPublish(m) || m.dropped != 0;
  reference_.Commit(m, n, said);
}

void ModelWorld::Truncate(const ModelOp& op) {
  Live* live = PickLive(op.arg[0], [](const Live& l) { return l.model.running; });
  if (live == nullptr) return;
  ModelSequence& m = live->model;
  const auto length = static_cast<std::uint32_t>(m.text.tokens.size());
  const std::uint32_t n = op.arg[1] % 8 == 0 ? op.arg[2] % (length + 2)
                                             : m.committed + op.arg[2] % (length - m.committed + 1);
  Outcome expected = Outcome::kOk;
  if (n > length || n < m.dropped * config_.block_tokens) {
    expected = Outcome::kBeyondLength;
  } else if (live->loading && n < m.committed) {
    expected = Outcome::kStillLoading;
  }
  ExpectOutcome(live->handle.Truncate(n), expected, "Truncate");
  if (expected != Outcome::kOk) return;
  m.text.tokens.resize(n);
  m.committed = std::min(m.committed, n);
  SetText(*live);
}

void ModelWorld::Fork(const ModelOp& op) {
  Live* parent = PickLive(op.arg[0], [](const Live& l) { return l.model.running; });
  if (parent == nullptr || live_.size() >= kMaxLive) return;
  ForkResult fork = parent->handle.Fork();
  ExpectOutcome(fork.outcome, parent->loading ? Outcome::kStillLoading : Outcome::kOk, "Fork");
  if (fork.outcome != Outcome::kOk) return;
  auto child = std::make_unique<Live>();
  child->id = next_live_++;
  child->model = parent->model;
  child->model.text.tokens.resize(parent->model.committed);
  child->model.load_failed = false;
  child->detached = parent->detached;
  child->forked = parent->forked = true;
  child->handle = std::move(fork.sequence);
  SetText(*child);
  child->table = child->handle.block_table();
  const std::uint32_t blocks = BlocksFor(child->model.committed);
  Expect(child->table.size == blocks, "Fork: the child has another number of blocks");
  child->model.slots.assign(child->table.slots + child->table.dropped,
                            child->table.slots + child->table.size);
  Expect(
      std::equal(child->model.slots.begin(), child->model.slots.end(), parent->model.slots.begin()),
      "Fork: the child does not share its parent's blocks");
  live_.push_back(std::move(child));
}

void ModelWorld::DropLeading(const ModelOp& op) {
  Live* live = PickLive(op.arg[0], [](const Live& l) { return l.model.running; });
  if (live == nullptr) return;
  ModelSequence& m = live->model;
  const std::uint32_t blocks = op.arg[1] % (live->table.size + 2);
  Outcome expected = Outcome::kOk;
  if (blocks < m.dropped) {
    expected = Outcome::kNotMonotonic;
  } else if (blocks > m.committed / config_.block_tokens || blocks >= live->table.size) {
    expected = Outcome::kBeyondLength;
  } else if (live->loading) {
    expected = Outcome::kStillLoading;
  }
  ExpectOutcome(live->handle.DropLeading(blocks), expected, "DropLeading");
  if (expected == Outcome::kOk) m.dropped = blocks;
}

// --- Turns. ---------------------------------------------------------------------------------

PauseHint ModelWorld::Hint(const ModelOp& op) {
  PauseHint hint{.wait = static_cast<WaitClass>(op.arg[1] % 5), .tool = op.arg[2] % 3};
  if (op.arg[3] % 3 == 0) hint.expected_return = Duration(op.arg[3]);
  if (op.arg[3] % 7 == 0) hint.expected_return = Duration::max() - Duration(1);
  return hint;
}

void ModelWorld::Pause(const ModelOp& op) {
  Live* live = PickLive(op.arg[0], [](const Live& l) { return l.model.running; });
  if (live == nullptr) return;
  const PauseHint hint = Hint(op);
  ExpectOutcome(live->handle.Pause(hint), Outcome::kOk, "Pause");
  ExpectOutcome(live->handle.Pause(hint), Outcome::kAlreadyPaused, "a second Pause");
  ExpectOutcome(live->handle.Append(Token{1}), Outcome::kPaused, "Append while paused");
  LetGo(*live);
}

void ModelWorld::Preempt(const ModelOp& op) {
  Live* live = PickLive(op.arg[0], [](const Live& l) { return l.model.running; });
  if (live == nullptr) return;
  if (op.arg[2] % 4 == 0) return PreemptAsPlanned(*live);
  constexpr auto kModes = std::to_array(
      {PreemptMode::kOffload, PreemptMode::kRecompute, PreemptMode::kKeep, PreemptMode::kAuto});
  ExpectOutcome(live->handle.Preempt(kModes[op.arg[1] % kModes.size()]), Outcome::kOk, "Preempt");
  LetGo(*live);
}

void ModelWorld::LetGo(Live& live) {
  reference_.SetSlots(live.model, {});
  live.model.running = false;
  live.loading = false;
  live.takeable = live.taken = 0;
  live.computed.clear();
}

// What the plan says about a sequence is what happens: preempted in the planned mode and resumed
// with nothing in between, it has lost exactly the tokens that were listed.
void ModelWorld::PreemptAsPlanned(Live& live) {
  engine_->set_automatic(false);
  manager_->Poll();
  Sync();
  if (!failure_.empty()) return;
  const auto plan = manager_->PlanReclaim(~std::uint64_t{0});
  const auto choice = std::find_if(plan.begin(), plan.end(), [&](const ReclaimChoice& c) {
    return c.sequence == live.handle.id();
  });
  const std::uint32_t committed = live.model.committed;
  const auto length = static_cast<std::uint32_t>(live.model.text.tokens.size());
  const PreemptMode mode = choice != plan.end() ? choice->mode : PreemptMode::kAuto;
  ExpectOutcome(live.handle.Preempt(mode), Outcome::kOk, "Preempt");
  LetGo(live);
  const State before = Look();
  Admission admission = live.handle.Resume();
  engine_->set_automatic(true);
  // A copy in flight keeps the engine from writing on in the tail. What others have published of
  // the tokens that are not computed yet is found too.
  const bool written_on = length > committed && committed % config_.block_tokens != 0;
  const ModelSequence& m = live.model;
  const bool beyond = reference_.alive(m.text.space) && m.publish &&
                      reference_.Findable(m.text, m.timeline, before.seen[m.text.space]).second *
                              config_.block_tokens >
                          committed;
  const bool exact = admission.granted() && choice != plan.end() && !live.forked && !beyond &&
                     !(written_on && before.sizes.transfers != 0);
  if (exact && admission.recompute_tokens != length - committed + choice->recompute_tokens) {
    Fail("preempted as planned, " + Num(admission.recompute_tokens) +
         " tokens are to be recomputed, not " + Num(length - committed) + " + " +
         Num(choice->recompute_tokens));
  }
  tally_.planned += exact ? 1 : 0;
  TakeBack(live, before, std::move(admission));
}

void ModelWorld::Resume(const ModelOp& op) {
  Live* live = PickLive(op.arg[0], [](const Live& l) { return !l.model.running; });
  if (live == nullptr) return;
  engine_->set_automatic(false);
  manager_->Poll();
  Sync();
  if (!failure_.empty()) return;
  const State before = Look();
  Admission admission = live->handle.Resume();
  engine_->set_automatic(true);
  TakeBack(*live, before, std::move(admission));
}

void ModelWorld::TakeBack(Live& live, const State& before, Admission admission) {
  ModelSequence& m = live.model;
  if (!reference_.alive(m.text.space)) {
    return ExpectOutcome(admission.outcome, Outcome::kUnknownNamespace, "Resume");
  }
  const auto length = static_cast<std::uint32_t>(m.text.tokens.size());
  const std::uint32_t total = BlocksFor(length);
  const bool never = total > hbm_slots_ || Hard(m.text.space, total);
  if (!admission.granted()) {
    ExpectOutcome(admission.outcome, never ? Outcome::kNeverFits : Outcome::kBusy, "Resume");
    return CheckRefused(before, "Resume");
  }
  Expect(!never, "Resume: granted what never fits");
  ++tally_.resumed;
  const bool same_weights = m.text.epoch == reference_.epoch();
  m.text.epoch = reference_.epoch();
  const auto [must, may] = reference_.Findable(m.text, m.timeline, before.seen[m.text.space]);
  const std::uint32_t committed = admission.ready_tokens + admission.loading_tokens;
  const std::uint32_t most =
      std::max(m.publish ? may * config_.block_tokens : 0, same_weights ? m.committed : 0);
  const std::uint32_t least = m.publish && !live.detached ? must * config_.block_tokens : 0;
  Expect(committed >= least && committed <= most,
         "Resume has " + Num(committed) + " tokens, not " + Num(least) + " to " + Num(most));
  Expect(committed + admission.recompute_tokens == length,
         "Resume: the tokens are not ready + loading + recompute");
  Expect(live.handle.committed() == committed, "Resume: committed() is not ready + loading");
  m.incarnation = reference_.incarnation(m.text.space);
  m.running = true;
  m.load_failed = false;
  m.dropped = 0;
  m.committed = committed;
  live.ticket = std::move(admission.ticket);
  live.loading = admission.loading_tokens != 0;
  live.takeable = admission.loading_tokens;
  SetText(live);
  SyncTable(live);
  Expect(live.table.size == total, "Resume: the table has " + Num(live.table.size) + " entries");
  if (!live.loading && !config_.queued_work) VerifyBlocks(live, 0, total);
}

void ModelWorld::Finish(const ModelOp& op) {
  Live* live = PickLive(op.arg[0], [](const Live&) { return true; });
  if (live == nullptr) return;
  ModelSequence& m = live->model;
  if (op.kind == ModelOpKind::kDropHandle) {
    live->handle = Sequence();
    return Retire(*live);
  }
  Fence fence;
  if (op.arg[1] % 4 == 0 && m.running && !live->loading) {  // a step that is never committed
    fence = {m.timeline, ++launched_[m.timeline]};
    DrainWork(fence);
    LaunchStep(*live, static_cast<std::uint32_t>(m.text.tokens.size()), fence);
    m.last_fence = fence;
  } else if (op.arg[1] % 2 == 0 && live->taken != 0) {  // nor is this one
    fence = {m.timeline, ++launched_[m.timeline]};
    DrainWork(fence);
    LaunchTaken(*live, fence);
    m.last_fence = fence;
  }
  const PauseHint hint = op.arg[2] % 2 == 0 ? PauseHint{} : Hint(op);
  ExpectOutcome(live->handle.Finish(fence, hint), Outcome::kOk, "Finish");
  ExpectOutcome(live->handle.Finish(), Outcome::kUnknownHandle, "a second Finish");
  const Outcome ticket = live->ticket.Ready();
  Expect(ticket == Outcome::kOk || ticket == Outcome::kStaleHandle,
         "a ticket outlived its sequence");
  Retire(*live);
}

void ModelWorld::CompleteStep(const ModelOp& op) {
  const TimelineId timeline(op.arg[0] % kModelTimelines);
  const std::uint64_t done = reference_.completed(timeline);
  if (op.arg[1] % 16 == 0 && done != 0) {
    return ExpectOutcome(manager_->CompleteStep(timeline, done - 1), Outcome::kNotMonotonic,
                         "CompleteStep backwards");
  }
  const std::uint64_t launched = launched_[timeline];
  const std::uint64_t step =
      op.arg[3] % 3 != 0 ? launched : done + op.arg[2] % (launched - done + 1);
  device_.RunTo({timeline, step});
  reference_.CompleteStep(timeline, step);
  ExpectOutcome(manager_->CompleteStep(timeline, step), Outcome::kOk, "CompleteStep");
}

// --- Two-ended loads. -----------------------------------------------------------------------

void ModelWorld::TakeLoads(const ModelOp& op) {
  const bool any = op.arg[2] % 8 == 0;
  Live* live = any ? PickLive(op.arg[0], [](const Live&) { return true; })
                   : PickLive(op.arg[0], [](const Live& l) { return l.loading; });
  if (live == nullptr) return;
  ModelSequence& m = live->model;
  const std::uint32_t asked = op.arg[1] % 16 == 0 ? op.arg[1] % 32 * 60 : 1 + op.arg[1] / 16 % 4;
  const State before = Look();
  engine_->set_automatic(op.arg[3] % 2 == 0);  // or nothing ends meanwhile
  const TakenLoads taken = live->handle.TakeLoads(asked);
  engine_->set_automatic(true);
  if (!m.running) return ExpectOutcome(taken.outcome, Outcome::kPaused, "TakeLoads");
  if (taken.outcome == Outcome::kLoadFailed) {
    Expect(m.cut_untold || (live->loading && live->handle.tokens() < m.text.tokens.size()),
           "TakeLoads speaks of a failed load, but nothing was cut");
    Expect(taken.tokens == 0, "TakeLoads failed and took");
    SyncCut(*live);
    m.cut_untold = false;
    return;
  }
  ExpectOutcome(taken.outcome, Outcome::kOk, "TakeLoads");
  const bool again = live->taken != 0;
  Expect(manager_->stats().taken_loads - before.taken ==
             (again ? 0 : taken.tokens / config_.block_tokens),
         "TakeLoads: taken_loads is wrong");
  if (taken.tokens == 0) return;
  Expect(!again, "TakeLoads: more, but what was taken is not committed");
  Expect(live->loading, "TakeLoads: taken from a sequence that loads nothing");
  SyncCut(*live);  // by a load behind them
  if (failure_.empty()) CheckTaken(*live, asked, taken);
  if (!failure_.empty()) return;
  live->taken_first = taken.first_token / config_.block_tokens;
  live->taken = taken.tokens / config_.block_tokens;
  live->takeable -= taken.tokens;
  tally_.taken += live->taken;
}

// The first blocks that are missing, one behind the other, all of them still loading.
void ModelWorld::CheckTaken(const Live& live, std::uint32_t asked, const TakenLoads& taken) {
  const std::uint32_t block = config_.block_tokens;
  Expect(taken.first_token % block == 0 && taken.tokens % block == 0,
         "TakeLoads: not whole blocks");
  Expect(taken.tokens / block <= asked, "TakeLoads took more than it was asked for");
  Expect(taken.tokens <= live.takeable, "TakeLoads took more than was loading");
  Expect(taken.first_token + taken.tokens <= live.model.committed, "TakeLoads: not a hit");
  if (!failure_.empty()) return;
  const std::set<std::uint32_t> loading = LoadingSlots(live);
  const std::uint32_t end = (taken.first_token + taken.tokens) / block;
  for (std::uint32_t i = taken.first_token / block; i < end; ++i) {
    const std::uint32_t slot = live.table.slots[i];
    Expect(loading.contains(slot), "TakeLoads: block " + Num(i) + " is there");
  }
  for (std::uint32_t i = 0; i < taken.first_token / block; ++i) {
    const std::uint32_t slot = live.table.slots[i];
    Expect(!loading.contains(slot) || computed_.contains({live.model.timeline, slot}),
           "TakeLoads: block " + Num(i) + " before them is missing");
  }
}

void ModelWorld::CommitTaken(const ModelOp& op) {
  Live* live = op.arg[2] % 8 == 0 ? PickLive(op.arg[0], [](const Live&) { return true; })
                                  : PickLive(op.arg[0], [](const Live& l) { return l.taken != 0; });
  if (live == nullptr) return;
  ModelSequence& m = live->model;
  if (!m.running) {
    return ExpectOutcome(live->handle.CommitTaken(Fence::Done()), Outcome::kPaused, "CommitTaken");
  }
  if (live->taken == 0) {
    return ExpectOutcome(live->handle.CommitTaken(Fence::Done()), Outcome::kInvalidArgument,
                         "CommitTaken of nothing");
  }
  ExpectOutcome(live->handle.CommitTaken({TimelineId(99), 1}), Outcome::kInvalidArgument,
                "CommitTaken on a wrong timeline");
  CommitTaken(*live, op.arg[3] % 3 == 0);
}

void ModelWorld::CommitTaken(Live& live, bool wait) {
  ModelSequence& m = live.model;
  const Fence fence{m.timeline, ++launched_[m.timeline]};
  DrainWork(fence);
  LaunchTaken(live, fence);
  if (wait) device_.RunAll();
  if (!failure_.empty()) return;
  const Fence said = wait ? Fence::Done() : fence;
  ExpectOutcome(live.handle.CommitTaken(said), Outcome::kOk, "CommitTaken");
  ExpectOutcome(live.handle.CommitTaken(said), Outcome::kInvalidArgument, "a second CommitTaken");
  for (std::uint32_t i = live.taken_first; i < live.taken_first + live.taken; ++i) {
    live.computed.insert(live.table.slots[i]);
    computed_.emplace(m.timeline, live.table.slots[i]);
  }
  live.taken = 0;
  if (!wait) m.last_fence = fence;
  if (LoadingSlots(live).empty() && live.handle.tokens() == m.text.tokens.size()) {
    ExpectOutcome(live.ticket.Ready(), m.load_failed ? Outcome::kLoadFailed : Outcome::kOk,
                  "Ready when all is computed");
  }
}

// --- Room. ----------------------------------------------------------------------------------

void ModelWorld::Evict(const ModelOp& op) {
  const auto tier = static_cast<TierIndex>(op.arg[0] % config_.slots.size());
  const std::uint32_t n = op.arg[1] % 16 == 0 ? 1000 : op.arg[2] % 4;
  const std::uint32_t before = manager_->used_slots(tier);
  const std::uint32_t held = manager_->counts().held;
  const std::uint32_t evicted = manager_->Evict(tier, n);
  Expect(evicted <= n, "Evict gave more than asked for");
  Expect(manager_->used_slots(tier) + evicted <= before, "Evict reports more than it freed");
  Expect(manager_->counts().held == held, "Evict changed holds");
}

void ModelWorld::MovePrefix(const ModelOp& op, bool down) {
  const ModelText text = Prompt(op.arg[0], op.arg[1], op.arg[2]);
  if (!text.content.empty()) return;
  const NamespaceId ns = namespaces_[text.space];
  const auto result =
      down ? manager_->Offload(text.tokens, ns) : manager_->Onboard(text.tokens, ns);
  if (!reference_.alive(text.space)) {
    return ExpectOutcome(result.outcome, Outcome::kUnknownNamespace, "Offload or Onboard");
  }
  Expect(result.accepted + result.refused <= text.tokens.size() / config_.block_tokens,
         "Offload or Onboard counts more blocks than there are");
  Expect(result.refused == 0 || result.outcome == Outcome::kBusy, "refused blocks, but not busy");
}

void ModelWorld::Namespace(const ModelOp& op) {
  const std::uint32_t space = op.arg[1] % reference_.spaces();
  if (op.arg[0] % 3 == 0) {
    const bool alive = reference_.alive(space);
    const Status status = manager_->DropNamespace(namespaces_[space]);
    Expect(status.ok() == alive, "DropNamespace: " + std::string(status.message()));
    if (alive) reference_.Drop(space);
    return;
  }
  if (reference_.spaces() > 60) return;
  const NamespaceKey& key = kKeys[op.arg[1] % kKeys.size()];
  const auto id = manager_->RegisterNamespace(key);
  if (!id.ok()) return Fail("RegisterNamespace: " + std::string(id.status().message()));
  const std::uint32_t number = reference_.Register(key);
  if (number == namespaces_.size()) {
    namespaces_.push_back(*id);
    quotas_.emplace_back();
  }
  Expect(namespaces_[number] == *id, "RegisterNamespace: another id for the same key");
}

void ModelWorld::Resize(const ModelOp& op) {
  if (!config_.resize) return;
  const auto tier = static_cast<TierIndex>(op.arg[0] % config_.slots.size());
  const std::uint32_t most = config_.slots[tier] - (tier == 0 && config_.null_slot ? 1 : 0);
  const std::uint32_t slots = op.arg[1] % 4 != 0    ? most
                              : op.arg[1] % 32 != 0 ? most - op.arg[2] % (most / 2 + 1)
                                                    : op.arg[2] % (most + 1);
  const Status status = manager_->Resize(tier, slots);
  Expect(status.ok(), "Resize: " + std::string(status.message()));
  if (tier == kHbmTier) hbm_slots_ = slots;
  Expect(!manager_->Resize(tier, most + 1).ok(), "Resize beyond what was created");
}

void ModelWorld::SetQuota(const ModelOp& op) {
  if (!config_.quotas) return;
  const std::uint32_t space = op.arg[0] % reference_.spaces();
  const auto tier = static_cast<TierIndex>(op.arg[1] % config_.slots.size());
  const std::uint32_t hard = op.arg[2] % 3 == 0 ? 0 : 1 + op.arg[2] / 3 % config_.slots[tier];
  const std::uint32_t soft = op.arg[3] % (hard == 0 ? config_.slots[tier] : hard + 1);
  const Status status = manager_->SetQuota(namespaces_[space], tier, {.soft = soft, .hard = hard});
  Expect(status.ok() == reference_.alive(space), "SetQuota: " + std::string(status.message()));
  if (status.ok()) quotas_[space][tier] = {.soft = soft, .hard = hard};
}

// --- The rest. ------------------------------------------------------------------------------

void ModelWorld::Signals(const ModelOp& op) {
  constexpr auto kFloats = std::to_array<float>({0, 1, -5, std::numeric_limits<float>::quiet_NaN(),
                                                 std::numeric_limits<float>::infinity(),
                                                 std::numeric_limits<float>::denorm_min()});
  const TimePoint when = op.arg[1] % 3 == 0   ? kNever
                         : op.arg[1] % 3 == 1 ? TimePoint::min()
                                              : clock_.Now() + Duration(op.arg[2]);
  (void)manager_->UpdateExpectedReturn(SessionId(op.arg[0] % kModelSessions), when,
                                       kFloats[op.arg[3] % kFloats.size()]);
}

// One of the tiers below HBM fails from now on, or all are well again.
void ModelWorld::TierFault(const ModelOp& op) {
  if (!config_.tier_faults) return;
  FakeFaults faults = config_.faults;
  faults.dead_tiers = op.arg[0] % 3 == 0 ? 1u << (1 + op.arg[1] % (config_.slots.size() - 1)) : 0;
  engine_->set_faults(faults);
}

// What the engine says about a link is what the signals say from the next Poll on.
void ModelWorld::LinkLimit(const ModelOp& op) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr auto kValues =
      std::to_array<double>({kInfinite, kInfinite, kInfinite, 1e9, 1e6, 1e3, 0, -1, kNaN});
  const auto from = static_cast<TierIndex>(op.arg[0] % 4);
  const auto to = static_cast<TierIndex>(op.arg[0] / 4 % 4);
  const tidepool::LinkLimit limit{
      .bytes_per_second = kValues[op.arg[1] % kValues.size()],
      .background_bytes_per_second = kValues[op.arg[2] % kValues.size()]};
  const std::size_t tiers = config_.slots.size();
  const bool exists = from < tiers && to < tiers && from != to && (to == from + 1 || to == 0);
  const bool valid = limit.bytes_per_second >= 0 && limit.background_bytes_per_second >= 0;
  const Status status = manager_->SetLinkLimit(from, to, limit);
  Expect(status.ok() == (exists && valid), "SetLinkLimit: " + std::string(status.message()));
  if (!status.ok()) return;
  manager_->Poll();
  for (const LinkSignals& link : manager_->signals().links) {
    if (link.from != from || link.to != to) continue;
    Expect(link.bytes_per_second <= limit.bytes_per_second &&
               link.background_bytes_per_second <= limit.background_bytes_per_second,
           "a link's limit is not kept to");
  }
}

void ModelWorld::PlanReclaim(const ModelOp& op) {
  const State before = Look();
  const std::uint64_t bytes = op.arg[0] % (config_.slots[0] + 1) * manager_->block_bytes();
  const auto below = static_cast<Priority>(op.arg[1] % kPriorityCount);
  std::uint32_t blocks = 0;
  for (const ReclaimChoice& choice : manager_->PlanReclaim(bytes, below)) {
    Expect(choice.priority <= below, "PlanReclaim names a stronger sequence");
    Expect(blocks * manager_->block_bytes() < bytes, "PlanReclaim names more than it needs");
    blocks += choice.blocks;
  }
  const State after = Look();
  Expect(after.counts == before.counts && after.seen == before.seen,
         "PlanReclaim changed something");
}

void ModelWorld::Misuse(const ModelOp& op) {
  Sequence empty;
  ExpectOutcome(empty.Append(Token{1}), Outcome::kUnknownHandle, "Append on an empty handle");
  ExpectOutcome(empty.Finish(), Outcome::kUnknownHandle, "Finish on an empty handle");
  ExpectOutcome(manager_->Admit({}).outcome, Outcome::kInvalidArgument, "Admit without tokens");
  if (Live* live = PickLive(op.arg[0], [](const Live& l) { return l.model.running; })) {
    ExpectOutcome(live->handle.Resume().outcome, Outcome::kNotPaused,
                  "Resume of a running sequence");
    const Fence foreign{TimelineId(99), 1};
    ExpectOutcome(live->handle.Finish(foreign), Outcome::kInvalidArgument,
                  "Finish on a wrong timeline");
  }
  if (Live* live = PickLive(op.arg[0], [](const Live& l) { return !l.model.running; })) {
    ExpectOutcome(live->handle.Commit(0, Fence::Done()), Outcome::kPaused, "Commit while paused");
    ExpectOutcome(live->handle.Fork().outcome, Outcome::kPaused, "Fork while paused");
    ExpectOutcome(live->handle.Truncate(0), Outcome::kPaused, "Truncate while paused");
  }
}

// --- The end. -------------------------------------------------------------------------------

// Preempts whom PlanReclaim names for the sequence.
void ModelWorld::MakeRoomFor(Live& live) {
  const std::uint64_t bytes = BlocksFor(live.model.text.tokens.size()) * manager_->block_bytes();
  for (const ReclaimChoice& choice : manager_->PlanReclaim(bytes, live.handle)) {
    for (const auto& each : live_) {
      if (each->handle.id() != choice.sequence) continue;
      Expect(each->model.running && each->id != live.id, "PlanReclaim names who is not running");
      ExpectOutcome(each->handle.Preempt(choice.mode), Outcome::kOk, "Preempt");
      LetGo(*each);
    }
  }
}

// The next thing that this sequence can do towards its end.
void ModelWorld::Advance(std::uint32_t at) {
  Live& live = *live_[at];
  if (!reference_.alive(live.model.text.space)) {
    live.handle = Sequence();
    return Retire(live);
  }
  if (!live.model.running) {
    Resume({.kind = ModelOpKind::kResume, .arg = {at}});
    if (failure_.empty() && !live.model.running) MakeRoomFor(live);
    return;
  }
  if (live.taken != 0) return CommitTaken(live, true);
  if (live.loading) return;
  if (live.model.committed == live.model.text.tokens.size()) {
    return Finish({.kind = ModelOpKind::kFinish, .arg = {at, 1}});
  }
  Step({.kind = ModelOpKind::kStep, .arg = {at, 1, 1, 1}});
}

void ModelWorld::CompleteSteps() {
  device_.RunAll();
  for (const auto& [timeline, step] : launched_) {
    reference_.CompleteStep(timeline, step);
    (void)manager_->CompleteStep(timeline, step);
  }
}

void ModelWorld::FinishAll() {
  constexpr int kRounds = 200;
  clock_.Advance(std::chrono::seconds(2));  // the demands of requests that nobody repeats lapse
  for (int round = 0; round < kRounds && !live_.empty() && failure_.empty(); ++round) {
    ++steps_;
    for (std::size_t i = live_.size(); i-- > 0 && failure_.empty();) {
      if (i < live_.size()) Advance(static_cast<std::uint32_t>(i));
      if (failure_.empty()) Sync();
      if (failure_.empty()) CheckAll();
    }
    clock_.Advance(std::chrono::milliseconds(1));
    CompleteSteps();
    manager_->Poll();
    Sync();
  }
  Expect(live_.empty(), Num(live_.size()) + " sequences never got to their end");
}

void ModelWorld::WindDown() {
  if (!failure_.empty()) return;
  engine_->set_faults({});
  while (!live_.empty()) {
    live_.back()->handle = Sequence();
    Retire(*live_.back());
  }
  CompleteSteps();
  for (std::uint32_t s = 0; s < kModelSessions; ++s) (void)manager_->CompleteSession(SessionId(s));
  manager_->DrainStepWork(Fence::Done(), work_);
  clock_.Advance(std::chrono::hours(1));
  for (int i = 0; i < 4; ++i) {  // what was in flight, then what that has kept from leaving
    Expect(manager_->WaitIdle(std::chrono::seconds(1)), "transfers did not end");
    (void)manager_->Clear();
    reference_.ClearSpaces();
  }
  manager_->Poll();
  if (!failure_.empty()) return;
  CheckAll();
  const TableSizes t = manager_->table_sizes();
  Expect(t.sequences + t.sessions + t.transfers + t.demands + t.pending_commits +
                 t.pending_releases + t.device_work ==
             0,
         "tables are not empty: sequences " + Num(t.sequences) + " sessions " + Num(t.sessions) +
             " transfers " + Num(t.transfers) + " demands " + Num(t.demands) + " commits " +
             Num(t.pending_commits) + " releases " + Num(t.pending_releases) + " work " +
             Num(t.device_work));
  for (TierIndex tier = 0; tier < config_.slots.size(); ++tier) {
    Expect(manager_->used_slots(tier) == 0 && manager_->pool().quarantined(tier) == 0,
           "tier " + Num(tier) + " still has " + Num(manager_->used_slots(tier)) + " blocks");
  }
  Expect(manager_->index().blocks() == 0, "the index is not empty");
  for (const auto& [id, ended] : transfers_) Expect(ended, "a transfer never ended");
}

}  // namespace tidepool::testing
