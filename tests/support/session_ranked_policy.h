// session_ranked_policy.h - a toy policy whose scores change with time: what the interface must
// carry for policies that know sessions. Sorts all blocks at each query; for tests only.
//
// Rank, first to leave first:
//   0  blocks that no session retains, least recently used first (the base policy's order);
//   1  retained blocks, by the soonest expected return among the sessions that retain them, the one
//      due latest first; a return that is overdue counts as due now.
// A session retains its blocks for Retention(priority) after it went idle: a bias that expires.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tidepool/eviction_policy.h"

namespace tidepool::testing {

class SessionRankedPolicy final : public EvictionPolicy {
 public:
  [[nodiscard]] static Duration Retention(Priority priority) noexcept;

  [[nodiscard]] std::string_view name() const noexcept override { return "session_ranked"; }
  [[nodiscard]] PolicyNeeds needs() const noexcept override { return {.claims = true}; }
  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) override;
  void OnInserted(std::span<const BlockId> blocks) noexcept override { Use(blocks); }
  void OnAccessed(std::span<const BlockId> blocks) noexcept override { Use(blocks); }
  void OnEvictable(std::span<const BlockId> blocks) noexcept override { Use(blocks); }
  void OnClaimed(const SessionSignals& session, std::span<const BlockId> blocks) noexcept override;
  void OnUnclaimed(const SessionSignals& session,
                   std::span<const BlockId> blocks) noexcept override;
  void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept override;
  void OnTimeAdvanced(const SchedulingSignals& signals) noexcept override;
  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override;
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override;

 private:
  struct Entry {
    std::uint64_t last_use = 0;
    std::vector<SessionId> claimants;
  };

  void Use(std::span<const BlockId> blocks) noexcept;
  /// Time to the soonest return among the sessions that retain the block; negative: none does.
  [[nodiscard]] Duration RetainedFor(const Entry& entry) const;

  BlockView view_{nullptr, nullptr};
  TierIndex tier_ = 0;
  TimePoint now_{};
  std::uint64_t uses_ = 0;
  std::unordered_map<BlockId, Entry> entries_;
  std::unordered_map<SessionId, SessionSignals> sessions_;  // as last heard
};

std::unique_ptr<EvictionPolicy> MakeSessionRankedPolicy();

}  // namespace tidepool::testing
