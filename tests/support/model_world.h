// tests/support/model_world.h - the real manager under random operations: on a manual clock, a
// faulty transfer engine and a late device, compared with the reference model after each.
//
// An operation is plain data whose arguments are resolved against the state it meets, so that any
// subsequence of a log of operations can be replayed.
//
// Thread contract: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/model_device.h"
#include "tests/support/reference_model.h"
#include "tidepool/kv_cache_manager.h"
#include "tidepool/testing/fake_transfer_engine.h"
#include "tidepool/testing/manual_clock.h"

namespace tidepool::testing {

/// Everything that can go wrong with a copy; `fail` of them fail.
constexpr FakeFaults ModelFaults(double fail) {
  return {.fail = fail,
          .time_out = 0.01,
          .delay = 0.3,
          .reorder = 0.3,
          .duplicate = 0.05,
          .progress = 0.2,
          .refuse = 0.1,
          .finish_anyway = 0.5,
          .max_delay_polls = 6};
}

struct ModelConfig {
  std::string name;
  std::vector<std::uint32_t> slots;  ///< per tier, HBM first
  std::uint32_t block_tokens = 4;
  std::uint32_t layers = 1;
  std::uint32_t symbols = 3;     ///< different blocks that may follow a prefix
  std::uint32_t max_blocks = 6;  ///< of a prompt
  bool null_slot = false;
  bool partial_tail = true;
  bool queued_work = false;
  bool quotas = false;
  bool resize = true;
  bool recompute = false;  ///< the cost model is known, so dirty victims may be dropped
  std::uint32_t event_capacity = 0;
  FakeFaults faults = {};
  PolicyFactory policy = nullptr;  ///< null: the default
  bool tide = false;               ///< a clean pool, and priced lower tiers; `policy` in HBM only
  double clean_pool = 0.4;         ///< share of HBM
  bool tier_faults = false;        ///< tiers below HBM fail for a while and recover
  std::size_t accept_limit = static_cast<std::size_t>(-1);  ///< copies the engine takes at a time
  bool storm = false;  ///< mostly preempting and resuming; in the end all must finish
  std::uint64_t steps = 13000;
  InputLog* input_log = nullptr;
};
/// The manager that a world of this kind has, but for its engine, clock, observer and input log.
[[nodiscard]] ManagerOptions ModelOptions(const ModelConfig& config);
inline void PrintTo(const ModelConfig& config, std::ostream* out) { *out << config.name; }

enum class ModelOpKind : std::uint8_t {
  kAdmit,
  kAppend,
  kStep,
  kTruncate,
  kFork,
  kDropLeading,
  kPause,
  kResume,
  kPreempt,
  kFinish,
  kDropHandle,
  kCompleteSession,
  kProbe,
  kEvict,
  kOffload,
  kOnboard,
  kCompleteStep,
  kRunDevice,
  kPoll,
  kClock,
  kAdvanceEpoch,
  kNamespace,
  kClear,
  kResize,
  kQuota,
  kSignals,
  kPlanReclaim,
  kCancelDemand,
  kMisuse,
  kArrive,
  kTierFault,
  kTakeLoads,
  kCommitTaken,
  kLinkLimit,
};
inline constexpr std::size_t kModelOpKinds = 34;

inline constexpr std::uint32_t kModelTimelines = 2;
inline constexpr std::uint32_t kModelSessions = 6;

struct ModelOp {
  ModelOpKind kind = ModelOpKind::kPoll;
  std::array<std::uint32_t, 4> arg{};
};
[[nodiscard]] std::string ToString(const ModelOp& op);
/// What ToString wrote; false if it is no operation.
bool FromString(const std::string& line, ModelOp* op);

/// What the operations have achieved, to see that a run was not an idle one.
struct ModelTally {
  std::uint64_t granted = 0, busy = 0, never_fits = 0, resumed = 0, hit_tokens = 0, exact = 0,
                loads_ready = 0, loads_failed = 0, verified_cells = 0, planned = 0, taken = 0;
  ManagerStats stats;
};

class ModelWorld final : private Observer {
 public:
  ModelWorld(const ModelConfig& config, std::uint64_t seed);
  ~ModelWorld() override;

  void Apply(const ModelOp& op);
  /// With the faults still on, lets every sequence come back, compute what it lacks and finish,
  /// preempting each other as PlanReclaim says. Fails if they do not get there.
  void FinishAll();
  /// Ends everything and checks that nothing is left.
  void WindDown();
  /// The first thing that went wrong, or empty.
  [[nodiscard]] const std::string& failure() const { return failure_; }
  [[nodiscard]] ModelTally tally() const;
  [[nodiscard]] const KvCacheManager& manager() const { return *manager_; }

 private:
  struct Live {
    std::uint32_t id = 0;
    ModelSequence model;
    Sequence handle;
    LoadTicket ticket;
    bool loading = false;
    bool detached = false;               // it may have stopped publishing for good
    bool forked = false;                 // shares, or has shared, private blocks
    std::uint32_t takeable = 0;          // tokens that were loading when it was granted, not taken
    std::uint32_t taken_first = 0;       // block position; what it is to compute instead...
    std::uint32_t taken = 0;             // ...blocks, not committed
    std::set<std::uint32_t> computed{};  // slots of what it has taken and committed
    std::shared_ptr<const std::vector<std::uint64_t>> kv;
    BlockTable table;
  };
  struct Kernel;
  /// What can be seen from outside at one moment.
  struct State {
    PoolCounts counts;
    std::vector<SeenIndex> seen;  // by space
    TableSizes sizes;
    std::uint32_t dead = 0;  // blocks in the index that can never match
    std::uint64_t withdrawn = 0;
    std::uint64_t spared = 0;
    std::uint64_t taken = 0;
  };

