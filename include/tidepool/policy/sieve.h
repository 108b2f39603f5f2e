// tidepool/policy/sieve.h - SIEVE (Zhang et al., NSDI 2024), within priority classes: a queue in
// order of arrival and a hand that walks it, sparing what was used since it last came by.
//
// A use sets a block's visited mark and moves nothing. The hand goes from the oldest block to the
// newest and round again: a visited block loses its mark and stays where it is, the first without a
// mark leaves. New blocks join behind the newest.
//
// What the paper does not have:
//   * Each priority class has a queue and a hand of its own; the lowest class gives first.
//   * A held block keeps its place. If the hand comes to it meanwhile it is taken out, so that no
//     later search meets it again, and its release files it as the newest.
//   * Blocks released together leave tail first.
//   * A block that is no candidate (a transfer uses it, a filter bars it) is left for the hand to
//     look at again. SelectVictims only looks; OnEvicted moves the hand to the victim that left.
//
// Cost: 9 bytes a block id and its place in the order (see lru.h). Selecting is O(blocks asked
// for), amortised: each block passed costs the use that marked it.
//
// Thread contract: scheduler thread only.
#pragma once

#include <memory>

#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"

namespace tidepool {

TIDEPOOL_EXPORT std::unique_ptr<EvictionPolicy> MakeSievePolicy();

}  // namespace tidepool
