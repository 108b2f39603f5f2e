// tidepool/kv_cache_manager.h - the facade an engine holds: who gets memory, what is shared, what
// leaves HBM, where it goes and when it comes back. docs/embedding.md walks through a scheduler
// loop.
//
// Every admission, append and resume is planned first and then committed: a refusal changes nothing
// but the demand ledger, a commit cannot fail half way. A refused Admit or Resume also says that
// its session has arrived, with what SessionArrived does.
//
// Thread contract: one scheduler thread at a time makes all calls, Probe included. Only the
// destruction of handles may come from other threads.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tidepool/block_pool.h"
#include "tidepool/clock.h"
#include "tidepool/event_log.h"
#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"
#include "tidepool/kv_layout.h"
#include "tidepool/observer.h"
#include "tidepool/prefix_index.h"
#include "tidepool/scheduling_signals.h"
#include "tidepool/sequence.h"
#include "tidepool/status.h"
#include "tidepool/tide/migrator.h"
#include "tidepool/tier.h"
#include "tidepool/transfer/engine.h"
#include "tidepool/types.h"

namespace tidepool {

class InputLog;

struct ManagerOptions {
  KvLayout layout;
  std::vector<TierSpec> tiers;  ///< HBM first; 1 to kMaxTiers
  /// Makes one policy per tier; null = LRU everywhere.
  std::function<std::unique_ptr<EvictionPolicy>(TierIndex)> policy;
  std::unique_ptr<Migrator> migrator;      ///< null = MakeDemandWriteBack()
  std::unique_ptr<TransferEngine> engine;  ///< null = MakeHostEngine()
  const Clock* clock = nullptr;            ///< null = Clock::Steady(); outlives the manager
  Observer* observer = nullptr;            ///< may be null; outlives the manager
  InputLog* input_log = nullptr;           ///< null = off; outlives the manager (input_log.h)
  /// Engines that route across models: the namespace whose blocks serve requests of the argument.
  std::function<NamespaceId(NamespaceId)> namespace_map;  ///< null = identity
  CostModel recompute;                    ///< unknown = never prefer recompute to reload
  std::uint64_t digest_seed = 0;          ///< equal on all nodes that share events or files
  std::uint64_t epoch = 0;                ///< of the weights; a kept tier that is further on wins
  bool match_partial_tail = true;         ///< copy the leading tokens of a shared block
  bool report_holes = false;              ///< Probe reports segments behind a hole
  bool reserve_null_slot = false;         ///< HBM slot 0 stays the engine's
  std::uint32_t max_sequences = 4096;     ///< sequences alive at once, paused included; <= 16,383
  std::uint32_t max_sequence_blocks = 0;  ///< block table length; 0 = all HBM slots
  std::uint32_t event_log_capacity = 0;   ///< events kept for DrainEvents; 0 = off
  Duration demand_ttl = std::chrono::seconds(1);  ///< a demand not renewed by then lapses
  Duration load_ttl = std::chrono::seconds(300);  ///< a load not done by then is given up
  /// Test seams of the index; see PrefixIndex::Options.
  std::uint64_t (*child_hash)(NodeId, std::span<const Token>) = nullptr;
  PrefixHash (*block_digest)(const PrefixHash&, std::span<const Token>) = nullptr;
};

struct AdmitRequest {
  SessionId session{};              ///< invalid = no session: nothing is claimed at the end
  RequestId request{};              ///< names the demand; invalid = the session does
  std::span<const Token> tokens{};  ///< the prompt, at least one token
  NamespaceId ns{0};
  Priority priority = Priority::kNormal;
  TimelineId timeline{0};                   ///< the device timeline its steps run on
  std::uint32_t lookahead_tokens = 0;       ///< also reserve room for these (decode, drafts)
  std::span<const BlockContent> content{};  ///< sorted by block
  bool publish = true;                      ///< false: its blocks are never shared
  bool critical_path = false;               ///< recorded in the session's signals
  bool two_ended = false;                   ///< load the last blocks first; see Sequence::TakeLoads
  /// The last hits that HBM lacks count as misses where computing them is expected to end sooner
  /// than loading them, what is queued on the links included. Needs ManagerOptions::recompute.
  bool recompute_if_sooner = false;
};

enum class Fit : std::uint8_t { kFits, kBusy, kNeverFits };

struct ProbeResult {
  Outcome outcome = Outcome::kOk;  ///< kInvalidArgument, kUnknownNamespace
  std::uint32_t tokens = 0;        ///< leading tokens some tier has (not capped)
  std::array<std::uint32_t, kMaxTiers> tokens_by_tier{};  ///< of those, by topmost copy
  std::uint32_t pending_tokens = 0;                       ///< of those, commit fence not passed yet
  std::uint32_t loading_tokens = 0;                       ///< of those, already on their way to HBM
  std::uint32_t fresh_blocks = 0;  ///< HBM slots an Admit would take from the free ones
  Fit fit = Fit::kFits;            ///< what an Admit right now would answer
  Duration load_time{0};           ///< estimate for onboarding the hits
  Duration recompute_time{0};      ///< estimate for computing the rest; 0 = cost unknown
  std::vector<Segment> segments;   ///< contiguous; with report_holes, also behind holes
};

/// Work on the device's timeline, to be executed in order before the step that follows.
struct DeviceCopy {
  SlotId source;
  SlotId destination;
  std::uint32_t tokens = 0;  ///< leading token positions that matter
};
struct StepWork {
  std::vector<SlotId> zero;  ///< first: whole slots to clear (they change tenant)
  std::vector<DeviceCopy> copies;
};

/// One running sequence that could be preempted. Only blocks that nobody else holds count. With B
/// bytes a block, the links' signals and the cost model of SchedulingSignals:
///   out(n) = max(latency, (queued + n B) / bandwidth) down, in(n) the same up; infinite on a link
///            that moves nothing; `queued` counts what this plan and earlier preemptions add
///   kRecompute = sum of BlockSeconds(position) over the tail, its partial block in proportion;
///            infinite when the model is unknown
///   kOffload = out(tail) + in(tail): the room waits for the copy, Resume for the reload
///   kKeep    = 0, where what leaves at once suffices or no tail has to leave
/// To each is added what the published blocks cost: in(n) for clean ones, the cheaper of two copies
/// and recomputing for each dirty one. With one tier every block is reclaimable at once: kKeep, at
/// the cost of recomputing all of them. Unknown costs count as 0.
struct ReclaimChoice {
  SequenceId sequence;
  SessionId session;
  Priority priority = Priority::kNormal;
  PreemptMode mode = PreemptMode::kKeep;  ///< the cheapest: hand it to Preempt
  std::uint32_t blocks = 0;               ///< HBM slots that preempting it makes reclaimable
  std::uint32_t blocks_now = 0;           ///< of those, without a copy; see `fence`
  std::uint32_t recompute_tokens = 0;     ///< committed tokens that `mode` gives up, exactly
  Fence fence;           ///< what its steps still touch is free when this has passed
  Duration cost{0};      ///< of `mode`
  Duration ready_in{0};  ///< until the last of `blocks` has been copied; max = unknown
};

/// Per namespace and tier, in slots; 0 = no limit.
struct Quota {
  std::uint32_t soft = 0;  ///< above this its blocks leave first
  std::uint32_t hard = 0;  ///< never more than this
};

struct ManagerStats {
  std::uint64_t admitted = 0, busy = 0, never_fits = 0, readmitted = 0, finished = 0;
  std::uint64_t queried_tokens = 0;                   ///< prompt tokens of granted first admissions
  std::array<std::uint64_t, kMaxTiers> hit_tokens{};  ///< of those, served from each tier
  std::uint64_t readmit_queried_tokens = 0, readmit_hit_tokens = 0;  ///< Resume
  std::uint64_t recomputed_tokens = 0;
  std::uint64_t published_blocks = 0, duplicate_blocks = 0, cow_copies = 0, zeroed_slots = 0;
  std::array<std::uint64_t, kMaxTiers> evicted{};    ///< copies given up, per tier
  std::uint64_t dropped_blocks = 0;                  ///< last copies lost
  std::uint64_t dropped_dirty = 0;                   ///< of those, though a lower tier exists
  std::array<std::uint64_t, kMaxTiers> bytes_in{};   ///< copied into each tier by transfers
  std::array<std::uint64_t, kMaxTiers> bytes_out{};  ///< copied out of each tier
  std::uint64_t loads = 0, loads_failed = 0, loads_timed_out = 0, loads_joined = 0;
  std::uint64_t offloads = 0, offloads_failed = 0, offloads_refused = 0, rescued = 0;
  std::uint64_t offloads_retried = 0;  ///< once more, after the device had no room
  std::uint64_t stored_used = 0;       ///< blocks of an earlier process that a request asked for
  std::uint64_t withdrawn = 0;   ///< of the offloads, not made because a session came back early
  std::uint64_t prefetched = 0;  ///< blocks loaded into HBM with no holder
  std::uint64_t prefetched_used = 0;    ///< of those, matched by an admission
  std::uint64_t prefetched_wasted = 0;  ///< of those, gone from HBM before one did
  std::uint64_t taken_loads = 0;        ///< blocks computed by Sequence::TakeLoads instead
  std::uint64_t spared_loads = 0;       ///< blocks left to computing by recompute_if_sooner
  std::uint64_t preempted_keep = 0, preempted_offload = 0, preempted_recompute = 0;
  std::uint64_t late_completions = 0;  ///< repeated or unknown, ignored
};

/// Sizes of every internal table, for leak checks.
struct TableSizes {
  std::uint32_t sequences = 0, sessions = 0, transfers = 0, demands = 0, pending_commits = 0,
                pending_releases = 0, device_work = 0;
};

/// Bytes per second.
struct LinkLimit {
  double bytes_per_second = std::numeric_limits<double>::infinity();  ///< 0 = moves nothing
  double background_bytes_per_second = std::numeric_limits<double>::infinity();
};

class TIDEPOOL_EXPORT KvCacheManager {
 public:
  /// Checks every option; the error names the field and its value. Opens files, allocates arenas.
  static StatusOr<std::unique_ptr<KvCacheManager>> Create(ManagerOptions options);
  ~KvCacheManager();  ///< handles may outlive it

