// tidepool/policy/arc.h - ARC, the adaptive replacement cache (Megiddo and Modha, FAST 2003),
// within priority classes: balances recency against frequency by what has left too early.
//
// T1 holds blocks used once, T2 blocks used again; B1 and B2 remember digests of blocks that left
// T1 and T2. A block that comes back while B1 or B2 knows it goes to T2 and moves the target p of
// |T1|: up for B1, down for B2, once per stay in the ghost list, by a real-valued step. REPLACE
// takes T1's oldest when |T1| > p, or = p and the newcomer is in B2, else T2's. For c slots,
// |T1| + |B1| <= c and all four lists together hold at most 2c, also after Resize.
//
// What caching papers do not have:
//   * Held blocks count towards |T1|, |T2| and c, but are out of the order; when the list that
//     REPLACE prefers has no candidate, the other one gives it. The last hold's leaving is the use
//     that sets a block's age, and blocks released together leave tail first, as in LRU.
//   * Blocks of a lower priority class leave first, whatever their list; inside a class REPLACE
//     chooses. Sizes and target are those of the whole tier.
//   * Room is made for many blocks at once. Each victim sees the target as the newcomer it makes
//     room for will have moved it.
//   * A block that leaves by invalidation, failure or release is not remembered; a private block
//     has no digest to remember.
//
// Cost: 9 bytes a block id and its place in the order (see lru.h), and 30 to 60 bytes a ghost.
// Selecting is O(blocks asked for), amortised, however many blocks are held.
//
// Thread contract: scheduler thread only.
#pragma once

#include <cstdint>
#include <memory>

#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"

namespace tidepool {

TIDEPOOL_EXPORT std::unique_ptr<EvictionPolicy> MakeArcPolicy();

/// The paper's |T1|, |T2|, |B1|, |B2|, p and c.
struct ArcState {
  std::uint32_t recent = 0;           ///< |T1|, held blocks included
  std::uint32_t frequent = 0;         ///< |T2|, held blocks included
  std::uint32_t recent_ghosts = 0;    ///< |B1|
  std::uint32_t frequent_ghosts = 0;  ///< |B2|
  double target = 0;                  ///< p
  std::uint32_t capacity = 0;         ///< c
  friend bool operator==(const ArcState&, const ArcState&) = default;
};
/// REQUIRES: the policy is one of MakeArcPolicy.
[[nodiscard]] TIDEPOOL_EXPORT ArcState GetArcState(const EvictionPolicy& policy) noexcept;

}  // namespace tidepool
