// policy_lab/timed_policy.h - a decorator: times victim choice, counts victims, tells the future
// what HBM's blocks are used for next, and watches prefetched blocks. Forwards everything.
//
// Thread contract: scheduler thread only.
#pragma once

#include <cstdint>
#include <memory>

#include "future.h"
#include "prefetch_watch.h"
#include "tidepool/eviction_policy.h"

namespace policy_lab {

struct DecisionCounts {
  std::uint64_t victims = 0;  ///< copies that left to make room, moved down or not
  std::uint64_t select_ns = 0;
};

/// `counts`, and `future` and `prefetches`, which may be null, outlive the policy.
std::unique_ptr<tidepool::EvictionPolicy> MakeTimedPolicy(
    std::unique_ptr<tidepool::EvictionPolicy> policy, DecisionCounts* counts, Future* future,
    PrefetchWatch* prefetches);

}  // namespace policy_lab