  // --- Key spaces. Namespace 0 (all fields empty) always exists. ---
  // DropNamespace, AdvanceEpoch and Clear hold here at once. With a kept tier they wait for its
  // device, so that no restart brings the blocks back; kUnavailable says that one may: call again.
  StatusOr<NamespaceId> RegisterNamespace(const NamespaceKey& key);
  Status SetQuota(NamespaceId ns, TierIndex tier, Quota quota);
  Status DropNamespace(NamespaceId ns);  ///< its blocks stop matching at once; O(1)
  Status AdvanceEpoch();                 ///< weights changed: nothing matches any more; O(1)
  [[nodiscard]] std::uint64_t epoch() const noexcept;
  Status Clear();  ///< drops every cached block that nothing protects

  // --- Requests. ---
  /// What Admit would find. Moves no recency, takes no reference, promotes nothing.
  [[nodiscard]] ProbeResult Probe(const AdmitRequest& request) const;
  /// Match, hold, reserve: one atomic step. Errors: kBusy, kNeverFits, kInvalidArgument,
  /// kUnknownNamespace. Harvests finished transfers first.
  [[nodiscard]] Admission Admit(const AdmitRequest& request);
  /// Withdraws a refused request's demand before it lapses.
  void CancelDemand(RequestId request, SessionId session = SessionId());

