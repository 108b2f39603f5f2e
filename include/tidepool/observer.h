// tidepool/observer.h - what an engine may watch. All hooks are optional and must not call back
// into the manager.
//
// Thread contract: hooks run on the scheduler thread, except OnLog, which may come from a worker.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tidepool/clock.h"
#include "tidepool/lifecycle.h"
#include "tidepool/types.h"

namespace tidepool {

enum class TransferResult : std::uint8_t { kOk, kFailed, kCancelled, kTimedOut, kNoSpace };
enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

struct TransitionEvent {
  TimePoint time;
  std::span<const BlockId> blocks;
  Phase from;
  Phase to;
  Cause cause;
  std::uint64_t signals_version;
};

struct TransferEvent {
  TimePoint time;
  TransferId id;
  BlockId block;
  TierIndex from;
  TierIndex to;
  std::uint64_t bytes;
  TransferResult result;  ///< meaningful in OnTransferEnd only
};

class TIDEPOOL_EXPORT Observer {
 public:
  virtual ~Observer() = default;
  /// Once per span of blocks that took the same edge together.
  virtual void OnTransition(const TransitionEvent&) noexcept {}
  virtual void OnTransferStart(const TransferEvent&) noexcept {}
  virtual void OnTransferEnd(const TransferEvent&) noexcept {}
  virtual void OnLog(LogLevel, std::string_view) noexcept {}
};

}  // namespace tidepool
