// What a manager with an input log writes into it. Calls come from calls.h; the engine and the
// namespace map are wrapped, so that whatever they answer is on record wherever it is asked for.
// Thread contract: scheduler thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "src/manager/input_record.h"

namespace tidepool::internal {

class InputRecorder {
 public:
  using NamespaceMap = std::function<NamespaceId(NamespaceId)>;

  explicit InputRecorder(InputLog* sink) : writer_(sink) {}

  [[nodiscard]] std::unique_ptr<TransferEngine> Wrap(std::unique_ptr<TransferEngine> engine);
  [[nodiscard]] NamespaceMap Wrap(NamespaceMap map);

  /// Begins the log.
  void Header(TimePoint now, const std::vector<std::string>& fingerprint);
  template <typename... T>
  void BeginCall(std::uint8_t call, TimePoint now, const T&... arguments) {
    writer_.Write(RecordKind::kCall, call, now, arguments...);
  }
  /// `mark`: even if nothing was decided.
  void EndCall(bool mark, std::uint64_t decision_hash);
  void Released(const std::vector<SequenceRef>& handles) {
    writer_.Write(RecordKind::kReleased, handles);
  }
  void End(std::uint64_t decision_hash) {
    if (begun_) writer_.Write(RecordKind::kEnd, decision_hash);
  }

 private:
  RecordWriter writer_;
  std::uint64_t written_hash_ = 0;
  bool begun_ = false;
};

}  // namespace tidepool::internal
