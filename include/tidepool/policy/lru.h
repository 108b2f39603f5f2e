// tidepool/policy/lru.h - least recently used, within priority classes: the baseline policy.
//
// Rank of a block, first to leave first: (priority class of its strongest claimant, recency of its
// last use). The class comes first because a priority that recency can outweigh protects nobody:
// one burst of background work would flush a critical session that waits for a tool. Within a
// class, recency is what the class's own use makes it.
//
//   HBM: "use" is the last hold leaving. Blocks released together leave tail first, since a prefix
//        is worth nothing without its head. Held blocks are out of the order altogether.
//   Lower tiers: "use" is the copy's arrival or an admission served from it.
//
// A change of priority files the block as the newest of its new class. Asking (Probe) is not using.
//
// Cost: 4 bytes a block id, plus 8 bytes for each span of consecutive ids released together (4 for
// a single block) and up to 36 % of those in garbage: 4.03 bytes a block for whole prefixes of 512,
// less than 10 in the worst case. Selecting is O(blocks asked for), amortised, however many blocks
// are held.
//
// Thread contract: scheduler thread only.
#pragma once

#include <memory>

#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"

namespace tidepool {

TIDEPOOL_EXPORT std::unique_ptr<EvictionPolicy> MakeLruPolicy();

}  // namespace tidepool
