// Transfers that the engine has not taken yet: per direction in the order in which they should
// start, so that one direction that is full holds up no other.
// Thread contract: thread-compatible.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <set>
#include <vector>

#include "tidepool/transfer/engine.h"

namespace tidepool::internal {

class SubmitQueue {
 public:
  struct Direction {
    TierIndex from = 0;
    TierIndex to = 0;
    friend bool operator==(const Direction&, const Direction&) = default;
  };
  struct Entry {
    TransferClass transfer_class = TransferClass::kSpill;
    TimePoint deadline = kNever;
    std::uint64_t order = 0;  // unique
    std::uint32_t transfer = 0;
    friend auto operator<=>(const Entry&, const Entry&) = default;
  };

  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::size_t Count(Direction direction) const noexcept {
    for (const Lane& lane : lanes_) {
      if (lane.direction == direction) return lane.entries.size();
    }
    return 0;
  }
  // COMPLEXITY of both: O(log n).
  void Push(Direction direction, const Entry& entry) {
    size_ += LaneOf(direction).entries.insert(entry).second ? 1 : 0;
  }
  void Erase(Direction direction, const Entry& entry) {
    size_ -= LaneOf(direction).entries.erase(entry);
  }

  /// All directions take part in Front again.
  void Open() noexcept {
    for (Lane& lane : lanes_) lane.shut = false;
  }
  void Shut(Direction direction) { LaneOf(direction).shut = true; }
  /// Replaces `out` by the `n` most urgent entries of the directions that are not shut.
  void Front(std::size_t n, std::vector<Entry>& out) {
    out.clear();
    for (Lane& lane : lanes_) lane.next = lane.entries.begin();
    while (out.size() < n) {
      Lane* first = nullptr;
      for (Lane& lane : lanes_) {
        if (lane.shut || lane.next == lane.entries.end()) continue;
        if (first == nullptr || *lane.next < *first->next) first = &lane;
      }
      if (first == nullptr) return;
      out.push_back(*first->next++);
    }
  }

 private:
  struct Lane {
    Direction direction;
    std::set<Entry> entries;
    std::set<Entry>::const_iterator next{};
    bool shut = false;
  };
  // A handful of directions is ever used.
  Lane& LaneOf(Direction direction) {
    const auto it = std::find_if(lanes_.begin(), lanes_.end(),
                                 [&](const Lane& lane) { return lane.direction == direction; });
    if (it != lanes_.end()) return *it;
    lanes_.push_back({.direction = direction, .entries = {}});
    return lanes_.back();
  }

  std::vector<Lane> lanes_;
  std::size_t size_ = 0;
};

}  // namespace tidepool::internal
