// tidepool/policy/spear_paper.h - SPEAR's score as published (UNISON, arXiv 2609.09643, Eq. 5-7):
// the reference that `spear` is compared with.
//
//   score(s) = g / sigma(t) + (1 - sigma(t)) * P      evict the largest
//   sigma(t) = max(0.01, 1 - h(min(t, 50)))           one-step survival
//
// g: the session's average gap (EMA, weight 3/10); h(t): turn hazard; P: completion penalty. The
// score does not change while a session waits, and a completed session goes first. The paper evicts
// whole sessions; here a query asks for blocks, so the chosen session goes on leaving, tail first,
// in the queries that follow: nothing but its return or a larger score gets between. Ours: a
// session without a gap yet counts with the median wait of its class, equal scores leave oldest
// first, and the score is divided by the priority's factor.
//
// Thread contract: scheduler thread only.
#pragma once

#include <memory>

#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"
#include "tidepool/session_model.h"

namespace tidepool {

struct SpearPaperOptions {
  std::shared_ptr<SessionModel> model;  ///< null = one of its own
  double completion_penalty_s = 500;    ///< P; the paper's 5e8 in microseconds
};

[[nodiscard]] TIDEPOOL_EXPORT std::unique_ptr<EvictionPolicy> MakeSpearPaperPolicy(
    SpearPaperOptions options = {});

}  // namespace tidepool
