// policy_lab/prefetch_watch.h - what became of blocks that were brought up before anybody asked for
// them: used when a request is served from them, wasted when they leave the tier without that.
//
// Thread contract: one run, one thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "settings.h"
#include "tidepool/types.h"

namespace policy_lab {

class PrefetchWatch {
 public:
  struct Counts {
    std::uint64_t arrived = 0, used = 0, wasted = 0;  ///< blocks
  };

  void Arrived(tidepool::BlockId block, tidepool::TierIndex tier) {
    std::vector<bool>& marks = marks_[tier];
    if (block.value() >= marks.size()) marks.resize(block.value() + std::size_t{1});
    marks[block.value()] = true;
    ++counts_.arrived;
  }
  void Used(std::span<const tidepool::BlockId> blocks, tidepool::TierIndex tier) {
    Settle(blocks, tier, counts_.used);
  }
  void Left(std::span<const tidepool::BlockId> blocks, tidepool::TierIndex tier) {
    Settle(blocks, tier, counts_.wasted);
  }
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  void Settle(std::span<const tidepool::BlockId> blocks, tidepool::TierIndex tier,
              std::uint64_t& count) {
    std::vector<bool>& marks = marks_[tier];
    if (marks.empty()) return;
    for (const tidepool::BlockId b : blocks) {
      if (b.value() >= marks.size() || !marks[b.value()]) continue;
      marks[b.value()] = false;
      ++count;
    }
  }

  std::array<std::vector<bool>, kMaxLabTiers> marks_;  // by block: brought, not used yet
  Counts counts_;
};

}  // namespace policy_lab
