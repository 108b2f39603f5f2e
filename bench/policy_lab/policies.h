// policy_lab/policies.h - the policies the lab knows by name. A new one is one line in policies.cc.
//
// Thread contract: pure functions; a Training may be replayed from several threads at once.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "future.h"
#include "settings.h"
#include "tidepool/eviction_policy.h"
#include "tidepool/tide/tide.h"
#include "training.h"

namespace policy_lab {

/// What a policy may be made from. All pointers outlive the run.
struct PolicyContext {
  const Settings* settings = nullptr;
  const Future* future = nullptr;      ///< set for policies that need it
  const Training* training = nullptr;  ///< null without --train
  std::uint64_t seed = 0;
};

struct PolicyEntry {
  std::string_view name;
  bool needs_future = false;
  std::unique_ptr<tidepool::EvictionPolicy> (*make)(const PolicyContext& context) = nullptr;
  bool variant = false;  ///< another setting of a policy: not among "all"
};

/// What copies blocks between tiers, and what the tiers below HBM evict by if not the policy.
struct Tiering {
  std::unique_ptr<tidepool::Migrator> migrator;
  std::shared_ptr<tidepool::Tide> tide;  ///< null: not its policies
};
struct TieringEntry {
  std::string_view name;
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

/// In the order in which tables list them; lru first.
std::span<const PolicyEntry> Policies();
/// Null if there is no such policy.
const PolicyEntry* FindPolicy(std::string_view name);
/// "lru, belady, ..."
std::string PolicyNames();

}  // namespace policy_lab
