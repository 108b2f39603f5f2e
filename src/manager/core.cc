// Construction, namespaces, sessions, fences and the signal snapshot.
#include "src/manager/core.h"

#include <algorithm>
#include <string>

#include "src/manager/input_recorder.h"
#include "src/str_cat.h"
#include "tidepool/policy/lru.h"
#include "tidepool/transfer/host_engine.h"

namespace tidepool::internal {
namespace {

constexpr std::uint32_t kSessionSweep = 64;  // sessions looked at per Poll

Status Invalid(std::string_view what, std::string_view why) {
  return absl::InvalidArgumentError(StrCat(what, ": ", why));
}

Status ValidateTier(const TierSpec& tier, std::size_t index) {
  const std::string name = StrCat("tiers[", index, "]");
  const bool hbm = tier.kind == TierKind::kHbm;
  if (hbm != (index == 0)) {
    return Invalid(name, StrCat(ToString(tier.kind), " stands at position ", index,
                                "; HBM is the first tier and only that"));
  }
  if (tier.format != StorageFormat::kIdentity) {
    return absl::UnimplementedError(StrCat(name, ".format: only the identity format is supported"));
  }
  if (tier.kind > TierKind::kShared) return Invalid(StrCat(name, ".kind"), "unknown");
  if (tier.slots != 0 && tier.bytes != 0) {
    return Invalid(name, "both slots and bytes are given; the capacity is one of them");
  }
  if (tier.slots == 0 && tier.bytes == 0 && tier.arena.slots == 0) {
    return Invalid(name, "capacity is 0: give slots, bytes or an arena");
  }
  if (tier.kind == TierKind::kNvme && tier.path.empty()) return Invalid(name, "path is empty");
  if (tier.store.keep && tier.kind != TierKind::kNvme) {
    return Invalid(StrCat(name, ".store.keep"), "only files can be kept");
  }
  if (tier.store.durable && !tier.store.keep) {
    return Invalid(StrCat(name, ".store.durable"), "needs store.keep");
  }
  if (!(tier.prior_bytes_per_second >= 0)) {
    return Invalid(StrCat(name, ".prior_bytes_per_second"), "negative or NaN");
  }
  if (tier.device_work == DeviceWork::kInline && hbm && tier.slots == 0 && tier.bytes == 0 &&
      tier.arena.layer_base.empty()) {
    return Invalid(StrCat(name, ".arena"), "has slots but no memory");
  }
  if (tier.device_work == DeviceWork::kInline && hbm && !tier.arena.layer_base.empty() &&
      tier.arena.layer_base[0] == nullptr) {
    return Invalid(StrCat(name, ".device_work"), "inline work needs memory that can be reached");
  }
  return absl::OkStatus();
}

}  // namespace

const void* ThisThread() noexcept {
  static thread_local char here;
  return &here;
}

Status ManagerCore::Validate(const ManagerOptions& options) {
  if (options.layout.groups.size() != 1) {
    return absl::UnimplementedError(StrCat("layout.groups: ", options.layout.groups.size(),
                                           " cache groups; the manager drives exactly 1"));
  }
  if (options.layout.block_tokens == 0 || options.layout.block_tokens > 65536) {
    return Invalid("layout.block_tokens",
                   StrCat(options.layout.block_tokens, " is not in [1, 65536]"));
  }
  if (options.tiers.empty() || options.tiers.size() > kMaxTiers) {
    return Invalid("tiers", StrCat(options.tiers.size(), " tiers; 1 to ", kMaxTiers));
  }
  for (std::size_t i = 0; i < options.tiers.size(); ++i) {
    if (Status s = ValidateTier(options.tiers[i], i); !s.ok()) return s;
  }
  if (std::ranges::count_if(options.tiers, [](const TierSpec& t) { return t.store.keep; }) > 1) {
    return Invalid("tiers", "more than one is to be kept");
  }
  if (options.max_sequences == 0 || options.max_sequences > word::kHoldMask) {
    return Invalid("max_sequences",
                   StrCat(options.max_sequences, " is not in [1, ", word::kHoldMask, "]"));
  }
  if (options.demand_ttl <= Duration::zero() || options.load_ttl <= Duration::zero()) {
    return Invalid("demand_ttl, load_ttl", "must be positive");
  }
  if (!(options.recompute.c0_seconds >= 0) || !(options.recompute.c1_seconds_per_token >= 0)) {
    return Invalid("recompute", "coefficients must not be negative or NaN");
  }
  return absl::OkStatus();
}

ManagerCore::ManagerCore(ManagerOptions options)
    : options_(std::move(options)), control_(new Control) {
  clock_.set_source(options_.clock != nullptr ? options_.clock : Clock::Steady());
  if (options_.input_log != nullptr) {
    recorder_ = std::make_unique<InputRecorder>(options_.input_log);
    options_.namespace_map = recorder_->Wrap(std::move(options_.namespace_map));
  }
  observer_ = options_.observer;
  control_->core.store(this);
  BindThread();
}

ManagerCore::~ManagerCore() {
  engine_.reset();  // joins: nothing writes into arenas after this
  {
    const std::lock_guard lock(control_->mutex);
    control_->core.store(nullptr);
  }
  if (recorder_ != nullptr) recorder_->End(decisions_.value());
  control_->Unref();
}

Status ManagerCore::BindTiers() {
  tiers_ = static_cast<TierIndex>(options_.tiers.size());
  const StatusOr<std::uint64_t> layer_bytes =
      BlockLayerBytes(options_.layout, 0, StorageFormat::kIdentity);
  if (!layer_bytes.ok()) return layer_bytes.status();
  layers_ = options_.layout.groups[0].layers;
  block_bytes_ = *layer_bytes * layers_;
  for (TierIndex t = 0; t < tiers_; ++t) {
    TierSpec& spec = options_.tiers[t];
    TierBinding binding{.kind = spec.kind,
                        .arena = spec.arena,
                        .path = spec.path,
                        .slots = spec.slots,
                        .slot_bytes = block_bytes_,
                        .layers = layers_,
                        .prior_bytes_per_second = spec.prior_bytes_per_second,
                        .prior_latency = spec.prior_latency,
                        .store = spec.store,
                        .block_tokens = options_.layout.block_tokens,
                        .digest_check = digests_->Root({}, 0).low,
                        .epoch = options_.epoch};
    const std::uint64_t stride =
        spec.kind == TierKind::kNvme ? (block_bytes_ + 4095) / 4096 * 4096 : block_bytes_;
    if (binding.slots == 0 && spec.bytes != 0) {
      const std::uint64_t slots = spec.bytes / stride;
      if (slots == 0 || slots >= kNone) {
        return Invalid(StrCat("tiers[", t, "].bytes"),
                       StrCat(spec.bytes, " holds ", slots, " blocks of ", stride, " bytes"));
      }
      binding.slots = static_cast<std::uint32_t>(slots);
    }
    if (binding.slots == 0) binding.slots = binding.arena.slots;
    if (!binding.arena.layer_base.empty()) {
      if (binding.arena.slots < binding.slots || binding.arena.layer_base.size() != layers_ ||
          binding.arena.layer_bytes != *layer_bytes) {
        return Invalid(StrCat("tiers[", t, "].arena"),
                       StrCat("geometry differs: the layout has ", layers_, " layers of ",
                              *layer_bytes, " bytes and ", binding.slots, " slots"));
      }
    } else if (spec.kind != TierKind::kNvme) {
      StatusOr<Arena> arena = AllocateHostArena(binding.slots, layers_, *layer_bytes);
      if (!arena.ok()) return arena.status();
      binding.arena = *std::move(arena);
    }
    bindings_.push_back(std::move(binding));
  }
  if (options_.reserve_null_slot && bindings_[0].slots < 2) {
    return Invalid("tiers[0].slots", "the null slot takes the only one");
  }
  return absl::OkStatus();
}

Status ManagerCore::Start() {
  digests_ = std::make_unique<DigestScheme>(options_.digest_seed);
  epoch_ = options_.epoch;
  if (Status s = BindTiers(); !s.ok()) return s;
  inline_work_ = options_.tiers[0].device_work == DeviceWork::kInline;
  block_tokens_ = options_.layout.block_tokens;

  BlockPool::Options pool{.block_tokens = block_tokens_,
                          .slots = {},
                          .reserve_null_slot = options_.reserve_null_slot,
                          .observer = observer_,
                          .clock = &clock_};
  for (const TierBinding& b : bindings_) pool.slots.push_back(b.slots);
  pool_ = std::make_unique<BlockPool>(pool);
  index_ =
      std::make_unique<PrefixIndex>(PrefixIndex::Options{.pool = pool_.get(),
                                                         .digest_seed = options_.digest_seed,
                                                         .child_hash = options_.child_hash,
                                                         .block_digest = options_.block_digest});
  engine_ = options_.engine ? std::move(options_.engine) : MakeHostEngine();
  if (recorder_ != nullptr) engine_ = recorder_->Wrap(std::move(engine_));
  if (Status s = engine_->Attach(bindings_, observer_); !s.ok()) return s;
  for (TierIndex t = 1; t < tiers_; ++t) {
    if (!engine_->Supports(t, 0) || !engine_->Supports(static_cast<TierIndex>(t - 1), t)) {
      return absl::FailedPreconditionError(
          StrCat("tiers[", t, "]: the transfer engine has no direct path between ",
                 ToString(bindings_[t].kind), " and the tiers it serves"));
    }
  }
  for (TierIndex t = 0; t < tiers_; ++t) {
    policies_.push_back(options_.policy ? options_.policy(t) : MakeLruPolicy());
    if (policies_.back() == nullptr) {
      return Invalid("policy", StrCat("returned null for tier ", t));
    }
    policies_.back()->Attach(BlockView(pool_.get(), index_.get()), t, bindings_[t].slots);
    want_misses_ |= policies_.back()->needs().misses;
    want_claims_ |= policies_.back()->needs().claims;
  }
  migrator_ = options_.migrator ? std::move(options_.migrator) : MakeDemandWriteBack();
  table_capacity_ =
      options_.max_sequence_blocks != 0 ? options_.max_sequence_blocks : bindings_[0].slots;
  for (TierIndex t = 0; t < tiers_; ++t) size_goal_[t] = pool_->slots(t);
  slot_tenant_.assign(bindings_[0].slots, 0);
  events_.resize(options_.event_log_capacity);
  tenants_[""] = 0;
  namespaces_.emplace_back();
  namespaces_[0].root_epoch = ~0ull;
  for (TierIndex t = 1; t < tiers_; ++t) {
    const auto above = static_cast<TierIndex>(t - 1);
    link_signals_.push_back({.from = above, .to = t});
    link_signals_.push_back({.from = t, .to = 0});
  }
  links_.resize(link_signals_.size());
  if (recorder_ != nullptr) recorder_->Header(Now(), Fingerprint());
  if (Status s = TakeStored(); !s.ok()) return s;
  for (TierIndex t = 1; t < tiers_; ++t) {
    write_budget_[t] = static_cast<double>(options_.tiers[t].store.write_bytes_per_day) / 8;
  }
  write_budget_at_ = Now();
  RefreshSignals();
  return absl::OkStatus();
}

void ManagerCore::BindThread() noexcept {
  control_->scheduler_thread.store(ThisThread(), std::memory_order_relaxed);
  if (control_->has_released.load(std::memory_order_acquire)) DrainReleasedHandles();
}

void ManagerCore::DrainReleasedHandles() {
  std::vector<SequenceRef> released;
  {
    const std::lock_guard lock(control_->mutex);
    released.swap(control_->released);
    control_->has_released.store(false, std::memory_order_relaxed);
  }
  if (recorder_ != nullptr) recorder_->Released(released);
  for (const auto& [index, generation] : released) {
    if (SequenceData* seq = Find(index, generation)) EndSequence(*seq, {});
  }
}

SequenceData* ManagerCore::Find(std::uint32_t index, std::uint32_t generation) noexcept {
  if (index >= sequences_.size()) return nullptr;
  SequenceData& seq = *sequences_[index];
  return seq.generation == generation && seq.state != SequenceState::kFree ? &seq : nullptr;
}

// --- Namespaces. ---

StatusOr<NamespaceId> ManagerCore::RegisterNamespace(const NamespaceKey& key) {
  for (std::uint32_t i = 0; i < namespaces_.size(); ++i) {
    if (!namespaces_[i].dropped && namespaces_[i].key == key) return NamespaceId(i);
  }
  if (namespaces_.size() >= 65'000) {
    return absl::ResourceExhaustedError("65000 namespaces are registered; drop some");
  }
  NamespaceData data;
  data.key = key;
  data.tenant =
      tenants_.try_emplace(key.tenant, static_cast<std::uint32_t>(tenants_.size())).first->second;
  data.root_epoch = ~0ull;
  namespaces_.push_back(std::move(data));
  return NamespaceId(static_cast<std::uint32_t>(namespaces_.size() - 1));
}

NamespaceData* ManagerCore::FindNamespace(NamespaceId ns) noexcept {
  if (ns.value() >= namespaces_.size() || namespaces_[ns.value()].dropped) return nullptr;
  return &namespaces_[ns.value()];
}

std::uint32_t ManagerCore::Mapped(NamespaceId ns) const {
  if (options_.namespace_map) ns = options_.namespace_map(ns);
  if (ns.value() >= namespaces_.size() || namespaces_[ns.value()].dropped) return kNone;
  return ns.value();
}

NodeId ManagerCore::Root(std::uint32_t ns) {
  NamespaceData& data = namespaces_[ns];
  if (data.root_epoch == epoch_ && data.root.valid()) return data.root;
  if (data.root.valid()) {
    LogRetired(data.root, EvictReason::kInvalidated);
    index_->Retire(data.root);
    ++stale_hint_;
  }
  data.root = index_->AddRoot(data.key, epoch_, NamespaceId(ns));
  ++data.root_version;
  data.root_epoch = epoch_;
  return data.root;
}

Status ManagerCore::DropNamespace(NamespaceId ns) {
  NamespaceData* data = FindNamespace(ns);
  if (data == nullptr) {
    return absl::NotFoundError(StrCat("namespace ", ns.value(), " is not registered"));
  }
  if (data->root.valid()) {
    LogRetired(data->root, EvictReason::kInvalidated);
    index_->Retire(data->root);
    ++stale_hint_;
  }
  data->root = NodeId();
  ++data->root_version;
  data->root_epoch = ~0ull;
  data->dropped = ns.value() != 0;  // the default namespace stays usable, empty
  const PrefixHash root = digests_->Root(data->key, epoch_);
  return InvalidateStored({&root, 1}, false);
}

Status ManagerCore::AdvanceEpoch() {
  ++epoch_;
  epoch_sweep_ = 0;
  stored_.Hide();
  return InvalidateStored({}, false);
}

Status ManagerCore::Clear() {
  for (NamespaceData& data : namespaces_) {
    if (!data.root.valid()) continue;
    LogRetired(data.root, EvictReason::kReset);
    index_->Retire(data.root);
    ++stale_hint_;
    data.root = NodeId();
    ++data.root_version;
    data.root_epoch = ~0ull;
  }
  ReclaimOrphans(kNone);
  ReclaimStale(kNone, EvictReason::kReset);
  return InvalidateStored({}, true);
}

// Moves a private block's copies to the account of `ns`.
void ManagerCore::OwnPrivate(BlockId block, std::uint32_t ns) {
  std::uint32_t& owner = block_ns_[block.value()];
  if (owner == ns || pool_->Has(block, word::kPublished)) return;
  const std::uint32_t copies = pool_->valid_mask(block) | pool_->writing_mask(block);
  for (TierIndex t = 0; t < tiers_; ++t) {
    if (((copies >> t) & 1u) == 0) continue;
    --namespaces_[owner].used[t];
    ++namespaces_[ns].used[t];
  }
  owner = ns;
}

Status ManagerCore::SetQuota(NamespaceId ns, TierIndex tier, Quota quota) {
  NamespaceData* data = FindNamespace(ns);
  if (data == nullptr) {
    return absl::NotFoundError(StrCat("namespace ", ns.value(), " is not registered"));
  }
  if (tier >= tiers_) {
    return absl::OutOfRangeError(StrCat("tier ", tier, " of ", tiers_, " does not exist"));
  }
  if (quota.hard != 0 && quota.soft > quota.hard) {
    return absl::InvalidArgumentError(
        StrCat("soft share ", quota.soft, " is above the hard cap ", quota.hard));
  }
  data->quota[tier] = quota;
  if (!quotas_) {
    quotas_ = true;
    block_ns_.assign(pool_->capacity(), 0);
    for (NamespaceData& each : namespaces_) each.used = {};
    for (std::uint32_t i = 0; i < pool_->capacity(); ++i) {
      const BlockId b(i);
      const std::uint32_t copies = pool_->valid_mask(b) | pool_->writing_mask(b);
      if (copies == 0) continue;
      if (pool_->Has(b, word::kPublished)) {
        block_ns_[i] = index_->root_namespace(pool_->node(b)).value();
      }
      for (TierIndex t = 0; t < tiers_; ++t) {
        if (((copies >> t) & 1u) != 0) ++namespaces_[block_ns_[i]].used[t];
      }
    }
    for (const auto& seq : sequences_) {  // private blocks know their owner only here
      for (const BlockId b : seq->blocks) {
        if (b.valid()) OwnPrivate(b, seq->ns.value());
      }
      for (const SequenceData::PrivateBlock& kept : seq->kept) {
        if (pool_->alive(kept.ref)) OwnPrivate(kept.ref.block, seq->ns.value());
      }
    }
  }
  return absl::OkStatus();
}

// --- Sessions. ---

std::uint32_t ManagerCore::SessionIndex(SessionId session, bool create) {
  if (!session.valid()) return kNone;
  const auto it = session_index_.find(session.value());
  if (it != session_index_.end()) return it->second;
  if (!create) return kNone;
  std::uint32_t index;
  if (!free_sessions_.empty()) {
    index = free_sessions_.back();
    free_sessions_.pop_back();
  } else {
    index = static_cast<std::uint32_t>(sessions_.size());
    sessions_.emplace_back();
    session_sequences_.push_back(0);
    signals_.sessions = sessions_;  // may have moved
  }
  sessions_[index] = SessionSignals{};
  sessions_[index].session = session;
  sessions_[index].index = index;
  session_sequences_[index] = 0;
  session_index_[session.value()] = index;
  return index;
}

void ManagerCore::ForgetSession(std::uint32_t session) {
  SessionSignals& signals = sessions_[session];
  changed_.clear();
  index_->ClearClaim(session, &changed_, MovedClaimIfWanted());
  NotifyMovedClaim(session);
  NotifyPriorities(changed_);
  session_index_.erase(signals.session.value());
  signals = SessionSignals{};
  signals.state = SessionState::kCompleted;
  free_sessions_.push_back(session);
}

Outcome ManagerCore::SessionArrived(SessionId session) {
  const std::uint32_t index = SessionIndex(session, false);
  if (index == kNone) {  // all of it has left, but policies may still know it
    SessionSignals signals;
    signals.session = session;
    signals.state = SessionState::kWaitingCapacity;
    if (!session.valid()) return Outcome::kUnknownSession;
    for (const auto& policy : policies_) policy->OnSession(signals, Now());
    migrator_->OnSession(signals, Now());
    return Outcome::kOk;
  }
  SessionState& state = sessions_[index].state;
  const bool waiting = state != SessionState::kRunning && state != SessionState::kCompleted;
  if (!waiting || state == SessionState::kWaitingCapacity) return Outcome::kOk;
  state = SessionState::kWaitingCapacity;
  NotifySession(index);
  WithdrawCopiesOf(index);
  return Outcome::kOk;
}

void ManagerCore::NotifySession(std::uint32_t session) {
  const TimePoint now = Now();
  for (const auto& policy : policies_) policy->OnSession(sessions_[session], now);
  migrator_->OnSession(sessions_[session], now);
}

// What the claim no longer covers first: a policy may then file it as nobody's.
void ManagerCore::NotifyMovedClaim(std::uint32_t session) {
  if (!want_claims_) return;
  for (const auto& policy : policies_) {
    if (!moved_claim_.unclaimed.empty()) {
      policy->OnUnclaimed(sessions_[session], moved_claim_.unclaimed);
    }
    if (index_->ClaimedTail(session).valid()) {
      policy->OnClaimed(sessions_[session], moved_claim_.claimed);
    }
  }
}

Outcome ManagerCore::CompleteSession(SessionId session) {
  const std::uint32_t index = SessionIndex(session, false);
  if (index == kNone) return Outcome::kUnknownSession;
  sessions_[index].state = SessionState::kCompleted;
  NotifySession(index);
  if (session_sequences_[index] == 0) ForgetSession(index);
  return Outcome::kOk;
}

// A session whose blocks have all left and that runs nothing has nothing to be remembered for.
void ManagerCore::SweepSessions() {
  const auto n = static_cast<std::uint32_t>(sessions_.size());
  for (std::uint32_t i = 0; i < std::min(n, kSessionSweep); ++i) {
    session_sweep_ = session_sweep_ + 1 < n ? session_sweep_ + 1 : 0;
    if (!sessions_[session_sweep_].session.valid() || session_sequences_[session_sweep_] != 0 ||
        index_->ClaimedTail(session_sweep_).valid()) {
      continue;
    }
    ForgetSession(session_sweep_);
  }
}

Outcome ManagerCore::UpdateExpectedReturn(SessionId session, TimePoint when, float log_sd) {
  const std::uint32_t index = SessionIndex(session, false);
  if (index == kNone) return Outcome::kUnknownSession;
  sessions_[index].expected_return = when;
  sessions_[index].expected_return_log_sd = log_sd;
  NotifySession(index);
  return Outcome::kOk;
}

// --- Fences. ---

Timeline& ManagerCore::TimelineOf(TimelineId id) {
  for (Timeline& timeline : timelines_) {
    if (timeline.id == id) return timeline;
  }
  timelines_.emplace_back();
  timelines_.back().id = id;
  return timelines_.back();
}

bool ManagerCore::Passed(Fence fence) noexcept {
  return fence.done() || TimelineOf(fence.timeline).completed >= fence.step;
}

// --- Signals. ---

void ManagerCore::RefreshTier(TierIndex tier) {
  TierSignals& t = tier_signals_[tier];
  t.slots = pool_->slots(tier);
  t.used = pool_->used(tier) + (tier != kHbmTier && tier == stored_tier_ ? stored_.size() : 0);
  t.in_flight = in_flight_[tier];
  t.evictable = tier == 0 ? pool_->evictable() : t.used - std::min(t.used, t.in_flight);
  t.clean = tier == 0 ? pool_->evictable_clean() : 0;
  t.demanded = ShortfallOf(tier);
  t.slot_bytes = block_bytes_;
}

// The part of a snapshot that an admission needs fresh: time, sessions and HBM.
void ManagerCore::StampSignals() {
  ++signals_.version;
  signals_.now = Now();
  signals_.sessions = sessions_;
  RefreshTier(kHbmTier);
  pool_->set_signals_version(signals_.version);
}

void ManagerCore::RefreshSignals() {
  ++signals_.version;
  offloaded_ = 0;
  signals_.now = Now();
  for (TierIndex t = 0; t < tiers_; ++t) RefreshTier(t);
  const double seconds = std::chrono::duration<double>(signals_.now - forecast_at_).count();
  if (seconds > 0.1) {  // smoothed over about ten windows
    for (TierIndex t = 0; t < tiers_; ++t) {
      const double rate = static_cast<double>(admitted_slots_[t]) / seconds;
      tier_signals_[t].forecast_per_s += 0.1 * (rate - tier_signals_[t].forecast_per_s);
      admitted_slots_[t] = 0;
    }
    forecast_at_ = signals_.now;
  }
  SampleLinks();
  signals_.sessions = sessions_;
  signals_.tiers = std::span(tier_signals_.data(), tiers_);
  signals_.links = link_signals_;
  signals_.block_bytes = block_bytes_;
  signals_.block_tokens = block_tokens_;
  signals_.recompute = options_.recompute;
  pool_->set_signals_version(signals_.version);
}

}  // namespace tidepool::internal
