#include "tidepool/estimators.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tidepool {

namespace gap_bins {
namespace {

constexpr double kFirstEdge = 0.5;
constexpr double kRatio = 1.35;

const std::array<double, kCount + 1>& Edges() noexcept {
  static const std::array<double, kCount + 1> edges = [] {
    std::array<double, kCount + 1> e{};
    double edge = kFirstEdge;
    for (std::size_t i = 1; i < kCount; ++i, edge *= kRatio) e[i] = edge;
    e[kCount] = std::numeric_limits<double>::infinity();
    return e;
  }();
  return edges;
}

}  // namespace

double Edge(std::size_t bin) noexcept { return Edges()[std::min(bin, kCount)]; }

std::size_t Of(double age_s) noexcept {
  if (!(age_s > 0)) return 0;
  const auto& edges = Edges();
  const auto above = std::upper_bound(edges.begin(), edges.end() - 1, age_s);
  return static_cast<std::size_t>(above - edges.begin()) - 1;
}

}  // namespace gap_bins

namespace {

using gap_bins::kCount;

constexpr double kMaxHazard = 0.995;
constexpr double kLastBinSpan = 0.35;  // the open bin counts as this share of its lower edge

struct SurvivalPoint {
  double age_s;
  double survival;
};

// Survival between the points is a straight line in log age and log survival.
template <std::size_t kPoints>
double SurvivalAt(const SurvivalPoint (&points)[kPoints], double age_s) noexcept {
  if (age_s <= points[0].age_s) return 1.0 - (1.0 - points[0].survival) * age_s / points[0].age_s;
  std::size_t i = 1;
  while (i + 1 < kPoints && age_s > points[i].age_s) ++i;
  const SurvivalPoint& a = points[i - 1];
  const SurvivalPoint& b = points[i];
  const double x = std::log(age_s / a.age_s) / std::log(b.age_s / a.age_s);
  return std::exp(std::log(a.survival) + x * std::log(b.survival / a.survival));
}

template <std::size_t kPoints>
GapTable::Hazards HazardsOf(const SurvivalPoint (&points)[kPoints]) noexcept {
  GapTable::Hazards hazards{};
  for (std::size_t i = 0; i < kCount; ++i) {
    const double from = gap_bins::Edge(i);
    const double to = i + 1 < kCount ? gap_bins::Edge(i + 1) : from * (1 + kLastBinSpan);
    const double before = from > 0 ? SurvivalAt(points, from) : 1.0;
    hazards[i] = std::clamp(1.0 - SurvivalAt(points, to) / before, 1e-6, kMaxHazard);
  }
  return hazards;
}

// Counts come from files too.
bool Plausible(std::span<const double> counts) noexcept {
  return std::all_of(counts.begin(), counts.end(),
                     [](double c) { return std::isfinite(c) && c >= 0 && c < 1e15; });
}

double BinEnd(std::size_t bin) noexcept {
  return bin + 1 < kCount ? gap_bins::Edge(bin + 1) : gap_bins::Edge(bin) * (1 + kLastBinSpan);
}

}  // namespace

// --- GapTable. Survival points of 47,948 gaps of coding agents (callanjfox/kv-cache-tester traces,
// Apache-2.0): 41,462 waits for tools, 6,486 for users. ---