  // --- The step loop. ---
  /// Everything up to step `step` of `timeline` is done on the device. Monotone per timeline.
  Outcome CompleteStep(TimelineId timeline, std::uint64_t step);
  /// Harvests transfers, applies transitions, serves demands, lets the migrator plan. Bounded.
  void Poll();
  /// Hands over queued device work; `fence` = the step before which the engine executes it.
  void DrainStepWork(Fence fence, StepWork& work);
  void DrainEvents(EventBatch& batch);
  [[nodiscard]] EventSnapshot Snapshot() const;
  /// Waits (on the transfer engine) until nothing is in flight, polling. False on timeout.
  bool WaitIdle(Duration timeout);

  // --- Sessions. ---
  Outcome UpdateExpectedReturn(SessionId session, TimePoint when, float log_sd);
  /// The session's next request has come and waits in the engine's queue: its wait is over, and
  /// policies know that its blocks are about to be used; copies of them ahead of need that have not
  /// started may be withdrawn. A refused Admit or Resume says so itself.
  Outcome SessionArrived(SessionId session);
  Outcome CompleteSession(SessionId session);  ///< its claims end; it is forgotten
  [[nodiscard]] const SchedulingSignals& signals() const noexcept;

  // --- Room. ---
  /// Running sequences to preempt until `bytes` of HBM would be reclaimable, or all there are;
  /// never one of a priority above `below`. Order: lower priority first; then who has committed
  /// something since it was admitted or resumed; then cost a block, times one more than its
  /// preemptions so far; then the newest. Changes nothing.
  [[nodiscard]] std::vector<ReclaimChoice> PlanReclaim(std::uint64_t bytes,
                                                       Priority below = Priority::kCritical) const;
  /// The same on behalf of `sequence`, running or paused: only those that rank behind it, which are
  /// of lower priority, or of the same and admitted later. Rank is for life, so no two sequences
  /// preempt each other, and the first in rank always gets what it needs. Too little room:
  /// `sequence` itself has to yield. A request that was never admitted ranks behind all: name the
  /// priority below its own.
  [[nodiscard]] std::vector<ReclaimChoice> PlanReclaim(std::uint64_t bytes,
                                                       const Sequence& sequence) const;
  /// Gives up to `blocks` copies of `tier` back now, in the policy's order: clean ones, and dirty
  /// ones where no lower tier exists. Returns how many.
  std::uint32_t Evict(TierIndex tier, std::uint32_t blocks);
  /// Starts copies of a published prefix one tier down, HBM copies stay. Returns how many leading
  /// blocks were accepted and how many refused; blocks that are clean already count as accepted.
  struct OffloadResult {
    Outcome outcome = Outcome::kOk;
    std::uint32_t accepted = 0, refused = 0;
  };
  OffloadResult Offload(std::span<const Token> tokens, NamespaceId ns = NamespaceId(0));
  /// Brings a published prefix up into HBM without a holder; free slots and clean victims only.
  OffloadResult Onboard(std::span<const Token> tokens, NamespaceId ns = NamespaceId(0));
  Status Resize(TierIndex tier, std::uint32_t slots);
  /// What the engine leaves of a link, or knows of it. Holds from the next Poll, for every estimate
  /// and for copies ahead of need; copies that somebody waits for are not slowed. Errors: no such
  /// link, a negative or NaN limit.
  Status SetLinkLimit(TierIndex from, TierIndex to, LinkLimit limit);

