// The estimators against what they estimate: known distributions, by direct counting.
#include "tidepool/estimators.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tidepool {
namespace {

using gap_bins::kCount;

TEST(GapBins, EdgesAndBinsAgree) {
  EXPECT_EQ(gap_bins::Edge(0), 0);
  EXPECT_EQ(gap_bins::Edge(1), 0.5);
  EXPECT_NEAR(gap_bins::Edge(2), 0.675, 1e-12);
  EXPECT_TRUE(std::isinf(gap_bins::Edge(kCount)));
  for (std::size_t bin = 0; bin < kCount; ++bin) {
    EXPECT_EQ(gap_bins::Of(gap_bins::Edge(bin)), bin);
    if (bin == 0) continue;
    EXPECT_EQ(gap_bins::Of(std::nextafter(gap_bins::Edge(bin), 0)), bin - 1);
  }
  EXPECT_EQ(gap_bins::Of(1e300), kCount - 1);
  EXPECT_EQ(gap_bins::Of(std::numeric_limits<double>::infinity()), kCount - 1);
}

TEST(GapBins, HostileAgesFallIntoTheFirstBin) {
  EXPECT_EQ(gap_bins::Of(std::nan("")), 0u);
  EXPECT_EQ(gap_bins::Of(-1), 0u);
  EXPECT_EQ(gap_bins::Of(-std::numeric_limits<double>::infinity()), 0u);
}

// Waits without censoring: the product-limit estimate is the empirical survival.
TEST(GapTable, CompleteWaitsGiveTheEmpiricalSurvival) {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> gaps(2.0, 1.2);
  GapTable table;
  std::vector<double> seen;
  for (int i = 0; i < 200'000; ++i) {
    seen.push_back(gaps(random));
    const std::size_t bin = gap_bins::Of(seen.back());
    table.AddSurvived(0, bin);
    table.AddReturn(bin);
  }
  const ReturnCurve curve(table.HazardsGiven(GapTable::AnyPrior()));
  for (const std::size_t bin : {3u, 8u, 12u, 16u}) {
    const double age = gap_bins::Edge(bin);
    const auto longer = std::count_if(seen.begin(), seen.end(), [&](double g) { return g >= age; });
    EXPECT_NEAR(curve.Survival(age), static_cast<double>(longer) / 200'000, 0.002) << age;
  }
}

// Half of the waits are cut off at random: the estimate must not mistake that for quick returns.
TEST(GapTable, CensoredWaitsDoNotBiasTheCurve) {
  std::mt19937_64 random(2);
  std::exponential_distribution<double> gaps(1.0 / 20);
  std::exponential_distribution<double> ends(1.0 / 20);
  GapTable table;
  for (int i = 0; i < 200'000; ++i) {
    const double gap = gaps(random);
    const double end = ends(random);
    const std::size_t bin = gap_bins::Of(std::min(gap, end));
    table.AddSurvived(0, bin);
    if (gap <= end) table.AddReturn(bin);
  }
  const ReturnCurve curve(table.HazardsGiven(GapTable::AnyPrior()));
  for (const double age : {5.0, 20.0, 60.0}) {
    // A wait that is cut off inside a bin is not counted there: a bias of a part of one bin.
    EXPECT_NEAR(curve.Survival(age), std::exp(-age / 20), 0.05) << age;
  }
}

TEST(GapTable, AFewWaitsLeaveThePriorAlone) {
  GapTable table;
  table.AddReturn(0);
  const auto hazards = table.HazardsGiven(GapTable::ToolPrior());
  EXPECT_NEAR(hazards[0], (1 + 5 * GapTable::ToolPrior()[0]) / 6, 1e-12);
  EXPECT_NEAR(hazards[20], GapTable::ToolPrior()[20], 1e-12);
}

TEST(GapTable, PriorsMatchTheMeasuredPoints) {
  const ReturnCurve tool(GapTable::ToolPrior());
  EXPECT_NEAR(tool.Survival(10), .462, .03);
  EXPECT_NEAR(tool.Survival(60), .121, .01);
  const ReturnCurve user(GapTable::UserPrior());
  EXPECT_NEAR(user.Survival(120), .503, .02);
}

TEST(GapTable, RestoreTakesOnlyPlausibleCounts) {
  GapTable table;
  table.AddReturn(3);
  std::vector<double> exposure(kCount, 5);
  std::vector<double> returned(kCount, 1);
  EXPECT_TRUE(table.Restore(exposure, returned));
  EXPECT_EQ(table.returns(), kCount);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity(), 6.0}) {
    returned[7] = bad;
    EXPECT_FALSE(table.Restore(exposure, returned)) << bad;
  }
  EXPECT_FALSE(table.Restore(std::span(exposure).first(3), std::span(returned).first(3)));
  EXPECT_EQ(table.returns(), kCount) << "a refused table changes nothing";
}

