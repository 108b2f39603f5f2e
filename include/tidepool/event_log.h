// tidepool/event_log.h - what a router or another node needs to mirror the prefix index: one record
// per published block and tier, in order, numbered without gaps.
//
// Thread contract: plain values; the log itself is drained on the scheduler thread.
#pragma once

#include <cstdint>
#include <vector>

#include "tidepool/eviction_policy.h"
#include "tidepool/types.h"

namespace tidepool {

enum class EventKind : std::uint8_t { kStored, kRemoved };

struct Event {
  std::uint64_t number = 0;  ///< 1, 2, 3, ... for the life of the manager
  EventKind kind = EventKind::kStored;
  TierIndex tier = 0;
  EvictReason reason = EvictReason::kCapacity;  ///< of a removal
  bool first_or_last = false;  ///< stored: the block's first copy; removed: its last one
  NamespaceId ns;
  PrefixHash digest;
  PrefixHash parent;  ///< digest of the block before it; the namespace's root digest at the start
};

/// Events since the last drain. `lost` counts events that fell out of the ring since then: take a
/// Snapshot and go on from its number.
struct EventBatch {
  std::vector<Event> events;
  std::uint64_t lost = 0;
};

/// Every (block, tier) of the index at event number `number`: replaying the log from there on
/// top of it gives the index.
struct EventSnapshot {
  std::uint64_t number = 0;
  std::vector<Event> stored;
};

}  // namespace tidepool
