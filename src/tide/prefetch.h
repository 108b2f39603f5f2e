// prefetch.h - which sessions' blocks come up ahead of need. Private.
//
// Certain: the request has arrived and waits in the engine's queue. Predicted: a wait's lower
// quartile comes near, less the time that the load takes.
//
// Thread contract: scheduler thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tidepool/tide/migrator.h"
#include "tidepool/tide/tide.h"

namespace tidepool {

class PrefetchPlanner {
 public:
  PrefetchPlanner(const TideOptions* options, TideCounters* counters)
      : options_(options), counters_(counters) {}

  void OnSession(const SessionSignals& session, TimePoint now) noexcept;
  void Plan(MigrationContext& context, const SchedulingSignals& signals,
            std::vector<PlannedCopy>& plan) noexcept;

 private:
  struct Wait {
    TimePoint start;  // when the load should begin, or be looked at again
    TimePoint back;   // lower quartile of the return
    SessionId session;
    std::uint32_t index = 0;
    std::uint32_t stamp = 0;  // of the wait: an older one is over
    friend bool operator>(const Wait& a, const Wait& b) {
      return std::pair(a.start, a.session) > std::pair(b.start, b.session);
    }
  };
  [[nodiscard]] bool Current(const Wait& wait) const;
  void PlanPredicted(MigrationContext& context, const SchedulingSignals& signals,
                     std::vector<PlannedCopy>& plan);
  bool FindMissing(SessionId session, std::uint32_t index, MigrationContext& context,
                   const SchedulingSignals& signals);
  void Emit(MigrationContext& context, TransferClass cls, std::size_t most,
            std::vector<PlannedCopy>& plan);

  const TideOptions* options_;
  TideCounters* counters_;
  struct Arrival {
    SessionId session;
    std::uint32_t index = 0;
  };
  std::vector<Arrival> arrived_;
  std::priority_queue<Wait, std::vector<Wait>, std::greater<>> waits_;
  absl::flat_hash_map<std::uint64_t, std::uint32_t> stamps_;  // of waits under way, by session
  std::uint32_t next_stamp_ = 0;
  std::vector<BlockId> blocks_;
};

}  // namespace tidepool
