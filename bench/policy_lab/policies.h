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
#include "tidepool/session_model.h"
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

/// In the order in which tables list them; lru first.
std::span<const PolicyEntry> Policies();
/// Null if there is no such policy.
const PolicyEntry* FindPolicy(std::string_view name);
/// "lru, belady, ..."
std::string PolicyNames();

/// A model that has seen the training trace, if there is one.
std::shared_ptr<tidepool::SessionModel> TrainedModel(
    const PolicyContext& context, const tidepool::SessionModel::Options& options = {});

}  // namespace policy_lab
