#include "tidepool/lifecycle.h"

namespace tidepool {

std::string_view ToString(Phase phase) noexcept {
  switch (phase) {
    case Phase::kFree:
      return "free";
    case Phase::kAllocated:
      return "allocated";
    case Phase::kActive:
      return "active";
    case Phase::kIdle:
      return "idle";
    case Phase::kCandidate:
      return "candidate";
    case Phase::kOffloaded:
      return "offloaded";
    case Phase::kReuse:
      return "reuse";
  }
  return "unknown phase";
}

std::string_view ToString(Cause cause) noexcept {
  switch (cause) {
    case Cause::kReserve:
      return "reserve";
    case Cause::kCommit:
      return "commit";
    case Cause::kMatch:
      return "match";
    case Cause::kOnboard:
      return "onboard";
    case Cause::kReady:
      return "ready";
    case Cause::kRelease:
      return "release";
    case Cause::kCancel:
      return "cancel";
    case Cause::kSelectVictim:
      return "select victim";
    case Cause::kReprieve:
      return "reprieve";
    case Cause::kEvict:
      return "evict";
    case Cause::kOffload:
      return "offload";
    case Cause::kDrop:
      return "drop";
    case Cause::kAbandon:
      return "abandon";
    case Cause::kLoadFailed:
      return "load failed";
    case Cause::kInvalidate:
      return "invalidate";
    case Cause::kFound:
      return "found";
  }
  return "unknown cause";
}

}  // namespace tidepool
