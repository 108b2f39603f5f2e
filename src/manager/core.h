// The manager behind KvCacheManager and the handles: one class, one scheduler thread. Sources are
// split by what they do: admission, sequence operations, publication, room (victims and demands),
// transfers, polling, accounts, audit.
//
// Invariants, besides those of pool and index (checked in audit.cc):
//   * holds of a block = running sequences that list it + releases that wait for a fence;
//   * pins of a block = transfers + queued or fenced device copies that read or write it;
//   * a block whose write-back will release HBM is in phase kOffloaded and marked chosen;
//   * granted slots of all demands together never exceed the free HBM slots.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "src/block_spans.h"
#include "src/decision_hash.h"
#include "src/manager/call_clock.h"
#include "src/manager/link_meter.h"
#include "src/manager/stored_table.h"
#include "src/manager/submit_queue.h"
#include "tidepool/kv_cache_manager.h"

namespace tidepool::internal {

class InputRecorder;
class ManagerCore;

/// A sequence, as its handle names it.
struct SequenceRef {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
};

/// Shared by a manager and its handles; outlives both.
struct Control {
  std::atomic<std::uint32_t> references{1};
  std::atomic<ManagerCore*> core{nullptr};
  std::atomic<const void*> scheduler_thread{nullptr};
  std::mutex mutex;  // guards released, and core against the destructor on other threads
  std::vector<SequenceRef> released;
  std::atomic<bool> has_released{false};

