// tidepool/policy/asym_cache.h - recency that knows what a block costs: AsymCache (arXiv
// 2606.02964) on the tails of the tree, and with learned probabilities of reuse.
//
//   E = f(age) * C(position), evict the least
//   f(age) = min(exp(-age / alpha), exp(-(age - age0) / beta))
//   alpha = -L / ln p, beta = alpha / r, age0 = L * (1 - 1 / r)
//
// L: a long reuse gap (99th percentile); p: probability of reuse at L; r: how much faster the
// second branch falls. C is linear in the position (the signals' cost model); where every block
// costs the same the policy is LRU. Each branch keeps its order as time passes, so that two heaps
// hold it and only the two tops are compared. The paper's cache may have holes; in a tree without
// holes only tails can leave, and those are what is ranked.
//
// bayes: E * P(reuse), with a Beta posterior for each of 16 pairs of block kind (shared by
// sessions; waiting for a tool, for a user; other) and transition (next turn, return from a tool,
// another session, hand-off on the critical path); after arXiv 2604.26968, which leaves the pairs
// open.
//
// Thread contract: scheduler thread only.
#pragma once

#include <memory>

#include "tidepool/clock.h"
#include "tidepool/estimators.h"
#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"

namespace tidepool {

struct AsymCacheOptions {
  Duration long_gap = std::chrono::seconds(1000);  ///< L, > 0
  double reuse_at_long_gap = 0.5;                  ///< p, in (0, 1)
  double slope_ratio = 10;                         ///< r, > 1
};

/// Options out of range are replaced by their defaults.
[[nodiscard]] TIDEPOOL_EXPORT std::unique_ptr<EvictionPolicy> MakeAsymCachePolicy(
    AsymCacheOptions options = {});

struct BayesOptions {
  AsymCacheOptions recency;
  std::shared_ptr<ReuseTable> reuse;  ///< learns; null = a table of its own
};
[[nodiscard]] TIDEPOOL_EXPORT std::unique_ptr<EvictionPolicy> MakeBayesPolicy(
    BayesOptions options = {});

}  // namespace tidepool
