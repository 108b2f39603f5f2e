#include "options.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "policies.h"
#include "tierings.h"

namespace policy_lab {
namespace {

using tidepool::Status;
using tidepool::StatusOr;
using Sv = std::string_view;

constexpr Sv kUsage =
    R"(policy_lab: what eviction policies are worth on a trace, replayed through the real manager.

usage: policy_lab (--trace FILE | --generate PRESET | --refs FILE) --capacity-blocks N,.. [options]

what is replayed
  --trace FILE            ttrace v1 or Mooncake JSONL
  --generate PRESET       coding, autonomous or chat; another trace for each seed
  --sessions N            of the generator (200)
  --start-gap SECONDS     mean between the generator's session starts (60)
  --between-sd X          log-sd of the time scale between sessions, preset autonomous (0)
  --halves first|swapped  replays one half and trains on the other: --part and --train-part
  --part I/N              every N-th scope from the I-th; sessions if there is one scope (1/1)
  --train FILE            what predictors learn from before the run; a preset's name generates
  --train-part I/N        (1/1)
  --refs FILE             a flat stream, one block id a line: no tree, no time, one tier

how
  --mode no_hold|engine   (no_hold)
  --scope-start S         file, poisson:MEAN_SECONDS or all:0 (one scope: file, else poisson:120)
  --seed N, --seeds N     first seed and how many (1, 1)
  --capacity-blocks N,..  of HBM
  --capacity-held X,..    multiples of the mean held of an unconstrained run (engine)
  --dram-blocks N         (0: no such tier)
  --dram-times X          instead, a multiple of HBM's blocks
  --nvme-blocks N         (0)
  --link-gbs X,..         GB/s each way: DRAM, NVMe (25,3)
  --nvme-link shared|each_way   whether NVMe's is for both ways together (shared)
  --model 70b|30b_a3b     block size and costs of a model; later options change them (70b)
  --block-mb X            modelled bytes of a block (20)
  --prefill-ms X          of a 64-token block at the start of a prompt (8)
  --prefill-slope N       position in 64-token blocks at which that has doubled (835)
  --decode-ms X           per output token (25)
  --service model|trace   prefill and decoding, or the trace's server times (model)
  --policy P[@T],..       %POLICIES%; or all (lru)
                          T: %TIERINGS% (demand)
  --lower-policy P        of the tiers below HBM (as --policy)
  --hint-log-sd X         sessions say when they will be back, wrong by this log-sd (off)
  --completion on|off     the manager is told when a session has ended (off)
  --release-after S       test-only: S seconds into a wait the session's clean blocks leave HBM
  --priority normal|background   of all requests (normal)
  --jobs N                runs at a time (1)

output
  --csv FILE, --json FILE, --html FILE
  --trace-out FILE        copies, turns, waits and occupancy for ui.perfetto.dev; of a single run
  --quiet                 no table, no progress bar
  --help

exit status: 0, 1 (a run failed), 2 (arguments, trace, files)
)";

Status BadValue(Sv option, Sv value, Sv allowed) {
  std::string message(option);
  message += " \"";
  message += value.substr(0, 60);
  message += "\": ";
  message += allowed;
  return absl::InvalidArgumentError(message);
}

/// A count for messages: no trailing zeros.
std::string Plain(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

template <typename T>
StatusOr<T> ParseNumber(Sv option, Sv text, T min, T max) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() ||
      !(value >= min && value <= max)) {
    return BadValue(option, text,
                    "expected a number from " + Plain(static_cast<double>(min)) + " to " +
                        Plain(static_cast<double>(max)));
  }
  return value;
}

template <typename T, typename U>
Status Assign(const StatusOr<T>& from, U& to) {
  if (!from.ok()) return from.status();
  to = static_cast<U>(*from);
  return absl::OkStatus();
}

Status AssignText(Sv option, Sv value, std::string& to) {
  if (value.empty()) return BadValue(option, value, "expected a path");
  to = value;
  return absl::OkStatus();
}

