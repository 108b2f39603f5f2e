#include "experiment.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "run.h"

namespace policy_lab {
namespace {

using tidepool::Status;
using tidepool::StatusOr;

constexpr std::uint32_t kRoomBeyondDistinct = 200'000;  // for tails, decoding and duplicates

double PerRequest(double sum, const RunFigures& run) {
  return run.requests == 0 ? 0 : sum / static_cast<double>(run.requests);
}
double Ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }
double Count(std::uint64_t n) { return static_cast<double>(n); }
double Reusable(const RunFigures& run) {
  return Count(run.prompt_blocks - run.missed_compulsory - run.missed_concurrent);
}

constexpr double kMs = 1e3;
constexpr double kUs = 1e6;
constexpr double kGb = 1e-9;

constexpr Figure kFigures[] = {
    {"hit_ratio", false,
     [](const RunFigures& r) { return Ratio(Count(r.Hits()), Count(r.prompt_blocks)); }},
    {"hits", false, [](const RunFigures& r) { return Count(r.Hits()); }},
    {"misses", false, [](const RunFigures& r) { return Count(r.Misses()); }},
    {"prompt_blocks", false, [](const RunFigures& r) { return Count(r.prompt_blocks); }},
    {"hit_ratio_hbm", false,
     [](const RunFigures& r) { return Ratio(Count(r.hits[0]), Count(r.prompt_blocks)); }},
    {"hit_ratio_dram", false,
     [](const RunFigures& r) { return Ratio(Count(r.hits[1]), Count(r.prompt_blocks)); }},
    {"hit_ratio_nvme", false,
     [](const RunFigures& r) { return Ratio(Count(r.hits[2]), Count(r.prompt_blocks)); }},
    {"missed_compulsory", false, [](const RunFigures& r) { return Count(r.missed_compulsory); }},
    {"missed_concurrent", false, [](const RunFigures& r) { return Count(r.missed_concurrent); }},
    {"missed_evicted", false, [](const RunFigures& r) { return Count(r.missed_evicted); }},
    {"missed_oversize", false, [](const RunFigures& r) { return Count(r.missed_oversize); }},
    {"recompute_cost", false, [](const RunFigures& r) { return r.recompute_cost; }},
    {"prefill_cost", false, [](const RunFigures& r) { return r.prefill_cost; }},
    {"amat_ms", false,
     [](const RunFigures& r) { return kMs * Ratio(r.recompute_s + r.transfer_s, Reusable(r)); }},
    {"ttft_p50_ms", true, [](const RunFigures& r) { return kMs * QuantileOf(r.ttft_s, .5); }},
    {"ttft_p99_ms", true, [](const RunFigures& r) { return kMs * QuantileOf(r.ttft_s, .99); }},
    {"ttft_mean_ms", true,
     [](const RunFigures& r) {
       return kMs * PerRequest(r.queue_s + r.lookup_s + r.transfer_s + r.prefill_s, r);
     }},
    {"amat_room_ms", false,
     [](const RunFigures& r) {
       return kMs * Ratio(r.recompute_s + r.transfer_s + r.room_s, Reusable(r));
     }},
    {"stall_p50_ms", false, [](const RunFigures& r) { return kMs * r.stall_p50_s; }},
    {"stall_p99_ms", false, [](const RunFigures& r) { return kMs * r.stall_p99_s; }},
    {"ttft_queue_ms", false, [](const RunFigures& r) { return kMs * PerRequest(r.queue_s, r); }},
    {"ttft_lookup_us", true, [](const RunFigures& r) { return kUs * PerRequest(r.lookup_s, r); }},
    {"ttft_transfer_ms", false,
     [](const RunFigures& r) { return kMs * PerRequest(r.transfer_s, r); }},
    {"ttft_recompute_ms", false,
     [](const RunFigures& r) { return kMs * PerRequest(r.prefill_s, r); }},
    {"ttft_room_ms", false, [](const RunFigures& r) { return kMs * PerRequest(r.room_s, r); }},
    {"ttft_queue_p99_ms", false, [](const RunFigures& r) { return kMs * r.queue_p99_s; }},
    {"ttft_room_p99_ms", false, [](const RunFigures& r) { return kMs * r.room_p99_s; }},
    {"ttft_transfer_p99_ms", false, [](const RunFigures& r) { return kMs * r.transfer_p99_s; }},
    {"ttft_recompute_p99_ms", false, [](const RunFigures& r) { return kMs * r.prefill_p99_s; }},
    {"room_wait_s", false, [](const RunFigures& r) { return r.room_s; }},
    {"windows", false, [](const RunFigures& r) { return Count(r.windows); }},
    {"windows_met", false, [](const RunFigures& r) { return Count(r.windows_met); }},
    {"windows_missed", false, [](const RunFigures& r) { return Count(r.windows - r.windows_met); }},
    {"windows_late", false, [](const RunFigures& r) { return Count(r.windows_late); }},
    {"gb_down_to_dram", false, [](const RunFigures& r) { return kGb * r.bytes_down[1]; }},
    {"gb_up_from_dram", false, [](const RunFigures& r) { return kGb * r.bytes_up[1]; }},
    {"gb_down_to_nvme", false, [](const RunFigures& r) { return kGb * r.bytes_down[2]; }},
    {"gb_up_from_nvme", false, [](const RunFigures& r) { return kGb * r.bytes_up[2]; }},
    {"prefetched_blocks", false, [](const RunFigures& r) { return Count(r.prefetches.arrived); },
     true},
    {"prefetched_used", false, [](const RunFigures& r) { return Count(r.prefetches.used); }, true},
    {"prefetched_wasted", false, [](const RunFigures& r) { return Count(r.prefetches.wasted); },
     true},
    {"tide_pool_copies", false, [](const RunFigures& r) { return Count(r.tide.pool_copies); },
     true},
    {"tide_demand_copies", false, [](const RunFigures& r) { return Count(r.tide.demand_copies); },
     true},
    {"tide_held_back", false, [](const RunFigures& r) { return Count(r.tide.held_back); }, true},
    {"tide_duplicates_left", false,
     [](const RunFigures& r) { return Count(r.tide.duplicates_left); }, true},
    {"tide_only_copies_left", false,
     [](const RunFigures& r) { return Count(r.tide.only_copies_left); }, true},
    {"idle_freed_share", false,
     [](const RunFigures& r) { return Ratio(r.freed_block_s, r.idle_block_s); }, true},
    {"returned_share", false,
     [](const RunFigures& r) {
       return r.freed_block_s == 0 ? 0
                                   : Ratio(Count(r.hits[1] + r.hits[2]), Count(r.return_blocks));
     },
     true},
    {"victims", false, [](const RunFigures& r) { return Count(r.victims); }},
    {"decision_ns", true, [](const RunFigures& r) { return Ratio(r.select_ns, Count(r.victims)); }},
    {"held_mean", false, [](const RunFigures& r) { return r.held_mean; }},
    {"held_p50", false, [](const RunFigures& r) { return r.held_p50; }},
    {"held_p90", false, [](const RunFigures& r) { return r.held_p90; }},
    {"refused_requests", false, [](const RunFigures& r) { return Count(r.refused_requests); }},
    {"end_s", false, [](const RunFigures& r) { return r.end_s; }},
    {"wall_s", true, [](const RunFigures& r) { return r.wall_s; }},
};

std::string Describe(const ScopeStart& start) {
  switch (start.kind) {
    case StartKind::kFile:
      return "file";
    case StartKind::kTogether:
      return "all:0";
    case StartKind::kPoisson:
      break;
  }
  std::string text = std::to_string(start.mean_s);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return "poisson:" + text;
}

/// Everything of one seed that its runs share.
struct World {
  std::shared_ptr<const Workload> workload;
  std::shared_ptr<const Workload> train_workload;
  Schedule schedule;
  NominalTimes nominal;
  std::unique_ptr<Training> training;
  std::vector<std::uint32_t> capacities;
};

ScopeStart StartOf(const Settings& settings, const Workload& workload) {
  if (settings.scope_start.has_value()) return *settings.scope_start;
  return workload.scopes() == 1 ? ScopeStart{StartKind::kFile} : ScopeStart{StartKind::kPoisson};
}

class Experiment {
 public:
  Experiment(const Settings& settings, const std::function<void(const Progress&)>& progress)
      : settings_(settings), progress_(progress) {}

