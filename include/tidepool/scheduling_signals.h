// tidepool/scheduling_signals.h - the one struct that allocator, index, policies and migrator read.
//
// A SchedulingSignals is an immutable, versioned snapshot, made at each Poll and each admission and
// passed by const&; every decision records the version it saw. Sessions' fields are written by the
// engine (E) through Pause, UpdateExpectedReturn and CompleteSession, or measured by the library
// (L). Any value is tolerated: NaN means unknown, past or infinite return times and zero or
// negative bandwidths are legal (readers say what they make of them). docs/signals.md lists field,
// unit, writer and readers.
//
// Thread contract: scheduler thread only; a snapshot's spans live until the next Poll or Admit.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "tidepool/clock.h"
#include "tidepool/types.h"

namespace tidepool {

enum class SessionState : std::uint8_t {
  kRunning,
  kWaitingTool,
  kWaitingUser,
  kWaitingNetwork,
  kWaitingCapacity,
  kCompleted,
};

/// What an idle session waits for; the strongest predictor of when it returns.
enum class WaitClass : std::uint8_t { kUnknown, kTool, kUser, kNetwork, kCapacity };

/// The state of a session that waits for this; unknown counts as a user.
[[nodiscard]] constexpr SessionState WaitingFor(WaitClass wait) noexcept {
  switch (wait) {
    case WaitClass::kTool:
      return SessionState::kWaitingTool;
    case WaitClass::kNetwork:
      return SessionState::kWaitingNetwork;
    case WaitClass::kCapacity:
      return SessionState::kWaitingCapacity;
    default:
      return SessionState::kWaitingUser;
  }
}

struct SessionSignals {
  SessionId session;                            ///< E: the engine's name
  std::uint32_t turn = 0;                       ///< L: admissions so far
  SessionState state = SessionState::kRunning;  ///< E/L
  WaitClass wait_class = WaitClass::kUnknown;   ///< E: Pause
  std::uint32_t tool = 0;                       ///< E: tool id, 0 = none
  TimePoint idle_since{};                       ///< L: when the last hold left
  TimePoint expected_return = kNever;           ///< E: absolute; kNever = unknown
  /// E: standard deviation of log(return - now); NaN = the engine does not say.
  float expected_return_log_sd = std::numeric_limits<float>::quiet_NaN();
  Priority priority = Priority::kNormal;  ///< E
  bool critical_path = false;             ///< E: somebody waits for this session's result
  PrefixHash prefix_hash;                 ///< L: digest of its deepest published block
  BlockId deepest;                        ///< L: that block, when it was claimed; may have left
  std::uint32_t blocks = 0;               ///< L: published blocks it claims
};

struct TierSignals {
  std::uint32_t slots = 0;       ///< L: usable slots
  std::uint32_t used = 0;        ///< L: slots that hold or receive a copy
  std::uint32_t evictable = 0;   ///< L: residents that nothing protects
  std::uint32_t clean = 0;       ///< L: of those, with a valid copy one tier down
  std::uint32_t in_flight = 0;   ///< L: slots that a transfer reads or writes
  std::uint32_t demanded = 0;    ///< L: slots the demand ledger still waits for
  double forecast_per_s = 0;     ///< L: slots admitted per second, smoothed
  std::uint64_t slot_bytes = 0;  ///< L: bytes of one slot in this tier's format
};

/// One direction between two adjacent places.
struct LinkSignals {
  TierIndex from = 0;
  TierIndex to = 0;
  double bytes_per_second = 0;     ///< L: smoothed while busy; the tier's prior until measured
  Duration latency{0};             ///< L: smoothed submit-to-complete of one block
  std::uint64_t queued_bytes = 0;  ///< L: submitted, not terminal
  double migration_share = 1.0;    ///< E/L: share of the link free for background copies
};

/// Cost of computing one block of tokens whose first token stands at `position`:
/// seconds = c0 + c1 * position. Both zero means unknown: never prefer recompute.
struct CostModel {
  double c0_seconds = 0;
  double c1_seconds_per_token = 0;
  [[nodiscard]] constexpr bool known() const noexcept { return c0_seconds > 0; }
  [[nodiscard]] constexpr double BlockSeconds(std::uint64_t position) const noexcept {
    return c0_seconds + c1_seconds_per_token * static_cast<double>(position);
  }
};

struct SchedulingSignals {
  std::uint64_t version = 0;  ///< grows by one with each snapshot
  TimePoint now{};
  std::span<const SessionSignals> sessions;  ///< dense by the library's session index
  std::span<const TierSignals> tiers;        ///< by TierIndex
  std::span<const LinkSignals> links;        ///< each ordered pair that transfers can use
  std::uint64_t block_bytes = 0;             ///< bytes of a block in the layout's own format
  std::uint32_t block_tokens = 0;
  CostModel recompute;
};

}  // namespace tidepool
