// The facade and the handles: each call finds the core behind its handle, or says why it cannot.
#include <utility>

#include "src/manager/calls.h"

namespace tidepool {

using internal::Call;
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
      Call<&ManagerCore::Finish>(*t.core, *t.seq, Fence::Done(), PauseHint{});
    }
  } else {
    const std::lock_guard lock(control_->mutex);
    if (control_->core.load() != nullptr) {
      control_->released.push_back({index_, generation_});
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
  return t.seq == nullptr ? t.error : Call<&ManagerCore::Append>(*t.core, *t.seq, tokens);
}

Outcome Sequence::Commit(std::uint32_t n, Fence fence) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : Call<&ManagerCore::Commit>(*t.core, *t.seq, n, fence);
}

TakenLoads Sequence::TakeLoads(std::uint32_t blocks) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  if (t.seq == nullptr) return {.outcome = t.error};
  return Call<&ManagerCore::TakeLoads>(*t.core, *t.seq, blocks);
}

Outcome Sequence::CommitTaken(Fence fence) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : Call<&ManagerCore::CommitTaken>(*t.core, *t.seq, fence);
}

Outcome Sequence::Truncate(std::uint32_t n) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : Call<&ManagerCore::Truncate>(*t.core, *t.seq, n);
}

ForkResult Sequence::Fork() noexcept {
  const Target t = Resolve(control_, index_, generation_);
  if (t.seq != nullptr) return Call<&ManagerCore::Fork>(*t.core, *t.seq);
  ForkResult result;
  result.outcome = t.error;
  return result;
}

Outcome Sequence::DropLeading(std::uint32_t blocks) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : Call<&ManagerCore::DropLeading>(*t.core, *t.seq, blocks);
}

Outcome Sequence::Pause(const PauseHint& hint) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : Call<&ManagerCore::Pause>(*t.core, *t.seq, hint);
}

Admission Sequence::Resume() noexcept {
  const Target t = Resolve(control_, index_, generation_);
  if (t.seq != nullptr) return Call<&ManagerCore::Resume>(*t.core, *t.seq);
  Admission admission;
  admission.outcome = t.error;
  return admission;
}

Outcome Sequence::Preempt(PreemptMode mode) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error : Call<&ManagerCore::Preempt>(*t.core, *t.seq, mode);
}

Outcome Sequence::Finish(Fence fence, const PauseHint& wait) noexcept {
  const Target t = Resolve(control_, index_, generation_);
  if (t.seq == nullptr) return t.error;
  const Outcome outcome = Call<&ManagerCore::Finish>(*t.core, *t.seq, fence, wait);
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
  return t.seq == nullptr ? t.error : Call<&ManagerCore::Ready>(*t.core, *t.seq, layer);
}

Outcome LoadTicket::Ready() const noexcept {
  if (control_ == nullptr) return Outcome::kOk;
  const Target t = Resolve(control_, index_, generation_);
  return t.seq == nullptr ? t.error
                          : Call<&ManagerCore::Ready>(*t.core, *t.seq, t.core->layers() - 1);
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
  return Call<&ManagerCore::RegisterNamespace>(*core_, key);
}
Status KvCacheManager::SetQuota(NamespaceId ns, TierIndex tier, Quota quota) {
  return Call<&ManagerCore::SetQuota>(*core_, ns, tier, quota);
}
Status KvCacheManager::DropNamespace(NamespaceId ns) {
  return Call<&ManagerCore::DropNamespace>(*core_, ns);
}
Status KvCacheManager::AdvanceEpoch() { return Call<&ManagerCore::AdvanceEpoch>(*core_); }
std::uint64_t KvCacheManager::epoch() const noexcept { return core_->epoch(); }
Status KvCacheManager::Clear() { return Call<&ManagerCore::Clear>(*core_); }
ProbeResult KvCacheManager::Probe(const AdmitRequest& request) const {
  return Call<&ManagerCore::Probe>(*core_, request);
}
Admission KvCacheManager::Admit(const AdmitRequest& request) {
  return Call<&ManagerCore::Admit>(*core_, request);
}
void KvCacheManager::CancelDemand(RequestId request, SessionId session) {
  Call<&ManagerCore::CancelDemand>(*core_, request, session);
}
Outcome KvCacheManager::CompleteStep(TimelineId timeline, std::uint64_t step) {
  return Call<&ManagerCore::CompleteStep>(*core_, timeline, step);
}
void KvCacheManager::Poll() { Call<&ManagerCore::Poll>(*core_); }
void KvCacheManager::DrainStepWork(Fence fence, StepWork& work) {
  Call<&ManagerCore::DrainStepWork>(*core_, fence, work);
}
void KvCacheManager::DrainEvents(EventBatch& batch) { core_->DrainEvents(batch); }
EventSnapshot KvCacheManager::Snapshot() const { return core_->Snapshot(); }
bool KvCacheManager::WaitIdle(Duration timeout) { return core_->WaitIdle(timeout); }
Outcome KvCacheManager::UpdateExpectedReturn(SessionId session, TimePoint when, float log_sd) {
  return Call<&ManagerCore::UpdateExpectedReturn>(*core_, session, when, log_sd);
}
Outcome KvCacheManager::SessionArrived(SessionId session) {
  return Call<&ManagerCore::SessionArrived>(*core_, session);
}
Outcome KvCacheManager::CompleteSession(SessionId session) {
  return Call<&ManagerCore::CompleteSession>(*core_, session);
}
const SchedulingSignals& KvCacheManager::signals() const noexcept { return core_->signals(); }
std::vector<ReclaimChoice> KvCacheManager::PlanReclaim(std::uint64_t bytes, Priority below) const {
  return Call<&ManagerCore::PlanReclaim>(*core_, bytes, below);
}
std::vector<ReclaimChoice> KvCacheManager::PlanReclaim(std::uint64_t bytes,
                                                       const Sequence& sequence) const {
  const Target t = Resolve(sequence.control_, sequence.index_, sequence.generation_);
  if (t.seq == nullptr || !Owns(sequence)) return {};
  return Call<&ManagerCore::PlanReclaimFor>(*core_, *t.seq, bytes);
}
std::uint32_t KvCacheManager::Evict(TierIndex tier, std::uint32_t blocks) {
  return Call<&ManagerCore::Evict>(*core_, tier, blocks);
}
KvCacheManager::OffloadResult KvCacheManager::Offload(std::span<const Token> tokens,
                                                      NamespaceId ns) {
  return Call<&ManagerCore::Offload>(*core_, tokens, ns);
}
KvCacheManager::OffloadResult KvCacheManager::Onboard(std::span<const Token> tokens,
                                                      NamespaceId ns) {
  return Call<&ManagerCore::Onboard>(*core_, tokens, ns);
}
Status KvCacheManager::SetLinkLimit(TierIndex from, TierIndex to, LinkLimit limit) {
  return Call<&ManagerCore::SetLinkLimit>(*core_, from, to, limit);
}
Status KvCacheManager::Resize(TierIndex tier, std::uint32_t slots) {
  return Call<&ManagerCore::Resize>(*core_, tier, slots);
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
const RecoveryReport& KvCacheManager::recovery() const noexcept { return core_->recovery(); }
std::uint32_t KvCacheManager::stored_blocks() const noexcept { return core_->stored_blocks(); }
FileTierStats KvCacheManager::file_stats(TierIndex tier) const noexcept {
  return core_->engine().file_stats(tier);
}
std::uint64_t KvCacheManager::decision_hash() const noexcept { return core_->decision_hash(); }
std::string KvCacheManager::DescribeTransfers() const { return core_->engine().Describe(); }
void KvCacheManager::Lookup(std::span<const Token> tokens, NamespaceId ns,
                            std::vector<BlockId>& blocks) const {
  Call<&ManagerCore::Lookup>(*core_, tokens, ns, blocks);
}
const BlockPool& KvCacheManager::pool() const noexcept { return core_->pool(); }
const PrefixIndex& KvCacheManager::index() const noexcept { return core_->index(); }
bool KvCacheManager::Owns(const Sequence& sequence) const noexcept {
  return sequence.control_ != nullptr && sequence.control_ == core_->control();
}
Status KvCacheManager::Audit() const { return core_->Audit(); }

}  // namespace tidepool
