// tests/support/model_device.h - a device with several timelines that run as late and as unevenly
// as a real one may: work is launched now and done when the test says so, in order on each
// timeline, and work that was drained from the manager is a barrier across all of them.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "tidepool/types.h"

namespace tidepool::testing {

class ModelDevice {
 public:
  using Action = std::function<void()>;

  void Launch(Fence fence, Action action) {
    queues_[fence.timeline].push_back({next_++, barrier_, fence.step, std::move(action)});
  }
  /// Runs after all that was launched before, on any timeline, and before all that comes later.
  void LaunchBarrier(Fence fence, Action action) {
    barrier_ = next_;
    queues_[fence.timeline].push_back({next_++, kEverything, fence.step, std::move(action)});
  }
  /// Runs what belongs to steps up to `fence`'s.
  void RunTo(Fence fence) {
    std::deque<Item>& queue = queues_[fence.timeline];
    while (!queue.empty() && queue.front().step <= fence.step) RunFront(queue);
  }
  void RunOne(TimelineId timeline) {
    if (std::deque<Item>& queue = queues_[timeline]; !queue.empty()) RunFront(queue);
  }
  void RunAll() {
    for (auto& [timeline, queue] : queues_) {
      while (!queue.empty()) RunFront(queue);
    }
  }

 private:
  static constexpr std::uint64_t kEverything = ~std::uint64_t{0};
  struct Item {
    std::uint64_t number;
    std::uint64_t after;  // the barrier it waits for; kEverything: it is one
    std::uint64_t step;
    Action action;
  };

  void RunFront(std::deque<Item>& queue) {
    Item item = std::move(queue.front());
    queue.pop_front();
    const std::uint64_t before = item.after == kEverything ? item.number : item.after + 1;
    for (auto& [timeline, other] : queues_) {
      while (!other.empty() && other.front().number < before &&
             (item.after == kEverything || HasBarrier(other, item.after))) {
        RunFront(other);
      }
    }
    item.action();
  }
  static bool HasBarrier(const std::deque<Item>& queue, std::uint64_t number) {
    for (const Item& item : queue) {
      if (item.number == number) return true;
    }
    return false;
  }

  std::uint64_t next_ = 1;
  std::uint64_t barrier_ = 0;
  std::map<TimelineId, std::deque<Item>> queues_;
};

}  // namespace tidepool::testing