  StatusOr<Results> Run() {
    if (Status s = MakeWorlds(); !s.ok()) return s;
    runs_.resize(settings_.policies.size() * settings_.capacities.size() * settings_.seeds);
    progress_state_.runs = runs_.size();
    for (const Capacity& capacity : settings_.capacities) {
      if (capacity.blocks == 0) progress_state_.runs = runs_.size() + settings_.seeds;
    }
    if (Status s = ResolveCapacities(); !s.ok()) return s;
    const Status status = InParallel(runs_.size(), [this](std::size_t i) { return RunOne(i); });
    if (!status.ok()) return status;
    Summarize();
    return std::move(results_);
  }

 private:
  // A generated trace is another one for each seed; a file is read once.
  Status MakeWorlds() {
    worlds_.resize(settings_.seeds);
    for (std::uint32_t s = 0; s < settings_.seeds; ++s) {
      World& world = worlds_[s];
      const std::uint64_t seed = settings_.seed + s;
      const auto load = [&](const Source& source, Part part,
                            std::shared_ptr<const Workload> World::*member) -> Status {
        if (s > 0 && !source.path.empty()) {
          world.*member = worlds_[0].*member;
          return absl::OkStatus();
        }
        StatusOr<Workload> workload = LoadWorkload(source, part, seed);
        if (!workload.ok()) return workload.status();
        world.*member = std::make_shared<const Workload>(*std::move(workload));
        return absl::OkStatus();
      };
      if (Status st = load(settings_.source, settings_.part, &World::workload); !st.ok()) return st;
      const ScopeStart start = StartOf(settings_, *world.workload);
      world.schedule = MakeSchedule(*world.workload, start, seed);
      world.nominal = settings_.mode == Mode::kNoHold
                          ? NoHoldTimes(world.schedule)
                          : ClosedLoopTimes(*world.workload, world.schedule, settings_);
      if (!settings_.train.has_value()) continue;
      const Status st = load(*settings_.train, settings_.train_part, &World::train_workload);
      if (!st.ok()) return st;
      world.training = std::make_unique<Training>(*world.train_workload, settings_,
                                                  StartOf(settings_, *world.train_workload), seed);
    }
    DescribeWorkload(*worlds_[0].workload);
    return absl::OkStatus();
  }

