// tidepool/input_log.h - a record of all that a manager's decisions depend on: calls with their
// arguments and their time, what the transfer engine answered, handles that other threads dropped.
// A run repeated from it takes the same decisions; where it does not, the report says at which
// record. docs/determinism.md has the format, the cost, and what is not recorded.
//
//   InputLogBuffer log;                     // or a sink of your own: a file, a ring, a socket
//   options.input_log = &log;
//   auto manager = KvCacheManager::Create(std::move(options));
//   ...
//   StatusOr<ReplayReport> report = ReplayInputLog(log.bytes(), SameOptions());
//   if (report.ok() && !report->agrees) std::puts(report->divergence.c_str());
//
// Thread contract: a log is written on its manager's scheduler thread; ReplayInputLog runs a
// manager of its own on the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tidepool/export.h"
#include "tidepool/status.h"

namespace tidepool {

struct ManagerOptions;

/// Where the bytes go.
class TIDEPOOL_EXPORT InputLog {
 public:
  virtual ~InputLog() = default;
  /// The next bytes of the log: one whole record, at the time of what it records. A call is
  /// recorded before it is carried out. Must not call back into the manager.
  virtual void Append(std::span<const std::byte> bytes) noexcept = 0;
};

/// Keeps the log in memory.
class InputLogBuffer final : public InputLog {
 public:
  void Append(std::span<const std::byte> bytes) noexcept override {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

struct ReplayReport {
  bool agrees = false;              ///< all decisions, and all questions to the engine, as recorded
  bool complete = false;            ///< the log goes on to the end of its manager
  std::uint64_t calls = 0;          ///< repeated
  std::uint64_t polls = 0;          ///< of those
  std::uint64_t decision_hash = 0;  ///< of the repeated run, where it ended
  // If they do not agree: the first record that is not as this run would have it.
  std::uint64_t record = 0;  ///< number, from 0
  std::uint64_t offset = 0;  ///< in the log, bytes
  std::string divergence;    ///< both in words: what was expected and what came
};

/// Repeats a logged run with a manager made from `options`, whose engine, clock, namespace map and
/// log are not used: their part is played by the log, and no payload moves. Policies, migrator and
/// session models must be made anew, in the state that they had when the log began. An observer may
/// be given: it hears the repeated run.
/// Errors: kDataLoss names the offset of the first damaged byte range; kFailedPrecondition names
/// the option that is not as it was; what Create says of `options`.
TIDEPOOL_EXPORT StatusOr<ReplayReport> ReplayInputLog(std::span<const std::byte> log,
                                                      ManagerOptions options);

}  // namespace tidepool
