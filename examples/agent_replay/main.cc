// agent_replay - replays coding-agent sessions through tidepool with real bytes; see --help.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

#include "chrome_trace.h"
#include "generator.h"
#include "options.h"
#include "replay.h"
#include "report.h"
#include "schedule.h"
#include "trace.h"

namespace agent_replay {
namespace {

using tidepool::Status;
using tidepool::StatusOr;

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

int Fail(int code, const Status& status) {
  std::fprintf(stderr, "agent_replay: %s\n", std::string(status.message()).c_str());
  return code;
}

/// Removes the tier's file at the end if nobody named it.
class TierFile {
 public:
  explicit TierFile(const CommandLine& command_line) : path_(command_line.nvme_path) {
    if (!path_.empty() || command_line.nvme.none()) return;
    std::error_code error;
    std::filesystem::path directory = std::filesystem::temp_directory_path(error);
    if (error) directory = ".";
    path_ = directory / ("agent_replay-" + std::to_string(getpid()) + ".tide");
    temporary_ = true;
  }
  ~TierFile() {
    std::error_code ignored;
    if (temporary_) std::filesystem::remove(path_, ignored);
  }
  TierFile(const TierFile&) = delete;
  TierFile& operator=(const TierFile&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
  bool temporary_ = false;
};

StatusOr<Trace> MakeTrace(const CommandLine& command_line) {
  if (!command_line.trace_path.empty()) return ReadTrace(command_line.trace_path);
  const auto generate = [&command_line](auto preset) {
    preset.mean_start_gap_s = command_line.start_gap_s;
    return GenerateTrace(preset, command_line.seed, command_line.sessions);
  };
  if (command_line.preset == "chat") return generate(ChatPreset());
  if (command_line.preset == "autonomous") {
    return generate(AutonomousPreset{.between_session_sd = command_line.between_sd});
  }
  return generate(CodingPreset());
}

/// Full disks and bad sizes are the caller's to mend; the rest is ours.
int ExitCode(const Status& status) {
  return status.code() == absl::StatusCode::kInternal ||
                 status.code() == absl::StatusCode::kDeadlineExceeded
             ? kFailed
             : kBadInput;
}

int Main(const CommandLine& command_line) {
  const StatusOr<Trace> trace = MakeTrace(command_line);
  if (!trace.ok()) return Fail(kBadInput, trace.status());
  if (!command_line.write_trace_path.empty()) {
    const std::string text = FormatTrace(*trace, trace->name);
    if (const Status s = WriteFile(command_line.write_trace_path, text); !s.ok()) {
      return Fail(kBadInput, s);
    }
  }
  StatusOr<ReplayOptions> options = MakeReplayOptions(command_line, *trace);
  if (!options.ok()) return Fail(kBadInput, options.status());
  const TierFile tier_file(command_line);
  options->nvme_path = tier_file.path();
  ChromeTrace chrome_trace;
  if (!command_line.trace_out_path.empty()) {
    const std::uint64_t limit = std::uint64_t{command_line.trace_out_mib} << 20;
    if (const Status s = chrome_trace.Open(command_line.trace_out_path, limit); !s.ok()) {
      return Fail(kBadInput, s);
    }
    options->trace = &chrome_trace;
  }

  const Schedule schedule = MakeSchedule(*trace, command_line.seed, command_line.start_gap_s);
  const Subject subject{
      *trace, schedule, *options, command_line.start_gap_s, command_line.seed, command_line.policy};
  if (!command_line.quiet) std::fputs(Headline(subject).c_str(), stdout), std::fflush(stdout);
  StatusOr<ReplayResult> result = absl::UnknownError("not run");
  {
    ProgressBar bar(!command_line.quiet);
    result = RunReplay(*trace, schedule, *options, [&bar](const Progress& p) { bar.Show(p); });
  }
  if (!result.ok()) return Fail(ExitCode(result.status()), result.status());
  if (const Status s = chrome_trace.Close(); !s.ok()) return Fail(kBadInput, s);
  if (!command_line.quiet) std::fputs(Table(*result).c_str(), stdout);
  if (!command_line.json_path.empty()) {
    if (const Status s = WriteFile(command_line.json_path, Json(subject, *result)); !s.ok()) {
      return Fail(kBadInput, s);
    }
  }
  if (result->mismatches == 0) return 0;
  return Fail(kFailed, absl::InternalError(std::to_string(result->mismatches) +
                                           " reused blocks held wrong bytes"));
}

}  // namespace
}  // namespace agent_replay

int main(int argc, char** argv) {
  const std::span<const char* const> arguments(argv, static_cast<std::size_t>(argc));
  const auto command_line = agent_replay::ParseCommandLine(arguments.subspan(argc > 0 ? 1 : 0));
  if (!command_line.ok()) return agent_replay::Fail(agent_replay::kBadInput, command_line.status());
  if (command_line->help) {
    std::fputs(std::string(agent_replay::UsageText()).c_str(), stdout);
    return 0;
  }
  return agent_replay::Main(*command_line);
}
