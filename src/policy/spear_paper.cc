#include "tidepool/policy/spear_paper.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/time_math.h"
#include "tidepool/session_ranking.h"

namespace tidepool {
namespace {

constexpr double kLeastSurvival = 0.01;
constexpr double kRefresh = 5;  // seconds between looks at the turn hazard, which others change
constexpr double kTie = 1e-12;  // per second of age: orders equal scores only

class SpearPaperScorer final : public SessionScorer {
 public:
  explicit SpearPaperScorer(SpearPaperOptions options) : options_(std::move(options)) {
    if (options_.model == nullptr) options_.model = std::make_shared<SessionModel>();
  }

  void OnSession(const SessionSignals& session, TimePoint now) noexcept override {
    options_.model->OnSession(session, now);
  }

  [[nodiscard]] Rating Rate(const Claimant& claimant, TimePoint now) const noexcept override {
    const SessionModel& model = *options_.model;
    double gap = model.AverageGapSeconds(claimant.session);
    if (gap == 0) gap = model.MedianWaitSeconds(claimant.wait);
    const double survival =
        std::max(kLeastSurvival, 1 - model.turn_hazard().Hazard(model.Turn(claimant.session)));
    const double score = gap / survival + (1 - survival) * options_.completion_penalty_s;
    const double tie = kTie * internal::ToSeconds(claimant.since);
    return {-std::log(std::max(score, 1e-9)) + LogPriority(claimant) + tie,
            internal::AfterSeconds(now, kRefresh)};
  }

  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override {
    return options_.model->MemoryBytes();
  }

 private:
  SpearPaperOptions options_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeSpearPaperPolicy(SpearPaperOptions options) {
  return MakeRankedPolicy("spear_paper", std::make_unique<SpearPaperScorer>(std::move(options)));
}

}  // namespace tidepool
