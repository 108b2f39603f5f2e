// tidepool/tide/migrator.h - the interface of what plans background copies. A planner is pure:
// signals and victims in, a bounded list of copies out; the manager executes them (pins, slots,
// fences, transfer classes) and may carry out only a part.
//
// Thread contract: scheduler thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"
#include "tidepool/scheduling_signals.h"
#include "tidepool/transfer/engine.h"
#include "tidepool/types.h"

namespace tidepool {

/// A copy down to the next tier, or up into HBM.
struct PlannedCopy {
  BlockId block;
  TierIndex from = 0;
  TierIndex to = 0;
  TransferClass transfer_class = TransferClass::kSpill;
  bool release = false;  ///< give up the copy in `from` when the copy has finished
  /// Not worth starting once a session has come back for the block: a copy that has not started
  /// then is forgotten. With `release`, only when a sequence holds the block again.
  bool withdraw_on_return = false;
};

/// What a planner may ask. Answers come from the tier's policy, in eviction order, and never name a
/// block twice in one plan.
class TIDEPOOL_EXPORT MigrationContext {
 public:
  virtual ~MigrationContext() = default;
  [[nodiscard]] virtual const BlockView& blocks() const noexcept = 0;
  /// Slots of `tier` that demands still wait for and no copy in flight will free.
  [[nodiscard]] virtual std::uint32_t Shortfall(TierIndex tier) const noexcept = 0;
  /// Appends up to `n` blocks of `tier` that would leave next and are not clean.
  virtual void NextDirtyVictims(TierIndex tier, std::uint32_t n, std::vector<BlockId>& out) = 0;
  /// Appends up to `n` blocks of `tier`, clean or not, in about the order in which they will leave;
  /// takes none of them. About, because what stands in front of a tail may be named late.
  virtual void UpcomingVictims(TierIndex tier, std::uint32_t n, std::vector<BlockId>& out) = 0;
  /// True if a copy of the block from `tier` to the tier below could start now and would make it
  /// clean: it is published, evictable and has no copy there, valid or under way.
  [[nodiscard]] virtual bool NeedsCopy(BlockId block, TierIndex tier) const noexcept = 0;
  /// Slots of `tier` that nothing occupies and no demand is to get.
  [[nodiscard]] virtual std::uint32_t FreeSlots(TierIndex tier) const noexcept = 0;
  /// Gives up to `n` clean copies in `tier` back now, in eviction order. Returns how many.
  virtual std::uint32_t ReleaseClean(TierIndex tier, std::uint32_t n) = 0;
  /// Appends, in prefix order, the blocks that the session claims and that a lower tier has and
  /// HBM has not, nor is about to. `session`: SessionSignals::index.
  virtual void MissingInHbm(std::uint32_t session, std::vector<BlockId>& out) const = 0;
};

class TIDEPOOL_EXPORT Migrator {
 public:
  virtual ~Migrator() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// As EvictionPolicy::OnSession: a wait begins or ends.
  virtual void OnSession(const SessionSignals& session, TimePoint now) noexcept {
    (void)session, (void)now;
  }
  /// Appends copies out of `tier` to `plan`. Called for each tier but the last, top down, in Poll.
  virtual void Plan(TierIndex tier, MigrationContext& context, const SchedulingSignals& signals,
                    std::vector<PlannedCopy>& plan) noexcept = 0;
  /// A copy that Plan had planned has started; those that have not are forgotten.
  virtual void OnStarted(const PlannedCopy& copy) noexcept { (void)copy; }
  /// Appends copies up into HBM ahead of need to `plan`; called once a Poll, after Plan, while no
  /// demand waits for room. Carried out in order, predicted prefetches into free slots only,
  /// certain ones also in place of clean victims.
  virtual void PlanLoads(MigrationContext& context, const SchedulingSignals& signals,
                         std::vector<PlannedCopy>& plan) noexcept {
    (void)context, (void)signals, (void)plan;
  }
};

/// Copies down exactly what demands wait for, nothing ahead of need.
TIDEPOOL_EXPORT std::unique_ptr<Migrator> MakeDemandWriteBack();

}  // namespace tidepool
