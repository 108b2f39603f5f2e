#include "tests/support/recording_policy.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "tidepool/policy/lru.h"

namespace tidepool::testing {
namespace {

class RecordingPolicy final : public EvictionPolicy {
 public:
  explicit RecordingPolicy(PolicyRecord* record) : inner_(MakeLruPolicy()), record_(record) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "recording"; }
  [[nodiscard]] PolicyNeeds needs() const noexcept override { return inner_->needs(); }
  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) override {
    capacity_ = blocks.capacity();
    inner_->Attach(blocks, tier, slots);
  }
  void OnInserted(std::span<const BlockId> blocks) noexcept override { inner_->OnInserted(blocks); }
  void OnAccessed(std::span<const BlockId> blocks) noexcept override { inner_->OnAccessed(blocks); }
  void OnMissed(std::span<const PrefixHash> digests) noexcept override {
    inner_->OnMissed(digests);
  }
  void OnProtected(std::span<const BlockId> blocks) noexcept override {
    inner_->OnProtected(blocks);
  }
  void OnEvictable(std::span<const BlockId> blocks) noexcept override {
    inner_->OnEvictable(blocks);
  }
  void OnClaimed(const SessionSignals& session, std::span<const BlockId> blocks) noexcept override {
    inner_->OnClaimed(session, blocks);
  }
  void OnUnclaimed(const SessionSignals& session,
                   std::span<const BlockId> blocks) noexcept override {
    inner_->OnUnclaimed(session, blocks);
  }
  void OnPriorityChanged(std::span<const BlockId> blocks, Priority priority) noexcept override {
    inner_->OnPriorityChanged(blocks, priority);
  }
  void OnCopyChanged(std::span<const BlockId> blocks, TierIndex tier,
                     CopyState state) noexcept override {
    inner_->OnCopyChanged(blocks, tier, state);
  }
  void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept override {
    inner_->OnEvicted(blocks, reason);
  }
  void OnTimeAdvanced(const SchedulingSignals& signals) noexcept override {
    inner_->OnTimeAdvanced(signals);
  }
  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override {
    const std::size_t before = victims.size();
    VictimQuery wanted = query;
    if (record_->heads_first) wanted.blocks = capacity_;
    inner_->SelectVictims(wanted, signals, victims);
    if (record_->heads_first) {
      std::reverse(victims.begin() + static_cast<std::ptrdiff_t>(before), victims.end());
      victims.resize(std::min(victims.size(), before + query.blocks));
    }
    ++record_->selections;
    record_->named += static_cast<std::uint32_t>(victims.size() - before);
  }
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override {
    return inner_->MemoryBytes();
  }

 private:
  std::unique_ptr<EvictionPolicy> inner_;
  PolicyRecord* record_;
  std::uint32_t capacity_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeRecordingPolicy(PolicyRecord* record) {
  return std::make_unique<RecordingPolicy>(record);
}

}  // namespace tidepool::testing
