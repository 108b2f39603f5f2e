#include "options.h"

#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "payload.h"

namespace agent_replay {
namespace {

using tidepool::Status;
using tidepool::StatusOr;

constexpr std::string_view kUsage =
    R"(agent_replay: replays coding-agent sessions through tidepool, checking every reused byte.

usage: agent_replay [options]

what is replayed
  --trace FILE         ttrace v1 or Mooncake JSONL (told by content); default: built-in generator
  --preset coding|autonomous|chat   what is generated (coding)
  --between-sd X       log-sd of the time scale between sessions, preset autonomous (0)
  --sessions N         sessions to generate (20)
  --seed N             of the generator, the start offsets and the payloads (1)
  --start-gap SECONDS  mean of the Poisson starts of sessions, or of a trace's scopes (60)
  --write-trace FILE   write what is replayed as ttrace v1

tiers: blocks (4096), bytes (512MiB, 2GB) or a share of the trace's distinct blocks (10%)
  --hbm SIZE           memory that stands for a GPU's (10%)
  --dram SIZE          0 = no such tier (20%)
  --nvme SIZE          a file; 0 = no such tier (70%)
  --nvme-path FILE     overwritten, and kept (default: a temporary file, removed at the end)
  --keep               what is in that file already is used again; needs --nvme-path
  --io threads|uring   how the file is read and written (threads)
  --block-bytes N      payload of a block, a multiple of 8 (4096)
  --block-tokens N     tokens of a block, 4 to 4096 (as the trace says: 64 or 512)
  --policy P           what leaves a tier first: lru or spear; lru@tide or spear@tide copies ahead
                       of need as well (lru)

how
  --time-scale X       time passes as in the trace, X times as fast (it jumps from event to event)
  --lockstep           one turn at a time, all transfers drained in between
  --verify yes|no      write and compare payloads (yes)
  --json FILE          all results for machines
  --trace-out FILE     copies, turns, waits and occupancy over time, for ui.perfetto.dev
  --trace-out-mib N    what is left out of it beyond that size (200)
  --quiet              no progress bar, no table
  --help

exit status: 0, 1 (mismatch, or the replay could not go on), 2 (arguments, trace, disk)
)";

Status BadValue(std::string_view option, std::string_view value, std::string_view allowed) {
  std::string message(option);
  message += " \"";
  message += value.substr(0, 60);
  message += "\": ";
  message += allowed;
  return absl::InvalidArgumentError(message);
}

template <typename T>
StatusOr<T> ParseNumber(std::string_view option, std::string_view text, T min, T max) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() ||
      !(value >= min && value <= max)) {
    return BadValue(option, text,
                    "expected a number from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return value;
}

/// Index of `value` among the choices.
StatusOr<std::size_t> ParseChoice(std::string_view option, std::string_view value,
                                  std::span<const std::string_view> choices) {
  std::string allowed = "expected";
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (value == choices[i]) return i;
    (allowed += i == 0 ? " " : " or ") += choices[i];
  }
  return BadValue(option, value, allowed);
}

/// Sets `to` from a StatusOr, or passes the error on.
template <typename T, typename U>
Status Assign(const StatusOr<T>& from, U& to) {
  if (!from.ok()) return from.status();
  to = static_cast<U>(*from);
  return absl::OkStatus();
}

Status AssignPath(std::string_view option, std::string_view value, std::string& to) {
  if (value.empty()) return BadValue(option, value, "expected a path");
  to = value;
  return absl::OkStatus();
}

struct Option {
  std::string_view name;
  bool has_value;
  Status (*set)(std::string_view name, std::string_view value, CommandLine& c);
};

using Sv = std::string_view;
constexpr std::array<Sv, 2> kBackends = {"threads", "uring"};
constexpr std::array<Sv, 2> kYesNo = {"yes", "no"};
constexpr std::array<Sv, 4> kPolicies = {"lru", "spear", "lru@tide", "spear@tide"};
constexpr std::array<Sv, 3> kPresets = {"coding", "autonomous", "chat"};
constexpr std::uint32_t kMaxSessions = 1'000'000;
constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 30;

