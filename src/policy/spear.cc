#include "tidepool/policy/spear.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/time_math.h"
#include "tidepool/session_ranking.h"

namespace tidepool {
namespace {

using internal::AfterSeconds;
using internal::SecondsBetween;

constexpr double kRecencyRate = 0.25;   // per second at an age of one second
constexpr double kRecencyOffset = 1.0;  // seconds

class SpearScorer final : public SessionScorer {
 public:
  explicit SpearScorer(SpearOptions options) : options_(std::move(options)) {
    if (options_.model == nullptr) options_.model = std::make_shared<SessionModel>();
    options_.cost_exponent = std::clamp(options_.cost_exponent, 0.0, 1.0);
    if (std::isnan(options_.cost_exponent)) options_.cost_exponent = 0;
  }

  void Attach(TierIndex tier) noexcept override {
    index_ = tier == kHbmTier ? options_.index : options_.lower_tiers;
  }
  void OnSession(const SessionSignals& session, TimePoint now) noexcept override {
    options_.model->OnSession(session, now);
  }

  [[nodiscard]] Rating Rate(const Claimant& claimant, TimePoint now) const noexcept override {
    const double age = std::max(SecondsBetween(claimant.since, now), 0.0);
    const double recency = kRecencyRate / (age + kRecencyOffset);
    Outlook outlook;
    if (index_ == SpearOptions::Index::kRecency) {
      outlook = {recency, Later(age, now)};
    } else {
      outlook = Ask(claimant, now);
      const double share = RecencyShare(age);
      outlook.value = (1 - share) * outlook.value + share * recency;
      outlook.until = std::min(outlook.until, Later(age, now));
    }
    return {std::log(outlook.value) + LogPriority(claimant), outlook.until};
  }

  [[nodiscard]] double LogCost(const Claimant& /*claimant*/, const Tail& tail,
                               const SchedulingSignals& signals) const noexcept override {
    if (options_.cost_exponent == 0) return 0;
    return options_.cost_exponent * LogSecondsToRestore(tail, signals);
  }

  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override {
    return options_.model->MemoryBytes();
  }

 private:
  [[nodiscard]] Outlook Ask(const Claimant& claimant, TimePoint now) const noexcept {
    const SessionModel& model = *options_.model;
    if (!claimant.session.valid()) return model.BestHorizonOfOthers(claimant.since, now);
    if (index_ == SpearOptions::Index::kWithinHorizon) {
      return model.Within(claimant.session, options_.horizon, now);
    }
    return model.BestHorizon(claimant.session, now);
  }
  [[nodiscard]] double RecencyShare(double age_s) const noexcept {
    const double half = internal::ToSeconds(options_.recency_age);
    const double share = half > 0 ? age_s / (age_s + half) : half < 0 ? 0.0 : 1.0;
    return options_.model->confident() ? share : std::max(share, 0.5);
  }
  // Recency is as fine as the bins of the tables.
  static TimePoint Later(double age_s, TimePoint now) noexcept {
    return AfterSeconds(now, std::max(0.35 * age_s, 0.5));
  }

  SpearOptions options_;
  SpearOptions::Index index_ = SpearOptions::Index::kBestHorizon;
};

}  // namespace

SpearOptions SpearForHits(std::shared_ptr<SessionModel> model) {
  return {.model = std::move(model), .cost_exponent = 0};
}

SpearOptions SpearForCost(std::shared_ptr<SessionModel> model) {
  return {.model = std::move(model), .cost_exponent = 0.5};
}

std::unique_ptr<EvictionPolicy> MakeSpearPolicy(SpearOptions options) {
  return MakeRankedPolicy("spear", std::make_unique<SpearScorer>(std::move(options)));
}

}  // namespace tidepool
