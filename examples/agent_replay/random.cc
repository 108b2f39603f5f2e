#include "random.h"

#include <cmath>
#include <numbers>

namespace agent_replay {

double Random::Exponential(double mean) noexcept { return -mean * std::log(Uniform()); }

// Box-Muller; the second value is thrown away, so that a stream has no hidden state.
double Random::Normal() noexcept {
  const double radius = std::sqrt(-2 * std::log(Uniform()));
  return radius * std::cos(2 * std::numbers::pi * Uniform());
}

}  // namespace agent_replay
