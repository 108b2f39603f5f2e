#include "src/decision_hash.h"

#include <cstddef>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tidepool::internal {
namespace {

constexpr std::size_t kFew = 4;

}  // namespace

void DecisionHash::Add(std::span<const std::uint32_t> numbers) noexcept {
  Add(numbers.size());
  if (numbers.size() > kFew) {
    return Add(XXH3_64bits(numbers.data(), numbers.size_bytes()));
  }
  for (const std::uint32_t n : numbers) Add(n);
}

}  // namespace tidepool::internal