/// Calls take(item) for each item of a comma list; an empty one is an error.
template <typename Take>
Status ForEachItem(Sv option, Sv list, Take take) {
  for (;;) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const Sv item = list.substr(0, comma);
    if (item.empty()) return BadValue(option, list, "an item of the list is empty");
    if (Status s = take(item); !s.ok()) return s;
    if (comma == list.size()) return absl::OkStatus();
    list.remove_prefix(comma + 1);
  }
}

constexpr std::uint32_t kMaxBlocks = 1u << 27;
constexpr std::uint32_t kMinBlocks = 2;

Status ParseCapacities(Sv n, Sv v, Settings& s) {
  return ForEachItem(n, v, [&](Sv item) {
    Capacity capacity;
    Status status =
        Assign(ParseNumber<std::uint32_t>(n, item, kMinBlocks, kMaxBlocks), capacity.blocks);
    if (status.ok()) s.capacities.push_back(capacity);
    return status;
  });
}

Status ParseMultiples(Sv n, Sv v, Settings& s) {
  return ForEachItem(n, v, [&](Sv item) {
    Capacity capacity;
    Status status = Assign(ParseNumber<double>(n, item, 0.01, 1000), capacity.held_multiple);
    if (status.ok()) s.capacities.push_back(capacity);
    return status;
  });
}

Status ParsePart(Sv n, Sv v, Part& part) {
  const std::size_t slash = v.find('/');
  if (slash == v.npos) return BadValue(n, v, "expected I/N, such as 1/2");
  if (Status s = Assign(ParseNumber<std::uint32_t>(n, v.substr(slash + 1), 1, 1000), part.of);
      !s.ok()) {
    return s;
  }
  return Assign(ParseNumber<std::uint32_t>(n, v.substr(0, slash), 1, part.of), part.index);
}

Status ParseStart(Sv n, Sv v, Settings& s) {
  constexpr Sv kPoisson = "poisson:";
  ScopeStart start;
  if (v == "file") {
    start.kind = StartKind::kFile;
  } else if (v == "all:0") {
    start.kind = StartKind::kTogether;
  } else if (v.starts_with(kPoisson)) {
    start.kind = StartKind::kPoisson;
    const auto mean = ParseNumber<double>(n, v.substr(kPoisson.size()), 0, 1e7);
    if (Status status = Assign(mean, start.mean_s); !status.ok()) return status;
  } else {
    return BadValue(n, v, "expected file, poisson:MEAN_SECONDS or all:0");
  }
  s.scope_start = start;
  return absl::OkStatus();
}

Status CheckPolicy(Sv n, Sv name) {
  if (FindPolicy(name) != nullptr) return absl::OkStatus();
  return BadValue(n, name, "there is no such policy; there are " + PolicyNames() + " and all");
}

Status ParsePolicies(Sv n, Sv v, Settings& s) {
  s.policies.clear();
  return ForEachItem(n, v, [&](Sv item) -> Status {
    if (item == "all") {
      for (const PolicyEntry& entry : Policies()) {
        if (!entry.variant) s.policies.emplace_back(entry.name);
      }
      return absl::OkStatus();
    }
    const System system = FindSystem(item);
    if (system.tiering == nullptr) {
      return BadValue(n, item, "there is no such tiering; there are " + TieringNames());
    }
    if (Status status = CheckPolicy(n, item.substr(0, item.find('@'))); !status.ok()) return status;
    s.policies.emplace_back(item);
    return absl::OkStatus();
  });
}

template <typename T>
Status ParseChoice(Sv n, Sv v, std::initializer_list<std::pair<Sv, T>> choices, T& to) {
  std::string allowed = "expected";
  for (const auto& [name, value] : choices) {
    if (v == name) return to = value, absl::OkStatus();
    (allowed += allowed.size() == 8 ? " " : " or ") += name;
  }
  return BadValue(n, v, allowed);
}

constexpr Sv kPresets[] = {"coding", "autonomous", "chat"};

bool IsPreset(Sv name) {
  return std::find(std::begin(kPresets), std::end(kPresets), name) != std::end(kPresets);
}

