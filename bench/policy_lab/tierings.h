// policy_lab/tierings.h - the ways to move blocks between tiers that the lab knows by name:
// "policy@tiering". A new one is one line in tierings.cc.
//
// Thread contract: pure functions.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "baselines.h"
#include "policies.h"
#include "tidepool/tide/tide.h"

namespace policy_lab {

/// What copies blocks between tiers, and what the tiers below HBM evict by if not the policy.
struct Tiering {
  std::unique_ptr<tidepool::Migrator> migrator;
  /// Empty: as in HBM, or --lower-policy.
  std::function<std::unique_ptr<tidepool::EvictionPolicy>(tidepool::TierIndex)> lower;
  std::shared_ptr<tidepool::Tide> tide;  ///< for its counters; null: not used
  /// Loads come from the back, and a prefill of its own computes from the front meanwhile.
  bool two_ended = false;
  bool recompute_if_sooner = false;
  std::shared_ptr<PromotionQueue> promotions;  ///< null: the planner brings nothing up
};
struct TieringEntry {
  std::string_view name;
  bool needs_future = false;
  Tiering (*make)(const PolicyContext& context) = nullptr;
};
/// demand first, which is what a policy without @NAME gets.
std::span<const TieringEntry> Tierings();
const TieringEntry* FindTiering(std::string_view name);
std::string TieringNames();

/// "spear@tide": a policy and a tiering.
struct System {
  const PolicyEntry* policy = nullptr;
  const TieringEntry* tiering = nullptr;
};
/// Null members if there is none of that name.
System FindSystem(std::string_view name);

}  // namespace policy_lab
