// tests/support/scenario_fixture.h - a small manager on a fake transfer engine and a manual clock,
// spoken to in the words of the failure scenarios: sequences have names, blocks hold 4 tokens, and
// a "pool N" is N HBM slots.
//
// The fixture plays the engine's part with real bytes: a commit writes, for each token, a pattern
// that depends on everything before it, and whatever a sequence may read is compared with that
// pattern. After every operation it checks Audit, that the counts sum to the pool, the engine's
// rules and the bytes of every running sequence; the first violation fails the test and names the
// step.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/recording_policy.h"
#include "tidepool/kv_cache_manager.h"
#include "tidepool/testing/fake_transfer_engine.h"
#include "tidepool/testing/manual_clock.h"

namespace tidepool::testing {

using Tokens = std::vector<Token>;

inline constexpr std::uint32_t kBlockTokens = 4;
inline constexpr std::uint32_t kAll = std::numeric_limits<std::uint32_t>::max();
/// The tier below HBM, whatever its kind.
inline constexpr TierIndex kLowerTier = 1;

/// The first `n` tokens of text number `text`; two texts have no token in common.
[[nodiscard]] Tokens Text(int text, std::uint32_t n);
[[nodiscard]] Tokens Join(Tokens head, const Tokens& tail);
/// "free 1, cached 2, held 3": classes that are not empty, in the order of PoolCounts.
[[nodiscard]] std::string ToString(const PoolCounts& counts);
[[nodiscard]] TimePoint AtSecond(std::int64_t seconds);

/// For ScenarioOptions::adjust: a recording policy, or any other, on every tier.
[[nodiscard]] std::function<void(ManagerOptions&)> Recording(PolicyRecord* record);
[[nodiscard]] std::function<void(ManagerOptions&)> Using(PolicyFactory make_policy);

struct ScenarioOptions {
  std::uint32_t hbm = 8;   ///< slots
  std::uint32_t dram = 0;  ///< slots; 0 = no such tier
  std::uint32_t nvme = 0;
  std::uint32_t layers = 1;
  FakeEngineOptions engine = {};
  std::function<void(ManagerOptions&)> adjust = nullptr;  ///< last word on the options
  bool check_every_step = true;  ///< false: only where the test calls Check
};

/// How a sequence is admitted; the default is a request of no session in namespace 0.
struct How {
  SessionId session = {};
  Priority priority = Priority::kNormal;
  NamespaceId ns = NamespaceId(0);
  TimelineId timeline = 0;
  std::vector<BlockContent> content = {};
  std::uint32_t lookahead = 0;
  bool publish = true;
  bool two_ended = false;
  bool recompute_if_sooner = false;
};

class ScenarioFixture {
 public:
  explicit ScenarioFixture(ScenarioOptions options = {});
  ~ScenarioFixture();
  ScenarioFixture(const ScenarioFixture&) = delete;
  ScenarioFixture& operator=(const ScenarioFixture&) = delete;

  // --- Sequences, by name. An operation on an unknown name uses an empty handle. ---
  Outcome Allocate(const std::string& name, const Tokens& tokens, const How& how = {});
  Outcome Append(const std::string& name, const Tokens& tokens);
  /// Writes the bytes of the first `n` tokens, then commits them.
  Outcome Commit(const std::string& name, std::uint32_t n, Fence fence = Fence::Done());
  /// Commits without writing: the bytes arrive later, with Write.
  Outcome CommitUnwritten(const std::string& name, std::uint32_t n, Fence fence);
  void Write(const std::string& name, std::uint32_t n);
  /// TakeLoads; and the bytes of what it returned, then CommitTaken.
  TakenLoads Take(const std::string& name, std::uint32_t blocks);
  Outcome CommitTaken(const std::string& name, Fence fence = Fence::Done());
  Outcome Truncate(const std::string& name, std::uint32_t n);
  Outcome DropLeading(const std::string& name, std::uint32_t blocks);
  Outcome Fork(const std::string& parent, const std::string& child);
  /// Finish. The name stays known, with an empty handle.
  /// The request of that name is given up.
  void CancelDemand(const std::string& name);
  Outcome Free(const std::string& name, Fence fence = Fence::Done());
  Outcome Idle(const std::string& name, Duration return_in = Duration::max());
  Outcome Resume(const std::string& name);
  Outcome Preempt(const std::string& name, PreemptMode mode = PreemptMode::kAuto);

