#include "future_policies.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <utility>
#include <vector>

namespace policy_lab {
namespace {

using tidepool::BlockId;
using tidepool::BlockView;
using tidepool::EvictReason;
using tidepool::kHbmTier;
using tidepool::SchedulingSignals;
using tidepool::TierIndex;
using tidepool::VictimQuery;
using Time = Future::Time;

constexpr Time kUnfiled = INT64_MIN;

/// Blocks with one time of next use, first to leave first. An entry counts only while its block is
/// filed under the group's time.
struct Group {
  std::vector<BlockId> blocks;
  std::size_t head = 0;
  std::size_t live = 0;
};
using Groups = std::map<Time, Group, std::greater<>>;

class FuturePolicy final : public tidepool::EvictionPolicy {
 public:
  FuturePolicy(const Future& future, FutureRank rank) : future_(future), rank_(rank) {}

  [[nodiscard]] std::string_view name() const noexcept override {
    return rank_ == FutureRank::kTime ? "belady" : "belady_cost";
  }

  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t /*slots*/) override {
    view_ = blocks;
    tier_ = tier;
    filed_.resize(blocks.capacity(), kUnfiled);
  }
  void OnInserted(std::span<const BlockId> blocks) noexcept override {
    if (tier_ != kHbmTier) File(blocks);
  }
  void OnAccessed(std::span<const BlockId> blocks) noexcept override {
    if (tier_ != kHbmTier) File(blocks);
  }
  void OnProtected(std::span<const BlockId> blocks) noexcept override { Remove(blocks); }
  void OnEvictable(std::span<const BlockId> blocks) noexcept override { File(blocks); }
  void OnEvicted(std::span<const BlockId> blocks, EvictReason /*reason*/) noexcept override {
    Remove(blocks);
  }

  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override {
    const std::size_t wanted = victims.size() + query.blocks;
    const auto offer = [&](BlockId block) {
      if (view_.Evictable(block, tier_) &&
          (query.filter == nullptr || query.filter->Allows(block))) {
        victims.push_back(block);
      }
      return victims.size() < wanted;
    };
    if (query.blocks == 0) return;
    if (rank_ == FutureRank::kTime) {
      for (auto& [time, group] : groups_) {
        if (!WalkGroup(time, group, offer)) return;
      }
    } else {
      WalkByCost(signals.now.time_since_epoch().count(), offer);
    }
  }

  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override {
    return filed_.capacity() * sizeof(Time);
  }

 private:
  Group& GroupAt(Time time) {
    if (cached_ == nullptr || cached_time_ != time) {
      cached_ = &groups_[time];
      cached_time_ = time;
    }
    return *cached_;
  }
  void Drop(Time time) {
    if (cached_time_ == time) cached_ = nullptr;
    groups_.erase(time);
  }

  // Deepest first: the order in which they leave.
  void File(std::span<const BlockId> blocks) noexcept {
    Remove(blocks);
    for (std::size_t i = blocks.size(); i-- > 0;) {
      const Time time = future_.NextUse(blocks[i]);
      Group& group = GroupAt(time);
      group.blocks.push_back(blocks[i]);
      ++group.live;
      filed_[blocks[i].value()] = time;
    }
  }

  void Remove(std::span<const BlockId> blocks) noexcept {
    for (const BlockId block : blocks) {
      Time& time = filed_[block.value()];
      if (time == kUnfiled) continue;
      if (--GroupAt(time).live == 0) Drop(time);
      time = kUnfiled;
    }
  }

  void SkipStale(Time time, Group& group) const {
    while (group.head < group.blocks.size() && filed_[group.blocks[group.head].value()] != time) {
      ++group.head;
    }
  }

  template <typename Offer>
  bool WalkGroup(Time time, Group& group, Offer offer) {
    SkipStale(time, group);
    for (std::size_t i = group.head; i < group.blocks.size(); ++i) {
      if (filed_[group.blocks[i].value()] == time && !offer(group.blocks[i])) return false;
    }
    return true;
  }

  // The groups' heads compete; who is never used again goes before all.
  template <typename Offer>
  void WalkByCost(Time now, Offer offer) {
    struct Candidate {
      double value;
      Time time;
      Group* group;
      std::size_t at;
      bool operator>(const Candidate& other) const { return value > other.value; }
    };
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heads;
    const auto push = [&](Time time, Group& group, std::size_t at) {
      while (at < group.blocks.size() && filed_[group.blocks[at].value()] != time) ++at;
      if (at == group.blocks.size()) return;
      const double cost = RelativeCost(static_cast<double>(future_.Position(group.blocks[at])));
      const double wait = static_cast<double>(std::max<Time>(1, time - now));
      heads.push({cost / wait, time, &group, at});
    };
    for (auto& [time, group] : groups_) {
      if (time == Future::kNeverUsed) {
        if (!WalkGroup(time, group, offer)) return;
        continue;
      }
      SkipStale(time, group);
      push(time, group, group.head);
    }
    while (!heads.empty()) {
      const Candidate best = heads.top();
      heads.pop();
      if (!offer(best.group->blocks[best.at])) return;
      push(best.time, *best.group, best.at + 1);
    }
  }

  const Future& future_;
  const FutureRank rank_;
  BlockView view_{nullptr, nullptr};
  TierIndex tier_ = kHbmTier;
  Groups groups_;
  std::vector<Time> filed_;  // by block
  Group* cached_ = nullptr;  // the group that was asked for last
  Time cached_time_ = kUnfiled;
};

}  // namespace

std::unique_ptr<tidepool::EvictionPolicy> MakeFuturePolicy(const Future& future, FutureRank rank) {
  return std::make_unique<FuturePolicy>(future, rank);
}

}  // namespace policy_lab