  void DescribeWorkload(const Workload& workload) {
    results_.trace = workload.name;
    results_.trace_block_tokens = workload.block_tokens;
    results_.requests = workload.requests.size();
    results_.prompt_blocks = workload.prompt_blocks;
    results_.distinct_blocks = workload.distinct_blocks;
    results_.sessions = workload.sessions;
    results_.scopes = workload.scopes();
    results_.scope_start = Describe(StartOf(settings_, workload));
  }

  [[nodiscard]] RunSpec SpecOf(const World& world, const System& system,
                               std::uint32_t capacity) const {
    const PolicyEntry* lower =
        settings_.lower_policy.empty() ? system.policy : FindPolicy(settings_.lower_policy);
    return {.workload = world.workload.get(),
            .schedule = &world.schedule,
            .nominal = &world.nominal,
            .settings = &settings_,
            .training = world.training.get(),
            .policy = system.policy,
            .lower_policy = lower,
            .tiering = system.tiering,
            .capacity_blocks = capacity};
  }

  // Multiples of the mean held need a run of each seed that nothing constrains.
  Status ResolveCapacities() {
    const bool unconstrained = progress_state_.runs != runs_.size();
    std::vector<StatusOr<RunFigures>> free_runs(settings_.seeds, absl::UnknownError("not run"));
    if (unconstrained) {
      const Status status = InParallel(settings_.seeds, [&](std::size_t s) {
        Settings single_tier = settings_;
        single_tier.dram_blocks = single_tier.nvme_blocks = 0;
        single_tier.dram_times = 0;
        single_tier.release_after_s.reset();
        RunSpec spec = SpecOf(worlds_[s], FindSystem("lru"),
                              worlds_[s].workload->distinct_blocks + kRoomBeyondDistinct);
        spec.settings = &single_tier;
        spec.lower_policy = spec.policy;
        free_runs[s] = policy_lab::Run(spec);
        Step("unconstrained, seed " + std::to_string(settings_.seed + s));
        return free_runs[s].status();
      });
      if (!status.ok()) return status;
    }
    for (std::uint32_t s = 0; s < settings_.seeds; ++s) {
      if (unconstrained) {
        results_.held_mean += free_runs[s]->held_mean / settings_.seeds;
        results_.held_p50 += free_runs[s]->held_p50 / settings_.seeds;
        results_.held_p90 += free_runs[s]->held_p90 / settings_.seeds;
      }
      for (const Capacity& capacity : settings_.capacities) {
        const double blocks = capacity.blocks != 0
                                  ? capacity.blocks
                                  : capacity.held_multiple * free_runs[s]->held_mean;
        worlds_[s].capacities.push_back(static_cast<std::uint32_t>(std::max(2.0, blocks)));
      }
    }
    return absl::OkStatus();
  }

  // Runs are numbered seed by seed, then capacity, then policy.
  Status RunOne(std::size_t index) {
    const std::size_t policies = settings_.policies.size();
    const std::size_t capacities = settings_.capacities.size();
    const std::string& policy = settings_.policies[index % policies];
    const std::size_t seed = index / policies / capacities;
    const World& world = worlds_[seed];
    const std::uint32_t capacity = world.capacities[index / policies % capacities];
    RunSpec spec = SpecOf(world, FindSystem(policy), capacity);
    agent_replay::ChromeTrace trace;
    if (!settings_.trace_out_path.empty()) {
      if (Status s = trace.Open(settings_.trace_out_path); !s.ok()) return s;
      spec.trace = &trace;
    }
    StatusOr<RunFigures> run = policy_lab::Run(spec);
    if (Status s = trace.Close(); !s.ok()) return s;
    if (!run.ok()) {
      return Status(run.status().code(), policy + " at " + std::to_string(capacity) +
                                             " blocks: " + std::string(run.status().message()));
    }
    if (seed > 0) run->ttft_s.shrink_to_fit();
    runs_[index] = *std::move(run);
    Step(policy + " at " + std::to_string(capacity) + " blocks, seed " +
         std::to_string(settings_.seed + seed));
    return absl::OkStatus();
  }

