// tidepool/estimators.h - what is learned from how sessions come back, one small unit each.
//
//   GapTable      when a waiting session returns, by how long it has waited (Kaplan-Meier on bins,
//                 waits still open are censored observations)
//   TurnHazard    how likely a session ends at turn t (Beta prior)
//   TimeScale     how much slower or faster than others one session is (accelerated failure time)
//   ReuseTable    how likely a kind of block is used again after a kind of transition (Beta prior)
//
// Ages and gaps are in seconds. Any value is tolerated: what is negative, NaN or infinite is
// ignored and counted where it cannot be used.
//
// Thread contract: plain values, thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tidepool/export.h"

namespace tidepool {

/// Bins of a wait: [0, 0.5 s), then edges 0.5 * 1.35^k, k = 0..39 (0.5 s to 17 h); the last is
/// open.
namespace gap_bins {
inline constexpr std::size_t kCount = 41;
/// Lower edge of a bin; +infinity for kCount.
[[nodiscard]] TIDEPOOL_EXPORT double Edge(std::size_t bin) noexcept;
/// The bin of an age; 0 for what is not a positive number.
[[nodiscard]] TIDEPOOL_EXPORT std::size_t Of(double age_s) noexcept;
}  // namespace gap_bins

/// Discrete hazard of return by age. Hazard of bin i = (returns_i + kappa * prior_i) /
/// (exposure_i + kappa) with kappa = 5 (product-limit estimator, Kaplan and Meier 1958, shrunk to a
/// prior table). Waits that end without a return, or have not ended, count as exposure up to their
/// age: the survival function then is defective, and what it levels off at is the share of sessions
/// that never return.
class TIDEPOOL_EXPORT GapTable {
 public:
  using Hazards = std::array<double, gap_bins::kCount>;
  static constexpr double kPriorWeight = 5;

  /// Hazards of the built-in tables: waits for tools, for users, for anything.
  [[nodiscard]] static const Hazards& ToolPrior() noexcept;
  [[nodiscard]] static const Hazards& UserPrior() noexcept;
  [[nodiscard]] static const Hazards& AnyPrior() noexcept;

  /// A wait came through bins [from, to) without a return.
  void AddSurvived(std::size_t from, std::size_t to) noexcept;
  /// It ended in `bin`, which AddSurvived has not counted.
  void AddReturn(std::size_t bin) noexcept;
  /// Halves every count, so that the table follows a drift.
  void Decay() noexcept;
  void Merge(const GapTable& other) noexcept;

  [[nodiscard]] double returns() const noexcept { return total_; }
  [[nodiscard]] Hazards HazardsGiven(const Hazards& prior) const noexcept;

  [[nodiscard]] std::span<const double> exposure() const noexcept { return exposure_; }
  [[nodiscard]] std::span<const double> returned() const noexcept { return returned_; }
  /// False, and nothing changes, if a count is negative, not finite or exceeds its exposure.
  bool Restore(std::span<const double> exposure, std::span<const double> returned) noexcept;

 private:
  std::array<double, gap_bins::kCount> exposure_{};
  std::array<double, gap_bins::kCount> returned_{};
  double total_ = 0;
};

/// What a hazard table says about a wait of some age.
class TIDEPOOL_EXPORT ReturnCurve {
 public:
  ReturnCurve() noexcept = default;
  explicit ReturnCurve(const GapTable::Hazards& hazards) noexcept;
  /// P(no return before `age_s`).
  [[nodiscard]] double Survival(double age_s) const noexcept;
  /// P(return within `horizon_s` | no return before `age_s`).
  [[nodiscard]] double Within(double age_s, double horizon_s) const noexcept;
  /// Best-horizon index of a wait in `bin`, per second: max over horizons H that end on an edge of
  /// P(return within H | age) / E[min(residual, H)] (the shape of a Gittins index).
  [[nodiscard]] double Index(std::size_t bin) const noexcept { return index_[bin]; }

 private:
  void ComputeIndex() noexcept;
  GapTable::Hazards hazards_{};
  std::array<double, gap_bins::kCount + 1> survival_{};  // at the lower edge of each bin
  std::array<double, gap_bins::kCount> index_{};
};

/// h(t): sessions that ended at turn t / sessions that reached turn t, Beta(1, 60) prior, turns
/// beyond 50 pooled (UNISON, arXiv 2609.09643, Eq. 5; the prior is ours).
class TIDEPOOL_EXPORT TurnHazard {
 public:
  static constexpr std::uint32_t kTurns = 50;
  void AddReached(std::uint32_t turn) noexcept { ++reached_[Cap(turn)]; }
  void AddEnded(std::uint32_t turn) noexcept { ++ended_[Cap(turn)]; }
  [[nodiscard]] double Hazard(std::uint32_t turn) const noexcept;
  void Decay() noexcept;
  void Merge(const TurnHazard& other) noexcept;
  [[nodiscard]] std::span<const double> reached() const noexcept { return reached_; }
  [[nodiscard]] std::span<const double> ended() const noexcept { return ended_; }
  bool Restore(std::span<const double> reached, std::span<const double> ended) noexcept;

 private:
  static std::size_t Cap(std::uint32_t turn) noexcept { return turn < kTurns ? turn : kTurns; }
  std::array<double, kTurns + 1> reached_{};
  std::array<double, kTurns + 1> ended_{};
};

/// One session's time scale: theta = exp(A / (W + 4)), A <- 0.8 A + ln(gap / median),
/// W <- 0.8 W + 1. The 4 shrinks it towards 1, no outlier can ruin it.
class TIDEPOOL_EXPORT TimeScale {
 public:
  void Add(double gap_s, double median_s) noexcept;
  [[nodiscard]] double theta() const noexcept;

 private:
  float sum_ = 0;
  float weight_ = 0;
};

enum class BlockKind : std::uint8_t { kShared, kTool, kUser, kOther };
enum class ReuseTransition : std::uint8_t { kNextTurn, kToolReturn, kOtherSession, kHandOff };

/// P(a block is used again) per kind of block and of transition: 16 Beta posteriors with a Beta(1,
/// 1) prior; every update decays its pair by 0.99 first (after arXiv 2604.26968, which names the
/// pairs but not how they are told apart: that is ours, see policy/asym_cache.h).
class TIDEPOOL_EXPORT ReuseTable {
 public:
  static constexpr std::size_t kPairs = 16;
  static constexpr double kDecay = 0.99;
  void Add(BlockKind kind, ReuseTransition transition, bool used_again) noexcept;
  [[nodiscard]] double Probability(BlockKind kind, ReuseTransition transition) const noexcept;
  void Merge(const ReuseTable& other) noexcept;
  [[nodiscard]] std::span<const double> used() const noexcept { return used_; }
  [[nodiscard]] std::span<const double> unused() const noexcept { return unused_; }
  bool Restore(std::span<const double> used, std::span<const double> unused) noexcept;

 private:
  static std::size_t Pair(BlockKind kind, ReuseTransition transition) noexcept {
    return (static_cast<std::size_t>(kind) & 3u) * 4 + (static_cast<std::size_t>(transition) & 3u);
  }
  std::array<double, kPairs> used_{};
  std::array<double, kPairs> unused_{};
};

}  // namespace tidepool
