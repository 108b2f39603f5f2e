#include "policies.h"

#include "future_policies.h"
#include "tidepool/policy/arc.h"
#include "tidepool/policy/asym_cache.h"
#include "tidepool/policy/lru.h"
#include "tidepool/policy/sieve.h"
#include "tidepool/policy/spear.h"
#include "tidepool/policy/spear_paper.h"
#include "tidepool/policy/ttl.h"

namespace policy_lab {
namespace {

using Policy = std::unique_ptr<tidepool::EvictionPolicy>;

// spear with one thing changed, to see what it is worth.
template <typename Change>
Policy Variant(const PolicyContext& context, Change change) {
  tidepool::SessionModel::Options model;
  tidepool::SpearOptions options;
  change(model, options);
  options.model = TrainedModel(context, model);
  return tidepool::MakeSpearPolicy(options);
}
using ModelOptions = tidepool::SessionModel::Options;
using tidepool::SpearOptions;

constexpr PolicyEntry kPolicies[] = {
    {"lru", false, [](const PolicyContext&) -> Policy { return tidepool::MakeLruPolicy(); }},
    {"arc", false, [](const PolicyContext&) -> Policy { return tidepool::MakeArcPolicy(); }},
    {"sieve", false, [](const PolicyContext&) -> Policy { return tidepool::MakeSievePolicy(); }},
    {"spear", false,
     [](const PolicyContext& context) -> Policy {
       return tidepool::MakeSpearPolicy(tidepool::SpearForHits(TrainedModel(context)));
     }},
    {"spear_cost", false,
     [](const PolicyContext& context) -> Policy {
       return tidepool::MakeSpearPolicy(tidepool::SpearForCost(TrainedModel(context)));
     }},
    {"spear_paper", false,
     [](const PolicyContext& context) -> Policy {
       return tidepool::MakeSpearPaperPolicy({.model = TrainedModel(context)});
     }},
    {"ttl", false,
     [](const PolicyContext& context) -> Policy {
       return tidepool::MakeTtlPolicy({.model = TrainedModel(context)});
     }},
    {"asym_cache", false,
     [](const PolicyContext&) -> Policy { return tidepool::MakeAsymCachePolicy(); }},
    {"bayes", false, [](const PolicyContext&) -> Policy { return tidepool::MakeBayesPolicy(); }},
    {"belady", true,
     [](const PolicyContext& context) -> Policy {
       return MakeFuturePolicy(*context.future, FutureRank::kTime);
     }},
    {"belady_cost", true,
     [](const PolicyContext& context) -> Policy {
       return MakeFuturePolicy(*context.future, FutureRank::kCost);
     }},
    // Variants: by name only, not among `all`.
    {"spear_within60", false,
     [](const PolicyContext& context) -> Policy {
       return Variant(context, [](ModelOptions&, SpearOptions& o) {
         o.index = SpearOptions::Index::kWithinHorizon;
       });
     },
     true},
    {"spear_recency", false,
     [](const PolicyContext& context) -> Policy {
       return Variant(context, [](ModelOptions&, SpearOptions& o) {
         o.index = SpearOptions::Index::kRecency;
       });
     },
     true},
    {"spear_no_blend", false,
     [](const PolicyContext& context) -> Policy {
       return Variant(context, [](ModelOptions&, SpearOptions& o) {
         o.recency_age = std::chrono::seconds(-1);
       });
     },
     true},
    {"spear_no_theta", false,
     [](const PolicyContext& context) -> Policy {
       return Variant(context, [](ModelOptions& m, SpearOptions&) { m.time_scales = false; });
     },
     true},
    {"spear_no_first", false,
     [](const PolicyContext& context) -> Policy {
       return Variant(context, [](ModelOptions& m, SpearOptions&) { m.first_turns = false; });
     },
     true},
    {"spear_full_cost", false,
     [](const PolicyContext& context) -> Policy {
       return Variant(context, [](ModelOptions&, SpearOptions& o) { o.cost_exponent = 1; });
     },
     true},
};

}  // namespace

std::span<const PolicyEntry> Policies() { return kPolicies; }

const PolicyEntry* FindPolicy(std::string_view name) {
  for (const PolicyEntry& entry : kPolicies) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::string PolicyNames() {
  std::string names;
  for (const PolicyEntry& entry : kPolicies) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

std::shared_ptr<tidepool::SessionModel> TrainedModel(
    const PolicyContext& context, const tidepool::SessionModel::Options& options) {
  auto model = std::make_shared<tidepool::SessionModel>(options);
  if (context.training == nullptr) return model;
  tidepool::SessionModel teacher(options);
  context.training->Replay([&](const tidepool::SessionSignals& session, tidepool::TimePoint now) {
    teacher.OnSession(session, now);
  });
  (void)model->Load(teacher.Save());  // its sessions stay behind
  return model;
}

}  // namespace policy_lab
