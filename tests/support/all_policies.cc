#include "tests/support/all_policies.h"

#include "tidepool/policy/arc.h"
#include "tidepool/policy/asym_cache.h"
#include "tidepool/policy/lru.h"
#include "tidepool/policy/sieve.h"
#include "tidepool/policy/spear.h"
#include "tidepool/policy/spear_paper.h"
#include "tidepool/policy/ttl.h"

namespace tidepool::testing {

std::span<const NamedPolicy> AllPolicies() {
  static constexpr NamedPolicy kPolicies[] = {
      {"lru", [] { return MakeLruPolicy(); }},
      {"arc", [] { return MakeArcPolicy(); }},
      {"sieve", [] { return MakeSievePolicy(); }},
      {"spear", [] { return MakeSpearPolicy(); }},
      {"spear_cost", [] { return MakeSpearPolicy(SpearForCost()); }},
      {"spear_paper", [] { return MakeSpearPaperPolicy(); }},
      {"ttl", [] { return MakeTtlPolicy(); }},
      {"asym_cache", [] { return MakeAsymCachePolicy(); }},
      {"bayes", [] { return MakeBayesPolicy(); }},
  };
  return kPolicies;
}

}  // namespace tidepool::testing
