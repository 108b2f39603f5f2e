// all_policies.h - the library's policies by name, for tests that every one of them must pass.
#pragma once

#include <span>
#include <string_view>

#include "tidepool/eviction_policy.h"

namespace tidepool::testing {

struct NamedPolicy {
  std::string_view name;
  PolicyFactory make = nullptr;
};
[[nodiscard]] std::span<const NamedPolicy> AllPolicies();

}  // namespace tidepool::testing
