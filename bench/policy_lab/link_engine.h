// policy_lab/link_engine.h - a transfer engine that moves no bytes but takes the time that they
// would. A lane moves one copy after the other, the most urgent of those submitted first; a copy is
// done bytes / bandwidth after its start, plus the latency, which keeps nobody waiting. The link
// above a tier has a lane each way, or one for both ways; what goes from NVMe straight to HBM takes
// NVMe's lane only.
//
// Rates are scaled to the blocks' real size, so that a policy that divides the manager's bytes by
// the engine's bandwidth gets modelled seconds.
//
// Thread contract: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "prefetch_watch.h"
#include "tidepool/clock.h"
#include "tidepool/testing/manual_clock.h"
#include "tidepool/transfer/engine.h"

namespace policy_lab {

struct LinkModel {
  /// Modelled bytes per second between tier t and the tiers above it, at [t - 1].
  std::array<double, tidepool::kMaxTiers> bytes_per_second{};
  std::array<bool, tidepool::kMaxTiers> shared{};  ///< both ways together, at [t - 1]
  double block_bytes = 20e6;                       ///< modelled size of a block
  tidepool::Duration latency{20'000};              ///< of each copy
  bool instant = false;                            ///< copies take no time (no_hold)
};

class LinkEngine final : public tidepool::TransferEngine {
 public:
  /// `prefetches` (may be null) is told of each prefetch that has arrived; it outlives the engine.
  LinkEngine(const LinkModel& model, tidepool::testing::ManualClock* clock,
             PrefetchWatch* prefetches = nullptr)
      : model_(model), clock_(clock), prefetches_(prefetches) {}

  /// When the next copy is done; kNever if none is under way.
  [[nodiscard]] tidepool::TimePoint NextDone() const;
  /// Modelled bytes that have arrived.
  [[nodiscard]] double MovedBytes(tidepool::TierIndex from, tidepool::TierIndex to) const {
    return static_cast<double>(PairAt(from, to).moved) * model_.block_bytes;
  }
  /// Seconds that a link needs for `blocks` in a row.
  [[nodiscard]] double SecondsFor(tidepool::TierIndex from, tidepool::TierIndex to,
                                  double blocks) const;

  tidepool::Status Attach(std::span<const tidepool::TierBinding> tiers,
                          tidepool::Observer* observer) override;
  [[nodiscard]] bool Supports(tidepool::TierIndex from,
                              tidepool::TierIndex to) const noexcept override;
  std::size_t Submit(std::span<const tidepool::CopyRequest> copies) noexcept override;
  void Poll(std::vector<tidepool::Completion>& completions) noexcept override;
  /// Never sleeps and moves no clock: time belongs to the replay.
  bool Wait(tidepool::Duration timeout) noexcept override;
  /// Ends a copy that waits; one that is being moved ends as it would have.
  void Cancel(tidepool::TransferId id) noexcept override;
  void Withdraw(tidepool::TransferId id) noexcept override { Cancel(id); }
  [[nodiscard]] tidepool::TransferEstimate EstimateCost(
      tidepool::TierIndex from, tidepool::TierIndex to,
      std::uint64_t bytes) const noexcept override;
  [[nodiscard]] double BytesPerSecond(tidepool::TierIndex from,
                                      tidepool::TierIndex to) const noexcept override;
  [[nodiscard]] std::uint64_t QueuedBytes(tidepool::TierIndex from,
                                          tidepool::TierIndex to) const noexcept override;
  [[nodiscard]] std::string Describe() const override { return "policy_lab's link model"; }

 private:
  struct Copy {
    tidepool::TransferId id;
    tidepool::BlockId block;
    tidepool::TierIndex from;
    tidepool::TierIndex to;
    tidepool::TransferClass transfer_class;
    tidepool::TimePoint deadline;
    std::uint64_t order;
    tidepool::TimePoint submitted;
    /// True if this one goes first.
    bool operator<(const Copy& other) const;
  };
  struct Lane {
    std::set<Copy> waiting;
    Copy moving{};  // invalid id: idle
    tidepool::TimePoint done{};
    tidepool::TimePoint free{};
    [[nodiscard]] std::uint64_t blocks() const {
      return waiting.size() + (moving.id.valid() ? 1 : 0);
    }
  };
  struct Pair {
    std::uint64_t queued = 0;  // blocks, the moving one included
    std::uint64_t moved = 0;
  };

  static constexpr std::size_t kPairs = std::size_t{tidepool::kMaxTiers} * tidepool::kMaxTiers;
  [[nodiscard]] static std::size_t PairIndex(tidepool::TierIndex from, tidepool::TierIndex to) {
    return std::size_t{from} * tidepool::kMaxTiers + to;
  }
  [[nodiscard]] const Pair& PairAt(tidepool::TierIndex from, tidepool::TierIndex to) const {
    return pairs_[PairIndex(from, to)];
  }
  [[nodiscard]] std::size_t LaneIndex(tidepool::TierIndex from, tidepool::TierIndex to) const {
    const std::size_t link = std::size_t{std::max(from, to)} - 1;
    return 2 * link + (from < to || model_.shared[link] ? 0 : 1);
  }
  [[nodiscard]] double ModelledRate(tidepool::TierIndex from, tidepool::TierIndex to) const {
    return model_.bytes_per_second[std::size_t{std::max(from, to)} - 1];
  }
  void Advance(Lane& lane);
  void AdvanceAll();
  void StartNext(Lane& lane);

  const LinkModel model_;
  tidepool::testing::ManualClock* const clock_;
  PrefetchWatch* const prefetches_;
  tidepool::TierIndex tiers_ = 0;
  std::uint64_t slot_bytes_ = 1;
  std::uint32_t layers_ = 1;
  std::uint64_t next_order_ = 0;
  std::array<Lane, 2 * std::size_t{tidepool::kMaxTiers}> lanes_;
  std::array<Pair, kPairs> pairs_;
  struct Place {
    Lane* lane;
    std::set<Copy>::iterator at;
  };
  std::unordered_map<std::uint64_t, Place> waiting_;  // by id
  std::vector<tidepool::Completion> done_;
};

}  // namespace policy_lab
