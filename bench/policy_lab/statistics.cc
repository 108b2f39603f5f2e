#include "statistics.h"

#include <algorithm>
#include <cmath>

namespace policy_lab {

double StudentT95(std::size_t degrees) {
  // Table values; beyond them the expansion about the normal quantile (Abramowitz and Stegun
  // 26.7.5), which is within 0.001 from 30 degrees on.
  constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                               2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                               2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                               2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  if (degrees <= std::size(kTable)) return kTable[degrees - 1];
  constexpr double kNormal = 1.959964;
  return kNormal + (std::pow(kNormal, 3) + kNormal) / (4 * static_cast<double>(degrees));
}

Estimate MeanOf(std::span<const double> values) {
  Estimate estimate;
  if (values.empty()) return estimate;
  const auto n = static_cast<double>(values.size());
  for (const double v : values) estimate.mean += v / n;
  if (values.size() < 2) return estimate;
  double squares = 0;
  for (const double v : values) squares += (v - estimate.mean) * (v - estimate.mean);
  estimate.half_width = StudentT95(values.size() - 1) * std::sqrt(squares / (n - 1) / n);
  return estimate;
}

double QuantileOf(std::vector<float> values, double p) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::ptrdiff_t>(p * static_cast<double>(values.size() - 1) + .5);
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return static_cast<double>(values[static_cast<std::size_t>(rank)]);
}

}  // namespace policy_lab
