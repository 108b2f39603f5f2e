// tidepool/status.h - how the library reports failure. Two kinds, by path:
//
//   control path (create, register, resize):  Status / StatusOr with a message naming the value;
//   block path (admit, append, commit, ...):  the Outcome enum, no allocation.
//
// Nothing throws and nothing aborts because of its input. This is the only public header that
// names absl. Thread contract: plain values.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tidepool/export.h"

namespace tidepool {

using Status = absl::Status;
template <typename T>
using StatusOr = absl::StatusOr<T>;

/// Result of an operation on the block path. Anything but kOk and kGranted-like success leaves
/// state as it was.
enum class Outcome : std::uint8_t {
  kOk = 0,
  kBusy,               ///< does not fit now; the shortfall is in the demand ledger
  kNeverFits,          ///< larger than the tier, the quota's hard cap or the table; do not retry
  kInvalidArgument,    ///< a parameter is out of its range (see the method)
  kUnknownHandle,      ///< empty or moved-from handle
  kStaleHandle,        ///< the sequence behind the handle has finished
  kManagerGone,        ///< the manager was destroyed before the handle
  kUnknownNamespace,   ///< never registered, or dropped
  kUnknownSession,     ///< no such session
  kAlreadyPaused,      ///< Pause on a paused sequence
  kNotPaused,          ///< Resume on a running sequence
  kPaused,             ///< operation needs a running sequence
  kBeyondLength,       ///< commit, truncate or drop past the sequence's tokens
  kNotMonotonic,       ///< commit below what was committed, or a fence before an earlier one
  kStillLoading,       ///< commit past tokens whose blocks are still being onboarded
  kLoadFailed,         ///< a load failed; the sequence was cut back to its valid tokens
  kAlreadyResident,    ///< load of a block that HBM already has
  kNotFound,           ///< nothing published for these tokens
  kIllegalTransition,  ///< the phase table has no such edge
  kPending,            ///< not yet: loads in flight, or a fence that has not passed
};

/// Stable lower-case name, for logs and tests.
TIDEPOOL_EXPORT std::string_view ToString(Outcome outcome) noexcept;

}  // namespace tidepool
