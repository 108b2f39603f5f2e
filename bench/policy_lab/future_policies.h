// policy_lab/future_policies.h - the ceilings: policies that see the future.
//
//   belady       what is used again last leaves first
//   belady_cost  what costs least to compute again, divided by the time to its next use, leaves
//                first: an oracle, not a proven optimum
//
// Blocks that are used next at one time form a group, in the order in which they leave: tails
// first. A query walks groups, O(groups + victims).
//
// Thread contract: scheduler thread only.
#pragma once

#include <memory>

#include "future.h"
#include "tidepool/eviction_policy.h"

namespace policy_lab {

enum class FutureRank : std::uint8_t { kTime, kCost };
/// `future` outlives the policy.
std::unique_ptr<tidepool::EvictionPolicy> MakeFuturePolicy(const Future& future, FutureRank rank);

}  // namespace policy_lab