  // Operations.
  void Admit(const ModelOp& op);
  void Append(const ModelOp& op);
  void Step(const ModelOp& op);
  void Truncate(const ModelOp& op);
  void Fork(const ModelOp& op);
  void DropLeading(const ModelOp& op);
  void Pause(const ModelOp& op);
  void Resume(const ModelOp& op);
  void Preempt(const ModelOp& op);
  void PreemptAsPlanned(Live& live);
  void LetGo(Live& live);
  void TakeBack(Live& live, const State& before, Admission admission);
  void Advance(std::uint32_t at);
  void MakeRoomFor(Live& live);
  void Finish(const ModelOp& op);
  void TakeLoads(const ModelOp& op);
  void CheckTaken(const Live& live, std::uint32_t asked, const TakenLoads& taken);
  void CommitTaken(const ModelOp& op);
  void CommitTaken(Live& live, bool wait);
  void CompleteStep(const ModelOp& op);
  void CompleteSteps();
  void Probe(const ModelOp& op);
  void Evict(const ModelOp& op);
  void MovePrefix(const ModelOp& op, bool down);
  void Namespace(const ModelOp& op);
  void Resize(const ModelOp& op);
  void SetQuota(const ModelOp& op);
  void Signals(const ModelOp& op);
  void TierFault(const ModelOp& op);
  void LinkLimit(const ModelOp& op);
  void PlanReclaim(const ModelOp& op);
  void Misuse(const ModelOp& op);

  [[nodiscard]] static PauseHint Hint(const ModelOp& op);

  // Prompts and requests.
  [[nodiscard]] ModelText Prompt(std::uint32_t seed, std::uint32_t shape,
                                 std::uint32_t where) const;
  [[nodiscard]] std::vector<Token> Continuation(std::size_t from, std::uint32_t seed,
                                                std::uint32_t count) const;
  [[nodiscard]] AdmitRequest Request(const ModelText& text, const ModelOp& op) const;

  // What is seen, and whether it may be.
  [[nodiscard]] State Look() const;
  void CheckProbe(const AdmitRequest& request, const ModelText& text, const State& state,
                  const ProbeResult& probe);
  void CheckRefused(const State& before, const char* what);
  void CheckGrant(const AdmitRequest& request, const Live& live, const State& before,
                  const ProbeResult& probe, const Admission& admission);
  [[nodiscard]] std::uint32_t BlocksFor(std::uint64_t tokens) const;
  [[nodiscard]] bool Hard(std::uint32_t space, std::uint64_t blocks) const;

  // Bytes.
  void RunKernel(const Kernel& kernel);
  void RereadKernel(const Kernel& kernel);
  void DrainWork(Fence fence);
  void LaunchStep(Live& live, std::uint32_t write_end, Fence fence);
  void LaunchTaken(Live& live, Fence fence);
  void Launch(Live& live, std::uint32_t read_end, std::uint32_t write_end, Fence fence);
  void VerifyLoaded(const Live& live);
  void VerifyBlocks(const Live& live, std::uint32_t first, std::uint32_t last);
  [[nodiscard]] std::uint64_t* CellAt(std::uint32_t slot, std::uint32_t layer,
                                      std::uint32_t token) const;
  void CheckUnwritten(const Live& live);
  [[nodiscard]] std::set<std::uint32_t> LoadingSlots(const Live& live) const;

  // Bookkeeping.
  Live* PickLive(std::uint32_t arg, bool (*want)(const Live&));
  void SetText(Live& live);
  void Retire(Live& live);
  void Sync();
  void SyncLive(Live& live);
  void SyncTicket(Live& live);
  void SyncCut(Live& live);
  void SyncTable(Live& live);
  void CheckAll();
  void CheckMirror();
  void Fail(const std::string& what);
  void Expect(bool condition, const std::string& what);
  void ExpectOutcome(Outcome got, Outcome want, const char* operation);

  // Observer.
  void OnTransition(const TransitionEvent& event) noexcept override;
  void OnTransferStart(const TransferEvent& event) noexcept override;
  void OnTransferEnd(const TransferEvent& event) noexcept override;

  ModelConfig config_;
  ManualClock clock_{TimePoint(std::chrono::hours(1))};
  FakeTransferEngine* engine_ = nullptr;  // the manager's
  ReferenceModel reference_;
  ModelDevice device_;
  std::unique_ptr<KvCacheManager> manager_;

  std::vector<NamespaceId> namespaces_;               // by space
  std::vector<std::array<Quota, kMaxTiers>> quotas_;  // by space
  std::uint32_t hbm_slots_ = 0;                       // usable ones, or what Resize aims at
  std::vector<std::unique_ptr<Live>> live_;
  std::uint32_t next_live_ = 1;
  std::map<TimelineId, std::uint64_t> launched_;
  struct Written {
    std::uint64_t launch = 0;
    std::uint32_t by = 0;
  };
  std::vector<Written> written_;  // by slot and token: the last kernel's write
  std::uint64_t launches_ = 0;
  std::set<std::pair<TimelineId, std::uint32_t>> computed_;  // slots that were taken and committed

  std::vector<Phase> phases_;                // as the observer heard them
  std::map<std::uint64_t, bool> transfers_;  // started: has it ended?
  using MirrorKey = std::tuple<std::uint32_t, PrefixHash, TierIndex>;
  std::set<MirrorKey> mirror_;
  std::uint64_t event_number_ = 0;
  EventBatch events_;
  StepWork work_;

  std::uint64_t steps_ = 0;
  std::string failure_;
  ModelTally tally_;
};

}  // namespace tidepool::testing