Status ParsePreset(Sv n, Sv v, Settings& s) {
  if (!IsPreset(v)) return BadValue(n, v, "expected coding, autonomous or chat");
  s.source.preset = v;
  return absl::OkStatus();
}

Status ParseTrain(Sv n, Sv v, Settings& s) {
  s.train.emplace();
  if (IsPreset(v)) return s.train->preset = v, absl::OkStatus();
  return AssignText(n, v, s.train->path);
}

Status ParseLinks(Sv n, Sv v, Settings& s) {
  s.link_gbs.clear();
  return ForEachItem(n, v, [&](Sv item) -> Status {
    const auto gbs = ParseNumber<double>(n, item, 1e-3, 1e6);
    if (!gbs.ok()) return gbs.status();
    s.link_gbs.push_back(*gbs);
    return absl::OkStatus();
  });
}

/// A number times `scale` goes where `field` says.
template <typename T>
Status Scaled(Sv n, Sv v, double max, double scale, T& to) {
  const auto value = ParseNumber<double>(n, v, 0, max);
  if (!value.ok()) return value.status();
  to = *value * scale;
  return absl::OkStatus();
}

struct Option {
  Sv name;
  bool has_value;
  Status (*set)(Sv name, Sv value, CommandLine& c);
};

template <std::uint32_t Settings::*kField>
Status SetCount(Sv n, Sv v, CommandLine& c) {
  return Assign(ParseNumber<std::uint32_t>(n, v, 0, kMaxBlocks), c.settings.*kField);
}

