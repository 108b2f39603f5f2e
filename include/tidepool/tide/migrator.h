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

struct PlannedCopy {
  BlockId block;
  TierIndex from = 0;
  TierIndex to = 0;
  TransferClass transfer_class = TransferClass::kSpill;
  bool release = false;  ///< give up the copy in `from` when the copy has finished
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
};

/// Copies down exactly what demands wait for, nothing ahead of need.
TIDEPOOL_EXPORT std::unique_ptr<Migrator> MakeDemandWriteBack();

}  // namespace tidepool
