// The facade and the handles: each call finds the core behind its handle, or says why it cannot.
#include <utility>

#include "src/manager/core.h"

namespace tidepool {

using internal::Control;
using internal::ManagerCore;
using internal::SequenceData;

namespace {

struct Target {
  ManagerCore* core = nullptr;
  SequenceData* seq = nullptr;
  Outcome error = Outcome::kOk;
};

Target Resolve(Control* control, std::uint32_t index, std::uint32_t generation) noexcept {
  if (control == nullptr) return {.error = Outcome::kUnknownHandle};
  ManagerCore* core = control->core.load(std::memory_order_acquire);
  if (core == nullptr) return {.error = Outcome::kManagerGone};
  SequenceData* seq = core->Find(index, generation);
  if (seq == nullptr) return {.error = Outcome::kStaleHandle};
  return {core, seq, Outcome::kOk};
}

}  // namespace

// --- Sequence. ---

Sequence::Sequence(Sequence&& other) noexcept
    : control_(std::exchange(other.control_, nullptr)),
      index_(std::exchange(other.index_, 0)),
      generation_(std::exchange(other.generation_, 0)) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  if (this != &other) {
    Sequence old(std::move(*this));
    control_ = std::exchange(other.control_, nullptr);
    index_ = std::exchange(other.index_, 0);
    generation_ = std::exchange(other.generation_, 0);
  }
  return *this;
}

Sequence::~Sequence() {
  if (control_ == nullptr) return;
  if (control_->scheduler_thread.load(std::memory_order_relaxed) == internal::ThisThread()) {
    if (const Target t = Resolve(control_, index_, generation_); t.seq != nullptr) {
      t.core->Finish(*t.seq, Fence::Done());
    }
  } else {
    const std::lock_guard lock(control_->mutex);
    if (control_->core.load() != nullptr) {
      control_->released.emplace_back(index_, generation_);
      control_->has_released.store(true, std::memory_order_release);
    }
  }
  control_->Unref();
}

bool Sequence::alive() const noexcept {
  return Resolve(control_, index_, generation_).seq != nullptr;
}

SequenceId Sequence::id() const noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq != nullptr ? SequenceId(t.seq->serial) : SequenceId();
}

std::uint32_t Sequence::tokens() const noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq != nullptr ? static_cast<std::uint32_t>(t.seq->tokens.size()) : 0;
}

std::uint32_t Sequence::committed() const noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq != nullptr ? t.seq->committed : 0;
}

bool Sequence::paused() const noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq != nullptr && t.seq->state == internal::SequenceState::kPaused;
}

Outcome Sequence::Append(std::span<const Token> tokens) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : t.core->Append(*t.seq, tokens);
}

Outcome Sequence::Commit(std::uint32_t n, Fence fence) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : t.core->Commit(*t.seq, n, fence);
}

TakenLoads Sequence::TakeLoads(std::uint32_t blocks) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  if (t.seq == nullptr) return {.outcome = t.error};
  return t.core->TakeLoads(*t.seq, blocks);
}

Outcome Sequence::CommitTaken(Fence fence) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : t.core->CommitTaken(*t.seq, fence);
}

Outcome Sequence::Truncate(std::uint32_t n) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : t.core->Truncate(*t.seq, n);
}

ForkResult Sequence::Fork() noexcept {
  const Target t = Resolve(control_, index_, generation_);
  if (t.seq != nullptr) return t.core->Fork(*t.seq);
  ForkResult result;
  result.outcome = t.error;
  return result;
}

Outcome Sequence::DropLeading(std::uint32_t blocks) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : t.core->DropLeading(*t.seq, blocks);
}

Outcome Sequence::Pause(const PauseHint& hint) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : t.core->Pause(*t.seq, hint);
}

Admission Sequence::Resume() noexcept {
  const Target t = Resolve(control_, index_, generation_);
  if (t.seq != nullptr) return t.core->Resume(*t.seq);
  Admission admission;
  admission.outcome = t.error;
  return admission;
}

