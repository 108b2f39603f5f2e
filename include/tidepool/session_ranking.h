// tidepool/session_ranking.h - victims by the worth of the sessions that claim them: the machinery
// behind spear, spear_paper, ttl, asym_cache and bayes. Who can say what one waiting session is
// worth has a policy; a SessionScorer is that answer, about twenty lines.
//
// What leaves a tier first is always the tail of somebody's prefix, so the ranking keeps one place
// for each tail, not for each block: the blocks before it follow when it has left. A place is worth
// as much as its strongest claimant times what its block costs to get back. A block that sessions
// share becomes a tail when everything behind it is gone; their places have met there by then, and
// the strongest of them decides. Blocks that a completed session leaves behind go first; those that
// no session ever claimed count as a wait of their own that began with their last use.
//
// Sessions that wait for capacity are back already: they leave last, the last to have come first.
//
// Worth changes with time, but only at the times the scorer names (Rating::until): a kinetic heap
// whose certificates are those times. Choosing costs O(log sessions) and then about a nanosecond a
// block, whatever is held; held and covered tails are out of the heap.
//
// Cost: 8 bytes a block id (12 below HBM) and about 150 bytes a session or tail.
//
// Thread contract: scheduler thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "tidepool/clock.h"
#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"
#include "tidepool/scheduling_signals.h"
#include "tidepool/types.h"

namespace tidepool {

/// Who wants a tail back.
struct Claimant {
  SessionId session;  ///< invalid: blocks that no session claimed
  SessionState state = SessionState::kWaitingUser;
  WaitClass wait = WaitClass::kUnknown;
  std::uint32_t tool = 0;
  TimePoint since{};         ///< when the wait began; for blocks without a session, their last use
  std::uint32_t blocks = 0;  ///< that its session claims
  Priority priority = Priority::kNormal;
  bool critical_path = false;
};

/// Logarithms are to any one base; -infinity leaves first.
struct Rating {
  double log_worth = 0;
  TimePoint until = kNever;  ///< it may change then (order within the branch, see LogDrift)
  std::uint32_t branch = 0;  ///< 0 or 1
};

/// The block that would leave.
struct Tail {
  std::uint64_t position_tokens = 0;
  bool clean = false;  ///< giving it up loses nothing: it can be loaded again
  TierIndex tier = 0;
  std::uint32_t claims = 0;  ///< sessions that claim the block
};

class TIDEPOOL_EXPORT SessionScorer {
 public:
  virtual ~SessionScorer() = default;
  /// Once, before anything else.
  virtual void Attach(TierIndex tier) noexcept { (void)tier; }
  /// As EvictionPolicy::OnSession.
  virtual void OnSession(const SessionSignals& session, TimePoint now) noexcept {
    (void)session, (void)now;
  }
  /// How a wait ended for its tail in this tier: the session came back to it, or it was given up
  /// before. Once a wait.
  enum class Outcome : std::uint8_t { kUsedAgain, kGivenUp };
  virtual void OnOutcome(const Claimant& claimant, const Tail& tail, Outcome outcome) noexcept {
    (void)claimant, (void)tail, (void)outcome;
  }
  /// What keeping the claimant's blocks is worth, priority included. Only for sessions that wait
  /// and for blocks without one.
  [[nodiscard]] virtual Rating Rate(const Claimant& claimant, TimePoint now) const noexcept = 0;
  /// What getting this block back would cost; added to log_worth.
  [[nodiscard]] virtual double LogCost(const Claimant& claimant, const Tail& tail,
                                       const SchedulingSignals& signals) const noexcept {
    (void)claimant, (void)tail, (void)signals;
    return 0;
  }
  /// For worths that fall continuously without changing their order: what all ratings of a branch
  /// have changed by. Compared across branches only.
  [[nodiscard]] virtual double LogDrift(std::uint32_t branch, TimePoint now) const noexcept {
    (void)branch, (void)now;
    return 0;
  }
  [[nodiscard]] virtual std::uint64_t MemoryBytes() const noexcept { return 0; }
};

/// The claimant's class; critical_path counts as kCritical.
[[nodiscard]] constexpr Priority EffectivePriority(const Claimant& claimant) noexcept {
  return claimant.critical_path ? Priority::kCritical : claimant.priority;
}

/// log of the factor by which the effective priority multiplies worth: 4 for each class above
/// kNormal, 1/4 for kBackground.
[[nodiscard]] TIDEPOOL_EXPORT double LogPriority(const Claimant& claimant) noexcept;

/// The first of log(C), C = seconds to get the tail back: recomputed, or loaded if that is less and
/// a copy remains. 0 when the signals' cost model is unknown.
[[nodiscard]] TIDEPOOL_EXPORT double LogSecondsToRestore(const Tail& tail,
                                                         const SchedulingSignals& signals) noexcept;

[[nodiscard]] TIDEPOOL_EXPORT std::unique_ptr<EvictionPolicy> MakeRankedPolicy(
    std::string_view name, std::unique_ptr<SessionScorer> scorer);

}  // namespace tidepool
