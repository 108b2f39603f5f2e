// policy_lab - what eviction policies are worth on a trace; see --help and docs/policy_lab.md.
#include <unistd.h>

#include <cstdio>
#include <initializer_list>
#include <span>
#include <string>

#include "examples/agent_replay/trace.h"
#include "experiment.h"
#include "options.h"
#include "refs.h"
#include "report.h"

namespace policy_lab {
namespace {

using tidepool::Status;
using tidepool::StatusOr;

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

int Fail(const Status& status) {
  std::fprintf(stderr, "policy_lab: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInternal ? kFailed : kBadInput;
}

/// On stderr, when that is a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(bool wanted) : shown_(wanted && isatty(STDERR_FILENO) == 1) {}
  ~ProgressBar() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void Show(const Progress& progress) const {
    if (!shown_) return;
    constexpr std::size_t kWidth = 30;
    const std::size_t full = progress.done * kWidth / progress.runs;
    std::fprintf(stderr, "\r\033[K[%s%s] %zu/%zu  %s", std::string(full, '#').c_str(),
                 std::string(kWidth - full, '.').c_str(), progress.done, progress.runs,
                 progress.now.c_str());
  }

 private:
  const bool shown_;
};

struct Output {
  const std::string* path;  // empty: not wanted
  std::string text;
};

Status WriteAll(std::initializer_list<Output> outputs) {
  for (const Output& output : outputs) {
    if (output.path->empty()) continue;
    if (Status s = agent_replay::WriteFile(*output.path, output.text); !s.ok()) return s;
  }
  return absl::OkStatus();
}

int RefsMain(const CommandLine& command_line) {
  const StatusOr<RefsResults> results = RunRefsFile(command_line.refs_path, command_line.settings);
  if (!results.ok()) return Fail(results.status());
  if (!command_line.quiet) std::fputs(RefsTable(*results).c_str(), stdout);
  const Status status = WriteAll(
      {{&command_line.csv_path, RefsCsv(*results)}, {&command_line.json_path, RefsJson(*results)}});
  return status.ok() ? 0 : Fail(status);
}

int Main(const CommandLine& command_line) {
  if (!command_line.refs_path.empty()) return RefsMain(command_line);

  StatusOr<Results> results = absl::UnknownError("not run");
  {
    const ProgressBar bar(!command_line.quiet);
    results = RunExperiment(command_line.settings, [&bar](const Progress& p) { bar.Show(p); });
  }
  if (!results.ok()) return Fail(results.status());
  if (!command_line.quiet) std::fputs(Table(command_line.settings, *results).c_str(), stdout);
  const Settings& settings = command_line.settings;
  const Status status = WriteAll({{&command_line.csv_path, Csv(*results)},
                                  {&command_line.json_path, Json(settings, *results)},
                                  {&command_line.html_path, Html(settings, *results)}});
  return status.ok() ? 0 : Fail(status);
}

}  // namespace
}  // namespace policy_lab

int main(int argc, char** argv) {
  const std::span<const char* const> arguments(argv, static_cast<std::size_t>(argc));
  const auto command_line = policy_lab::ParseCommandLine(arguments.subspan(argc > 0 ? 1 : 0));
  if (!command_line.ok()) return policy_lab::Fail(command_line.status());
  if (command_line->help) {
    std::fputs(policy_lab::UsageText().c_str(), stdout);
    return 0;
  }
  return policy_lab::Main(*command_line);
}
