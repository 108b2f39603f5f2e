// How facade and handles reach the core: Call<&ManagerCore::Admit>(core, request). Each call
// happens at one instant, and is recorded first if there is an input log. A call that is not in the
// list below does not compile.
// Thread contract: scheduler thread only.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "src/manager/core.h"
#include "src/manager/input_recorder.h"

namespace tidepool::internal {

template <auto kMethod>
struct LoggedCall {
  std::string_view name;
};

/// All calls on which decisions depend, numbered as they stand here: append only. A new one gets a
/// line, and its arguments fields in input_codec.h.
inline constexpr std::tuple kCalls{
    LoggedCall<&ManagerCore::RegisterNamespace>{"RegisterNamespace"},
    LoggedCall<&ManagerCore::SetQuota>{"SetQuota"},
    LoggedCall<&ManagerCore::DropNamespace>{"DropNamespace"},
    LoggedCall<&ManagerCore::AdvanceEpoch>{"AdvanceEpoch"},
    LoggedCall<&ManagerCore::Clear>{"Clear"},
    LoggedCall<&ManagerCore::Probe>{"Probe"},
    LoggedCall<&ManagerCore::Admit>{"Admit"},
    LoggedCall<&ManagerCore::CancelDemand>{"CancelDemand"},
    LoggedCall<&ManagerCore::CompleteStep>{"CompleteStep"},
    LoggedCall<&ManagerCore::Poll>{"Poll"},
    LoggedCall<&ManagerCore::DrainStepWork>{"DrainStepWork"},
    LoggedCall<&ManagerCore::UpdateExpectedReturn>{"UpdateExpectedReturn"},
    LoggedCall<&ManagerCore::SessionArrived>{"SessionArrived"},
    LoggedCall<&ManagerCore::CompleteSession>{"CompleteSession"},
    LoggedCall<&ManagerCore::PlanReclaim>{"PlanReclaim"},
    LoggedCall<&ManagerCore::Evict>{"Evict"},
    LoggedCall<&ManagerCore::Offload>{"Offload"},
    LoggedCall<&ManagerCore::Onboard>{"Onboard"},
    LoggedCall<&ManagerCore::Resize>{"Resize"},
    LoggedCall<&ManagerCore::Lookup>{"Lookup"},
    LoggedCall<&ManagerCore::Append>{"Append"},
    LoggedCall<&ManagerCore::Commit>{"Commit"},
    LoggedCall<&ManagerCore::Truncate>{"Truncate"},
    LoggedCall<&ManagerCore::Fork>{"Fork"},
    LoggedCall<&ManagerCore::DropLeading>{"DropLeading"},
    LoggedCall<&ManagerCore::Pause>{"Pause"},
    LoggedCall<&ManagerCore::Resume>{"Resume"},
    LoggedCall<&ManagerCore::Preempt>{"Preempt"},
    LoggedCall<&ManagerCore::Finish>{"Finish"},
    LoggedCall<&ManagerCore::Ready>{"Ready"},
    LoggedCall<&ManagerCore::SetLinkLimit>{"SetLinkLimit"},
    LoggedCall<&ManagerCore::TakeLoads>{"TakeLoads"},
    LoggedCall<&ManagerCore::CommitTaken>{"CommitTaken"},
    LoggedCall<&ManagerCore::PlanReclaimFor>{"PlanReclaim"},
};

/// The place of a method in the list; its length if it is not there.
template <auto kMethod>
consteval std::uint8_t CallNumber() {
  return []<typename... C>(const std::tuple<C...>&) {
    std::uint8_t n = 0;
    (void)((std::is_same_v<C, LoggedCall<kMethod>> || (++n, false)) || ...);
    return n;
  }(kCalls);
}

// How an argument is recorded: a sequence by its handle, an answer's place not at all.
inline SequenceRef Recorded(const SequenceData& seq) { return {seq.index, seq.generation}; }
struct NoRecord {};
void Fields(auto&, Same<NoRecord> auto&) {}
inline NoRecord Recorded(const StepWork&) { return {}; }
inline NoRecord Recorded(const std::vector<BlockId>&) { return {}; }
template <typename T>
const T& Recorded(const T& argument) {
  return argument;
}

/// What every call begins and ends with.
class CallScope {
 public:
  CallScope(ManagerCore& core, bool mark) : core_(core), mark_(mark) { core.BeginCall(); }
  ~CallScope() {
    if (core_.recorder() != nullptr) core_.recorder()->EndCall(mark_, core_.decision_hash());
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  ManagerCore& core_;
  bool mark_;
};

template <auto kMethod, typename... Args>
decltype(auto) Call(ManagerCore& core, Args&&... args) {
  constexpr std::uint8_t kNumber = CallNumber<kMethod>();
  static_assert(kNumber < std::tuple_size_v<decltype(kCalls)>, "add the call to kCalls");
  using Result = decltype((core.*kMethod)(std::forward<Args>(args)...));
  const CallScope scope(core, kNumber == CallNumber<&ManagerCore::Poll>());
  if (InputRecorder* const recorder = core.recorder(); recorder != nullptr) {
    recorder->BeginCall(kNumber, core.Now(), Recorded(args)...);
  }
  if constexpr (std::is_same_v<Result, Admission> || std::is_same_v<Result, TakenLoads>) {
    Result result = (core.*kMethod)(std::forward<Args>(args)...);
    core.NoteResult(result);
    return result;
  } else {
    return (core.*kMethod)(std::forward<Args>(args)...);
  }
}

}  // namespace tidepool::internal
