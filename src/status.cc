#include "tidepool/status.h"

namespace tidepool {

std::string_view ToString(Outcome outcome) noexcept {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kBusy:
      return "busy";
    case Outcome::kNeverFits:
      return "never fits";
    case Outcome::kInvalidArgument:
      return "invalid argument";
    case Outcome::kUnknownHandle:
      return "unknown handle";
    case Outcome::kStaleHandle:
      return "stale handle";
    case Outcome::kManagerGone:
      return "manager gone";
    case Outcome::kUnknownNamespace:
      return "unknown namespace";
    case Outcome::kUnknownSession:
      return "unknown session";
    case Outcome::kAlreadyPaused:
      return "already paused";
    case Outcome::kNotPaused:
      return "not paused";
    case Outcome::kPaused:
      return "paused";
    case Outcome::kBeyondLength:
      return "beyond length";
    case Outcome::kNotMonotonic:
      return "not monotonic";
    case Outcome::kStillLoading:
      return "still loading";
    case Outcome::kLoadFailed:
      return "load failed";
    case Outcome::kAlreadyResident:
      return "already resident";
    case Outcome::kNotFound:
      return "not found";
    case Outcome::kIllegalTransition:
      return "illegal transition";
    case Outcome::kPending:
      return "pending";
  }
  return "unknown outcome";
}

}  // namespace tidepool
