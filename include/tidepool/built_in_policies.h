// tidepool/built_in_policies.h - the library's policies by name, with their default options: for an
// engine's configuration, and for whoever must try them all.
//
//   StatusOr<PolicyFactory> make = PolicyByName(config.policy);
//   if (make.ok()) options.policy = [make = *make](TierIndex) { return make(); };
//
// Thread contract: any thread.
#pragma once

#include <span>
#include <string_view>

#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"
#include "tidepool/status.h"

namespace tidepool {

struct BuiltInPolicy {
  std::string_view name;
  PolicyFactory make = nullptr;
};

/// lru, arc, sieve, spear (SpearForHits), spear_cost (SpearForCost), spear_paper, ttl, asym_cache,
/// bayes.
[[nodiscard]] TIDEPOOL_EXPORT std::span<const BuiltInPolicy> BuiltInPolicies() noexcept;

/// ERRORS: kNotFound, with the names there are.
[[nodiscard]] TIDEPOOL_EXPORT StatusOr<PolicyFactory> PolicyByName(std::string_view name);

}  // namespace tidepool
