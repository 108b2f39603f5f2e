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

#include "baselines.h"
#include "future.h"
#include "tidepool/eviction_policy.h"

namespace policy_lab {

enum class FutureRank : std::uint8_t { kTime, kCost };
/// `future` outlives the policy.
std::unique_ptr<tidepool::EvictionPolicy> MakeFuturePolicy(const Future& future, FutureRank rank);

/// For tiers below HBM, with TIDE's price (docs/tide.md) in which an only-copy's rate is one use in
/// the true time to it: (C_next - C_link) / (next use - now). What is never used again is free.
/// Duplicates that `listed` names (the clean pool) leave last.
std::unique_ptr<tidepool::EvictionPolicy> MakeFutureTierPolicy(
    const Future& future, std::shared_ptr<const ListedBlocks> listed);

}  // namespace policy_lab
