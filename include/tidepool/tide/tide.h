// tidepool/tide/tide.h - TIDE: copy early, free late, within a measured budget.
//
//   auto tide = std::make_shared<Tide>();
//   options.migrator = tide->MakePlanner();
//   options.policy = [tide](TierIndex t) {
//     return t == kHbmTier ? MakeSpearPolicy() : tide->MakePolicy(t);
//   };
//
// The planner keeps a bounded clean pool: of the blocks that HBM's policy will let go next, those
// that are dirty are copied down ahead of need, so that pressure finds blocks that can leave at
// once. It is refreshed each second, its first 128 blocks also when a session began to wait.
// Nothing is released ahead of need, unless `release_ahead` says so: what is clean leaves when room
// is wanted. Tiers between HBM and the last have a clean pool of their own, without what has not
// been used twice: a drive wears out.
//
// Loads ahead of need: when a session's request has arrived (KvCacheManager::SessionArrived) its
// blocks come up at once, while the request waits in the engine's queue. Prefetches on a predicted
// return are off: on the traces measured they do not pay.
//
// The policy of a lower tier has one price, seconds of stall saved per second of keeping, for
// every copy:
//
//   a duplicate (a tier above has the block)  k * rho * C_link
//   an only-copy                              recency_rate / age * (C_next - C_link)
//
// rho: share of HBM that is evicted per second, smoothed over some minutes; k: `duplicate_factor`;
// C_link: seconds to bring the block up from here; C_next: from the next place that has it,
// recomputing included; age: since HBM let the block go. Duplicates of the clean pool leave only
// when nothing else can. The cheapest leaves first.
//
// docs/tide.md has the rules, what each is worth, and figures. Every rule has a switch and a
// counter.
//
// Thread contract: scheduler thread only; planner and policies of one Tide serve one manager.
#pragma once

#include <cstdint>
#include <memory>

#include "tidepool/clock.h"
#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"
#include "tidepool/tide/migrator.h"

namespace tidepool {

struct TideOptions {
  double clean_pool = 0.12;  ///< share of HBM's slots kept clean, next to leave first; 0 to 1
  Duration refresh = std::chrono::seconds(1);
  bool refresh_on_waits = true;               ///< its beginning also when a session began to wait
  double background_share = 0.7;              ///< of a link's bandwidth, for copies ahead of need
  Duration window = std::chrono::seconds(2);  ///< ... in so long a time at most, all sessions

  bool withdraw_on_return = true;  ///< forget copies not started when their session is back early

  double lower_clean_pool = 0.05;             ///< the same share of a middle tier's slots
  std::uint32_t lower_min_hits = 1;           ///< admissions its run must have served; at most 3
  std::uint64_t min_extent_bytes = 1u << 20;  ///< a middle tier's pool copies no less at once

  Duration release_ahead{0};  ///< HBM slots kept free for what is admitted in so long a time

  bool certain_prefetch = true;     ///< load the blocks of sessions whose request has arrived
  bool predicted_prefetch = false;  ///< load before the expected return, into free slots only
  Duration prefetch_margin = std::chrono::milliseconds(20);  ///< early by so much
  double prefetch_watermark = 0.05;  ///< share of HBM's slots that predictions leave free

  bool duplicates_first = true;  ///< the tier below HBM prices duplicates; false: recency alone
  bool one_price = true;         ///< false: every duplicate goes before any only-copy
  double duplicate_factor = 0.5;
  double recency_rate = 0.25;
};

struct TideCounters {
  std::uint64_t refreshes = 0;             ///< of the clean pool
  std::uint64_t pool_copies = 0;           ///< started for the clean pool
  std::uint64_t demand_copies = 0;         ///< started because somebody waits for room
  std::uint64_t held_back = 0;             ///< refreshes that the bandwidth budget cut short
  std::uint64_t lower_pool_copies = 0;     ///< started for the clean pools of middle tiers
  std::uint64_t skipped_unused = 0;        ///< there, blocks that were not used often enough
  std::uint64_t released_ahead = 0;        ///< blocks given up before somebody needed the room
  std::uint64_t certain_prefetches = 0;    ///< planned
  std::uint64_t predicted_prefetches = 0;  ///< planned
  std::uint64_t duplicates_left = 0;       ///< victims of lower tiers that a tier above had
  std::uint64_t only_copies_left = 0;
};

class TIDEPOOL_EXPORT Tide {
 public:
  /// Numbers out of their range are clamped; NaN counts as 0.
  explicit Tide(const TideOptions& options = {});
  ~Tide();
  [[nodiscard]] std::unique_ptr<Migrator> MakePlanner();
  /// For tiers below HBM (in HBM it is LRU).
  [[nodiscard]] std::unique_ptr<EvictionPolicy> MakePolicy(TierIndex tier);
  [[nodiscard]] const TideCounters& counters() const noexcept;

 private:
  struct State;
  friend class TidePlanner;
  friend class TidePolicy;
  std::shared_ptr<State> state_;
};

}  // namespace tidepool
