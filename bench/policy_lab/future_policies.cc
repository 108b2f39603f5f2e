#include "future_policies.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "src/tide/eviction_rate.h"

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

/// Blocks by the time of their next use, farthest first; blocks with one time form a group, in the
/// order in which they leave.
class FutureGroups {
 public:
  /// An entry counts only while its block is filed under the group's time.
  struct Group {
    std::vector<BlockId> blocks;
    std::size_t head = 0;
    std::size_t live = 0;
  };

  void Resize(std::uint32_t blocks) { filed_.resize(blocks, kUnfiled); }
  [[nodiscard]] bool Contains(BlockId block) const { return filed_[block.value()] != kUnfiled; }
  void File(BlockId block, Time time) {
    Remove(block);
    Group& group = GroupAt(time);
    group.blocks.push_back(block);
    ++group.live;
    filed_[block.value()] = time;
  }
  void Remove(BlockId block) {
    Time& time = filed_[block.value()];
    if (time == kUnfiled) return;
    if (--GroupAt(time).live == 0) Drop(time);
    time = kUnfiled;
  }
  /// Calls offer(block, time) for all blocks, farthest use first, until it returns false.
  template <typename Offer>
  void Walk(Offer offer) {
    for (auto& [time, group] : groups_) {
      if (!WalkGroup(time, group, offer)) return;
    }
  }
  template <typename Offer>
  bool WalkGroup(Time time, Group& group, Offer offer) {
    SkipStale(time, group);
    for (std::size_t i = group.head; i < group.blocks.size(); ++i) {
      if (Counts(time, group, i) && !offer(group.blocks[i], time)) return false;
    }
    return true;
  }
  void SkipStale(Time time, Group& group) const {
    while (group.head < group.blocks.size() && !Counts(time, group, group.head)) ++group.head;
  }
  [[nodiscard]] bool Counts(Time time, const Group& group, std::size_t at) const {
    return filed_[group.blocks[at].value()] == time;
  }
  [[nodiscard]] std::map<Time, Group, std::greater<>>& groups() { return groups_; }
  [[nodiscard]] std::uint64_t MemoryBytes() const { return filed_.capacity() * sizeof(Time); }

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

  std::map<Time, Group, std::greater<>> groups_;
  std::vector<Time> filed_;  // by block
  Group* cached_ = nullptr;  // the group that was asked for last
  Time cached_time_ = kUnfiled;
};

class FuturePolicy final : public tidepool::EvictionPolicy {
 public:
  FuturePolicy(const Future& future, FutureRank rank) : future_(future), rank_(rank) {}

  [[nodiscard]] std::string_view name() const noexcept override {
    return rank_ == FutureRank::kTime ? "belady" : "belady_cost";
  }

  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t /*slots*/) override {
    view_ = blocks;
    tier_ = tier;
    groups_.Resize(blocks.capacity());
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
    const auto offer = [&](BlockId block, Time /*time*/) {
      if (view_.Evictable(block, tier_) &&
          (query.filter == nullptr || query.filter->Allows(block))) {
        victims.push_back(block);
      }
      return victims.size() < wanted;
    };
    if (query.blocks == 0) return;
    if (rank_ == FutureRank::kTime) {
      groups_.Walk(offer);
    } else {
      WalkByCost(signals.now.time_since_epoch().count(), offer);
    }
  }

  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override {
    return groups_.MemoryBytes();
  }

 private:
  // Deepest first: the order in which they leave.
  void File(std::span<const BlockId> blocks) noexcept {
    Remove(blocks);
    for (std::size_t i = blocks.size(); i-- > 0;)
      groups_.File(blocks[i], future_.NextUse(blocks[i]));
  }
  void Remove(std::span<const BlockId> blocks) noexcept {
    for (const BlockId block : blocks) groups_.Remove(block);
  }

  // The groups' heads compete; who is never used again goes before all.
  template <typename Offer>
  void WalkByCost(Time now, Offer offer) {
    struct Candidate {
      double value;
      Time time;
      FutureGroups::Group* group;
      std::size_t at;
      bool operator>(const Candidate& other) const { return value > other.value; }
    };
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heads;
    const auto push = [&](Time time, FutureGroups::Group& group, std::size_t at) {
      while (at < group.blocks.size() && !groups_.Counts(time, group, at)) ++at;
      if (at == group.blocks.size()) return;
      const double cost = RelativeCost(static_cast<double>(future_.Position(group.blocks[at])));
      const double wait = static_cast<double>(std::max<Time>(1, time - now));
      heads.push({cost / wait, time, &group, at});
    };
    for (auto& [time, group] : groups_.groups()) {
      if (time == Future::kNeverUsed) {
        if (!groups_.WalkGroup(time, group, offer)) return;
        continue;
      }
      groups_.SkipStale(time, group);
      push(time, group, group.head);
    }
    while (!heads.empty()) {
      const Candidate best = heads.top();
      heads.pop();
      if (!offer(best.group->blocks[best.at], best.time)) return;
      push(best.time, *best.group, best.at + 1);
    }
  }

  const Future& future_;
  const FutureRank rank_;
  BlockView view_{nullptr, nullptr};
  TierIndex tier_ = kHbmTier;
  FutureGroups groups_;
};

