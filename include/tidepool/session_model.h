// tidepool/session_model.h - what is known about when sessions come back: the estimators of
// estimators.h, fed by session events, and one state a session.
//
// One model serves all policies and the planner of a manager: make it with std::make_shared and
// hand it to each. Every policy may report every event; repeats are recognised and ignored.
//
// A wait is described by its class (tool, user, other), by whether it is the session's first, and
// by the tool once 200 of its waits are known. Each of these has a GapTable that shrinks to the
// next more general one, the most general to built-in tables. Ages are divided by the session's
// time scale theta. A hint (an expected return) is mixed in as a lognormal whose weight is
// 0.95 / (1 + log_sd^2); as the hinted time passes without a return, Bayes' rule takes the weight
// away again.
//
// Thread contract: scheduler thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tidepool/clock.h"
#include "tidepool/estimators.h"
#include "tidepool/export.h"
#include "tidepool/scheduling_signals.h"
#include "tidepool/status.h"
#include "tidepool/types.h"

namespace tidepool {

/// A prospect of return that holds until the wait has come to the next bin.
struct Outlook {
  double value = 0;          ///< see the call that returned it; finite, >= 0
  TimePoint until = kNever;  ///< ask again then
};

class TIDEPOOL_EXPORT SessionModel {
 public:
  struct Options {
    bool time_scales = true;  ///< per session; false: all sessions are alike
    bool first_turns = true;  ///< a session's first wait has a table of its own
    /// A session that has not returned for so long (and for four times the 99th percentile of its
    /// class's waits) counts as ended.
    Duration give_up = std::chrono::hours(1);
  };
  SessionModel();
  explicit SessionModel(const Options& options);
  ~SessionModel();
  SessionModel(const SessionModel&) = delete;
  SessionModel& operator=(const SessionModel&) = delete;

  /// What EvictionPolicy::OnSession reports. A time before the session's last event is ignored and
  /// counted.
  void OnSession(const SessionSignals& session, TimePoint now) noexcept;

  // A session that is unknown or runs has the outlook of one that began to wait just now, of class
  // "other"; one that has completed has none (0, kNever); one that waits for capacity is back
  // (an index of 1e9, a probability of 1).

  /// Best-horizon index, per second: max over H of P(return within H | age) / E[min(residual, H)].
  [[nodiscard]] Outlook BestHorizon(SessionId session, TimePoint now) const noexcept;
  /// P(return within `horizon` | age).
  [[nodiscard]] Outlook Within(SessionId session, Duration horizon, TimePoint now) const noexcept;
  /// BestHorizon of what no session claims: a wait of class "other" since `since`.
  [[nodiscard]] Outlook BestHorizonOfOthers(TimePoint since, TimePoint now) const noexcept;
  /// P(the wait ends within `horizon` of its beginning), and the median of such waits.
  [[nodiscard]] double WithinFromStart(WaitClass wait, std::uint32_t tool,
                                       Duration horizon) const noexcept;
  [[nodiscard]] double MedianWaitSeconds(WaitClass wait) const noexcept;

  /// The session's average gap, EMA with weight 3/10 (UNISON), in seconds; 0 = none yet.
  [[nodiscard]] double AverageGapSeconds(SessionId session) const noexcept;
  [[nodiscard]] std::uint32_t Turn(SessionId session) const noexcept;
  [[nodiscard]] double Theta(SessionId session) const noexcept;
  [[nodiscard]] const TurnHazard& turn_hazard() const noexcept;
  /// Waits that ended with a return. Below 200 the model is mostly its built-in tables.
  [[nodiscard]] double returns() const noexcept;
  [[nodiscard]] bool confident() const noexcept { return returns() >= 200; }
  /// Events that could not be used: out of order, or nonsense.
  [[nodiscard]] std::uint64_t ignored() const noexcept;
  [[nodiscard]] std::uint32_t sessions() const noexcept;

  // --- Learned tables; the sessions themselves are not part of them. ---
  /// Text, version 1; docs/policies/session_model.md.
  [[nodiscard]] std::string Save() const;
  /// Replaces what was learned. On an error, which names the line, nothing changes.
  [[nodiscard]] Status Load(std::string_view saved);
  /// Adds what another instance has learned.
  [[nodiscard]] Status Merge(std::string_view saved);
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool
