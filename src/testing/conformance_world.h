// conformance_world.h - a small manager whose policies are watched, and the steps that the
// conformance checks drive it with. Private.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tidepool/kv_cache_manager.h"
#include "tidepool/testing/manual_clock.h"
#include "tidepool/testing/policy_conformance.h"

namespace tidepool::testing {

/// Makes policies of `make` that write the first rule they break to `violation`, which outlives
/// them.
[[nodiscard]] PolicyMaker Watched(const PolicyMaker& make, std::string* violation);

struct WorldOptions {
  std::vector<std::uint32_t> slots = {24};  ///< per tier, HBM first
  std::uint64_t seed = 1;
  bool faults = false;           ///< copies are late or fail
  bool hostile_signals = false;  ///< return times and their spread are any number
  bool any_clock = false;        ///< it stands still, leaps and steps back
};

class ConformanceWorld {
 public:
  static constexpr std::uint32_t kBlockTokens = 4;

  ConformanceWorld(const PolicyMaker& make, WorldOptions options);
  ~ConformanceWorld();

  /// The first thing that was wrong, or an empty string.
  [[nodiscard]] const std::string& violation() const { return violation_; }

  // --- Single steps. A text is named by a number; texts share no block. ---
  [[nodiscard]] std::vector<Token> Text(std::uint32_t text, std::uint32_t blocks) const;
  /// A running sequence of session `text` with its first `blocks` blocks computed and published, or
  /// an empty handle.
  [[nodiscard]] Sequence Run(std::uint32_t text, std::uint32_t blocks,
                             Priority priority = Priority::kNormal);
  /// The same, finished at once; the session waits as the hint says.
  void Cache(std::uint32_t text, std::uint32_t blocks, Priority priority = Priority::kNormal,
             const PauseHint& wait = {});
  /// Leading blocks of the text in some tier.
  [[nodiscard]] std::uint32_t Found(std::uint32_t text, std::uint32_t blocks) const;
  /// Admits a request as large as HBM, with time for write-back; true if it got in.
  bool FillHbm();
  /// What the policy of `tier` would name now.
  [[nodiscard]] std::vector<BlockId> Victims(TierIndex tier, std::uint32_t count);
  /// Records `what` unless `holds`, and whatever Audit finds.
  void Expect(bool holds, const std::string& what);

  // --- Random steps. ---
  void RandomStep();
  /// Ends every sequence and session.
  void EndAll();
  /// Ends everything, then evicts everything: records what cannot be had.
  void Drain();

  [[nodiscard]] KvCacheManager& manager() { return *manager_; }
  [[nodiscard]] EvictionPolicy& policy(TierIndex tier) { return *policies_[tier]; }
  [[nodiscard]] ManualClock& clock() { return clock_; }
  [[nodiscard]] std::mt19937_64& random() { return random_; }

 private:
  struct Live {
    Sequence sequence;
    std::uint32_t session = 0;
    std::uint32_t length = 0;
  };
  [[nodiscard]] std::uint32_t Below(std::uint32_t n) {
    return static_cast<std::uint32_t>(random_() % n);
  }
  [[nodiscard]] PauseHint RandomHint();
  [[nodiscard]] Duration RandomDuration();
  [[nodiscard]] std::vector<Token> Prompt(std::uint32_t session, std::uint32_t tokens) const;
  void Admit();
  void Grow(Live& live);
  void Commit(Live& live);
  void Leave(std::size_t index);
  void Fork(Live& live);
  void Touch(Live& live);
  void MoveClock();
  void ChangeRoom();
  void Settle();

  WorldOptions options_;
  std::mt19937_64 random_;
  ManualClock clock_{TimePoint{std::chrono::hours(1)}};
  std::string violation_;
  std::vector<EvictionPolicy*> policies_;  // the manager's
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<Live> live_;
  std::uint64_t step_ = 0;
};

}  // namespace tidepool::testing
