// tools/inspect_census.h - which slots of a kept file count, by docs/nvme_format.md, "What counts",
// 1 to 6: of payloads it knows nothing.
//
// Thread contract: thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "tidepool/status.h"
#include "tidepool/transfer/slot_file_reader.h"

namespace tidepool::tools {

enum class Verdict : std::uint8_t {
  kCurrent,
  kSuperseded,
  kOtherEpoch,
  kCleared,
  kDropped,
  kStateless,  ///< sound, but no state page is
  kForeign,
  kMisplaced,
  kTorn,
  kEmpty,
};
inline constexpr std::size_t kVerdicts = 10;
std::string_view ToString(Verdict verdict);
/// The header itself is not what was once written.
[[nodiscard]] constexpr bool Damaged(Verdict verdict) {
  return verdict == Verdict::kForeign || verdict == Verdict::kMisplaced ||
         verdict == Verdict::kTorn;
}

struct Census {
  struct Namespace {
    std::uint64_t blocks = 0;
    std::uint64_t least_generation = UINT64_MAX;
    std::uint64_t largest_generation = 0;
    std::uint32_t deepest_position = 0;
  };

  /// Two passes over the headers. In a live file they may differ a little.
  static StatusOr<Census> Take(SlotFileReader& reader);

  [[nodiscard]] Verdict Judge(const SlotFileReader::Entry& entry) const;
  [[nodiscard]] std::uint64_t count(Verdict verdict) const {
    return counts[static_cast<std::size_t>(verdict)];
  }

  std::array<std::uint64_t, kVerdicts> counts = {};
  std::map<PrefixHash, Namespace> namespaces;  ///< by root; of current slots

 private:
  struct Best {
    std::uint64_t generation = 0;
    std::uint32_t slot = 0;
  };
  struct HashOf {
    std::size_t operator()(const PrefixHash& hash) const { return hash.low ^ hash.high; }
  };
  void Consider(const SlotFileReader::Entry& entry);
  void Count(const SlotFileReader::Entry& entry);

  StatusOr<SlotFileState> state_;
  absl::flat_hash_map<PrefixHash, Best, HashOf> best_;
};

}  // namespace tidepool::tools
