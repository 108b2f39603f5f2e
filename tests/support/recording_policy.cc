#include "tests/support/recording_policy.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "tidepool/policy/lru.h"
#include "tidepool/testing/policy_decorator.h"

namespace tidepool::testing {
namespace {

class RecordingPolicy final : public PolicyDecorator {
 public:
  explicit RecordingPolicy(PolicyRecord* record)
      : PolicyDecorator(MakeLruPolicy()), record_(record) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "recording"; }
  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) override {
    capacity_ = blocks.capacity();
    PolicyDecorator::Attach(blocks, tier, slots);
  }
  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override {
    const std::size_t before = victims.size();
    VictimQuery wanted = query;
    if (record_->heads_first) wanted.blocks = capacity_;
    policy().SelectVictims(wanted, signals, victims);
    if (record_->heads_first) {
      std::reverse(victims.begin() + static_cast<std::ptrdiff_t>(before), victims.end());
      victims.resize(std::min(victims.size(), before + query.blocks));
    }
    ++record_->selections;
    record_->named += static_cast<std::uint32_t>(victims.size() - before);
  }

 private:
  PolicyRecord* record_;
  std::uint32_t capacity_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeRecordingPolicy(PolicyRecord* record) {
  return std::make_unique<RecordingPolicy>(record);
}

}  // namespace tidepool::testing
