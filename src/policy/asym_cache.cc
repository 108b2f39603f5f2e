#include "tidepool/policy/asym_cache.h"

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

AsymCacheOptions Checked(AsymCacheOptions options) noexcept {
  const AsymCacheOptions defaults;
  if (options.long_gap <= Duration(0)) options.long_gap = defaults.long_gap;
  if (!(options.reuse_at_long_gap > 0 && options.reuse_at_long_gap < 1)) {
    options.reuse_at_long_gap = defaults.reuse_at_long_gap;
  }
  if (!(options.slope_ratio > 1) || std::isinf(options.slope_ratio)) {
    options.slope_ratio = defaults.slope_ratio;
  }
  return options;
}

class AsymCacheScorer : public SessionScorer {
 public:
  explicit AsymCacheScorer(const AsymCacheOptions& options)
      : long_gap_s_(ToSeconds(options.long_gap)),
        alpha_(-long_gap_s_ / std::log(options.reuse_at_long_gap)),
        beta_(alpha_ / options.slope_ratio),
        age0_(long_gap_s_ * (1 - 1 / options.slope_ratio)) {}

  // ln f, less what all ages of the branch have in common (LogDrift).
  [[nodiscard]] Rating Rate(const Claimant& claimant, TimePoint now) const noexcept override {
    Rating rating;
    const bool young = SecondsBetween(claimant.since, now) < long_gap_s_;
    rating.branch = young ? 0 : 1;
    rating.log_worth =
        young ? ToSeconds(claimant.since) / alpha_ : (ToSeconds(claimant.since) + age0_) / beta_;
    rating.log_worth += LogPriority(claimant);
    if (young) rating.until = AfterSeconds(claimant.since, long_gap_s_);
    return rating;
  }

  [[nodiscard]] double LogDrift(std::uint32_t branch, TimePoint now) const noexcept override {
    return -ToSeconds(now) / (branch == 0 ? alpha_ : beta_);
  }

  [[nodiscard]] double LogCost(const Claimant& /*claimant*/, const Tail& tail,
                               const SchedulingSignals& signals) const noexcept override {
    return LogSecondsToRestore(tail, signals);
  }

 private:
  double long_gap_s_;
  double alpha_;
  double beta_;
  double age0_;
};

class BayesScorer final : public AsymCacheScorer {
 public:
  BayesScorer(const AsymCacheOptions& recency, std::shared_ptr<ReuseTable> reuse)
      : AsymCacheScorer(recency),
        reuse_(reuse != nullptr ? std::move(reuse) : std::make_shared<ReuseTable>()) {}

  void OnOutcome(const Claimant& claimant, const Tail& tail, Outcome outcome) noexcept override {
    reuse_->Add(KindOf(claimant, tail), TransitionOf(claimant), outcome == Outcome::kUsedAgain);
  }

  [[nodiscard]] double LogCost(const Claimant& claimant, const Tail& tail,
                               const SchedulingSignals& signals) const noexcept override {
    const double p = reuse_->Probability(KindOf(claimant, tail), TransitionOf(claimant));
    return std::log(p) + AsymCacheScorer::LogCost(claimant, tail, signals);
  }

 private:
  static BlockKind KindOf(const Claimant& claimant, const Tail& tail) noexcept {
    if (tail.claims > 1) return BlockKind::kShared;
    if (claimant.wait == WaitClass::kTool) return BlockKind::kTool;
    return claimant.wait == WaitClass::kUser ? BlockKind::kUser : BlockKind::kOther;
  }
  static ReuseTransition TransitionOf(const Claimant& claimant) noexcept {
    if (!claimant.session.valid()) return ReuseTransition::kOtherSession;
    if (claimant.critical_path) return ReuseTransition::kHandOff;
    return claimant.wait == WaitClass::kTool ? ReuseTransition::kToolReturn
                                             : ReuseTransition::kNextTurn;
  }

  std::shared_ptr<ReuseTable> reuse_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeAsymCachePolicy(AsymCacheOptions options) {
  return MakeRankedPolicy("asym_cache", std::make_unique<AsymCacheScorer>(Checked(options)));
}

std::unique_ptr<EvictionPolicy> MakeBayesPolicy(BayesOptions options) {
  return MakeRankedPolicy(
      "bayes", std::make_unique<BayesScorer>(Checked(options.recency), std::move(options.reuse)));
}

}  // namespace tidepool