const Option kOptions[] = {
    {"--help", false, [](Sv, Sv, CommandLine& c) { return c.help = true, absl::OkStatus(); }},
    {"--quiet", false, [](Sv, Sv, CommandLine& c) { return c.quiet = true, absl::OkStatus(); }},
    {"--keep", false, [](Sv, Sv, CommandLine& c) { return c.keep = true, absl::OkStatus(); }},
    {"--lockstep", false,
     [](Sv, Sv, CommandLine& c) { return c.pace = Pace::kLockstep, absl::OkStatus(); }},
    {"--trace", true, [](Sv n, Sv v, CommandLine& c) { return AssignPath(n, v, c.trace_path); }},
    {"--write-trace", true,
     [](Sv n, Sv v, CommandLine& c) { return AssignPath(n, v, c.write_trace_path); }},
    {"--json", true, [](Sv n, Sv v, CommandLine& c) { return AssignPath(n, v, c.json_path); }},
    {"--trace-out", true,
     [](Sv n, Sv v, CommandLine& c) { return AssignPath(n, v, c.trace_out_path); }},
    {"--trace-out-mib", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<std::uint32_t>(n, v, 1, 65'536), c.trace_out_mib);
     }},
    {"--nvme-path", true, [](Sv n, Sv v, CommandLine& c) { return AssignPath(n, v, c.nvme_path); }},
    {"--preset", true,
     [](Sv n, Sv v, CommandLine& c) {
       if (const StatusOr<std::size_t> i = ParseChoice(n, v, kPresets); !i.ok()) return i.status();
       return AssignPath(n, v, c.preset);
     }},
    {"--between-sd", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<double>(n, v, 0, 5), c.between_sd);
     }},
    {"--sessions", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<std::uint32_t>(n, v, 1, kMaxSessions), c.sessions);
     }},
    {"--seed", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<std::uint64_t>(n, v, 0, ~std::uint64_t{0}), c.seed);
     }},
    {"--start-gap", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<double>(n, v, 0, 1e6), c.start_gap_s);
     }},
    {"--time-scale", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<double>(n, v, 1e-3, 1e6), c.time_scale);
     }},
    {"--hbm", true, [](Sv n, Sv v, CommandLine& c) { return Assign(ParseSize(n, v), c.hbm); }},
    {"--dram", true, [](Sv n, Sv v, CommandLine& c) { return Assign(ParseSize(n, v), c.dram); }},
    {"--nvme", true, [](Sv n, Sv v, CommandLine& c) { return Assign(ParseSize(n, v), c.nvme); }},
    {"--block-bytes", true,
     [](Sv n, Sv v, CommandLine& c) {
       const StatusOr<std::uint64_t> bytes = ParseNumber<std::uint64_t>(n, v, 8, kMaxBlockBytes);
       if (bytes.ok() && *bytes % 8 != 0) return BadValue(n, v, "expected a multiple of 8");
       return Assign(bytes, c.block_bytes);
     }},
    {"--block-tokens", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<std::uint32_t>(n, v, kMinBlockTokens, 4096), c.block_tokens);
     }},
    {"--policy", true,
     [](Sv n, Sv v, CommandLine& c) {
       if (const StatusOr<std::size_t> i = ParseChoice(n, v, kPolicies); !i.ok()) return i.status();
       return AssignPath(n, v, c.policy);
     }},
    {"--io", true,
     [](Sv n, Sv v, CommandLine& c) { return Assign(ParseChoice(n, v, kBackends), c.io); }},
    {"--verify", true,
     [](Sv n, Sv v, CommandLine& c) { return Assign(ParseChoice(n, v, kYesNo), c.verification); }},
};

struct UnitName {
  std::string_view suffix;
  SizeSpec::Unit unit;
  double factor;
};
constexpr UnitName kUnits[] = {
    {"KiB", SizeSpec::Unit::kBytes, 0x1p10}, {"MiB", SizeSpec::Unit::kBytes, 0x1p20},
    {"GiB", SizeSpec::Unit::kBytes, 0x1p30}, {"TiB", SizeSpec::Unit::kBytes, 0x1p40},
    {"KB", SizeSpec::Unit::kBytes, 1e3},     {"MB", SizeSpec::Unit::kBytes, 1e6},
    {"GB", SizeSpec::Unit::kBytes, 1e9},     {"TB", SizeSpec::Unit::kBytes, 1e12},
    {"B", SizeSpec::Unit::kBytes, 1},        {"%", SizeSpec::Unit::kPercent, 1},
    {"", SizeSpec::Unit::kBlocks, 1},
};

