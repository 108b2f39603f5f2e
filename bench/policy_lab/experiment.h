// policy_lab/experiment.h - runs every policy at every capacity with every seed, and says what each
// figure is on average, how sure that is, and how each policy compares with lru seed by seed.
//
// Thread contract: RunExperiment uses Settings::jobs threads inside; `progress` is called from one
// of them at a time.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "figures.h"
#include "settings.h"
#include "statistics.h"
#include "tidepool/status.h"

namespace policy_lab {

/// One number of a run, by the name that JSON and CSV give it.
struct Figure {
  std::string_view name;
  bool wall_time;  ///< differs from run to run
  double (*of)(const RunFigures& run);
  bool optional = false;  ///< left out where it is 0 in every row
};
std::span<const Figure> Figures();

struct ResultRow {
  std::string policy;
  double capacity_blocks = 0;                 ///< mean over the seeds
  double held_multiple = 0;                   ///< 0: the capacity was given in blocks
  std::vector<Estimate> figures;              ///< as Figures() lists them
  std::optional<Estimate> hit_points_vs_lru;  ///< paired by seed; none without lru
  std::optional<Estimate> cost_ratio_vs_lru;  ///< of recompute_cost; none if lru's is 0
  std::vector<float> ttft_s;                  ///< sorted, of the first seed
  std::vector<OccupancySample> occupancy;     ///< of the first seed

  [[nodiscard]] const Estimate& Of(std::string_view figure) const;
};

struct Results {
  std::string trace;
  std::uint32_t trace_block_tokens = 0;
  std::uint64_t requests = 0, prompt_blocks = 0, distinct_blocks = 0;
  std::uint32_t sessions = 0, scopes = 0;
  std::string scope_start;  ///< as it was used
  double held_mean = 0;     ///< of the unconstrained runs, when capacities are multiples
  double held_p50 = 0, held_p90 = 0;
  std::vector<ResultRow> rows;

  /// False for an optional figure, by its place in Figures(), that is 0 in every row.
  [[nodiscard]] bool Shows(std::size_t figure) const;
};

struct Progress {
  std::size_t done = 0;
  std::size_t runs = 0;
  std::string now;  ///< what has just ended
};

tidepool::StatusOr<Results> RunExperiment(const Settings& settings,
                                          const std::function<void(const Progress&)>& progress);

}  // namespace policy_lab
