// The planner: demands, then the clean pool, within the budget of each link.
#include <algorithm>
#include <utility>
#include <vector>

#include "src/tide/state.h"
#include "src/time_math.h"

namespace tidepool {

class TidePlanner final : public Migrator {
 public:
  explicit TidePlanner(std::shared_ptr<Tide::State> state) : state_(std::move(state)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "tide"; }

  void OnSession(const SessionSignals& session, TimePoint /*now*/) noexcept override {
    const bool waits = session.state != SessionState::kRunning &&
                       session.state != SessionState::kCompleted &&
                       session.state != SessionState::kWaitingCapacity;
    if (waits && state_->options.refresh_on_waits) due_ = true;
  }

  void Plan(TierIndex tier, MigrationContext& context, const SchedulingSignals& signals,
            std::vector<PlannedCopy>& plan) noexcept override {
    const std::size_t before = plan.size();
    demands_->Plan(tier, context, signals, plan);
    state_->counters.demand_copies += plan.size() - before;
    if (tier != kHbmTier || SecondsOver(signals, kHbmTier, 1) == 0) return;
    RefreshPool(context, signals, plan);
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
    std::uint64_t left = Budget(signals);
    bool held_back = false;
    for (const BlockId b : blocks_) {
      state_->listed[b.value()] = state_->refresh;
      if (!context.NeedsCopy(b, kHbmTier)) continue;
      if (left == 0) {
        held_back = true;
        continue;
      }
      --left;
      plan.push_back(
          {.block = b, .from = kHbmTier, .to = 1, .transfer_class = TransferClass::kShadowCopy});
      ++state_->counters.pool_copies;
    }
    state_->counters.held_back += held_back ? 1 : 0;
  }

  // Blocks that may be queued now: the background share of what the link moves in the window, less
  // what is queued. A due refresh that finds none comes back in the next second.
  [[nodiscard]] std::uint64_t Budget(const SchedulingSignals& signals) const noexcept {
    const double window = internal::ToSeconds(state_->options.window);
    for (const LinkSignals& link : signals.links) {
      if (link.from != kHbmTier || link.to != 1) continue;
      const double bytes = state_->options.background_share * link.bytes_per_second * window -
                           static_cast<double>(link.queued_bytes);
      const double block = static_cast<double>(std::max<std::uint64_t>(signals.block_bytes, 1));
      return bytes > 0 ? static_cast<std::uint64_t>(std::min(bytes / block, 1e9)) : 0;
    }
    return 0;
  }

  std::shared_ptr<Tide::State> state_;
  std::unique_ptr<Migrator> demands_ = MakeDemandWriteBack();
  bool due_ = true;
  TimePoint next_{};
  std::vector<BlockId> blocks_;
};

Tide::Tide(const TideOptions& options) : state_(std::make_shared<State>()) {
  const auto within = [](double value, double most) {
    return value > 0 ? std::min(value, most) : 0.0;  // NaN too
  };
  TideOptions& o = state_->options;
  o = options;
  o.clean_pool = within(o.clean_pool, 1);
  o.background_share = within(o.background_share, 1);
  o.duplicate_factor = within(o.duplicate_factor, 1e12);
  o.recency_rate = within(o.recency_rate, 1e12);
  o.refresh = std::max(o.refresh, Duration::zero());
  o.window = std::max(o.window, Duration::zero());
}
Tide::~Tide() = default;
std::unique_ptr<Migrator> Tide::MakePlanner() { return std::make_unique<TidePlanner>(state_); }
const TideCounters& Tide::counters() const noexcept { return state_->counters; }

}  // namespace tidepool