Outcome Sequence::Preempt(PreemptMode mode) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : t.core->Preempt(*t.seq, mode);
}

Outcome Sequence::Finish(Fence fence, const PauseHint& wait) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  if (t.seq == nullptr) return t.error;
  const Outcome outcome = t.core->Finish(*t.seq, fence, wait);
  if (outcome != Outcome::kOk) return outcome;
  std::exchange(control_, nullptr)->Unref();
  return outcome;
}

BlockTable Sequence::block_table() noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq != nullptr ? t.core->Table(*t.seq) : BlockTable{};
}

// --- LoadTicket. ---

LoadTicket::LoadTicket(LoadTicket&& other) noexcept
    : control_(std::exchange(other.control_, nullptr)),
      index_(std::exchange(other.index_, 0)),
      generation_(std::exchange(other.generation_, 0)) {}

LoadTicket& LoadTicket::operator=(LoadTicket&& other) noexcept {
  if (this != &other) {
    LoadTicket old(std::move(*this));
    control_ = std::exchange(other.control_, nullptr);
    index_ = std::exchange(other.index_, 0);
    generation_ = std::exchange(other.generation_, 0);
  }
  return *this;
}

LoadTicket::~LoadTicket() {
  if (control_ != nullptr) control_->Unref();
}

Outcome LoadTicket::Ready(std::uint32_t layer) const noexcept {
  if (control_ == nullptr) return Outcome::kOk;
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : t.core->Ready(*t.seq, layer);
}

Outcome LoadTicket::Ready() const noexcept {
  if (control_ == nullptr) return Outcome::kOk;
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : t.core->Ready(*t.seq, t.core->layers() - 1);
}

Outcome LoadTicket::WaitReady(std::uint32_t layer, Duration timeout) noexcept {
  if (control_ == nullptr) return Outcome::kOk;
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : t.core->WaitReady(index_, generation_, layer, timeout);
}

Outcome LoadTicket::WaitReady() noexcept {
  if (control_ == nullptr) return Outcome::kOk;
  const Target t = Resolve(control_, index_, generation_);
  if (t.seq == nullptr) return t.error;
  return t.core->WaitReady(index_, generation_, t.core->layers() - 1, std::chrono::seconds(30));
}

// --- KvCacheManager. ---

KvCacheManager::KvCacheManager(std::unique_ptr<ManagerCore> core) noexcept
    : core_(std::move(core)) {}
KvCacheManager::~KvCacheManager() = default;

StatusOr<std::unique_ptr<KvCacheManager>> KvCacheManager::Create(ManagerOptions options) {
  if (Status s = ManagerCore::Validate(options); !s.ok()) return s;
  auto core = std::make_unique<ManagerCore>(std::move(options));
  if (Status s = core->Start(); !s.ok()) return s;
  return std::unique_ptr<KvCacheManager>(new KvCacheManager(std::move(core)));
}

