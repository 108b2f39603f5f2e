#include "tidepool/built_in_policies.h"

#include <string>

#include "src/str_cat.h"
#include "tidepool/policy/arc.h"
#include "tidepool/policy/asym_cache.h"
#include "tidepool/policy/lru.h"
#include "tidepool/policy/sieve.h"
#include "tidepool/policy/spear.h"
#include "tidepool/policy/spear_paper.h"
#include "tidepool/policy/ttl.h"

namespace tidepool {

std::span<const BuiltInPolicy> BuiltInPolicies() noexcept {
  static constexpr BuiltInPolicy kPolicies[] = {
      {"lru", [] { return MakeLruPolicy(); }},
      {"arc", [] { return MakeArcPolicy(); }},
      {"sieve", [] { return MakeSievePolicy(); }},
      {"spear", [] { return MakeSpearPolicy(SpearForHits()); }},
      {"spear_cost", [] { return MakeSpearPolicy(SpearForCost()); }},
      {"spear_paper", [] { return MakeSpearPaperPolicy(); }},
      {"ttl", [] { return MakeTtlPolicy(); }},
      {"asym_cache", [] { return MakeAsymCachePolicy(); }},
      {"bayes", [] { return MakeBayesPolicy(); }},
  };
  return kPolicies;
}

StatusOr<PolicyFactory> PolicyByName(std::string_view name) {
  std::string names;
  for (const BuiltInPolicy& policy : BuiltInPolicies()) {
    if (policy.name == name) return policy.make;
    if (!names.empty()) names += ", ";
    names += policy.name;
  }
  return absl::NotFoundError(
      internal::StrCat("no policy \"", name.substr(0, 60), "\"; there are: ", names));
}

}  // namespace tidepool
