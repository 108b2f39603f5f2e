// policy_lab/future.h - what only an oracle knows: when each block is used next.
//
// A pass from the last request to the first finds for each block of each request the next request
// that has it. Along a prompt deeper blocks are never used earlier, so a request needs only a few
// segments. During a run a block's time is set when the request that used it lets go of it.
//
// Thread contract: one run, one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule.h"
#include "tidepool/types.h"
#include "workload.h"

namespace policy_lab {

class Future {
 public:
  /// Nanoseconds of the run's clock.
  using Time = std::int64_t;
  static constexpr Time kNeverUsed = INT64_MAX;

  /// `capacity`: requests larger than this are cut (no_hold) or not served (engine).
  Future(const Workload& workload, const NominalTimes& nominal, Mode mode, std::uint32_t capacity);

  /// `request` is about to let go of its blocks; its session's next turn arrives at `next_arrival`.
  void BeginRelease(std::uint32_t request, TimePoint now, TimePoint next_arrival);
  /// `block` stands at `position` of the request being released.
  void Record(tidepool::BlockId block, std::uint64_t position);

  [[nodiscard]] Time NextUse(tidepool::BlockId block) const {
    return block.value() < next_use_.size() ? next_use_[block.value()] : kNeverUsed;
  }
  [[nodiscard]] std::uint64_t Position(tidepool::BlockId block) const {
    return block.value() < position_.size() ? position_[block.value()] : 0;
  }

 private:
  struct Segment {
    std::uint32_t end = 0;  // position
    std::uint32_t next = kNoRequest;
  };
  struct TimedSegment {
    std::uint32_t end;
    Time time;
  };
  void AddSegments(const LabRequest& request, std::uint32_t blocks,
                   const std::vector<std::uint32_t>& next_of_block);
  [[nodiscard]] Time NominalTime(std::uint32_t request) const;

  const Workload& workload_;
  const Mode mode_;
  std::vector<Segment> segments_;
  std::vector<std::uint32_t> first_segment_;  // by request
  std::vector<std::uint32_t> segment_count_;
  std::vector<Time> arrival_;  // nominal, with the order of equal times in the last digits
  std::vector<TimedSegment> current_;
  std::vector<Time> next_use_;           // by block
  std::vector<std::uint32_t> position_;  // by block
};

}  // namespace policy_lab
