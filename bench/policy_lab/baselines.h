// policy_lab/baselines.h - what TIDE is compared with: planners that others use or propose, and the
// machinery for them that the library has no need of.
//
//   naive shadow  when a wait begins, everything of the session that is dirty in HBM is copied down
//   UNISON swap   when a wait begins, the sessions in DRAM that are expected soonest change places
//                 with those in HBM that are expected last, as long as the wait's budget lasts
//
// Thread contract: scheduler thread only.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tidepool/session_model.h"
#include "tidepool/testing/policy_decorator.h"
#include "tidepool/tide/migrator.h"

namespace policy_lab {

/// Copies on demand, and at the beginning of a wait all dirty blocks of the session, first blocks
/// first.
std::unique_ptr<tidepool::Migrator> MakeNaiveShadow();

struct UnisonOptions {
  std::shared_ptr<tidepool::SessionModel> model;  ///< average gaps and turn hazards
  double completion_penalty_s = 500;
  double least_survival = 0.01;
};

/// Sessions that a planner wants in HBM. The lab brings them up (KvCacheManager::Onboard), because
/// plans only copy down.
class PromotionQueue {
 public:
  void Push(tidepool::SessionId session) { sessions_.push_back(session); }
  [[nodiscard]] bool Contains(tidepool::SessionId session) const {
    return std::find(sessions_.begin(), sessions_.end(), session) != sessions_.end();
  }
  /// Calls `promote(session)` for each and forgets those for which it returns true.
  template <typename Promote>
  void Serve(Promote promote) {
    std::erase_if(sessions_, promote);
  }

 private:
  std::vector<tidepool::SessionId> sessions_;
};

/// arXiv 2609.09643 (algorithms.md 1): score = average gap / survival + (1 - survival) * penalty;
/// budget = average gap x bandwidth, in each direction. Copies on demand besides.
std::unique_ptr<tidepool::Migrator> MakeUnisonSwap(UnisonOptions options,
                                                   std::shared_ptr<PromotionQueue> promotions);

/// The blocks that a clean-pool planner has listed last: a decorator that listens to it.
class ListedBlocks {
 public:
  [[nodiscard]] bool Contains(tidepool::BlockId block) const {
    return block.value() < listed_.size() && listed_[block.value()] == listing_;
  }
  /// `asked`: how many blocks the planner wanted; a long list replaces the one before, the
  /// beginning of one is added to it.
  void Add(std::span<const tidepool::BlockId> blocks, std::uint32_t asked);

 private:
  std::vector<std::uint32_t> listed_;  // by block: the listing that named it last
  std::uint32_t listing_ = 1;
  std::uint32_t longest_ = 0;
};
std::unique_ptr<tidepool::Migrator> MakeListening(std::unique_ptr<tidepool::Migrator> planner,
                                                  std::shared_ptr<ListedBlocks> listed);

/// A policy that names nothing but the blocks it was told to, as long as there are any: so that
/// KvCacheManager::Evict releases one session.
class ReleasablePolicy final : public tidepool::testing::PolicyDecorator {
 public:
  using PolicyDecorator::PolicyDecorator;
  void Attach(const tidepool::BlockView& blocks, tidepool::TierIndex tier,
              std::uint32_t slots) override;
  void SelectVictims(const tidepool::VictimQuery& query, const tidepool::SchedulingSignals& signals,
                     std::vector<tidepool::BlockId>& victims) noexcept override;
  /// `blocks`: deepest first; empty ends it.
  void NameOnly(std::span<const tidepool::BlockId> blocks) { only_ = blocks; }

 private:
  tidepool::BlockView view_{nullptr, nullptr};
  tidepool::TierIndex tier_ = tidepool::kHbmTier;
  std::span<const tidepool::BlockId> only_;
};

}  // namespace policy_lab
