// The planner: demands first, then the clean pools, then loads ahead of need, each within what its
// link has left.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "src/tide/prefetch.h"
#include "src/tide/state.h"
#include "src/time_math.h"

namespace tidepool {

std::uint64_t LinkBudget(const TideOptions& options, const SchedulingSignals& signals,
                         TierIndex from, TierIndex to) noexcept {
  const LinkSignals* link = FindLink(signals, from, to);
  if (link == nullptr) return 0;
  const double bytes = options.background_share * link->background_bytes_per_second *
                           internal::ToSeconds(options.window) -
                       static_cast<double>(link->queued_bytes);
  const auto block = static_cast<double>(std::max<std::uint64_t>(signals.block_bytes, 1));
  return bytes > 0 ? static_cast<std::uint64_t>(std::min(bytes / block, 1e9)) : 0;
}

class TidePlanner final : public Migrator {
 public:
  explicit TidePlanner(std::shared_ptr<Tide::State> state)
      : state_(std::move(state)), prefetch_(&state_->options, &state_->counters) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "tide"; }

  void OnSession(const SessionSignals& session, TimePoint now) noexcept override {
    const bool waits = session.state != SessionState::kRunning &&
                       session.state != SessionState::kCompleted &&
                       session.state != SessionState::kWaitingCapacity;
    if (waits && state_->options.refresh_on_waits) due_ = true;
    prefetch_.OnSession(session, now);
  }

  void Plan(TierIndex tier, MigrationContext& context, const SchedulingSignals& signals,
            std::vector<PlannedCopy>& plan) noexcept override {
    const std::size_t before = plan.size();
    demands_->Plan(tier, context, signals, plan);
    for (std::size_t i = before; i < plan.size(); ++i) {
      plan[i].withdraw_on_return = state_->options.withdraw_on_return;
    }
    const auto below = static_cast<TierIndex>(tier + 1);
    if (SecondsOver(signals, tier, below) == 0) return;
    if (tier == kHbmTier) {
      RefreshPool(context, signals, plan);
      ReleaseAhead(context, signals);
    } else if (signals.now >= lower_next_[tier]) {
      lower_next_[tier] =
          internal::AfterSeconds(signals.now, internal::ToSeconds(state_->options.refresh));
      RefreshLowerPool(tier, context, signals, plan);
    }
  }

  // Only demands release.
  void OnStarted(const PlannedCopy& copy) noexcept override {
    TideCounters& counters = state_->counters;
    ++(copy.release            ? counters.demand_copies
       : copy.from == kHbmTier ? counters.pool_copies
                               : counters.lower_pool_copies);
  }

  void PlanLoads(MigrationContext& context, const SchedulingSignals& signals,
                 std::vector<PlannedCopy>& plan) noexcept override {
    prefetch_.Plan(context, signals, plan);
  }

 private:
  static constexpr std::uint32_t kWaitLook = 128;  // blocks looked at when a wait has begun

  // Lists what leaves next; what of it is dirty is copied, as far as the budget goes. All of the
  // pool each `refresh`, and its beginning when a wait has begun.
  void RefreshPool(MigrationContext& context, const SchedulingSignals& signals,
                   std::vector<PlannedCopy>& plan) {
    const TideOptions& options = state_->options;
    auto size = static_cast<std::uint32_t>(options.clean_pool * signals.tiers[kHbmTier].slots);
    const bool whole = signals.now >= next_;
    if (size == 0 || (!due_ && !whole)) return;
    due_ = false;
    if (state_->listed.size() == 0) {
      state_->listed = internal::ZeroedArray<std::uint32_t>(context.blocks().capacity());
    }
    if (whole) {
      next_ = internal::AfterSeconds(signals.now, internal::ToSeconds(options.refresh));
      ++state_->refresh;
    } else {
      size = std::min(size, kWaitLook);
    }
    ++state_->counters.refreshes;
    blocks_.clear();
    context.UpcomingVictims(kHbmTier, size, blocks_);
    std::uint64_t left = LinkBudget(options, signals, kHbmTier, 1);
    bool held_back = false;
    for (const BlockId b : blocks_) {
      state_->listed[b.value()] = state_->refresh;
      if (!context.NeedsCopy(b, kHbmTier)) continue;
      if (left == 0) {
        held_back = true;
        continue;
      }
      --left;
      plan.push_back({.block = b,
                      .from = kHbmTier,
                      .to = 1,
                      .transfer_class = TransferClass::kShadowCopy,
                      .withdraw_on_return = options.withdraw_on_return});
    }
    state_->counters.held_back += held_back ? 1 : 0;
  }

