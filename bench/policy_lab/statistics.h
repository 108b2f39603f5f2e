// policy_lab/statistics.h - means with confidence intervals, and quantiles.
//
// Thread contract: pure functions.
#pragma once

#include <span>
#include <vector>

namespace policy_lab {

struct Estimate {
  double mean = 0;
  double half_width = 0;  ///< of the 95 % confidence interval by Student's t; 0 for one value
};
Estimate MeanOf(std::span<const double> values);

/// The two-sided 95 % quantile of Student's t with `degrees` > 0 degrees of freedom.
double StudentT95(std::size_t degrees);

/// Nearest rank; 0 for no values. Sorts its copy.
double QuantileOf(std::vector<float> values, double p);

}  // namespace policy_lab
