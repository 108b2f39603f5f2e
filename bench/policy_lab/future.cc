#include "future.h"

#include <algorithm>

namespace policy_lab {

Future::Future(const Workload& workload, const NominalTimes& nominal, Mode mode,
               std::uint32_t capacity)
    : workload_(workload),
      mode_(mode),
      first_segment_(workload.requests.size()),
      segment_count_(workload.requests.size()),
      arrival_(workload.requests.size()) {
  std::vector<std::uint32_t> next(workload.distinct_blocks, kNoRequest);
  for (std::size_t i = nominal.order.size(); i-- > 0;) {
    const std::uint32_t index = nominal.order[i];
    const LabRequest& request = workload.requests[index];
    const bool fits = request.blocks <= capacity;
    const std::uint32_t blocks = fits ? request.blocks : mode == Mode::kNoHold ? capacity : 0;
    first_segment_[index] = static_cast<std::uint32_t>(segments_.size());
    AddSegments(request, blocks, next);
    segment_count_[index] = static_cast<std::uint32_t>(segments_.size()) - first_segment_[index];
    ForEachRun(workload, request, 0, blocks, [&](std::uint32_t block, std::uint32_t count) {
      std::fill_n(next.begin() + block, count, index);
    });
  }
  TimePoint last{};
  Time rank = 0;
  for (const std::uint32_t index : nominal.order) {
    rank = nominal.arrival[index] == last ? rank + 1 : 0;
    last = nominal.arrival[index];
    arrival_[index] = last.time_since_epoch().count() + rank;
  }
}

void Future::AddSegments(const LabRequest& request, std::uint32_t blocks,
                         const std::vector<std::uint32_t>& next_of_block) {
  const std::size_t first = segments_.size();
  std::uint32_t position = 0;
  ForEachRun(workload_, request, 0, blocks, [&](std::uint32_t block, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t next = next_of_block[block + i];
      if (segments_.size() == first || segments_.back().next != next) {
        segments_.push_back({position, next});
      }
      segments_.back().end = ++position;
    }
  });
}

Future::Time Future::NominalTime(std::uint32_t request) const {
  return request == kNoRequest ? kNeverUsed : arrival_[request];
}

// In the closed loop the session's own return is known to the end of its wait, others' returns only
// as unlimited memory would have had them; one that is past says nothing.
void Future::BeginRelease(std::uint32_t index, TimePoint now, TimePoint next_arrival) {
  const LabRequest& request = workload_.requests[index];
  current_.clear();
  std::uint32_t common = 0;
  if (mode_ == Mode::kEngine && request.next != kNoRequest) {
    common = CommonBlocks(workload_, request, workload_.requests[request.next]);
  }
  const Time own = next_arrival.time_since_epoch().count();
  std::uint32_t position = 0;
  for (std::uint32_t i = 0; i < segment_count_[index]; ++i) {
    const Segment& segment = segments_[first_segment_[index] + i];
    Time time = NominalTime(segment.next);
    if (mode_ == Mode::kEngine && segment.next != kNoRequest) {
      const bool past = time <= now.time_since_epoch().count();
      if (past || segment.next == request.next) time = kNeverUsed;
    }
    if (position < common) current_.push_back({std::min(common, segment.end), std::min(own, time)});
    if (segment.end > common) current_.push_back({segment.end, time});
    position = segment.end;
  }
}

void Future::Record(tidepool::BlockId block, std::uint64_t position) {
  if (block.value() >= next_use_.size()) {
    next_use_.resize(block.value() + std::size_t{1}, kNeverUsed);
    position_.resize(block.value() + std::size_t{1});
  }
  Time time = kNeverUsed;
  for (const TimedSegment& segment : current_) {
    if (position >= segment.end) continue;
    time = segment.time;
    break;
  }
  next_use_[block.value()] = time;
  position_[block.value()] = static_cast<std::uint32_t>(position);
}

}  // namespace policy_lab
