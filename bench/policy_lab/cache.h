// policy_lab/cache.h - the library under test, set up for the lab: a KvCacheManager on a manual
// clock, a link engine, timed policies, and prompts made from a workload's block numbers.
//
// A block's tokens name it: (dense number, 0). Each prompt gets one token more, so that all its
// blocks can be hits; the block that this token starts is never published.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "examples/agent_replay/chrome_trace.h"
#include "figures.h"
#include "future.h"
#include "link_engine.h"
#include "prefetch_watch.h"
#include "tidepool/kv_cache_manager.h"
#include "tidepool/testing/manual_clock.h"
#include "tierings.h"
#include "timed_policy.h"

namespace policy_lab {

struct RunSpec {
  const Workload* workload = nullptr;
  const Schedule* schedule = nullptr;
  const NominalTimes* nominal = nullptr;
  const Settings* settings = nullptr;
  const Training* training = nullptr;  ///< may be null
  const PolicyEntry* policy = nullptr;
  const PolicyEntry* lower_policy = nullptr;  ///< of the tiers below HBM
  const TieringEntry* tiering = nullptr;      ///< null: on demand
  std::uint32_t capacity_blocks = 0;
  agent_replay::ChromeTrace* trace = nullptr;  ///< open; may be null
};

class Cache {
 public:
  explicit Cache(const RunSpec& spec);
  tidepool::Status Create();

  struct Grant {
    tidepool::Outcome outcome = tidepool::Outcome::kBusy;
    std::array<std::uint32_t, kMaxLabTiers> hits{};
    double lookup_s = 0;
    tidepool::Shortfall shortfall;  ///< when refused
    tidepool::Sequence sequence;
    tidepool::LoadTicket ticket;
  };
  /// Asks for the leading `blocks` blocks of a request, and room for `decode_blocks` more.
  Grant Admit(std::uint32_t request, std::uint32_t blocks, std::uint32_t decode_blocks);
  [[nodiscard]] bool two_ended() const { return tiering_.two_ended; }
  /// Until what the links of its loads have queued is in HBM.
  [[nodiscard]] double LoadSeconds(const Grant& grant) const;
  /// The prompt is computed and its session waits.
  tidepool::Status Finish(std::uint32_t request, tidepool::Sequence sequence,
                          TimePoint next_arrival);

  /// Brings up what the tiering's planner wants in HBM, as far as there is room.
  void Promote();
  /// Gives up the HBM copies of a prompt's blocks that are clean and that nobody else claims.
  struct Released {
    std::uint32_t gone = 0;
    std::uint32_t left = 0;  ///< not clean yet
  };
  Released Release(std::uint32_t request);
  /// How the leading `blocks` blocks of a prompt stand.
  struct Residency {
    std::uint32_t in_hbm = 0;
    std::uint32_t moving = 0;  ///< a copy of them is under way
  };
  Residency Look(std::uint32_t request, std::uint32_t blocks);

  void SetTime(TimePoint now) { clock_.Set(now); }
  [[nodiscard]] TimePoint now() const { return clock_.Now(); }
  [[nodiscard]] tidepool::KvCacheManager& manager() { return *manager_; }
  [[nodiscard]] const LinkEngine& engine() const { return *engine_; }
  /// Adds decisions, bytes and victims to a run's figures.
  void Report(RunFigures& figures) const;

 private:
  [[nodiscard]] std::uint32_t tiers() const;
  [[nodiscard]] std::uint32_t DramBlocks() const;
  void BuildPrompt(std::uint32_t request, std::uint32_t blocks, std::uint32_t more_tokens);
  /// The leading blocks of a prompt that any tier has.
  std::span<const tidepool::BlockId> Find(std::uint32_t request, std::uint32_t blocks);
  [[nodiscard]] PolicyContext Context() const;
  std::unique_ptr<tidepool::EvictionPolicy> MakePolicy(tidepool::TierIndex tier);

  const RunSpec spec_;
  const Hints hints_;
  std::unique_ptr<Future> future_;
  Tiering tiering_;
  PrefetchWatch prefetches_;
  tidepool::testing::ManualClock clock_;
  std::array<DecisionCounts, kMaxLabTiers> decisions_{};
  LinkEngine* engine_ = nullptr;  // the manager's
  std::unique_ptr<tidepool::KvCacheManager> manager_;
  ReleasablePolicy* releasable_ = nullptr;  // the manager's, with release_after_s
  std::vector<tidepool::Token> prompt_;
  std::vector<tidepool::BlockId> found_;
  std::vector<std::uint32_t> last_request_;  // by session
};

}  // namespace policy_lab
