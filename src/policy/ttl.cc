#include "tidepool/policy/ttl.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/time_math.h"
#include "tidepool/session_ranking.h"

namespace tidepool {
namespace {

using internal::AfterSeconds;
using internal::SecondsBetween;
using internal::ToSeconds;

// Ranks as numbers: class, then retained or not, then time.
constexpr double kClass = 1e10;
constexpr double kRetained = 5e9;
constexpr double kPerSecond = 1e-1;

class TtlScorer final : public SessionScorer {
 public:
  explicit TtlScorer(TtlOptions options) : options_(std::move(options)) {
    if (options_.model == nullptr) options_.model = std::make_shared<SessionModel>();
  }

  void OnSession(const SessionSignals& session, TimePoint now) noexcept override {
    options_.model->OnSession(session, now);
  }

  [[nodiscard]] Rating Rate(const Claimant& claimant, TimePoint now) const noexcept override {
    const Priority priority = EffectivePriority(claimant);
    const double since = ToSeconds(claimant.since);
    Rating rating;
    rating.log_worth = kClass * static_cast<double>(priority) + kPerSecond * since;
    const double ttl = claimant.session.valid() ? BestTtl(claimant) : 0;
    if (SecondsBetween(claimant.since, now) < ttl) {
      rating.log_worth += kRetained + kPerSecond * ttl;
      rating.until = AfterSeconds(claimant.since, ttl);
    }
    return rating;
  }

  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override {
    return options_.model->MemoryBytes();
  }

 private:
  // The net gain changes its direction only where the distribution has a step: at an edge.
  [[nodiscard]] double BestTtl(const Claimant& claimant) const noexcept {
    const double benefit =
        ToSeconds(options_.queue_delay) + claimant.blocks * ToSeconds(options_.block_prefill);
    double best = 0;
    double best_gain = 0;
    for (std::size_t i = 1; i < gap_bins::kCount && gap_bins::Edge(i) < benefit; ++i) {
      const double t = gap_bins::Edge(i);
      const Duration within =
          std::chrono::duration_cast<Duration>(std::chrono::duration<double>(t));
      const double gain =
          options_.model->WithinFromStart(claimant.wait, claimant.tool, within) * benefit - t;
      if (gain > best_gain) best = t, best_gain = gain;
    }
    return best;
  }

  TtlOptions options_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeTtlPolicy(TtlOptions options) {
  return MakeRankedPolicy("ttl", std::make_unique<TtlScorer>(std::move(options)));
}

}  // namespace tidepool