  template <typename Work>
  Status InParallel(std::size_t count, Work work) {
    std::atomic<std::size_t> next{0};
    Status first_error = absl::OkStatus();
    const auto loop = [&] {
      for (std::size_t i = next++; i < count; i = next++) {
        const Status status = work(i);
        if (status.ok()) continue;
        const std::lock_guard lock(mutex_);
        first_error.Update(status);
        next = count;
      }
    };
    std::vector<std::thread> threads;
    for (std::uint32_t j = 1; j < settings_.jobs; ++j) threads.emplace_back(loop);
    loop();
    for (std::thread& thread : threads) thread.join();
    return first_error;
  }

  void Step(std::string what) {
    const std::lock_guard lock(mutex_);
    ++progress_state_.done;
    progress_state_.now = std::move(what);
    if (progress_) progress_(progress_state_);
  }

  void Summarize() {
    const std::size_t policies = settings_.policies.size();
    const std::size_t capacities = settings_.capacities.size();
    const auto lru = std::find(settings_.policies.begin(), settings_.policies.end(), "lru");
    for (std::size_t c = 0; c < capacities; ++c) {
      const auto runs_of = [&](std::size_t policy) {
        std::vector<const RunFigures*> runs;
        for (std::size_t s = 0; s < settings_.seeds; ++s) {
          runs.push_back(&runs_[(s * capacities + c) * policies + policy]);
        }
        return runs;
      };
      std::vector<const RunFigures*> baseline;
      if (lru != settings_.policies.end()) {
        baseline = runs_of(static_cast<std::size_t>(lru - settings_.policies.begin()));
      }
      for (std::size_t p = 0; p < policies; ++p) {
        results_.rows.push_back(
            RowOf(settings_.policies[p], settings_.capacities[c], runs_of(p), baseline));
      }
    }
  }

  static ResultRow RowOf(const std::string& policy, const Capacity& capacity,
                         const std::vector<const RunFigures*>& runs,
                         const std::vector<const RunFigures*>& baseline) {
    ResultRow row{.policy = policy, .held_multiple = capacity.held_multiple};
    std::vector<double> values;
    const auto collect = [&](auto of) {
      values.clear();
      for (std::size_t s = 0; s < runs.size(); ++s) values.push_back(of(s));
      return MeanOf(values);
    };
    for (const Figure& figure : kFigures) {
      row.figures.push_back(collect([&](std::size_t s) { return figure.of(*runs[s]); }));
    }
    row.capacity_blocks =
        collect([&](std::size_t s) { return double{1} * runs[s]->capacity_blocks; }).mean;
    const auto hit_points = [](const RunFigures& r) { return 100 * kFigures[0].of(r); };
    if (!baseline.empty()) {
      row.hit_points_vs_lru =
          collect([&](std::size_t s) { return hit_points(*runs[s]) - hit_points(*baseline[s]); });
      const bool all = std::all_of(baseline.begin(), baseline.end(),
                                   [](const RunFigures* r) { return r->recompute_cost > 0; });
      if (all) {
        row.cost_ratio_vs_lru = collect(
            [&](std::size_t s) { return runs[s]->recompute_cost / baseline[s]->recompute_cost; });
      }
    }
    row.ttft_s = runs[0]->ttft_s;
    std::sort(row.ttft_s.begin(), row.ttft_s.end());
    row.occupancy = runs[0]->occupancy;
    return row;
  }

  const Settings& settings_;
  const std::function<void(const Progress&)>& progress_;
  std::vector<World> worlds_;
  std::vector<RunFigures> runs_;
  std::mutex mutex_;
  Progress progress_state_;
  Results results_;
};

}  // namespace

std::span<const Figure> Figures() { return kFigures; }

const Estimate& ResultRow::Of(std::string_view figure) const {
  for (std::size_t i = 0; i < std::size(kFigures); ++i) {
    if (kFigures[i].name == figure) return figures[i];
  }
  static constexpr Estimate kNone{};
  return kNone;
}

bool Results::Shows(std::size_t figure) const {
  return !kFigures[figure].optional ||
         std::any_of(rows.begin(), rows.end(),
                     [&](const ResultRow& row) { return row.figures[figure].mean != 0; });
}

StatusOr<Results> RunExperiment(const Settings& settings,
                                const std::function<void(const Progress&)>& progress) {
  return Experiment(settings, progress).Run();
}

}  // namespace policy_lab
