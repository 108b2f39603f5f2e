// tidepool/policy/spear.h - evict what is least likely to be wanted soon: sessions ranked by how
// they return. docs/policies/spear.md has formulas, parameters and figures.
//
//   worth of a tail = index(session) x priority x C^cost_exponent
//
// index: the best-horizon index of a session's wait (session_model.h), or P(return within H). C:
// seconds to get the tail's block back, recomputed or loaded. The exponent chooses between two
// aims: 0 (SpearForHits) keeps the most blocks that are used again, 0.5 (SpearForCost) saves the
// most recomputation; 1 would keep deep blocks whatever their prospects, and saves less. Below HBM,
// where waits are minutes old and the learned curve is flat, worth falls with the age of the wait
// (0.25 / age); see `lower_tiers`.
//
// The index is a weighted mean with recency's, whose share is age / (age + recency_age): after some
// minutes waits look alike, and what little the tables say of them is noise. With fewer than 200
// observed returns that share is at least a half.
//
// Thread contract: scheduler thread only.
#pragma once

#include <memory>

#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"
#include "tidepool/session_model.h"

namespace tidepool {

struct SpearOptions {
  enum class Index : std::uint8_t { kBestHorizon, kWithinHorizon, kRecency };
  std::shared_ptr<SessionModel> model;  ///< shared by tiers and planner; null = one of its own
  Index index = Index::kBestHorizon;
  Index lower_tiers = Index::kRecency;
  Duration horizon = std::chrono::seconds(60);  ///< of kWithinHorizon
  double cost_exponent = 0;                     ///< 0 to 1; other values are clamped
  /// Age at which recency has half the say; negative: never, zero: always.
  Duration recency_age = std::chrono::seconds(300);
};

[[nodiscard]] TIDEPOOL_EXPORT SpearOptions
SpearForHits(std::shared_ptr<SessionModel> model = nullptr);
[[nodiscard]] TIDEPOOL_EXPORT SpearOptions
SpearForCost(std::shared_ptr<SessionModel> model = nullptr);

[[nodiscard]] TIDEPOOL_EXPORT std::unique_ptr<EvictionPolicy> MakeSpearPolicy(
    SpearOptions options = {});

}  // namespace tidepool
