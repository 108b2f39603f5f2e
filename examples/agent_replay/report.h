// agent_replay/report.h - what a person sees (progress bar, table) and what a machine reads (JSON).
//
// Thread contract: pure functions, except ProgressBar: one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "replay.h"
#include "schedule.h"
#include "trace.h"

namespace agent_replay {

/// What was replayed.
struct Subject {
  const Trace& trace;
  const Schedule& schedule;
  const ReplayOptions& options;
  double start_gap_s = 0;
  std::uint64_t seed = 0;
  std::string policy;
};

std::string Headline(const Subject& subject);
std::string Table(const ReplayResult& result);
/// Top level: mismatches, verified_blocks, hit_tokens {hbm, dram, nvme}, recomputed_tokens, ...
std::string Json(const Subject& subject, const ReplayResult& result);

/// One line on stderr, rewritten at most ten times a second; silent when stderr is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(bool enabled);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void Show(const Progress& progress);

 private:
  bool enabled_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace agent_replay
