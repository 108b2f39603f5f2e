// The policy of a lower tier: duplicates and only-copies, one price for both.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "src/recency_log.h"
#include "src/tide/eviction_rate.h"
#include "src/tide/state.h"
#include "src/time_math.h"

namespace tidepool {

using internal::RecencyLog;
using internal::SecondsBetween;

// Two logs, oldest first: blocks that a tier above has too, and the others by priority class. A
// block is filed when it comes, when it is used, and when it changes sides, so that an only-copy's
// age counts from when HBM let it go.
class TidePolicy final : public EvictionPolicy {
 public:
  TidePolicy(std::shared_ptr<Tide::State> state, TierIndex tier)
      : state_(std::move(state)), tier_(tier) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "tide"; }

  void Attach(const BlockView& blocks, TierIndex /*tier*/, std::uint32_t /*slots*/) override {
    view_ = blocks;
    if (filed_.size() != 0) return;  // Resize
    filed_ = internal::ZeroedArray<std::uint32_t>(blocks.capacity());
    duplicates_ = RecencyLog(blocks.capacity());
    only_copies_ = RecencyLog(blocks.capacity());
  }

  // In HBM, where there are no duplicates, a block is filed when its last hold leaves.
  void OnInserted(std::span<const BlockId> blocks) noexcept override {
    if (tier_ != kHbmTier) File(blocks);
  }
  void OnAccessed(std::span<const BlockId> blocks) noexcept override {
    if (tier_ != kHbmTier) File(blocks);
  }
  void OnEvictable(std::span<const BlockId> blocks) noexcept override {
    if (tier_ == kHbmTier) File(blocks);
  }
  void OnCopyChanged(std::span<const BlockId> blocks, TierIndex tier,
                     CopyState state) noexcept override {
    if (tier == kHbmTier && state == CopyState::kAbsent) {
      evictions_.Add(blocks.size());
    }
    if (tier >= tier_ || state == CopyState::kWriting) return;
    for (const BlockId b : blocks) {
      if (view_.Copy(b, tier_) == CopyState::kValid) File({&b, 1});
    }
  }
  void OnPriorityChanged(std::span<const BlockId> blocks, Priority priority) noexcept override {
    for (const BlockId b : blocks) {
      if (!only_copies_.Contains(b)) continue;
      only_copies_.Append(static_cast<std::uint32_t>(priority), {&b, 1});
    }
  }
  void OnEvicted(std::span<const BlockId> blocks, EvictReason /*reason*/) noexcept override {
    for (const BlockId b : blocks) {
      ++(duplicates_.Contains(b) ? state_->counters.duplicates_left
                                 : state_->counters.only_copies_left);
    }
    duplicates_.Erase(blocks);
    only_copies_.Erase(blocks);
  }
  void OnTimeAdvanced(const SchedulingSignals& signals) noexcept override {
    if (start_ == TimePoint{}) start_ = signals.now - std::chrono::seconds(1);
    now_ = std::max(now_, signals.now);
    evictions_.Advance(now_);
  }

  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override {
    if (query.blocks == 0) return;
    Candidates(query);
    const double duplicate = DuplicatePrice(signals);
    const std::size_t wanted = victims.size() + query.blocks;
    std::size_t d = 0, o = 0;
    while (victims.size() < wanted) {
      const bool more = d < spare_.size();
      if (more && (o == only_.size() || duplicate <= OnlyCopyPrice(only_[o], signals))) {
        victims.push_back(spare_[d++]);
      } else if (o < only_.size()) {
        victims.push_back(only_[o++]);
      } else {
        return;
      }
    }
  }

  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override {
    return sizeof(*this) + filed_.bytes() + duplicates_.MemoryBytes() + only_copies_.MemoryBytes();
  }

 private:
  // Further down, what a tier above has too keeps that tier clean: it would be written again.
  [[nodiscard]] bool PricesDuplicates() const noexcept {
    return state_->options.duplicates_first && tier_ == kHbmTier + 1;
  }

  [[nodiscard]] bool Duplicate(BlockId b) const noexcept {
    for (TierIndex t = 0; t < tier_; ++t) {
      if (view_.Copy(b, t) == CopyState::kValid) return true;
    }
    return false;
  }

  [[nodiscard]] std::uint32_t SecondsNow() const noexcept {
    return static_cast<std::uint32_t>(std::clamp(SecondsBetween(start_, now_), 0.0, 4e9));
  }