  void Ref() noexcept { references.fetch_add(1, std::memory_order_relaxed); }
  void Unref() noexcept {
    if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

/// Identifies the calling thread by the address of a thread-local.
const void* ThisThread() noexcept;

inline constexpr std::uint32_t kNone = 0xffffffffu;

/// `time` + `duration`, at most kNever and at least the first representable time.
inline TimePoint After(TimePoint time, Duration duration) noexcept {
  Duration::rep sum;
  if (!__builtin_add_overflow(time.time_since_epoch().count(), duration.count(), &sum)) {
    return TimePoint(Duration(sum));
  }
  return duration.count() > 0 ? kNever : TimePoint::min();
}

/// Who comes first where slots are short: higher priority, then lower order. Orders are serials,
/// which sequences and refused requests draw from one counter.
struct Rank {
  Priority priority = Priority::kNormal;
  std::uint64_t order = 0;
};
[[nodiscard]] constexpr bool RanksBefore(const Rank& a, const Rank& b) noexcept {
  return a.priority > b.priority || (a.priority == b.priority && a.order < b.order);
}

enum class SequenceState : std::uint8_t { kFree, kRunning, kPaused };

struct SequenceData {
  std::uint32_t index = 0;
  std::uint32_t generation = 1;
  std::uint64_t serial = 0;
  SequenceState state = SequenceState::kFree;
  bool publish = true;
  bool load_failed = false;   // and nothing was appended since
  bool cut_unseen = false;    // by a failed load that the engine has not been told about
  bool resumed = false;       // counted as a re-admission
  bool forked = false;        // shares, or has shared, private blocks with a fork
  bool copies_below = false;  // a private block may have a copy in a lower tier
  bool advanced = false;      // has committed something since it was admitted or resumed
  std::uint32_t preemptions = 0;
  std::uint32_t session = kNone;
  SessionId session_id;
  RequestId request;
  NamespaceId ns;
  NodeId root;
  std::uint64_t root_version = 0;
  std::uint64_t epoch = 0;
  TimelineId timeline;
  Priority priority = Priority::kNormal;

  std::vector<Token> tokens;
  std::vector<BlockId> blocks;       // by position; may exceed the tokens (lookahead)
  std::uint32_t dropped = 0;         // leading positions given up
  std::uint32_t committed = 0;       // tokens
  std::uint32_t publish_blocks = 0;  // leading blocks the index has decided about
  BlockRef cursor;                   // index block at position publish_blocks - 1
  std::vector<BlockContent> content;
  Fence last_fence;

  std::unique_ptr<std::uint32_t[]> table;
  std::uint32_t table_changed_from = 0;
  std::uint64_t table_version = 0;

  std::vector<BlockRef> loads;  // being onboarded for this sequence, by position
  std::uint32_t load_cursor = 0;
  bool two_ended = false;         // loads come from the back
  std::uint32_t taken = 0;        // blocks that TakeLoads has returned and nobody has committed
  std::uint32_t taken_first = 0;  // position of the first of them

  struct PrivateBlock {
    std::uint32_t position;
    BlockRef ref;
  };
  std::vector<PrivateBlock> kept;  // private blocks of a paused sequence

  [[nodiscard]] Rank rank() const noexcept { return {priority, serial}; }
};

/// What becomes of private committed blocks when a sequence lets go of them.
enum class TailAction : std::uint8_t { kFree, kKeep, kOffload };

struct Timeline {
  TimelineId id;
  std::uint64_t completed = 0;
  struct Commit {
    std::uint64_t step;
    std::vector<BlockRef> blocks;
  };
  struct Release {
    std::uint64_t step;
    std::vector<BlockId> blocks;
    TailAction action;
    bool forked;
  };
  std::deque<Commit> commits;
  std::deque<Release> releases;
  std::deque<std::pair<std::uint64_t, SlotId>> quarantine;
  std::deque<std::pair<std::uint64_t, BlockId>> pins;
  std::deque<std::pair<std::uint64_t, TransferId>> computed;
};

struct Demand {
  RequestId request;
  SessionId session;
  std::uint64_t sequence = 0;   // serial of the sequence that waits; 0 = never admitted
  std::uint32_t owner = kNone;  // its index
  Priority priority = Priority::kNormal;
  std::uint64_t order = 0;      // rank among equals: a sequence's serial, or one drawn like it
  std::uint32_t overtaken = 0;  // admissions that ranked behind it and went first
  std::uint32_t slots = 0;      // all it has asked for
  std::uint32_t need = 0;       // slots that write-back must free, granted ones included
  std::uint32_t granted = 0;    // freed for it and set aside
  bool running = false;         // for what a sequence could not append: stays until it has it
  BlockRef hits_end;            // the deepest block that it would hit
  TimePoint since{};            // first refused
  TimePoint expiry{};

  [[nodiscard]] Rank rank() const noexcept { return {priority, order}; }
};

struct Transfer {
  std::uint32_t generation = 0;
  bool active = false;
  bool submitted = false;
  bool release = false;         // give up the copy in `from` on success
  bool expired = false;         // given up; destination quarantined
  bool superseded = false;      // the source was written meanwhile: the copy is out of date
  bool detached = false;        // expired, and the source is quarantined too: the block is gone
  bool computed = false;        // no copy: `taker` computes it, all of it once `fence` has passed
  bool committed = false;       // `fence` is known
  bool abandoned = false;       // ...but nobody says that what is there then is right
  std::uint32_t taker = kNone;  // the sequence that computes it, or has asked to
  Fence fence;
  bool withdrawable = false;  // until a session comes back for the block; then...
  bool withdrawn = false;     // ...the engine was asked not to start it
  bool retried = false;       // once already, for want of room on the device
  BlockRef block;
  TierIndex from = 0;
  TierIndex to = 0;
  SlotId source;
  SlotId destination;
  TransferClass transfer_class = TransferClass::kSpill;
  std::uint32_t tenant = 0;
  std::uint64_t order = 0;      // of creation
  TimePoint deadline = kNever;  // when it should be done: earlier ones go first
  TimePoint expiry = kNever;    // when it is given up
  std::uint32_t layers_done = 0;
};

/// What is known of a link beyond its signals.
struct LinkState {
  LinkMeter meter;
  LinkLimit limit;
  double measured = 0;                 // bytes per second, before limits
  std::uint64_t moved_bytes = 0;       // since sampled_at
  std::uint64_t foreground_bytes = 0;  // of those
  TimePoint sampled_at{};
};

inline TransferId IdOf(std::uint32_t index, std::uint32_t generation) noexcept {
  return TransferId((std::uint64_t{generation} << 32) | index);
}

struct NamespaceData {
  NamespaceKey key;
  bool dropped = false;
  std::uint32_t tenant = 0;
  NodeId root;
  std::uint64_t root_epoch = 0;
  std::uint64_t root_version = 0;  // grows with each new root: node ids are used again
  std::array<Quota, kMaxTiers> quota{};
  std::array<std::uint32_t, kMaxTiers> used{};  // kept only while a quota is set
};

/// Who asks for HBM slots.
struct RoomRequest {
  std::uint32_t slots = 0;
  Priority priority = Priority::kNormal;
  RequestId request{};
  SessionId session{};
  std::uint64_t sequence = 0;   // serial, of an append or a resume
  std::uint32_t owner = kNone;  // its index
  std::uint32_t ns = 0;
  bool running = false;  // an append: yields only to demands of higher priority
  BlockId hits_end{};    // the deepest block that it hits
  BlockId partial{};     // another that it wants: copied from, or the last that it has kept
};

/// Why room could not be made.
struct Refusal {
  std::uint32_t missing = 0;  // slots that write-back must free
  bool over_quota = false;    // and more, which is its own namespace's: others need not wait for it
};

/// A search for clean victims that found too few, and what it depended on: until more copies
/// arrive that may leave, another finds no more.
struct CleanSearch {
  std::uint64_t left_out = 0;  // digest of the hits that were; 0: no search
  std::uint64_t arrivals = 0;  // BlockPool::clean_arrivals
  std::uint32_t found = 0;     // and did not leave
};

/// What a request found, before anything is changed.
struct AdmitPlan {
  MatchResult match;
  std::vector<BlockId> ready;  // valid in HBM
  std::vector<BlockId> join;   // HBM copy on its way already
  std::vector<BlockId> load;   // only in lower tiers
  std::vector<BlockId> kept;   // private blocks of a paused sequence that survived
  std::uint32_t matched = 0;   // blocks
  std::uint32_t spared = 0;  // blocks behind them that are computed although a lower tier has them
  std::uint32_t partial_tokens = 0;
  std::uint32_t fresh = 0;
  void clear() noexcept;
};

class ManagerCore {
 public:
  explicit ManagerCore(ManagerOptions options);
  ~ManagerCore();
  ManagerCore(const ManagerCore&) = delete;
  ManagerCore& operator=(const ManagerCore&) = delete;

  static Status Validate(const ManagerOptions& options);
  Status Start();  // arenas, engine, pool, index

  // --- Facade (see kv_cache_manager.h). ---
  StatusOr<NamespaceId> RegisterNamespace(const NamespaceKey& key);
  Status SetQuota(NamespaceId ns, TierIndex tier, Quota quota);
  void OwnPrivate(BlockId block, std::uint32_t ns);
  Status DropNamespace(NamespaceId ns);
  Status AdvanceEpoch();
  Status Clear();
  ProbeResult Probe(const AdmitRequest& request);
  Admission Admit(const AdmitRequest& request);
  void CancelDemand(RequestId request, SessionId session);
  Outcome CompleteStep(TimelineId timeline, std::uint64_t step);
  void Poll();
  void DrainStepWork(Fence fence, StepWork& work);
  void DrainEvents(EventBatch& batch);
  EventSnapshot Snapshot() const;
  bool WaitIdle(Duration timeout);
  Outcome UpdateExpectedReturn(SessionId session, TimePoint when, float log_sd);
  Outcome SessionArrived(SessionId session);
  Outcome CompleteSession(SessionId session);
  std::vector<ReclaimChoice> PlanReclaim(std::uint64_t bytes, Priority below);
  std::vector<ReclaimChoice> PlanReclaimFor(SequenceData& seq, std::uint64_t bytes);
  std::uint32_t Evict(TierIndex tier, std::uint32_t blocks);
  KvCacheManager::OffloadResult Offload(std::span<const Token> tokens, NamespaceId ns);
  KvCacheManager::OffloadResult Onboard(std::span<const Token> tokens, NamespaceId ns);
  Status Resize(TierIndex tier, std::uint32_t slots);
  Status SetLinkLimit(TierIndex from, TierIndex to, LinkLimit limit);
  TableSizes table_sizes() const noexcept;
  std::uint64_t metadata_bytes() const noexcept;
  void Lookup(std::span<const Token> tokens, NamespaceId ns, std::vector<BlockId>& blocks);
  Status Audit() const;

  // --- Sequence handles. ---
  SequenceData* Find(std::uint32_t index, std::uint32_t generation) noexcept;
  Outcome Append(SequenceData& seq, std::span<const Token> tokens);
  Outcome Commit(SequenceData& seq, std::uint32_t n, Fence fence);
  TakenLoads TakeLoads(SequenceData& seq, std::uint32_t blocks);
  Outcome CommitTaken(SequenceData& seq, Fence fence);
  Outcome Truncate(SequenceData& seq, std::uint32_t n);
  ForkResult Fork(SequenceData& seq);
  Outcome DropLeading(SequenceData& seq, std::uint32_t blocks);
  Outcome Pause(SequenceData& seq, const PauseHint& hint);
  Admission Resume(SequenceData& seq);
  Outcome Preempt(SequenceData& seq, PreemptMode mode);
  Outcome Finish(SequenceData& seq, Fence fence, const PauseHint& wait = {});
  BlockTable Table(SequenceData& seq);
  Outcome Ready(SequenceData& seq, std::uint32_t layer) const noexcept;
  static Outcome TellLoadFailed(SequenceData& seq) noexcept;
  Outcome WaitReady(std::uint32_t index, std::uint32_t generation, std::uint32_t layer,
                    Duration timeout);
  Control* control() noexcept { return control_; }

  // --- Read by the facade. ---
  const ManagerOptions& options() const noexcept { return options_; }
  const BlockPool& pool() const noexcept { return *pool_; }
  const PrefixIndex& index() const noexcept { return *index_; }
  const SchedulingSignals& signals() const noexcept { return signals_; }
  const ManagerStats& stats() const noexcept { return stats_; }
  const Arena& arena(TierIndex tier) const noexcept { return bindings_[tier].arena; }
  const RecoveryReport& recovery() const noexcept { return recovery_; }
  std::uint32_t stored_blocks() const noexcept { return stored_.size(); }
  TransferEngine& engine() noexcept { return *engine_; }
  std::uint64_t epoch() const noexcept { return epoch_; }
  std::uint64_t block_bytes() const noexcept { return block_bytes_; }
  std::uint32_t layers() const noexcept { return layers_; }

  // --- Determinism (see calls.h). ---
  void BeginCall() noexcept { clock_.BeginCall(); }
  TimePoint Now() const noexcept { return clock_.Now(); }
  InputRecorder* recorder() noexcept { return recorder_.get(); }
  std::uint64_t decision_hash() const noexcept { return decisions_.value(); }
  void NoteResult(const Admission& admission) noexcept;
  void NoteResult(const TakenLoads& taken) noexcept;
  std::vector<std::string> Fingerprint() const;

 private:
  friend class PlanContext;

  // decisions.cc
  void NoteCopy(const Transfer& transfer) noexcept;
  void NoteTable(const SequenceData& seq, std::uint32_t from) noexcept;
  void NoteDemand(Decision kind, const Demand& demand, std::uint32_t slots) noexcept;

  // core.cc
  void BindThread() noexcept;
  void DrainReleasedHandles();
  Status BindTiers();
  void RefreshSignals();
  void StampSignals();
  void RefreshTier(TierIndex tier);
  NamespaceData* FindNamespace(NamespaceId ns) noexcept;
  NodeId Root(std::uint32_t ns);
  std::uint32_t Mapped(NamespaceId ns) const;
  std::uint32_t SessionIndex(SessionId session, bool create);
  void ForgetSession(std::uint32_t session);
  void SweepSessions();
  bool Passed(Fence fence) noexcept;
  Timeline& TimelineOf(TimelineId id);
  TierIndex last_tier() const noexcept { return static_cast<TierIndex>(tiers_ - 1); }
  std::uint32_t BlocksFor(std::uint64_t tokens) const noexcept {
    return static_cast<std::uint32_t>((tokens + block_tokens_ - 1) / block_tokens_);
  }

  // links.cc
  static std::size_t LinkOf(TierIndex from, TierIndex to) noexcept;
  void SampleLinks();
  void CountMoved(const Transfer& transfer) noexcept;

  // admission.cc
  Outcome CheckRequest(const AdmitRequest& request, std::uint32_t& ns) const;
  void Match(const AdmitRequest& request, std::uint32_t ns, std::uint32_t max_blocks, bool partial,
             MatchResult& match);
  std::uint32_t SoonestSplit(const AdmitPlan& plan) const;
  void SpareLoads(const AdmitRequest& request, std::uint32_t ns, AdmitPlan& plan);
  void PlanAdmission(const AdmitRequest& request, std::uint32_t ns, AdmitPlan& plan);
  void Classify(AdmitPlan& plan) const;
  Outcome CheckLimits(std::uint64_t blocks, std::uint64_t table, std::uint32_t ns) const;
  void MarkWanted(const AdmitPlan& plan, bool wanted);
  bool MakeRoom(const RoomRequest& room, const AdmitPlan& plan, Shortfall& shortfall);
  bool HasRoom(const RoomRequest& room, const AdmitPlan& plan);
  bool HasSequence() const noexcept {
    return !free_sequences_.empty() || sequences_.size() < options_.max_sequences;
  }
  SequenceData* NewSequence();
  void FreeSequence(SequenceData& seq);
  void TakeHits(AdmitPlan& plan, SequenceData& seq);
  void TakeFresh(SequenceData& seq, std::uint32_t count);
  void StartLoads(std::span<const BlockId> blocks, SequenceData* seq, TransferClass cls);
  void FillAdmission(const SequenceData& seq, std::uint32_t prompt, Admission& admission);
  void CountHits(const AdmitPlan& plan, std::uint32_t prompt, bool resume);
  void CopyPartial(SequenceData& seq, BlockId source, std::uint32_t tokens);
  void SetTable(SequenceData& seq, std::uint32_t from);
  void FindMisses(const AdmitRequest& request, std::uint32_t ns, const AdmitPlan& plan);

  // sequence_ops.cc
  std::uint32_t PlanKept(const SequenceData& seq, AdmitPlan& plan) const;
  // Only forks share private blocks; any other hold is the sequence's own, waiting for its fence.
  bool InUseByOthers(const SequenceData& seq, BlockId kept) const noexcept {
    return pool_->Has(kept, word::kPublished) || (seq.forked && pool_->holds(kept) != 0) ||
           (pool_->writing_mask(kept) & ~1u) != 0;
  }
  // The paused forks that have kept the private block count on its bytes.
  std::uint32_t Keepers(const BlockRef& ref) const noexcept {
    const auto it = keepers_.find(KeeperKey(ref));
    return it == keepers_.end() ? 0 : it->second;
  }
  bool IsKept(BlockId block) const noexcept {
    return !keepers_.empty() && Keepers(pool_->ref(block)) != 0;
  }
  void Keep(SequenceData& seq, std::uint32_t position, BlockId block);
  void ForgetKept(SequenceData& seq);
  bool TailNeedsCopy(const SequenceData& seq) const noexcept;
  void CopyTail(SequenceData& seq);
  void ReleaseFrom(SequenceData& seq, std::uint32_t position, TailAction action);
  void ReleaseFenced(SequenceData& seq, std::vector<BlockId> blocks, TailAction action);
  void ReleaseNow(std::span<const BlockId> blocks, TailAction action, bool forked);
  void ReleasePublished(std::span<const BlockId> blocks);
  void ReleaseLoading(std::span<const BlockId> blocks);
  void NotifyPriorities(std::span<const BlockId> blocks);
  void ReleasePrivate(BlockId block, TailAction action, bool forked);
  void DropKept(const SequenceData::PrivateBlock& kept);
  void FreePrivate(BlockId block);
  void Discard(std::span<const BlockId> blocks);
  void SetClaim(SequenceData& seq);
  void EndTurn(SequenceData& seq, const PauseHint& wait);
  void EndSequence(SequenceData& seq, const PauseHint& wait);
  void NotifySession(std::uint32_t session);
  void NotifyMovedClaim(std::uint32_t session);
  PrefixIndex::MovedClaim* MovedClaimIfWanted() noexcept {
    return want_claims_ ? &moved_claim_ : nullptr;
  }
  void CutBack(SequenceData& seq, std::uint32_t position);
  void UncountHits(const SequenceData& seq, std::uint32_t position);

  // publish.cc
  void ActivateCommitted(SequenceData& seq, std::uint32_t from, std::uint32_t to);
  void PublishCommitted(SequenceData& seq, Fence fence);
  std::uint32_t PlainRun(const SequenceData& seq, std::uint32_t from,
                         std::uint32_t end) const noexcept;
  bool InCurrentTree(const SequenceData& seq) const noexcept {
    return seq.epoch == epoch_ && seq.root_version == namespaces_[seq.ns.value()].root_version;
  }
  void LimitPublished(SequenceData& seq, std::uint32_t blocks);
  bool RecoverCursor(SequenceData& seq);
  void Confirm(std::span<const BlockId> blocks);
  const PrefixHash* ContentOf(const SequenceData& seq, std::uint32_t block) const noexcept;

  // reclaim.cc
  struct Reclaimable;
  std::uint32_t FindableBlocks(const SequenceData& seq);
  std::uint32_t KeptEnd(const SequenceData& seq, std::uint32_t found) const;
  Reclaimable Inspect(SequenceData& seq);
  void CountBlock(Reclaimable& r, std::uint32_t position, BlockId block) const;
  double LinkSeconds(TierIndex from, TierIndex to, double ahead, double blocks) const noexcept;
  double PublishedSeconds(std::uint64_t position, bool clean) const noexcept;
  bool LowerTierTakes(double blocks) const noexcept;
  PreemptMode CheapestMode(const Reclaimable& r, bool waited_for, double ahead) const noexcept;
  double ModeSeconds(const Reclaimable& r, PreemptMode mode, double ahead) const noexcept;
  ReclaimChoice Choose(const Reclaimable& r, std::uint32_t missing, double ahead) const noexcept;
  std::vector<Reclaimable> RankVictims(Priority below, const SequenceData* beneficiary);
  std::vector<ReclaimChoice> PlanChoices(std::uint64_t bytes, std::vector<Reclaimable> ranked);
  PreemptMode ResolveMode(SequenceData& seq, PreemptMode mode);

  // room.cc
  std::uint64_t Reserved(const RoomRequest& room) const noexcept;
  std::uint32_t Available(const RoomRequest& room) const noexcept;
  /// Free slots suffice, no victims needed. Tombstones may hold ids without slots.
  bool FitsNow(const RoomRequest& room) const noexcept {
    return !quotas_ && room.slots + Reserved(room) <= pool_->free_slots(kHbmTier) &&
           room.slots <= pool_->free_blocks();
  }
  bool EnsureRoom(const RoomRequest& room, Shortfall& shortfall);
  bool PlanQuota(const RoomRequest& room);
  void PlanCheap(std::uint32_t n);
  bool PlanRoom(const RoomRequest& room, Shortfall& shortfall, Refusal& refusal);
  void RegisterDemand(const RoomRequest& room, const Refusal& refusal);
  void ProtectDemand(const SequenceData& seq) noexcept;
  void EraseDemand(const SequenceData& seq);
  std::uint64_t TakeDemand(const RoomRequest& room);
  Demand* FindDemand(const RoomRequest& room) noexcept;
  void Grant(std::uint32_t slots);
  void TrimGrants();
  void PlanVictims(TierIndex tier, std::uint32_t n, const VictimFilter* filter,
                   std::vector<BlockId>& out);
  bool FreesSlot(BlockId block, TierIndex tier) const noexcept;
  BlockId AcceptCandidate(BlockId candidate, TierIndex tier, const VictimFilter* filter);
  void Choose(BlockId block, TierIndex tier);
  void ClearChoice(BlockId block, TierIndex tier);
  void Unchoose(std::span<const BlockId> blocks, TierIndex tier);
  void EvictChosen(std::span<const BlockId> blocks, TierIndex tier);
  void EvictBatch(std::span<const BlockId> blocks, TierIndex tier);
  void DropEverywhere(std::span<const BlockId> blocks, EvictReason reason);
  void Vanish(BlockId block);  // last copy gone: out of the index, id freed
  std::uint32_t ReclaimStale(std::uint32_t n, EvictReason reason = EvictReason::kInvalidated);
  std::uint32_t ReclaimOrphans(std::uint32_t n, TierIndex tier = kHbmTier);
  void UncoverParent(BlockId block, std::uint32_t tiers) noexcept;
  std::uint32_t TiersLeft(BlockId block, TierIndex tier) const noexcept;
  std::uint64_t LeftOut(std::span<const BlockId> ends) const noexcept;
  const CleanSearch* LastSearch(TierIndex tier, std::uint64_t left_out) const noexcept;
  void NoteFewClean(TierIndex tier, std::uint64_t left_out, std::uint32_t found) noexcept;
  std::uint32_t EvictClean(TierIndex tier, std::uint32_t n, std::vector<BlockId>& victims);
  double CopySeconds(TierIndex from, TierIndex to) const noexcept;
  double RoundTripSeconds() const noexcept;
  bool MayPlanCheap() const noexcept;
  void GrantClean();
  std::uint32_t AcquireLower(TierIndex tier, std::uint32_t n);
  bool SlotsGrantable(TierIndex tier) const noexcept;
  void NoteCopyResult(TierIndex tier, bool ok) noexcept;
  bool LinkAlive(TierIndex from) const noexcept;

  // copies.cc: one copy of one block, with every account that follows from it
  bool AttachCopy(BlockId block, TierIndex tier, std::uint32_t ns);
  void CommitCopy(BlockId block, TierIndex tier);
  SlotId DetachCopy(BlockId block, TierIndex tier, bool quarantine = false);
  /// The only way to tell a policy that copies were given up.
  void NotifyEvicted(std::span<const BlockId> blocks, TierIndex tier, EvictReason reason);
  void NotifyCopies(std::span<const BlockId> blocks, TierIndex tier, CopyState state);
  void NotifyCopy(BlockId block, TierIndex tier, CopyState state) {
    NotifyCopies({&block, 1}, tier, state);
  }
  void DropLowerCopies(BlockId block);
  void OwnSlots(std::span<const BlockId> blocks, std::uint32_t ns, bool overwritten);
  void ForgetCopies(BlockId destination);
  bool CanQueueCopy(BlockId source) const noexcept;
  void QueueCopy(BlockId source, BlockId destination, std::uint32_t tokens);
  void LogRetired(NodeId root, EvictReason reason);
  void LogEvent(EventKind kind, BlockId block, TierIndex tier, EvictReason reason, bool edge);
  std::uint32_t NamespaceOf(BlockId block) const noexcept;

  // transfers.cc
  Transfer& NewTransfer(BlockId block, TierIndex from, TierIndex to, TransferClass cls,
                        TimePoint deadline);
  bool StartCopyDown(const PlannedCopy& copy);
  TimePoint DeadlineOf(const PlannedCopy& copy) const noexcept;
  static SubmitQueue::Entry SubmitEntry(const Transfer& t, std::uint32_t index) noexcept {
    return {t.transfer_class, t.deadline, t.order, index};
  }
  std::uint64_t UnsubmittedBytes(TierIndex from, TierIndex to) const noexcept {
    return unsubmitted_.Count({from, to}) * block_bytes_;
  }
  void WithdrawCopies(std::span<const BlockId> blocks);
  void WithdrawCopy(BlockId block);
  void WithdrawCopiesOf(std::uint32_t session);
  void StopWithdrawing(Transfer& t);
  void Pump();
  void OnSubmitted(const SubmitQueue::Entry& entry);
  void Harvest();
  void Complete(Transfer& transfer, TransferResult result);
  void CompleteLoad(Transfer& transfer, bool ok);
  void CompleteCopyDown(Transfer& transfer, TransferResult result);
  void ReleaseCopied();
  void FinishRelease(BlockId block, TierIndex tier);
  bool DetachCopiesFrom(BlockId block, TierIndex source);
  void EndTransfer(std::uint32_t index);
  void ForgetTransfer(std::uint32_t index);
  void FailLoad(BlockId block, TierIndex source, bool drop_source);
  void ExpireTransfers();
  void CancelLoads(std::span<const BlockId> blocks);
  void AfterUnpin(BlockId block);
  bool StillLoading(SequenceData& seq) const noexcept;
  void AdvanceLoads();
  Transfer* LoadOf(BlockId block) noexcept;

  // two_ended.cc
  void Withdraw(SequenceData& seq, std::uint32_t blocks);
  void HoldBack(std::uint32_t index, std::uint32_t taker);
  void ReleaseHeld();
  void CountTaken(const SequenceData& seq, TierIndex tier) noexcept;
  void FenceComputed(std::uint32_t index, Fence fence);
  void EndComputed(TransferId id);
  void AbandonComputed(SequenceData& seq, std::span<const BlockId> blocks);
  bool ReadyFor(const SequenceData& seq, BlockId block) const noexcept;

  // prefetch.cc
  void PlanPrefetches();
  bool NeedsLoad(BlockId block) const noexcept;
  void StartPrefetches(std::span<const BlockId> blocks, TransferClass cls);
  void NotePrefetched(BlockId block);
  void NoteUsed(std::span<const BlockId> blocks) noexcept;

  // stored.cc
  Status TakeStored();
  static const PrefixHash* ContentOf(std::span<const BlockContent> content,
                                     std::uint32_t block) noexcept;
  PrefixHash EndDigest(const MatchResult& match, NodeId root) const noexcept;
  template <typename Each>
  std::uint32_t WalkStored(const AdmitRequest& request, NodeId root, const MatchResult& match,
                           std::uint32_t limit, Each each);
  std::uint32_t CountStored(const AdmitRequest& request, std::uint32_t ns,
                            const MatchResult& match);
  void AdoptStored(const AdmitRequest& request, std::uint32_t ns);
  bool Adopt(const StoredBlock& found, std::uint32_t ns, PublishCursor& cursor,
             PrefixIndex::PublishArgs args);
  void ReturnStored(std::span<const SlotId> slots);
  std::uint32_t GiveUpStored(TierIndex tier, std::uint32_t count);
  Status InvalidateStored(std::span<const PrefixHash> roots, bool all);
  std::shared_ptr<const BlockIdentity> IdentityOf(BlockId block) const;
  bool RetryCopyDown(const Transfer& t);
  void MakeSpace();
  void RefreshWriteBudgets();
  std::uint32_t WriteBudgetBlocks(TierIndex tier) const noexcept;

  // poll.cc
  void ServeDemands();
  void ServeWaiting();
  void PlanCopies();
  void MarkAwaited();
  void MarkPath(BlockId end);
  void MarkKept(const SequenceData& seq);
  void AppendPathUpwards(BlockId end, std::vector<BlockId>& out) const;
  void UnmarkAwaited() noexcept;
  void ExecutePlan(TierIndex tier, std::span<const PlannedCopy> plan);
  void DropForDemands();
  std::uint32_t DropWithTails(std::span<const BlockId> blocks);
  void ExpireDemands();
  void ProgressResize();
  std::uint32_t ShortfallOf(TierIndex tier) const noexcept;

  ManagerOptions options_;
  CallClock clock_;
  DecisionHash decisions_;
  std::unique_ptr<InputRecorder> recorder_;  // outlives what it has wrapped
  Control* control_;
  TierIndex tiers_ = 0;
  std::uint32_t block_tokens_ = 0;
  std::uint32_t layers_ = 1;
  std::uint64_t block_bytes_ = 0;
  std::uint32_t table_capacity_ = 0;
  std::array<std::uint32_t, kMaxTiers>
      size_goal_{};  // usable slots once Resize has come to its end
  bool inline_work_ = true;
  std::uint64_t epoch_ = 0;

  std::vector<TierBinding> bindings_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<PrefixIndex> index_;
  std::vector<std::unique_ptr<EvictionPolicy>> policies_;
  std::unique_ptr<Migrator> migrator_;
  std::unique_ptr<TransferEngine> engine_;
  Observer* observer_ = nullptr;

  std::vector<std::unique_ptr<SequenceData>> sequences_;
  std::vector<std::uint32_t> free_sequences_;
  std::uint64_t next_serial_ = 1;
  std::vector<std::uint32_t> loading_;  // sequences with loads

  std::vector<NamespaceData> namespaces_;
  absl::flat_hash_map<std::string, std::uint32_t> tenants_;
  bool quotas_ = false;
  std::vector<std::uint32_t> block_ns_;     // by block, kept while a quota is set
  std::vector<std::uint16_t> slot_tenant_;  // by HBM slot: last owner's tenant + 1
  std::uint32_t epoch_sweep_ = 0;

  TierIndex stored_tier_ = kHbmTier;  // the one that is kept; HBM: there is none
  StoredTable stored_;
  RecoveryReport recovery_;
  std::array<double, kMaxTiers> write_budget_{};  // bytes
  TimePoint write_budget_at_{};

  absl::flat_hash_map<std::uint64_t, std::uint32_t> session_index_;
  std::vector<SessionSignals> sessions_;
  std::vector<std::uint32_t> session_sequences_;  // live sequences per session
  std::vector<std::uint32_t> free_sessions_;
  std::uint32_t session_sweep_ = 0;

  std::deque<Timeline> timelines_;
  std::vector<Demand> demands_;
  std::uint32_t offloaded_ = 0;        // blocks that preemptions send down, not yet in the signals
  std::vector<BlockId> awaited_;       // marked for the demands that are being served
  std::vector<BlockId> awaited_ends_;  // of them, each path's deepest, and the private ones

  std::vector<Transfer> transfers_;
  std::vector<std::uint32_t> free_transfers_;
  std::array<std::uint32_t, kMaxTiers> no_space_{};  // copies waiting for room on the device
  SubmitQueue unsubmitted_;
  std::uint64_t next_transfer_ = 0;
  std::uint32_t active_transfers_ = 0;
  struct CleanSearches {
    CleanSearch all;                     // the last one that left nothing out...
    std::array<CleanSearch, 2> partial;  // ...and those that did
    std::uint32_t next = 0;              // of them to be replaced
  };
  std::array<CleanSearches, kMaxTiers> few_clean_;
  absl::flat_hash_map<std::uint32_t, std::uint32_t> load_of_block_;
  absl::flat_hash_map<std::uint32_t, std::uint32_t> withdrawable_;  // copies down, by block
  static std::uint64_t KeeperKey(const BlockRef& ref) noexcept {
    return (std::uint64_t{ref.generation} << 32) | ref.block.value();
  }
  absl::flat_hash_map<std::uint64_t, std::uint32_t> keepers_;  // of blocks kept by forks
  struct Held {
    TransferId id;
    std::uint64_t until = 0;  // polls_
  };
  std::vector<Held> held_;  // loads withdrawn for somebody who wants to compute them
  std::uint64_t polls_ = 0;
  absl::flat_hash_set<std::uint64_t> prefetched_;         // KeeperKey: loaded ahead, not used yet
  std::uint32_t computed_ = 0;                            // transfers that move nothing
  std::array<std::uint32_t, kMaxTiers> leaving_{};        // copies in flight that free a slot
  std::array<std::uint32_t, kMaxTiers> in_flight_{};      // slots a transfer reads or writes
  std::array<std::uint32_t, kMaxTiers> lower_short_{};    // slots a copy down could not get
  std::array<TimePoint, kMaxTiers> copy_retry_at_{};      // of a tier out of service
  std::array<std::uint32_t, kMaxTiers> copy_failures_{};  // in a row, by destination
  std::vector<std::pair<BlockRef, TierIndex>> copied_;    // copied down, waiting to be released
  TimePoint next_expiry_ = kNever;
  TimePoint oldest_demand_ = kNever;  // while demands are served: when the first began to wait
  std::uint32_t shrinking_ = 0;       // bit per tier

  struct QueuedCopy {
    BlockId source;
    BlockId destination;
    SlotId from;
    SlotId to;
    std::uint32_t tokens;
  };
  std::vector<QueuedCopy> device_copies_;
  struct QueuedZero {
    BlockId block;
    SlotId slot;
  };
  std::vector<QueuedZero> device_zeros_;

  std::vector<BlockRef> orphans_;
  bool want_misses_ = false;
  bool want_claims_ = false;
  PrefixIndex::MovedClaim moved_claim_;    // scratch
  std::unique_ptr<DigestScheme> digests_;  // only for policies that want misses
  std::vector<PrefixHash> misses_;         // of the request being planned
  std::uint64_t tick_ = 0;                 // order of releases
  std::uint32_t stale_hint_ = 0;           // trees retired, not yet known to be empty

  std::vector<Event> events_;  // ring
  std::uint64_t event_number_ = 0;
  std::uint64_t event_drained_ = 0;

  SchedulingSignals signals_;
  std::array<TierSignals, kMaxTiers> tier_signals_{};
  std::vector<LinkSignals> link_signals_;
  std::vector<LinkState> links_;  // alike: down to and up from each lower tier
  std::array<std::uint64_t, kMaxTiers> admitted_slots_{};
  TimePoint forecast_at_{};

  ManagerStats stats_;

  // Scratch, reused so that the hot path does not allocate.
  AdmitPlan plan_;
  MatchResult match_;
  std::vector<BlockId> victims_, candidates_, changed_, scratch_, demoted_, dropped_, revived_,
      lost_;
  std::vector<Completion> completions_;
  std::vector<CopyRequest> requests_;
  std::vector<SubmitQueue::Entry> submitting_;
  std::vector<BlockId> returning_;
  std::vector<PlannedCopy> copies_;
  StepWork scratch_work_;
};

}  // namespace tidepool::internal
