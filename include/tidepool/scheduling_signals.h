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
  std::uint32_t index = 0;                      ///< L: its place in SchedulingSignals::sessions
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

/// One direction between two places. Sampled once a Poll; admissions read the same numbers.
struct LinkSignals {
  TierIndex from = 0;
  TierIndex to = 0;
  /// L: smoothed while busy, the tier's prior until measured; at most what SetLinkLimit states.
  double bytes_per_second = 0;
  double foreground_bytes_per_second = 0;  ///< L: taken by loads, smoothed over about a second
  /// L: the rate while the opposite direction is busy too over the rate without; 1 until seen.
  double shared_ratio = 1;
  /// L: left for copies ahead of need: `bytes_per_second`, times `shared_ratio` while the opposite
  /// direction is busy, less the foreground's; at most what SetLinkLimit states.
  double background_bytes_per_second = 0;
  Duration latency{0};             ///< L: expected from submitting one block to its end, with queue
  Duration latency_margin{0};      ///< L: one standard deviation; half of it for a prior
  bool measured = false;           ///< L: false: latency and margin are the tier's prior
  std::uint64_t queued_bytes = 0;  ///< L: of copies that have not ended

  /// Expected until `blocks` blocks of `block_bytes` that are submitted now have been moved.
  /// Seconds; infinite if the link moves nothing.
  [[nodiscard]] double SecondsFor(std::uint64_t blocks, std::uint64_t block_bytes) const noexcept {
    if (blocks == 0) return 0;
    if (!(bytes_per_second > 0)) return std::numeric_limits<double>::infinity();
    return std::chrono::duration<double>(latency).count() +
           static_cast<double>(blocks - 1) * static_cast<double>(block_bytes) / bytes_per_second;
  }
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