const Option kOptions[] = {
    {"--help", false, [](Sv, Sv, CommandLine& c) { return c.help = true, absl::OkStatus(); }},
    {"--quiet", false, [](Sv, Sv, CommandLine& c) { return c.quiet = true, absl::OkStatus(); }},
    {"--trace", true,
     [](Sv n, Sv v, CommandLine& c) { return AssignText(n, v, c.settings.source.path); }},
    {"--generate", true, [](Sv n, Sv v, CommandLine& c) { return ParsePreset(n, v, c.settings); }},
    {"--refs", true, [](Sv n, Sv v, CommandLine& c) { return AssignText(n, v, c.refs_path); }},
    {"--train", true, [](Sv n, Sv v, CommandLine& c) { return ParseTrain(n, v, c.settings); }},
    {"--csv", true, [](Sv n, Sv v, CommandLine& c) { return AssignText(n, v, c.csv_path); }},
    {"--json", true, [](Sv n, Sv v, CommandLine& c) { return AssignText(n, v, c.json_path); }},
    {"--html", true, [](Sv n, Sv v, CommandLine& c) { return AssignText(n, v, c.html_path); }},
    {"--sessions", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<std::uint32_t>(n, v, 1, 1'000'000), c.settings.source.sessions);
     }},
    {"--start-gap", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Scaled(n, v, 1e6, 1, c.settings.source.mean_start_gap_s);
     }},
    {"--between-sd", true,
     [](Sv n, Sv v, CommandLine& c) { return Scaled(n, v, 5, 1, c.settings.source.between_sd); }},
    {"--part", true, [](Sv n, Sv v, CommandLine& c) { return ParsePart(n, v, c.settings.part); }},
    {"--train-part", true,
     [](Sv n, Sv v, CommandLine& c) { return ParsePart(n, v, c.settings.train_part); }},
    {"--mode", true,
     [](Sv n, Sv v, CommandLine& c) {
       return ParseChoice<Mode>(n, v, {{"no_hold", Mode::kNoHold}, {"engine", Mode::kEngine}},
                                c.settings.mode);
     }},
    {"--scope-start", true,
     [](Sv n, Sv v, CommandLine& c) { return ParseStart(n, v, c.settings); }},
    {"--seed", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<std::uint64_t>(n, v, 0, ~std::uint64_t{0} >> 1), c.settings.seed);
     }},
    {"--seeds", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<std::uint32_t>(n, v, 1, 1000), c.settings.seeds);
     }},
    {"--capacity-blocks", true,
     [](Sv n, Sv v, CommandLine& c) { return ParseCapacities(n, v, c.settings); }},
    {"--capacity-held", true,
     [](Sv n, Sv v, CommandLine& c) { return ParseMultiples(n, v, c.settings); }},
    {"--dram-blocks", true, SetCount<&Settings::dram_blocks>},
    {"--nvme-blocks", true, SetCount<&Settings::nvme_blocks>},
    {"--dram-times", true,
     [](Sv n, Sv v, CommandLine& c) { return Scaled(n, v, 1000, 1, c.settings.dram_times); }},
    {"--nvme-link", true,
     [](Sv n, Sv v, CommandLine& c) {
       return ParseChoice<LinkSharing>(
           n, v, {{"shared", LinkSharing::kShared}, {"each_way", LinkSharing::kEachWay}},
           c.settings.nvme_link);
     }},
    {"--model", true,
     [](Sv n, Sv v, CommandLine& c) {
       ModelClass model;
       const Status status =
           ParseChoice<ModelClass>(n, v, {{"70b", k70b}, {"30b_a3b", k30bA3b}}, model);
       if (status.ok()) c.settings.Use(model);
       return status;
     }},
    {"--halves", true,
     [](Sv n, Sv v, CommandLine& c) {
       std::uint32_t half = 1;
       const Status status =
           ParseChoice<std::uint32_t>(n, v, {{"first", 1u}, {"swapped", 2u}}, half);
       c.settings.part = {half, 2};
       c.settings.train_part = {3 - half, 2};
       c.halves = status.ok();
       return status;
     }},
    {"--release-after", true,
     [](Sv n, Sv v, CommandLine& c) {
       double seconds = 0;
       const Status status = Scaled(n, v, 1e6, 1, seconds);
       if (status.ok()) c.settings.release_after_s = seconds;
       return status;
     }},
    {"--trace-out", true,
     [](Sv n, Sv v, CommandLine& c) { return AssignText(n, v, c.settings.trace_out_path); }},
    {"--link-gbs", true, [](Sv n, Sv v, CommandLine& c) { return ParseLinks(n, v, c.settings); }},
    {"--block-mb", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<double>(n, v, 1e-6, 1e6), c.settings.block_bytes).ok()
                  ? (c.settings.block_bytes *= 1e6, absl::OkStatus())
                  : BadValue(n, v, "expected megabytes from 0.000001 to 1000000");
     }},
    {"--prefill-ms", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Scaled(n, v, 1e6, 1e-3, c.settings.prefill.c0_seconds);
     }},
    {"--prefill-slope", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<double>(n, v, 1, 1e9), c.settings.prefill.slope_blocks);
     }},
    {"--decode-ms", true,
     [](Sv n, Sv v, CommandLine& c) { return Scaled(n, v, 1e6, 1e-3, c.settings.decode_s); }},
    {"--service", true,
     [](Sv n, Sv v, CommandLine& c) {
       return ParseChoice<Service>(n, v, {{"model", Service::kModel}, {"trace", Service::kTrace}},
                                   c.settings.service);
     }},
    {"--policy", true, [](Sv n, Sv v, CommandLine& c) { return ParsePolicies(n, v, c.settings); }},
    {"--lower-policy", true,
     [](Sv n, Sv v, CommandLine& c) {
       c.settings.lower_policy = v;
       return CheckPolicy(n, v);
     }},
    {"--hint-log-sd", true,
     [](Sv n, Sv v, CommandLine& c) {
       double sd = 0;
       const Status status = Scaled(n, v, 10, 1, sd);
       if (status.ok()) c.settings.hint_log_sd = sd;
       return status;
     }},
    {"--completion", true,
     [](Sv n, Sv v, CommandLine& c) {
       return ParseChoice<Completion>(
           n, v, {{"on", Completion::kSignalled}, {"off", Completion::kSilent}},
           c.settings.completion);
     }},
    {"--priority", true,
     [](Sv n, Sv v, CommandLine& c) {
       using tidepool::Priority;
       return ParseChoice<Priority>(
           n, v, {{"normal", Priority::kNormal}, {"background", Priority::kBackground}},
           c.settings.priority);
     }},
    {"--jobs", true,
     [](Sv n, Sv v, CommandLine& c) {
       return Assign(ParseNumber<std::uint32_t>(n, v, 1, 256), c.settings.jobs);
     }},
};