  // Files spans of one side and class at a time, last block first, like a release.
  void File(std::span<const BlockId> blocks) noexcept {
    const bool split = PricesDuplicates();
    while (!blocks.empty()) {
      const bool duplicate = split && Duplicate(blocks.back());
      std::size_t same = view_.SameTailPriority(blocks);
      for (std::size_t i = 1; i < same; ++i) {
        if ((split && Duplicate(blocks[blocks.size() - 1 - i])) != duplicate) same = i;
      }
      const std::span<const BlockId> tail = blocks.last(same);
      (duplicate ? only_copies_ : duplicates_).Erase(tail);
      if (duplicate) {
        duplicates_.Append(0, tail);
      } else {
        only_copies_.Append(static_cast<std::uint32_t>(view_.ClaimPriority(tail.back())), tail);
      }
      for (const BlockId b : tail) filed_[b.value()] = SecondsNow();
      blocks = blocks.first(blocks.size() - same);
    }
  }

  // Seconds of stall saved per second of keeping a block that a tier above has too.
  [[nodiscard]] double DuplicatePrice(const SchedulingSignals& signals) const noexcept {
    const TideOptions& options = state_->options;
    if (!options.one_price || signals.tiers.empty()) return 0;
    const std::uint32_t slots = std::max(signals.tiers[kHbmTier].slots, 1u);
    return options.duplicate_factor * evictions_.per_second() / slots *
           SecondsOver(signals, tier_, kHbmTier);
  }

  [[nodiscard]] double OnlyCopyPrice(BlockId b, const SchedulingSignals& signals) const noexcept {
    const double link = SecondsOver(signals, tier_, kHbmTier);
    double next =
        signals.recompute.known() ? signals.recompute.BlockSeconds(view_.Position(b)) : 10 * link;
    const auto below = static_cast<TierIndex>(tier_ + 1);
    if (below < signals.tiers.size() && view_.Copy(b, below) == CopyState::kValid) {
      const double load = SecondsOver(signals, below, kHbmTier);
      if (load > 0) next = std::min(next, load);
    }
    const double age = static_cast<double>(SecondsNow() - filed_[b.value()]) + 1;
    return state_->options.recency_rate / age * std::max(next - link, 0.0);
  }

  void Candidates(const VictimQuery& query) {
    using Verdict = RecencyLog::Verdict;
    const auto prefetch = [this](BlockId b) { view_.Prefetch(b, tier_); };
    const auto into = [&](std::vector<BlockId>& out) {
      return [&](BlockId b) {
        if (!view_.Evictable(b, tier_)) return Verdict::kKeep;
        if (query.filter != nullptr && !query.filter->Allows(b)) return Verdict::kKeep;
        if (&out == &spare_ && state_->InPool(b)) return Verdict::kKeep;
        out.push_back(b);
        return out.size() >= query.blocks ? Verdict::kStop : Verdict::kKeep;
      };
    };
    spare_.clear();
    only_.clear();
    (void)duplicates_.Scan(0, into(spare_), prefetch);
    for (std::uint32_t queue = 0; queue < kPriorityCount; ++queue) {
      if (!only_copies_.Scan(queue, into(only_), prefetch)) break;
    }
    if (spare_.size() + only_.size() >= query.blocks) return;
    // Even the clean pool, then.
    (void)duplicates_.Scan(
        0,
        [&](BlockId b) {
          const bool may = view_.Evictable(b, tier_) && state_->InPool(b) &&
                           (query.filter == nullptr || query.filter->Allows(b));
          if (may) only_.push_back(b);
          return only_.size() >= query.blocks ? Verdict::kStop : Verdict::kKeep;
        },
        prefetch);
  }

  std::shared_ptr<Tide::State> state_;
  const TierIndex tier_;
  BlockView view_{nullptr, nullptr};
  TimePoint start_{};
  TimePoint now_{};
  internal::EvictionRate evictions_;            // from HBM
  internal::ZeroedArray<std::uint32_t> filed_;  // by block: seconds since start_
  RecencyLog duplicates_;
  RecencyLog only_copies_;             // by priority class
  std::vector<BlockId> spare_, only_;  // candidates of the query that runs
};

std::unique_ptr<EvictionPolicy> Tide::MakePolicy(TierIndex tier) {
  return std::make_unique<TidePolicy>(state_, tier);
}

}  // namespace tidepool