  /// Allocate, commit everything, free: leaves the full blocks cached.
  void Cache(const Tokens& tokens, const How& how = {});
  /// Cache, copy down one tier, give the HBM copies up. REQUIRES: nothing else in HBM is clean.
  void Store(const Tokens& tokens, const How& how = {});
  /// Allocate; while that is busy, polls and ends transfers well, at most `rounds` times.
  Outcome AllocatePatiently(const std::string& name, const Tokens& tokens, const How& how = {},
                            int rounds = 8);

  // --- Room and time. ---
  [[nodiscard]] ProbeResult Probe(const Tokens& tokens, const How& how = {});
  /// Leading tokens that some tier has.
  [[nodiscard]] std::uint32_t Found(const Tokens& tokens, const How& how = {});
  std::uint32_t Evict(std::uint32_t blocks, TierIndex tier = kHbmTier);
  KvCacheManager::OffloadResult Offload(const Tokens& tokens);
  KvCacheManager::OffloadResult Onboard(const Tokens& tokens);
  void Poll();
  Outcome CompleteStep(TimelineId timeline, std::uint64_t step);
  /// Ends every transfer well and polls, until nothing is in flight.
  void Settle();
  void SetTime(TimePoint now);
  std::vector<Event> DrainEvents();

  // --- What a test reads. ---
  [[nodiscard]] KvCacheManager& manager() { return *manager_; }
  [[nodiscard]] FakeTransferEngine& engine() { return *engine_; }
  [[nodiscard]] ManualClock& clock() { return clock_; }
  [[nodiscard]] Sequence& seq(const std::string& name) { return live_[name].handle; }
  [[nodiscard]] LoadTicket& ticket(const std::string& name) { return live_[name].ticket; }
  /// Of the last Allocate or Resume of `name`; the handle and the ticket are not in it.
  [[nodiscard]] const Admission& admission(const std::string& name) { return live_[name].last; }
  /// Tokens that the last Allocate or Resume need not compute.
  [[nodiscard]] std::uint32_t Hit(const std::string& name);
  [[nodiscard]] std::string Counts() const { return ToString(manager_->counts()); }
  [[nodiscard]] std::uint32_t free_slots() const { return manager_->counts().free; }
  [[nodiscard]] std::vector<SlotId> Slots(const std::string& name);
  /// Block at a position of a running sequence, or invalid.
  [[nodiscard]] BlockId Block(const std::string& name, std::uint32_t position);
  [[nodiscard]] std::uint32_t Holds(const std::string& name, std::uint32_t position);
  /// Published blocks of these tokens.
  [[nodiscard]] std::vector<BlockId> Blocks(const Tokens& tokens,
                                            NamespaceId ns = NamespaceId(0)) const;
  /// True if tier `tier`, slot `slot` holds the bytes of block `block` of `tokens`.
  [[nodiscard]] bool HasBytes(TierIndex tier, SlotId slot, const Tokens& tokens,
                              std::uint32_t block, const How& how = {});
  /// True if the block's copy in `tier` is valid and holds the bytes of that block of `tokens`.
  [[nodiscard]] bool Stored(TierIndex tier, const Tokens& tokens, std::uint32_t block);

  /// What every step ends with. `step` names it in the failure message.
  void Check(const std::string& step);

 private:
  struct Live {
    Sequence handle;
    LoadTicket ticket;
    Tokens tokens;
    How how;
    Admission last;
    TakenLoads taken;
    std::uint32_t written = 0;  // leading tokens whose bytes must be right
  };
  void WriteTokens(Live& live, std::uint32_t first, std::uint32_t end);
  void AfterStep(const char* operation, const std::string& name);
  void Remember(Live& live, Admission admission);
  [[nodiscard]] std::string WrongByte(Live& live) const;
  [[nodiscard]] AdmitRequest Request(const Tokens& tokens, const How& how) const;

  ScenarioOptions options_;
  ManualClock clock_;
  FakeTransferEngine* engine_ = nullptr;  // the manager's
  std::unique_ptr<KvCacheManager> manager_;
  std::map<std::string, Live> live_;
  std::map<std::string, std::uint64_t> request_ids_;
  bool failed_ = false;  // report the first broken invariant only
};

/// A second handle to the same sequence, which safe code cannot make: what a use-after-finish
/// through a stale handle would look like. Never destroyed, so it releases nothing.
class StaleSequence {
 public:
  explicit StaleSequence(const Sequence& sequence);
  [[nodiscard]] Sequence& operator*() { return *handle_; }
  Sequence* operator->() { return handle_; }

 private:
  alignas(Sequence) unsigned char bytes_[sizeof(Sequence)];
  Sequence* handle_;
};

}  // namespace tidepool::testing