const Option* FindOption(Sv name) {
  for (const Option& option : kOptions) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

Status CheckTogether(CommandLine& c) {
  Settings& s = c.settings;
  const int sources = !s.source.path.empty() + !s.source.preset.empty() + !c.refs_path.empty();
  if (sources != 1) {
    return absl::InvalidArgumentError("give one of --trace, --generate and --refs; see --help");
  }
  if (s.capacities.empty()) {
    return absl::InvalidArgumentError("give --capacity-blocks or --capacity-held; see --help");
  }
  const bool held = std::any_of(s.capacities.begin(), s.capacities.end(),
                                [](const Capacity& capacity) { return capacity.blocks == 0; });
  if (held && (s.mode != Mode::kEngine || !c.refs_path.empty())) {
    return absl::InvalidArgumentError(
        "--capacity-held: only --mode engine holds blocks; give --capacity-blocks");
  }
  if (!c.refs_path.empty() && !c.html_path.empty()) {
    return BadValue("--html", c.html_path, "there is no page for --refs");
  }
  if (s.dram_blocks != 0 && s.dram_times > 0) {
    return BadValue("--dram-times", Plain(s.dram_times), "give this or --dram-blocks");
  }
  if (s.release_after_s && s.mode != Mode::kEngine) {
    return BadValue("--release-after", Plain(*s.release_after_s), "needs --mode engine");
  }
  if (s.nvme_blocks != 0 && !s.has_dram()) {
    return BadValue("--nvme-blocks", std::to_string(s.nvme_blocks), "needs --dram-blocks");
  }
  if (s.policies.empty()) s.policies = {"lru"};
  std::vector<std::string> unique;
  for (std::string& policy : s.policies) {
    if (std::find(unique.begin(), unique.end(), policy) == unique.end()) unique.push_back(policy);
  }
  s.policies = std::move(unique);
  if (c.halves && !s.train.has_value()) s.train = s.source;
  if (!s.trace_out_path.empty() &&
      (s.mode != Mode::kEngine || s.policies.size() * s.capacities.size() * s.seeds != 1)) {
    return BadValue("--trace-out", s.trace_out_path,
                    "needs --mode engine, and one policy, capacity and seed");
  }
  if (s.train.has_value()) {
    const std::string path = s.train->path, preset = s.train->preset;
    s.train = s.source;
    s.train->path = path;
    s.train->preset = preset;
  }
  return absl::OkStatus();
}

}  // namespace

std::string UsageText() {
  std::string text(kUsage);
  const auto fill = [&text](Sv mark, const std::string& names) {
    text.replace(text.find(mark), mark.size(), names);
  };
  fill("%POLICIES%", PolicyNames());
  fill("%TIERINGS%", TieringNames());
  return text;
}

StatusOr<CommandLine> ParseCommandLine(std::span<const char* const> arguments) {
  CommandLine command_line;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Sv argument = arguments[i];
    const std::size_t equals = argument.find('=');
    const Sv name = argument.substr(0, equals);
    const Option* option = FindOption(name);
    if (option == nullptr) {
      return BadValue("option", argument, "there is no such option; --help lists them");
    }
    Sv value;
    if (equals != argument.npos) {
      if (!option->has_value) return BadValue(name, argument, "takes no value");
      value = argument.substr(equals + 1);
    } else if (option->has_value) {
      if (i + 1 == arguments.size()) return BadValue(name, "", "needs a value; see --help");
      value = arguments[++i];
    }
    if (Status s = option->set(name, value, command_line); !s.ok()) return s;
  }
  if (command_line.help) return command_line;
  if (Status s = CheckTogether(command_line); !s.ok()) return s;
  return command_line;
}

}  // namespace policy_lab