// Exponential waits have no memory: the index is their rate at every age.
TEST(ReturnCurve, IndexOfExponentialWaitsIsTheirRate) {
  GapTable::Hazards hazards{};
  for (std::size_t i = 0; i < kCount; ++i) {
    const double from = gap_bins::Edge(i);
    const double to = i + 1 < kCount ? gap_bins::Edge(i + 1) : from * 1.35;
    hazards[i] = std::min(1 - std::exp(-(to - from) / 30), 0.995);
  }
  const ReturnCurve curve(hazards);
  for (std::size_t bin = 0; bin < 15; ++bin) EXPECT_NEAR(curve.Index(bin), 1.0 / 30, 0.002) << bin;
}

// Returns all come at 8 to 11 s. Just before, the prospect is best; a second in, it is not bad.
TEST(ReturnCurve, IndexLooksAhead) {
  GapTable table;
  const std::size_t bin = gap_bins::Of(9);
  for (int i = 0; i < 10'000; ++i) {
    table.AddSurvived(0, bin);
    table.AddReturn(bin);
  }
  const ReturnCurve curve(table.HazardsGiven(GapTable::ToolPrior()));
  EXPECT_GT(curve.Index(bin), curve.Index(gap_bins::Of(1)));
  EXPECT_GT(curve.Index(gap_bins::Of(1)), 10 * curve.Index(gap_bins::Of(60)));
  EXPECT_NEAR(curve.Within(0, 12), 1, 0.05);
}

// Brute force over the same curve: the maximum over horizons on the edges.
TEST(ReturnCurve, IndexEqualsBruteForce) {
  const ReturnCurve curve(GapTable::UserPrior());
  for (const std::size_t bin : {0u, 5u, 17u, 30u}) {
    const double from = gap_bins::Edge(bin);
    double best = 0;
    double area = 0;
    double last = 1;
    for (std::size_t j = bin; j + 1 < kCount; ++j) {
      const double to = gap_bins::Edge(j + 1);
      const double alive = curve.Survival(to) / curve.Survival(from);
      area += (last + alive) / 2 * (to - gap_bins::Edge(j));
      last = alive;
      best = std::max(best, (1 - alive) / area);
    }
    EXPECT_NEAR(curve.Index(bin), best, 1e-9 + best * 1e-6) << bin;
  }
}

TEST(TurnHazardTest, ShrinksToItsPriorAndPoolsLateTurns) {
  TurnHazard hazard;
  EXPECT_NEAR(hazard.Hazard(3), 1.0 / 61, 1e-12);
  for (int i = 0; i < 939; ++i) hazard.AddReached(3);
  for (int i = 0; i < 99; ++i) hazard.AddEnded(3);
  EXPECT_NEAR(hazard.Hazard(3), 0.1, 1e-12);
  hazard.AddEnded(60);
  EXPECT_EQ(hazard.Hazard(77), hazard.Hazard(50));
  EXPECT_NEAR(hazard.Hazard(77), 2.0 / 61, 1e-12);
}

TEST(TimeScaleTest, OneOutlierDoesNotRuinIt) {
  TimeScale scale;
  EXPECT_EQ(scale.theta(), 1);
  for (int i = 0; i < 40; ++i) scale.Add(20, 10);
  const double steady = scale.theta();
  EXPECT_GT(steady, 1.3);
  EXPECT_LT(steady, 2.0);
  scale.Add(36'000, 10);
  EXPECT_LT(scale.theta(), 5 * steady);
  scale.Add(std::nan(""), 10);
  scale.Add(-3, 10);
  scale.Add(std::numeric_limits<double>::infinity(), 10);
  EXPECT_LT(scale.theta(), 5 * steady);
}

TEST(ReuseTableTest, LearnsEachPairOnItsOwn) {
  ReuseTable table;
  EXPECT_EQ(table.Probability(BlockKind::kTool, ReuseTransition::kToolReturn), 0.5);
  for (int i = 0; i < 500; ++i) {
    table.Add(BlockKind::kTool, ReuseTransition::kToolReturn, i % 10 != 0);
  }
  EXPECT_NEAR(table.Probability(BlockKind::kTool, ReuseTransition::kToolReturn), 0.9, 0.03);
  EXPECT_EQ(table.Probability(BlockKind::kUser, ReuseTransition::kToolReturn), 0.5);
  // Old evidence fades: a hundred updates weigh as much as all before them.
  for (int i = 0; i < 300; ++i) table.Add(BlockKind::kTool, ReuseTransition::kToolReturn, false);
  EXPECT_LT(table.Probability(BlockKind::kTool, ReuseTransition::kToolReturn), 0.1);
}

}  // namespace
}  // namespace tidepool
