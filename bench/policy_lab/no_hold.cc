// Open loop: arrivals as scheduled, service takes no time.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "run.h"

namespace policy_lab {
namespace {

using tidepool::Outcome;
using tidepool::Status;
using tidepool::StatusOr;

// Copies are instant here, so each Poll carries a refused request a step further; more than this
// many and nothing moves any more.
constexpr int kMaxTries = 1000;

class NoHoldRun {
 public:
  explicit NoHoldRun(const RunSpec& spec)
      : spec_(spec), cache_(spec), meter_(*spec.workload, *spec.settings) {}

  StatusOr<RunFigures> Run() {
    if (Status s = cache_.Create(); !s.ok()) return s;
    for (const std::uint32_t request : spec_.schedule->order) {
      cache_.SetTime(spec_.schedule->arrival[request]);
      cache_.manager().Poll();
      if (Status s = Serve(request); !s.ok()) return s;
      const tidepool::PoolCounts counts = cache_.manager().counts();
      meter_.Occupy(cache_.now(), counts.held, counts.cached);
    }
    RunFigures figures = meter_.Finish(cache_.now());
    cache_.Report(figures);
    return figures;
  }

 private:
  Status Serve(std::uint32_t request) {
    const LabRequest& r = spec_.workload->requests[request];
    Served served{.limit = std::min(r.blocks, spec_.capacity_blocks - 1)};
    Cache::Grant grant = cache_.Admit(request, served.limit, 0);
    for (int tries = 0; grant.outcome == Outcome::kBusy && tries < kMaxTries; ++tries) {
      cache_.manager().Poll();
      const double before = grant.lookup_s;
      grant = cache_.Admit(request, served.limit, 0);
      grant.lookup_s += before;
    }
    if (grant.outcome != Outcome::kOk) {
      return absl::InternalError("request " + std::to_string(request) +
                                 " was refused: " + std::string(tidepool::ToString(grant.outcome)));
    }
    if (const Outcome loaded = grant.ticket.WaitReady(); loaded != Outcome::kOk) {
      return absl::InternalError("request " + std::to_string(request) + ": its loads ended in " +
                                 std::string(tidepool::ToString(loaded)));
    }
    served.hits = grant.hits;
    served.lookup_s = grant.lookup_s;
    for (std::size_t t = 1; t < kMaxLabTiers; ++t) served.transfer_s += TransferSeconds(t, grant);
    meter_.Count(request, served);
    meter_.Complete(request);
    const TimePoint next =
        r.next == kNoRequest ? tidepool::kNever : spec_.schedule->arrival[r.next];
    return cache_.Finish(request, std::move(grant.sequence), next);
  }

  // As if the links were idle: this mode knows no contention.
  [[nodiscard]] double TransferSeconds(std::size_t tier, const Cache::Grant& grant) const {
    if (grant.hits[tier] == 0) return 0;
    const auto& gbs = spec_.settings->link_gbs;
    return grant.hits[tier] * spec_.settings->block_bytes /
           (gbs[std::min(tier - 1, gbs.size() - 1)] * 1e9);
  }

  const RunSpec& spec_;
  Cache cache_;
  Meter meter_;
};

}  // namespace

StatusOr<RunFigures> RunNoHold(const RunSpec& spec) { return NoHoldRun(spec).Run(); }

StatusOr<RunFigures> Run(const RunSpec& spec) {
  const auto start = std::chrono::steady_clock::now();
  StatusOr<RunFigures> figures =
      spec.settings->mode == Mode::kNoHold ? RunNoHold(spec) : RunClosedLoop(spec);
  if (figures.ok()) {
    figures->wall_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  return figures;
}

}  // namespace policy_lab
