// tidepool/testing/policy_decorator.h - a policy that passes everything on to another one: the base
// of wrappers that watch, time or distort a policy.
//
// Thread contract: scheduler thread only.
#pragma once

#include <memory>
#include <utility>

#include "tidepool/eviction_policy.h"

namespace tidepool::testing {

class PolicyDecorator : public EvictionPolicy {
 public:
  explicit PolicyDecorator(std::unique_ptr<EvictionPolicy> policy) noexcept
      : policy_(std::move(policy)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return policy_->name(); }
  [[nodiscard]] PolicyNeeds needs() const noexcept override { return policy_->needs(); }
  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) override {
    policy_->Attach(blocks, tier, slots);
  }
  void OnInserted(std::span<const BlockId> blocks) noexcept override {
    policy_->OnInserted(blocks);
  }
  void OnAccessed(std::span<const BlockId> blocks) noexcept override {
    policy_->OnAccessed(blocks);
  }
  void OnMissed(std::span<const PrefixHash> digests) noexcept override {
    policy_->OnMissed(digests);
  }
  void OnProtected(std::span<const BlockId> blocks) noexcept override {
    policy_->OnProtected(blocks);
  }
  void OnEvictable(std::span<const BlockId> blocks) noexcept override {
    policy_->OnEvictable(blocks);
  }
  void OnSession(const SessionSignals& session, TimePoint now) noexcept override {
    policy_->OnSession(session, now);
  }
  void OnClaimed(const SessionSignals& session, std::span<const BlockId> blocks) noexcept override {
    policy_->OnClaimed(session, blocks);
  }
  void OnUnclaimed(const SessionSignals& session,
                   std::span<const BlockId> blocks) noexcept override {
    policy_->OnUnclaimed(session, blocks);
  }
  void OnPriorityChanged(std::span<const BlockId> blocks, Priority priority) noexcept override {
    policy_->OnPriorityChanged(blocks, priority);
  }
  void OnCopyChanged(std::span<const BlockId> blocks, TierIndex tier,
                     CopyState state) noexcept override {
    policy_->OnCopyChanged(blocks, tier, state);
  }
  void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept override {
    policy_->OnEvicted(blocks, reason);
  }
  void OnTimeAdvanced(const SchedulingSignals& signals) noexcept override {
    policy_->OnTimeAdvanced(signals);
  }
  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override {
    policy_->SelectVictims(query, signals, victims);
  }
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override {
    return policy_->MemoryBytes();
  }

 protected:
  [[nodiscard]] EvictionPolicy& policy() noexcept { return *policy_; }
  [[nodiscard]] const EvictionPolicy& policy() const noexcept { return *policy_; }

 private:
  std::unique_ptr<EvictionPolicy> policy_;
};

}  // namespace tidepool::testing