const GapTable::Hazards& GapTable::ToolPrior() noexcept {
  static constexpr SurvivalPoint kPoints[] = {{2, .995},    {5, .843},    {10, .462},
                                              {30, .185},   {60, .121},   {120, .0753},
                                              {300, .0341}, {900, .0108}, {61'000, .0001}};
  static const Hazards hazards = HazardsOf(kPoints);
  return hazards;
}

const GapTable::Hazards& GapTable::UserPrior() noexcept {
  static constexpr SurvivalPoint kPoints[] = {{2, .981},   {5, .955},     {10, .929},  {30, .796},
                                              {60, .652},  {120, .503},   {300, .299}, {900, .150},
                                              {6854, .01}, {61'000, .001}};
  static const Hazards hazards = HazardsOf(kPoints);
  return hazards;
}

// Nothing is known: survival falls as age^-0.25, under which the index is in the order of recency.
const GapTable::Hazards& GapTable::AnyPrior() noexcept {
  static const Hazards hazards = [] {
    Hazards h{};
    for (std::size_t i = 0; i < kCount; ++i) {
      const double from = std::max(gap_bins::Edge(i), gap_bins::Edge(1) / 2);
      h[i] = 1 - std::pow(from / BinEnd(i), 0.25);
    }
    return h;
  }();
  return hazards;
}

void GapTable::AddSurvived(std::size_t from, std::size_t to) noexcept {
  for (std::size_t i = from; i < std::min(to, kCount); ++i) ++exposure_[i];
}

void GapTable::AddReturn(std::size_t bin) noexcept {
  bin = std::min(bin, kCount - 1);
  ++exposure_[bin];
  ++returned_[bin];
  ++total_;
}

void GapTable::Decay() noexcept {
  for (double& e : exposure_) e *= 0.5;
  for (double& r : returned_) r *= 0.5;
  total_ *= 0.5;
}

void GapTable::Merge(const GapTable& other) noexcept {
  for (std::size_t i = 0; i < kCount; ++i) {
    exposure_[i] += other.exposure_[i];
    returned_[i] += other.returned_[i];
  }
  total_ += other.total_;
}

GapTable::Hazards GapTable::HazardsGiven(const Hazards& prior) const noexcept {
  Hazards hazards{};
  for (std::size_t i = 0; i < kCount; ++i) {
    const double h = (returned_[i] + kPriorWeight * prior[i]) / (exposure_[i] + kPriorWeight);
    hazards[i] = std::clamp(h, 1e-6, kMaxHazard);
  }
  return hazards;
}

bool GapTable::Restore(std::span<const double> exposure,
                       std::span<const double> returned) noexcept {
  if (exposure.size() != kCount || returned.size() != kCount || !Plausible(exposure) ||
      !Plausible(returned)) {
    return false;
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    if (returned[i] > exposure[i] + 1e-6) return false;
  }
  total_ = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    exposure_[i] = exposure[i];
    returned_[i] = returned[i];
    total_ += returned[i];
  }
  return true;
}

// --- ReturnCurve. ---

ReturnCurve::ReturnCurve(const GapTable::Hazards& hazards) noexcept : hazards_(hazards) {
  survival_[0] = 1;
  for (std::size_t i = 0; i < kCount; ++i) {
    survival_[i + 1] = std::max(survival_[i] * (1 - hazards_[i]), 1e-300);
  }
  ComputeIndex();
}

// Within a bin the rate of return is constant.
double ReturnCurve::Survival(double age_s) const noexcept {
  if (!(age_s > 0)) return 1;
  if (std::isinf(age_s)) return 0;
  const std::size_t bin = gap_bins::Of(age_s);
  const double span = BinEnd(bin) - gap_bins::Edge(bin);
  const double share = (age_s - gap_bins::Edge(bin)) / span;
  return survival_[bin] * std::pow(1 - hazards_[bin], share);
}

double ReturnCurve::Within(double age_s, double horizon_s) const noexcept {
  const double now = Survival(age_s);
  return now > 0 ? 1 - Survival(age_s + horizon_s) / now : 0;
}

// E[min(residual, H)] is the area under the survival curve, by trapezoids over the bins. An age
// counts as the lower edge of its bin.
void ReturnCurve::ComputeIndex() noexcept {
  for (std::size_t i = 0; i < kCount; ++i) {
    double area = 0;
    double best = 0;
    for (std::size_t j = i; j < kCount; ++j) {
      area += 0.5 * (survival_[j] + survival_[j + 1]) * (BinEnd(j) - gap_bins::Edge(j));
      best = std::max(best, (survival_[i] - survival_[j + 1]) / area);
    }
    index_[i] = best;
  }
}

// --- TurnHazard. ---

double TurnHazard::Hazard(std::uint32_t turn) const noexcept {
  const std::size_t t = Cap(turn);
  return (ended_[t] + 1) / (reached_[t] + 61);
}

void TurnHazard::Decay() noexcept {
  for (double& r : reached_) r *= 0.5;
  for (double& e : ended_) e *= 0.5;
}

void TurnHazard::Merge(const TurnHazard& other) noexcept {
  for (std::size_t i = 0; i <= kTurns; ++i) {
    reached_[i] += other.reached_[i];
    ended_[i] += other.ended_[i];
  }
}

bool TurnHazard::Restore(std::span<const double> reached, std::span<const double> ended) noexcept {
  if (reached.size() != reached_.size() || ended.size() != ended_.size() || !Plausible(reached) ||
      !Plausible(ended)) {
    return false;
  }
  std::copy(reached.begin(), reached.end(), reached_.begin());
  std::copy(ended.begin(), ended.end(), ended_.begin());
  return true;
}

// --- TimeScale. ---

void TimeScale::Add(double gap_s, double median_s) noexcept {
  if (!(gap_s >= 0) || std::isinf(gap_s) || !(median_s > 0)) return;
  sum_ = 0.8f * sum_ + static_cast<float>(std::log(std::max(gap_s, 0.5) / median_s));
  weight_ = 0.8f * weight_ + 1;
}

double TimeScale::theta() const noexcept { return std::exp(double{sum_} / (double{weight_} + 4)); }

// --- ReuseTable. ---

void ReuseTable::Add(BlockKind kind, ReuseTransition transition, bool used_again) noexcept {
  const std::size_t pair = Pair(kind, transition);
  used_[pair] *= kDecay;
  unused_[pair] *= kDecay;
  ++(used_again ? used_ : unused_)[pair];
}

double ReuseTable::Probability(BlockKind kind, ReuseTransition transition) const noexcept {
  const std::size_t pair = Pair(kind, transition);
  return (used_[pair] + 1) / (used_[pair] + unused_[pair] + 2);
}

void ReuseTable::Merge(const ReuseTable& other) noexcept {
  for (std::size_t i = 0; i < kPairs; ++i) {
    used_[i] += other.used_[i];
    unused_[i] += other.unused_[i];
  }
}

bool ReuseTable::Restore(std::span<const double> used, std::span<const double> unused) noexcept {
  if (used.size() != kPairs || unused.size() != kPairs || !Plausible(used) || !Plausible(unused)) {
    return false;
  }
  std::copy(used.begin(), used.end(), used_.begin());
  std::copy(unused.begin(), unused.end(), unused_.begin());
  return true;
}

}  // namespace tidepool