StatusOr<std::uint32_t> Blocks(std::string_view option, const SizeSpec& size, double unique,
                               std::uint64_t block_bytes) {
  double blocks = size.value;
  if (size.unit == SizeSpec::Unit::kPercent) blocks = std::ceil(unique * size.value / 100);
  if (size.unit == SizeSpec::Unit::kBytes) {
    blocks = std::floor(size.value / static_cast<double>(block_bytes));
  }
  constexpr double kMaxBlocks = 1u << 30;
  if (blocks > kMaxBlocks || (blocks < 1 && !size.none())) {
    return absl::InvalidArgumentError(std::string(option) + " is " + std::to_string(blocks) +
                                      " blocks of " + std::to_string(block_bytes) +
                                      " bytes, allowed are 1 to " +
                                      std::to_string(static_cast<std::uint32_t>(kMaxBlocks)));
  }
  return static_cast<std::uint32_t>(blocks);
}

}  // namespace

std::string_view UsageText() { return kUsage; }

StatusOr<SizeSpec> ParseSize(std::string_view option, std::string_view text) {
  for (const UnitName& unit : kUnits) {
    if (!text.ends_with(unit.suffix)) continue;
    const std::string_view digits = text.substr(0, text.size() - unit.suffix.size());
    const StatusOr<double> value = ParseNumber<double>(option, digits, 0, 1e15);
    if (!value.ok() || (unit.unit == SizeSpec::Unit::kBlocks && *value != std::floor(*value))) {
      break;
    }
    return SizeSpec{unit.unit, *value * unit.factor};
  }
  return BadValue(option, text, "expected blocks (4096), bytes (512MiB, 2GB) or a share (10%)");
}

StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments) {
  CommandLine command_line;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    const std::size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const Option* option = nullptr;
    for (const Option& candidate : kOptions) {
      if (candidate.name == name) option = &candidate;
    }
    if (option == nullptr) {
      return BadValue("option", argument, "there is no such option; --help lists them");
    }
    std::string_view value;
    if (equals != argument.npos) {
      if (!option->has_value) return BadValue(name, argument, "takes no value");
      value = argument.substr(equals + 1);
    } else if (option->has_value) {
      if (i + 1 == arguments.size()) return BadValue(name, "", "needs a value; see --help");
      value = arguments[++i];
    }
    if (Status s = option->set(name, value, command_line); !s.ok()) return s;
  }
  return command_line;
}

StatusOr<ReplayOptions> MakeReplayOptions(const CommandLine& command_line, const Trace& trace) {
  const double unique = static_cast<double>(UniqueBlocks(trace));
  ReplayOptions options;
  options.block_bytes = command_line.block_bytes;
  options.block_tokens =
      command_line.block_tokens != 0 ? command_line.block_tokens : trace.block_tokens;
  if (options.block_tokens < kMinBlockTokens) options.block_tokens = kMinBlockTokens;
  options.nvme_path = command_line.nvme_path;
  options.keep = command_line.keep;
  if (options.keep && (options.nvme_path.empty() || command_line.nvme.none())) {
    return absl::InvalidArgumentError("--keep: needs --nvme-path and an nvme tier");
  }
  options.io = command_line.io;
  options.pace = command_line.pace;
  options.verification = command_line.verification;
  options.payload_seed = command_line.seed;
  options.policy = command_line.policy.starts_with("spear") ? HbmPolicy::kSpear : HbmPolicy::kLru;
  options.tiering = command_line.policy.ends_with("@tide") ? Tiering::kTide : Tiering::kDemand;
  if (command_line.time_scale > 0) {
    if (options.pace == Pace::kLockstep) {
      return absl::InvalidArgumentError("--time-scale: --lockstep has no time; give one of them");
    }
    options.pace = Pace::kWallClock;
    options.time_scale = command_line.time_scale;
  }
  const std::pair<std::string_view, const SizeSpec*> sizes[kTiers] = {
      {"--hbm", &command_line.hbm}, {"--dram", &command_line.dram}, {"--nvme", &command_line.nvme}};
  for (std::size_t t = 0; t < kTiers; ++t) {
    const auto blocks = Blocks(sizes[t].first, *sizes[t].second, unique, command_line.block_bytes);
    if (!blocks.ok()) return blocks.status();
    options.tier_blocks[t] = *blocks;
  }
  constexpr std::uint32_t kMinHbm = 4;
  if (options.tier_blocks[0] < kMinHbm) {
    return absl::InvalidArgumentError("--hbm is " + std::to_string(options.tier_blocks[0]) +
                                      " blocks, at least " + std::to_string(kMinHbm) +
                                      " are needed");
  }
  return options;
}

}  // namespace agent_replay
