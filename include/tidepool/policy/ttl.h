// tidepool/policy/ttl.h - keep a waiting session for a time that pays, then treat it as any other
// (Continuum, arXiv 2511.02230).
//
//   tau = argmax over t of P(return within t) * benefit - t
//
// P: the distribution of waits of the session's class or tool (session_model.h); benefit: seconds
// that a hit saves, a queueing delay plus the prefill of the session's blocks. Sessions whose time
// is over leave first, longest idle first; then those whose time ends soonest. Unlike the paper's
// pins, retention is a bias: under pressure everything can be had. Priority classes come first, as
// in lru.
//
// Thread contract: scheduler thread only.
#pragma once

#include <memory>

#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"
#include "tidepool/session_model.h"

namespace tidepool {

struct TtlOptions {
  std::shared_ptr<SessionModel> model;             ///< null = one of its own
  Duration queue_delay = std::chrono::seconds(2);  ///< what a session that lost its blocks waits
  Duration block_prefill = std::chrono::milliseconds(8);  ///< recomputing one block
};

[[nodiscard]] TIDEPOOL_EXPORT std::unique_ptr<EvictionPolicy> MakeTtlPolicy(
    TtlOptions options = {});

}  // namespace tidepool
