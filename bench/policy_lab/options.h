// policy_lab/options.h - the command line. Errors name the option and the value.
//
// Thread contract: plain values.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "settings.h"
#include "tidepool/status.h"

namespace policy_lab {

struct CommandLine {
  bool help = false;
  bool quiet = false;
  bool halves = false;  ///< --halves was given
  Settings settings;
  std::string refs_path;  ///< a flat reference stream instead of a trace
  std::string csv_path, json_path, html_path;
};

std::string UsageText();
/// Checks each value, and that together they make a run.
tidepool::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments);

}  // namespace policy_lab
