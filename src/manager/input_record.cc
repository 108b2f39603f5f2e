#include "src/manager/input_record.h"

#include <array>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "src/str_cat.h"

namespace tidepool::internal {
namespace {

constexpr std::string_view kMagic = "tidelog\x01";  // the last byte is the version
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kCheckBytes = 4;
constexpr std::array<std::string_view, 13> kKindNames = {
    "record 0",    "header",    "call",         "released handles", "submitted copies",
    "completions", "bandwidth", "queued bytes", "estimate",         "mapped namespace",
    "decisions",   "end",       "stored blocks"};

std::uint32_t ReadU32(std::span<const std::byte> bytes) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

Status Damaged(std::uint64_t offset, std::string_view what) {
  return absl::DataLossError(StrCat("input log: offset ", offset, ": ", what));
}

}  // namespace

std::string_view ToString(RecordKind kind) noexcept {
  const auto i = static_cast<std::size_t>(kind);
  return i < kKindNames.size() ? kKindNames[i] : "unknown record";
}

void RecordWriter::Begin() { sink_->Append(std::as_bytes(std::span(kMagic))); }

void RecordWriter::Finish() {
  const auto body = std::span(record_).subspan(kLengthBytes);
  const auto length = static_cast<std::uint32_t>(body.size());
  check_ = XXH3_64bits_withSeed(body.data(), body.size(), check_);
  std::memcpy(record_.data(), &length, kLengthBytes);
  const auto check = static_cast<std::uint32_t>(check_);
  const auto* const bytes = reinterpret_cast<const std::byte*>(&check);
  record_.insert(record_.end(), bytes, bytes + kCheckBytes);
  sink_->Append(record_);
}

StatusOr<std::vector<Record>> ReadRecords(std::span<const std::byte> log) {
  const auto magic = std::as_bytes(std::span(kMagic));
  if (log.size() < magic.size() || std::memcmp(log.data(), magic.data(), magic.size()) != 0) {
    return Damaged(0, "not an input log of this version");
  }
  std::vector<Record> records;
  std::uint64_t check = 0;
  for (std::uint64_t at = magic.size(); at < log.size();) {
    const auto rest = log.subspan(at);
    const std::uint64_t length = rest.size() < kLengthBytes ? 0 : ReadU32(rest);
    const std::uint64_t whole = kLengthBytes + length + kCheckBytes;
    if (length == 0 || whole > rest.size()) {
      return Damaged(at, StrCat("a record of ", whole, " bytes, ", rest.size(), " are left"));
    }
    const auto body = rest.subspan(kLengthBytes, length);
    check = XXH3_64bits_withSeed(body.data(), body.size(), check);
    if (ReadU32(rest.subspan(kLengthBytes + length)) != static_cast<std::uint32_t>(check)) {
      return Damaged(at, "the record's check is wrong");
    }
    records.push_back({static_cast<RecordKind>(body[0]), at, body.subspan(1)});
    at += whole;
  }
  return records;
}

}  // namespace tidepool::internal