StatusOr<NamespaceId> KvCacheManager::RegisterNamespace(const NamespaceKey& key) {
  return core_->RegisterNamespace(key);
}
Status KvCacheManager::SetQuota(NamespaceId ns, TierIndex tier, Quota quota) {
  return core_->SetQuota(ns, tier, quota);
}
Status KvCacheManager::DropNamespace(NamespaceId ns) { return core_->DropNamespace(ns); }
void KvCacheManager::AdvanceEpoch() { core_->AdvanceEpoch(); }
std::uint64_t KvCacheManager::epoch() const noexcept { return core_->epoch(); }
void KvCacheManager::Clear() { core_->Clear(); }
ProbeResult KvCacheManager::Probe(const AdmitRequest& request) const {
  return core_->Probe(request);
}
Admission KvCacheManager::Admit(const AdmitRequest& request) { return core_->Admit(request); }
void KvCacheManager::CancelDemand(RequestId request, SessionId session) {
  core_->CancelDemand(request, session);
}
Outcome KvCacheManager::CompleteStep(TimelineId timeline, std::uint64_t step) {
  return core_->CompleteStep(timeline, step);
}
void KvCacheManager::Poll() { core_->Poll(); }
void KvCacheManager::DrainStepWork(Fence fence, StepWork& work) {
  core_->DrainStepWork(fence, work);
}
void KvCacheManager::DrainEvents(EventBatch& batch) { core_->DrainEvents(batch); }
EventSnapshot KvCacheManager::Snapshot() const { return core_->Snapshot(); }
bool KvCacheManager::WaitIdle(Duration timeout) { return core_->WaitIdle(timeout); }
Outcome KvCacheManager::UpdateExpectedReturn(SessionId session, TimePoint when, float log_sd) {
  return core_->UpdateExpectedReturn(session, when, log_sd);
}
Outcome KvCacheManager::SessionArrived(SessionId session) { return core_->SessionArrived(session); }
Outcome KvCacheManager::CompleteSession(SessionId session) {
  return core_->CompleteSession(session);
}
const SchedulingSignals& KvCacheManager::signals() const noexcept { return core_->signals(); }
std::vector<ReclaimChoice> KvCacheManager::PlanReclaim(std::uint64_t bytes, Priority below) const {
  return core_->PlanReclaim(bytes, below);
}
std::uint32_t KvCacheManager::Evict(TierIndex tier, std::uint32_t blocks) {
  return core_->Evict(tier, blocks);
}
KvCacheManager::OffloadResult KvCacheManager::Offload(std::span<const Token> tokens,
                                                      NamespaceId ns) {
  return core_->Offload(tokens, ns);
}
KvCacheManager::OffloadResult KvCacheManager::Onboard(std::span<const Token> tokens,
                                                      NamespaceId ns) {
  return core_->Onboard(tokens, ns);
}
Status KvCacheManager::SetLinkLimit(TierIndex from, TierIndex to, LinkLimit limit) {
  return core_->SetLinkLimit(from, to, limit);
}
Status KvCacheManager::Resize(TierIndex tier, std::uint32_t slots) {
  return core_->Resize(tier, slots);
}
PoolCounts KvCacheManager::counts() const noexcept { return core_->pool().Counts(); }
std::uint32_t KvCacheManager::used_slots(TierIndex tier) const noexcept {
  return core_->pool().used(tier);
}
std::uint32_t KvCacheManager::slots(TierIndex tier) const noexcept {
  return core_->pool().slots(tier);
}
const ManagerStats& KvCacheManager::stats() const noexcept { return core_->stats(); }
TableSizes KvCacheManager::table_sizes() const noexcept { return core_->table_sizes(); }
std::uint64_t KvCacheManager::metadata_bytes() const noexcept { return core_->metadata_bytes(); }
std::uint64_t KvCacheManager::block_bytes() const noexcept { return core_->block_bytes(); }
std::uint32_t KvCacheManager::block_tokens() const noexcept { return core_->pool().block_tokens(); }
std::uint32_t KvCacheManager::layers() const noexcept { return core_->layers(); }
const Arena& KvCacheManager::arena(TierIndex tier) const noexcept { return core_->arena(tier); }
std::string KvCacheManager::DescribeTransfers() const { return core_->engine().Describe(); }
void KvCacheManager::Lookup(std::span<const Token> tokens, NamespaceId ns,
                            std::vector<BlockId>& blocks) const {
  core_->Lookup(tokens, ns, blocks);
}
const BlockPool& KvCacheManager::pool() const noexcept { return core_->pool(); }
const PrefixIndex& KvCacheManager::index() const noexcept { return core_->index(); }
bool KvCacheManager::Owns(const Sequence& sequence) const noexcept {
  return sequence.control_ != nullptr && sequence.control_ == core_->control();
}
Status KvCacheManager::Audit() const { return core_->Audit(); }

}  // namespace tidepool
