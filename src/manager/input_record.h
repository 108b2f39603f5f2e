// The input log as records: eight bytes that name the format, then for each record
//
//   u32 bytes of kind and body | u8 kind | body | u32 check
//
// where `check` covers kind and body and continues the check of the record before, so that a
// record that is changed, lost or out of order is found.
// Thread contract: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "src/manager/input_codec.h"
#include "tidepool/input_log.h"
#include "tidepool/status.h"

namespace tidepool::internal {

enum class RecordKind : std::uint8_t {
  kHeader = 1,  ///< time, fingerprint of the options: lines of text
  kCall,        ///< number, time, arguments
  kReleased,    ///< directly behind its call: handles that other threads had destroyed
  kSubmitted,   ///< copies offered, copies accepted
  kCompleted,   ///< what the engine's Poll gave
  kBandwidth,   ///< from, to, bytes per second
  kQueued,      ///< from, to, bytes
  kEstimate,    ///< from, to, time, margin, whether measured
  kMapped,      ///< namespace, what the map made of it
  kDecisions,   ///< the decision hash behind a call: a Poll, or one that has changed it
  kEnd,         ///< of the manager
  kStored,      ///< tier, what it had when it was opened
};
std::string_view ToString(RecordKind kind) noexcept;

class RecordWriter {
 public:
  explicit RecordWriter(InputLog* sink) : sink_(sink) {}
  void Begin();  ///< the name of the format
  template <typename... T>
  void Write(RecordKind kind, const T&... values) {
    record_.assign(4, std::byte{});  // its length
    Encoder encode(&record_);
    encode(kind, values...);
    Finish();
  }
  /// A record whose body is written already.
  void WriteBody(RecordKind kind, std::span<const std::byte> body) {
    record_.assign(4, std::byte{});
    record_.push_back(static_cast<std::byte>(kind));
    record_.insert(record_.end(), body.begin(), body.end());
    Finish();
  }

 private:
  void Finish();

  InputLog* sink_;
  std::vector<std::byte> record_;
  std::uint64_t check_ = 0;
};

struct Record {
  RecordKind kind = RecordKind::kEnd;
  std::uint64_t offset = 0;
  std::span<const std::byte> body;
};

/// Every record of a log, checked. kDataLoss names the offset of the first that is damaged or cut
/// off.
StatusOr<std::vector<Record>> ReadRecords(std::span<const std::byte> log);

}  // namespace tidepool::internal
