// tidepool/transfer/rank_engine.h - copies for tensor parallel ranks: one manager decides, the
// ranks execute. Slot ids are equal on all ranks, so one copy means the same slots everywhere; it
// is over when every rank has reported, and well over when all of them reported that.
//
//   auto owned = std::make_unique<RankEngine>(RankEngineOptions{.ranks = 4});
//   RankEngine* ranks = owned.get();             // the manager owns it: valid as long as that
//   options.engine = std::move(owned);
//   options.layout = share_of_one_rank;          // and tiers: UnreachableArena(...), kQueued
//   ...
//   manager->Poll();                             // once a step; Admit and the others plan too
//   for (std::uint32_t r = 0; r < 4; ++r) {
//     ranks->DrainPlan(r, plan);
//     Send(r, plan);                             // along with the step's own message
//   }
//   while (Receive(r, completions)) ranks->Report(r, completions);
//
// What a worker does with a plan: forget the freed slots, cancel what it is told to as far as it
// has not begun, then copy, in the order given. Among all it holds it keeps the rules of engine.h:
// strict classes, chunks of at most kMaxChunkBytes, one background chunk at a time while it holds a
// demand load. Chunks are the worker's; this engine counts copies, and leaves the turns of tenants
// and the patience of background copies to the workers. Each copy of a plan gets exactly one
// terminal completion, cancelled or not; completions without `terminal` report layers and may be
// left out.
//
// Result of a copy, once no rank touches its slots any more:
//   kOk         every rank: kOk
//   kFailed     any rank: kFailed, kTimedOut, or lost; its other parts are then called off
//   kCancelled  otherwise: some rank did not do its part, and none failed
// layers_done is the least of all ranks.
//
// Thread contract: scheduler thread only, also for Report: bring workers' messages there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tidepool/clock.h"
#include "tidepool/export.h"
#include "tidepool/status.h"
#include "tidepool/transfer/engine.h"
#include "tidepool/types.h"

namespace tidepool {

struct RankEngineOptions {
  std::uint32_t ranks = 1;                 ///< 1 to kMaxRanks
  std::uint32_t max_queued_copies = 4096;  ///< per direction, not over; Submit refuses beyond
  /// How much background work a rank may hold per direction, in time at the measured bandwidth; at
  /// least kMaxChunkBytes or one copy. While the rank owes a demand load there, one copy. Workers
  /// that keep the classes strict themselves may be given as much as fits between two drains.
  Duration background_window = std::chrono::milliseconds(2);
  bool freed_slots = false;      ///< fill RankPlan::freed, for workers that keep checksums
  const Clock* clock = nullptr;  ///< null = Clock::Steady(); measures the links
  /// What Wait does (WaitReady, WaitIdle): send plans, wait for reports at most so long, Report
  /// them. Null: Wait returns at once.
  std::function<void(Duration timeout)> exchange;
};
inline constexpr std::uint32_t kMaxRanks = 1024;

struct FreedSlot {
  TierIndex tier = 0;
  SlotId slot;
};

/// What one rank is to do next, in this order.
struct RankPlan {
  std::vector<FreedSlot> freed;     ///< per-slot state (checksums) to forget
  std::vector<TransferId> cancels;  ///< of copies in earlier plans
  std::vector<CopyRequest> copies;  ///< class, then deadline, then order of submission
};

struct RankEngineStats {
  std::uint64_t copies = 0;                ///< accepted
  std::uint64_t drained = 0, cancels = 0;  ///< handed out, all ranks together
  // Reports that changed nothing:
  std::uint64_t unknown = 0;       ///< no such copy: over, or never submitted
  std::uint64_t repeated = 0;      ///< the rank's part of it is over
  std::uint64_t not_drained = 0;   ///< the rank has not been given it
  std::uint64_t out_of_range = 0;  ///< no such rank, or more layers than there are
  std::uint64_t from_lost = 0;     ///< the rank is lost
};

class TIDEPOOL_EXPORT RankEngine final : public TransferEngine {
 public:
  explicit RankEngine(RankEngineOptions options);
  ~RankEngine() override;

  /// Replaces `plan` by what `rank` is to do next; empty for a rank that is lost or does not exist.
  /// Each copy and cancel is handed out once. COMPLEXITY: about n log n for n copies.
  void DrainPlan(std::uint32_t rank, RankPlan& plan);
  /// What the rank's worker has done. Wrong reports are counted and change nothing.
  void Report(std::uint32_t rank, std::span<const Completion> completions);

  /// The rank is gone with all it was given: every copy it still owes fails, as soon as the other
  /// ranks have let go of it, and Submit refuses all until RankBack. If the rank's memory is gone
  /// too, so is its part of every cached block: end the running requests and Clear the manager
  /// before RankBack. kInvalidArgument: no such rank.
  Outcome RankLost(std::uint32_t rank);
  Outcome RankBack(std::uint32_t rank);

  [[nodiscard]] std::uint32_t ranks() const noexcept;
  /// Copies accepted and not over.
  [[nodiscard]] std::uint32_t outstanding() const noexcept;
  [[nodiscard]] const RankEngineStats& stats() const noexcept;

  // --- The manager's side (engine.h). Bytes are those of one rank. ---
  Status Attach(std::span<const TierBinding> tiers, Observer* observer) override;
  [[nodiscard]] bool Supports(TierIndex from, TierIndex to) const noexcept override;
  std::size_t Submit(std::span<const CopyRequest> copies) noexcept override;
  void Poll(std::vector<Completion>& completions) noexcept override;
  bool Wait(Duration timeout) noexcept override;
  void Cancel(TransferId id) noexcept override;
  void Withdraw(TransferId id) noexcept override;  ///< once a rank has it, it has started
  void OnSlotFreed(TierIndex tier, SlotId slot) noexcept override;
  [[nodiscard]] TransferEstimate EstimateCost(TierIndex from, TierIndex to,
                                              std::uint64_t bytes) const noexcept override;
  /// Of the slowest rank, from a copy's first drain to its last report.
  [[nodiscard]] double BytesPerSecond(TierIndex from, TierIndex to) const noexcept override;
  [[nodiscard]] std::uint64_t QueuedBytes(TierIndex from, TierIndex to) const noexcept override;
  [[nodiscard]] std::string Describe() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool
