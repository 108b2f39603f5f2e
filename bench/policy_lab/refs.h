// policy_lab/refs.h - policies on a flat reference stream: no prefixes, no sessions, no time, one
// tier. What outside cache simulators count, for comparison with them.
//
// Thread contract: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "settings.h"
#include "tidepool/status.h"

namespace policy_lab {

struct RefsRow {
  std::string policy;
  std::uint32_t capacity_blocks = 0;
  std::uint64_t misses = 0;
};
struct RefsResults {
  std::string name;
  std::uint64_t references = 0;
  std::uint64_t distinct = 0;
  std::vector<RefsRow> rows;
};

/// `text`: one id a line, any text without line ends; empty lines are skipped.
tidepool::StatusOr<RefsResults> RunRefs(std::string_view text, const std::string& name,
                                        const Settings& settings);
tidepool::StatusOr<RefsResults> RunRefsFile(const std::string& path, const Settings& settings);

std::string RefsTable(const RefsResults& results);
std::string RefsCsv(const RefsResults& results);
std::string RefsJson(const RefsResults& results);

}  // namespace policy_lab