/// TIDE's price with the true time of next use; see future_policies.h.
class FutureTierPolicy final : public tidepool::EvictionPolicy {
 public:
  FutureTierPolicy(const Future& future, std::shared_ptr<const ListedBlocks> listed)
      : future_(future), listed_(std::move(listed)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "future_tier"; }
  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t /*slots*/) override {
    view_ = blocks;
    tier_ = tier;
    duplicates_.Resize(blocks.capacity());
    only_copies_.Resize(blocks.capacity());
  }
  void OnInserted(std::span<const BlockId> blocks) noexcept override { File(blocks); }
  void OnAccessed(std::span<const BlockId> blocks) noexcept override { File(blocks); }
  void OnEvictable(std::span<const BlockId> blocks) noexcept override { (void)blocks; }
  void OnCopyChanged(std::span<const BlockId> blocks, TierIndex tier,
                     tidepool::CopyState state) noexcept override {
    using tidepool::CopyState;
    if (tier == kHbmTier && state == CopyState::kAbsent) {
      evictions_.Add(blocks.size());
    }
    if (tier >= tier_ || state == CopyState::kWriting) return;
    for (const BlockId b : blocks) {
      if (view_.Copy(b, tier_) == CopyState::kValid) File({&b, 1});
    }
  }
  void OnEvicted(std::span<const BlockId> blocks, EvictReason /*reason*/) noexcept override {
    for (const BlockId b : blocks) duplicates_.Remove(b), only_copies_.Remove(b);
  }
  void OnTimeAdvanced(const SchedulingSignals& signals) noexcept override {
    evictions_.Advance(signals.now);
  }

  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override {
    if (query.blocks == 0) return;
    Candidates(query);
    const double duplicate = DuplicatePrice(signals);
    const std::size_t wanted = victims.size() + query.blocks;
    std::size_t d = 0, o = 0;
    while (victims.size() < wanted && (d < spare_.size() || o < only_.size())) {
      const bool take_duplicate =
          d < spare_.size() && (o == only_.size() || duplicate < OnlyCopyPrice(only_[o], signals));
      victims.push_back(take_duplicate ? spare_[d++] : only_[o++]);
    }
    for (std::size_t i = 0; victims.size() < wanted && i < pool_.size(); ++i) {
      victims.push_back(pool_[i]);
    }
  }
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override {
    return duplicates_.MemoryBytes() + only_copies_.MemoryBytes();
  }

 private:
  static constexpr double kDuplicateFactor = 0.5;

  void File(std::span<const BlockId> blocks) noexcept {
    for (std::size_t i = blocks.size(); i-- > 0;) {
      bool duplicate = false;
      for (TierIndex t = 0; t < tier_; ++t) {
        duplicate |= view_.Copy(blocks[i], t) == tidepool::CopyState::kValid;
      }
      (duplicate ? only_copies_ : duplicates_).Remove(blocks[i]);
      (duplicate ? duplicates_ : only_copies_).File(blocks[i], future_.NextUse(blocks[i]));
    }
  }

  void Candidates(const VictimQuery& query) {
    spare_.clear();
    only_.clear();
    pool_.clear();
    const auto allowed = [&](BlockId b) {
      return view_.Evictable(b, tier_) && (query.filter == nullptr || query.filter->Allows(b));
    };
    only_copies_.Walk([&](BlockId b, Time) {
      if (allowed(b)) only_.push_back(b);
      return only_.size() < query.blocks;
    });
    duplicates_.Walk([&](BlockId b, Time) {
      if (allowed(b)) (listed_->Contains(b) ? pool_ : spare_).push_back(b);
      return spare_.size() < query.blocks;
    });
  }

  [[nodiscard]] static double SecondsOver(const SchedulingSignals& signals, TierIndex from) {
    for (const tidepool::LinkSignals& link : signals.links) {
      if (link.from != from || link.to != kHbmTier || !(link.bytes_per_second > 0)) continue;
      return static_cast<double>(signals.block_bytes) / link.bytes_per_second;
    }
    return 0;
  }
  [[nodiscard]] double DuplicatePrice(const SchedulingSignals& signals) const {
    const double slots = std::max(signals.tiers[kHbmTier].slots, 1u);
    return kDuplicateFactor * evictions_.per_second() / slots * SecondsOver(signals, tier_);
  }
  [[nodiscard]] double OnlyCopyPrice(BlockId b, const SchedulingSignals& signals) const {
    const Time use = future_.NextUse(b);
    if (use == Future::kNeverUsed) return 0;
    double next = signals.recompute.BlockSeconds(view_.Position(b));
    const auto below = static_cast<TierIndex>(tier_ + 1);
    if (below < signals.tiers.size() && view_.Copy(b, below) == tidepool::CopyState::kValid) {
      next = std::min(next, SecondsOver(signals, below));
    }
    const double wait = static_cast<double>(use - signals.now.time_since_epoch().count()) * 1e-9;
    return std::max(next - SecondsOver(signals, tier_), 0.0) / std::max(wait, 1.0);
  }

  const Future& future_;
  std::shared_ptr<const ListedBlocks> listed_;
  BlockView view_{nullptr, nullptr};
  TierIndex tier_ = 1;
  FutureGroups duplicates_;  // a tier above has them too
  FutureGroups only_copies_;
  tidepool::internal::EvictionRate evictions_;  // from HBM
  std::vector<BlockId> spare_, only_, pool_;    // candidates of the query that runs
};

}  // namespace

std::unique_ptr<tidepool::EvictionPolicy> MakeFuturePolicy(const Future& future, FutureRank rank) {
  return std::make_unique<FuturePolicy>(future, rank);
}

std::unique_ptr<tidepool::EvictionPolicy> MakeFutureTierPolicy(
    const Future& future, std::shared_ptr<const ListedBlocks> listed) {
  return std::make_unique<FutureTierPolicy>(future, std::move(listed));
}

}  // namespace policy_lab
