#include "tierings.h"

#include <chrono>

#include "future_policies.h"

namespace policy_lab {
namespace {

// Requests are admitted as they come: there is no queue during which a certain prefetch could run.
Tiering MakeTide(tidepool::TideOptions options) {
  options.certain_prefetch = false;
  auto tide = std::make_shared<tidepool::Tide>(options);
  return {.migrator = tide->MakePlanner(),
          .lower = [tide](tidepool::TierIndex tier) { return tide->MakePolicy(tier); },
          .tide = tide};
}

// TIDE's planner; below HBM the true time of the next use takes the place of the age.
Tiering MakeOracle(const PolicyContext& context) {
  Tiering tiering = MakeTide({});
  auto listed = std::make_shared<ListedBlocks>();
  tiering.migrator = MakeListening(std::move(tiering.migrator), listed);
  tiering.lower = [future = context.future, listed](tidepool::TierIndex) {
    return MakeFutureTierPolicy(*future, listed);
  };
  return tiering;
}

Tiering MakeUnison(const PolicyContext& context) {
  auto promotions = std::make_shared<PromotionQueue>();
  return {.migrator = MakeUnisonSwap({.model = TrainedModel(context)}, promotions),
          .promotions = promotions};
}

constexpr TieringEntry kTierings[] = {
    {"demand", false,
     [](const PolicyContext&) -> Tiering { return {.migrator = tidepool::MakeDemandWriteBack()}; }},
    {"shadow", false,
     [](const PolicyContext&) -> Tiering { return {.migrator = MakeNaiveShadow()}; }},
    {"unison", false, MakeUnison},
    {"tide", false, [](const PolicyContext&) { return MakeTide({}); }},
    {"cake", false,
     [](const PolicyContext&) {
       Tiering tiering = MakeTide({});
       tiering.two_ended = true;
       return tiering;
     }},
    {"tide_sooner", false,
     [](const PolicyContext&) {
       Tiering tiering = MakeTide({});
       tiering.recompute_if_sooner = true;
       return tiering;
     }},
    {"oracle", true, MakeOracle},
    // TIDE with one rule off.
    {"tide_no_pool", false, [](const PolicyContext&) { return MakeTide({.clean_pool = 0}); }},
    {"tide_no_duplicates", false,
     [](const PolicyContext&) { return MakeTide({.duplicates_first = false}); }},
    {"tide_fixed", false, [](const PolicyContext&) { return MakeTide({.one_price = false}); }},
    {"tide_no_lower_pool", false,
     [](const PolicyContext&) { return MakeTide({.lower_clean_pool = 0}); }},
    {"tide_lower_all", false, [](const PolicyContext&) { return MakeTide({.lower_min_hits = 0}); }},
    {"tide_predict", false,
     [](const PolicyContext&) { return MakeTide({.predicted_prefetch = true}); }},
    {"tide_release_ahead", false,
     [](const PolicyContext&) { return MakeTide({.release_ahead = std::chrono::seconds(1)}); }},
    {"tide_no_wait_refresh", false,
     [](const PolicyContext&) { return MakeTide({.refresh_on_waits = false}); }},
    {"tide_no_withdraw", false,
     [](const PolicyContext&) { return MakeTide({.withdraw_on_return = false}); }},
};

}  // namespace

std::span<const TieringEntry> Tierings() { return kTierings; }

const TieringEntry* FindTiering(std::string_view name) {
  for (const TieringEntry& entry : kTierings) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::string TieringNames() {
  std::string names;
  for (const TieringEntry& entry : kTierings) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

System FindSystem(std::string_view name) {
  const std::size_t at = name.find('@');
  if (at == name.npos) return {FindPolicy(name), &kTierings[0]};
  return {FindPolicy(name.substr(0, at)), FindTiering(name.substr(at + 1))};
}

}  // namespace policy_lab
