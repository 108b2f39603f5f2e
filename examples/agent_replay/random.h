// agent_replay/random.h - small seeded generators whose output is the same on every platform that
// has IEEE doubles and the same libm; the standard library's distributions are not.
//
// Thread contract: plain values.
#pragma once

#include <cstdint>

namespace agent_replay {

/// One step of SplitMix64 (Steele et al. 2014): a bijective mix of 64 bits.
constexpr std::uint64_t Mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A stream of numbers. Streams of different (seed, stream) are independent.
class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0) noexcept
      : state_(Mix(seed) ^ Mix(~stream)) {}

  std::uint64_t Next() noexcept { return Mix(state_ += 0x9e3779b97f4a7c15u); }
  /// In (0, 1): never an end, so that logarithms are finite.
  double Uniform() noexcept { return (static_cast<double>(Next() >> 12) + 0.5) * 0x1p-52; }
  bool Chance(double probability) noexcept { return Uniform() < probability; }
  /// In [0, n). REQUIRES: n > 0. The bias is below n / 2^52.
  std::uint64_t Below(std::uint64_t n) noexcept {
    return static_cast<std::uint64_t>(Uniform() * static_cast<double>(n));
  }
  double Exponential(double mean) noexcept;
  double Normal() noexcept;

 private:
  std::uint64_t state_;
};

}  // namespace agent_replay
