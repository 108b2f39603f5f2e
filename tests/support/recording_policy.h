// tests/support/recording_policy.h - LRU behind a wrapper that counts what it is asked, or gives
// the opposite of a sensible answer.
//
// Thread contract: scheduler thread only.
#pragma once

#include <cstdint>
#include <memory>

#include "tidepool/eviction_policy.h"

namespace tidepool::testing {

/// What the policy saw, and how it behaves.
struct PolicyRecord {
  std::uint32_t selections = 0;  ///< calls of SelectVictims
  std::uint32_t named = 0;       ///< victims named in all of them
  bool heads_first = false;      ///< name every candidate, in the opposite order
};
/// `record` outlives the policy.
[[nodiscard]] std::unique_ptr<EvictionPolicy> MakeRecordingPolicy(PolicyRecord* record);
}  // namespace tidepool::testing
