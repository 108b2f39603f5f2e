// tools/inspect.h - the commands of tidepool-inspect, and what they share.
//
// Thread contract: single-threaded.
#pragma once

#include <cstdint>
#include <string>

#include "tidepool/status.h"
#include "tidepool/transfer/slot_file_reader.h"
#include "tidepool/types.h"

namespace tidepool::tools {

struct InspectOptions {
  std::string command;
  std::string path;
  bool json = false;
  bool tokens = false;
};

/// Exit statuses.
inline constexpr int kAllMatches = 0;
inline constexpr int kMismatch = 1;
inline constexpr int kCannotTell = 2;

/// They print to stdout and return an exit status, or why the file cannot be read.
StatusOr<int> List(SlotFileReader& reader, const InspectOptions& options);
StatusOr<int> Verify(SlotFileReader& reader, const InspectOptions& options);
StatusOr<int> Stats(SlotFileReader& reader, const InspectOptions& options);

std::string Hex(std::uint64_t value);
std::string Hex(const PrefixHash& hash);
/// Of state page 0 or 1: "sequence 4", or what is wrong with it.
std::string StatePageText(const SlotFileReader& reader, std::uint32_t index);
/// Or never written.
bool StatePageSound(const SlotFileReader& reader, std::uint32_t index);

}  // namespace tidepool::tools
