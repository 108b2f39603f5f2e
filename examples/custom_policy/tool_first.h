// An eviction policy of one's own: what a session is worth while it waits. Tools answer in seconds
// and people in minutes, so a session that waits for a tool is worth kToolBonus times one that
// waits for a person, and each is worth less the longer it has waited. Which blocks of a session
// leave first, what running sessions hold and what several sessions share is the library's
// business.
#pragma once

#include <tidepool/tidepool.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

namespace example {

class ToolFirst final : public tidepool::SessionScorer {
 public:
  static constexpr double kToolBonus = 8;

  tidepool::Rating Rate(const tidepool::Claimant& session,
                        tidepool::TimePoint now) const noexcept override {
    const std::chrono::duration<double> waited = now - session.since;
    const double age = std::max(waited.count(), 0.0);
    const double bonus = session.wait == tidepool::WaitClass::kTool ? kToolBonus : 1;
    tidepool::Rating rating;
    rating.log_worth = std::log(bonus / (1 + age)) + tidepool::LogPriority(session);
    // Ask again when it has waited a quarter longer: scores need not be exact to rank well.
    rating.until =
        now + std::chrono::milliseconds(static_cast<int>(500 + 250 * std::min(age, 1e6)));
    return rating;
  }
};

inline std::unique_ptr<tidepool::EvictionPolicy> MakeToolFirstPolicy() {
  return tidepool::MakeRankedPolicy("tool_first", std::make_unique<ToolFirst>());
}

}  // namespace example