  // --- Accounts. ---
  [[nodiscard]] PoolCounts counts() const noexcept;
  [[nodiscard]] std::uint32_t used_slots(TierIndex tier) const noexcept;
  [[nodiscard]] std::uint32_t slots(TierIndex tier) const noexcept;
  [[nodiscard]] const ManagerStats& stats() const noexcept;
  [[nodiscard]] TableSizes table_sizes() const noexcept;
  [[nodiscard]] std::uint64_t metadata_bytes()
      const noexcept;  ///< index, pool, policies; no tokens
  [[nodiscard]] std::uint64_t block_bytes() const noexcept;
  [[nodiscard]] std::uint32_t block_tokens() const noexcept;
  [[nodiscard]] std::uint32_t layers() const noexcept;
  /// Memory of a tier (empty for files): where an embedded engine reads and writes its KV.
  [[nodiscard]] const Arena& arena(TierIndex tier) const noexcept;
  /// What opening the kept tier came to, and how many of its blocks nobody has asked for yet.
  [[nodiscard]] const RecoveryReport& recovery() const noexcept;
  [[nodiscard]] std::uint32_t stored_blocks() const noexcept;
  /// Bytes, errors and the like of a file tier, since it was opened. Thread-safe.
  [[nodiscard]] FileTierStats file_stats(TierIndex tier) const noexcept;
  /// Rolling hash of all decisions so far: copies started and given up, admissions, block tables,
  /// slots set aside. Equal for equal options and inputs, whatever the process or machine.
  [[nodiscard]] std::uint64_t decision_hash() const noexcept;
  [[nodiscard]] std::string DescribeTransfers() const;
  /// Blocks of a published prefix in order; read-only, for tests and tools.
  void Lookup(std::span<const Token> tokens, NamespaceId ns, std::vector<BlockId>& blocks) const;
  [[nodiscard]] const BlockPool& pool() const noexcept;
  [[nodiscard]] const PrefixIndex& index() const noexcept;
  /// True if the handle belongs to this manager.
  [[nodiscard]] bool Owns(const Sequence& sequence) const noexcept;

  /// Every invariant of docs/design.md; OK or the first violation. O(blocks).
  [[nodiscard]] Status Audit() const;

 private:
  explicit KvCacheManager(std::unique_ptr<internal::ManagerCore> core) noexcept;
  std::unique_ptr<internal::ManagerCore> core_;
};

}  // namespace tidepool
