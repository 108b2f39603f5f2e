// agent_replay/options.h - the command line. Errors name the option and the value.
//
// Thread contract: plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "replay.h"
#include "tidepool/status.h"
#include "trace.h"

namespace agent_replay {

/// Capacity of a tier: blocks, bytes (with a unit) or a share of the trace's distinct blocks.
struct SizeSpec {
  enum class Unit : std::uint8_t { kBlocks, kBytes, kPercent };
  Unit unit = Unit::kPercent;
  double value = 0;
  [[nodiscard]] bool none() const { return value == 0; }
};

struct CommandLine {
  bool help = false;
  bool quiet = false;
  std::string trace_path;        ///< empty: the generator
  std::string write_trace_path;  ///< empty: not written
  std::string json_path;         ///< empty: not written
  std::string trace_out_path;    ///< empty: not written
  std::uint32_t trace_out_mib = 200;
  std::string preset = "coding";  ///< of the generator
  double between_sd = 0;          ///< of the preset autonomous
  std::uint32_t sessions = 20;    ///< of the generator
  std::uint64_t seed = 1;
  double start_gap_s = 60;
  SizeSpec hbm{SizeSpec::Unit::kPercent, 10};
  SizeSpec dram{SizeSpec::Unit::kPercent, 20};
  SizeSpec nvme{SizeSpec::Unit::kPercent, 70};
  std::uint64_t block_bytes = 4096;
  std::uint32_t block_tokens = 0;  ///< 0: as the trace says
  std::string nvme_path;           ///< empty: a file in the temporary directory, removed afterwards
  bool keep = false;               ///< what the file has is used again
  std::string policy = "lru";
  double time_scale = 0;  ///< 0: time jumps
  FileBackend io = FileBackend::kThreads;
  Pace pace = Pace::kOverlapping;
  Verification verification = Verification::kOn;
};

std::string_view UsageText();
tidepool::StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments);

/// "10%", "4096" (blocks), "512MiB", "2GB".
tidepool::StatusOr<SizeSpec> ParseSize(std::string_view option, std::string_view text);

/// Sizes in blocks for this trace, checked.
tidepool::StatusOr<ReplayOptions> MakeReplayOptions(const CommandLine& command_line,
                                                    const Trace& trace);

}  // namespace agent_replay