  // The same for a middle tier. What a tier above has may leave as it is, and what was used once
  // only is not worth the writes. Small blocks wait until they make an extent.
  void RefreshLowerPool(TierIndex tier, MigrationContext& context, const SchedulingSignals& signals,
                        std::vector<PlannedCopy>& plan) {
    const TideOptions& options = state_->options;
    const auto below = static_cast<TierIndex>(tier + 1);
    const auto size =
        static_cast<std::uint32_t>(options.lower_clean_pool * signals.tiers[tier].slots);
    if (size == 0) return;
    const std::uint64_t left = LinkBudget(options, signals, tier, below);
    blocks_.clear();
    context.UpcomingVictims(tier, size, blocks_);
    std::size_t kept = 0;
    for (const BlockId b : blocks_) {
      if (kept == left) break;
      if (!context.NeedsCopy(b, tier) || context.blocks().Clean(b, tier)) continue;
      if (context.blocks().Hits(b) < options.lower_min_hits) {
        ++state_->counters.skipped_unused;
        continue;
      }
      blocks_[kept++] = b;
    }
    if (kept * signals.block_bytes < options.min_extent_bytes) return;
    for (std::size_t i = 0; i < kept; ++i) {
      plan.push_back({.block = blocks_[i],
                      .from = tier,
                      .to = below,
                      .transfer_class = TransferClass::kSpill});
    }
  }

  // Frees slots for what will be admitted soon, so that admissions find them free.
  void ReleaseAhead(MigrationContext& context, const SchedulingSignals& signals) {
    const double seconds = internal::ToSeconds(state_->options.release_ahead);
    if (seconds == 0) return;
    const TierSignals& hbm = signals.tiers[kHbmTier];
    const double most = state_->options.clean_pool * hbm.slots;
    const auto wanted = static_cast<std::uint32_t>(std::min(hbm.forecast_per_s * seconds, most));
    const std::uint32_t free = context.FreeSlots(kHbmTier);
    if (free >= wanted) return;
    state_->counters.released_ahead += context.ReleaseClean(kHbmTier, wanted - free);
  }

  std::shared_ptr<Tide::State> state_;
  std::unique_ptr<Migrator> demands_ = MakeDemandWriteBack();
  PrefetchPlanner prefetch_;
  bool due_ = true;
  TimePoint next_{};
  std::array<TimePoint, kMaxTiers> lower_next_{};
  std::vector<BlockId> blocks_;
};

Tide::Tide(const TideOptions& options) : state_(std::make_shared<State>()) {
  const auto within = [](double value, double most) {
    return value > 0 ? std::min(value, most) : 0.0;  // NaN too
  };
  TideOptions& o = state_->options;
  o = options;
  o.clean_pool = within(o.clean_pool, 1);
  o.lower_clean_pool = within(o.lower_clean_pool, 1);
  o.prefetch_watermark = within(o.prefetch_watermark, 1);
  o.background_share = within(o.background_share, 1);
  o.duplicate_factor = within(o.duplicate_factor, 1e12);
  o.recency_rate = within(o.recency_rate, 1e12);
  for (Duration* d : {&o.refresh, &o.window, &o.release_ahead, &o.prefetch_margin}) {
    *d = std::max(*d, Duration::zero());
  }
}
Tide::~Tide() = default;
std::unique_ptr<Migrator> Tide::MakePlanner() { return std::make_unique<TidePlanner>(state_); }
const TideCounters& Tide::counters() const noexcept { return state_->counters; }

}  // namespace tidepool
