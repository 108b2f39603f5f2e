#include "src/tide/prefetch.h"

#include <algorithm>
#include <cmath>

#include "src/tide/state.h"
#include "src/time_math.h"

namespace tidepool {
namespace {

constexpr double kQuartile = -0.6745;  // of a standard normal
constexpr double kUnsaidLogSd = 1;     // of an engine that gives a time alone
constexpr std::size_t kArrivalsKept = 256;
constexpr int kWaitsPerPoll = 64;

}  // namespace

void PrefetchPlanner::OnSession(const SessionSignals& session, TimePoint now) noexcept {
  if (options_->certain_prefetch && session.state == SessionState::kWaitingCapacity &&
      arrived_.size() < kArrivalsKept) {
    arrived_.push_back({session.session, session.index});
  }
  if (!options_->predicted_prefetch) return;
  stamps_.erase(session.session.value());
  const bool predictable = (session.state == SessionState::kWaitingTool ||
                            session.state == SessionState::kWaitingNetwork) &&
                           session.expected_return != kNever && session.expected_return > now;
  if (!predictable) return;
  const double sd = session.expected_return_log_sd >= 0
                        ? static_cast<double>(session.expected_return_log_sd)
                        : kUnsaidLogSd;
  const double seconds =
      internal::SecondsBetween(now, session.expected_return) * std::exp(kQuartile * sd);
  const TimePoint back = internal::AfterSeconds(now, seconds);
  const double early = std::max(0.0, seconds - internal::ToSeconds(options_->window));
  stamps_[session.session.value()] = ++next_stamp_;
  waits_.push({.start = internal::AfterSeconds(now, early),
               .back = back,
               .session = session.session,
               .index = session.index,
               .stamp = next_stamp_});
}

bool PrefetchPlanner::Current(const Wait& wait) const {
  const auto it = stamps_.find(wait.session.value());
  return it != stamps_.end() && it->second == wait.stamp;
}

void PrefetchPlanner::Plan(MigrationContext& context, const SchedulingSignals& signals,
                           std::vector<PlannedCopy>& plan) noexcept {
  for (const Arrival& arrival : arrived_) {
    if (!FindMissing(arrival.session, arrival.index, context, signals)) continue;
    if (signals.sessions[arrival.index].state != SessionState::kWaitingCapacity) continue;
    counters_->certain_prefetches += blocks_.size();
    Emit(context, TransferClass::kCertainPrefetch, blocks_.size(), plan);
  }
  arrived_.clear();
  if (!waits_.empty()) PlanPredicted(context, signals, plan);
}

// True if the session is still there and misses something in HBM.
bool PrefetchPlanner::FindMissing(SessionId session, std::uint32_t index, MigrationContext& context,
                                  const SchedulingSignals& signals) {
  blocks_.clear();
  if (index >= signals.sessions.size() || signals.sessions[index].session != session) return false;
  context.MissingInHbm(index, blocks_);
  return !blocks_.empty();
}

// A wait is looked at `window` before its quartile, and again when its load has to begin.
void PrefetchPlanner::PlanPredicted(MigrationContext& context, const SchedulingSignals& signals,
                                    std::vector<PlannedCopy>& plan) {
  const auto reserve =
      static_cast<std::uint32_t>(options_->prefetch_watermark * signals.tiers[kHbmTier].slots);
  const std::uint32_t free = context.FreeSlots(kHbmTier);
  std::size_t left = free - std::min(free, reserve);
  left = std::min<std::size_t>(left, LinkBudget(*options_, signals, 1, kHbmTier));
  for (int n = 0; n < kWaitsPerPoll && !waits_.empty() && waits_.top().start <= signals.now; ++n) {
    Wait wait = waits_.top();
    waits_.pop();
    if (!Current(wait)) continue;
    if (!FindMissing(wait.session, wait.index, context, signals)) continue;
    const LinkSignals* link = FindLink(signals, 1, kHbmTier);
    const double load = link == nullptr ? 0 : link->SecondsFor(blocks_.size(), signals.block_bytes);
    const TimePoint start = internal::AfterSeconds(
        signals.now, std::max(0.0, internal::SecondsBetween(signals.now, wait.back) - load -
                                       internal::ToSeconds(options_->prefetch_margin)));
    if (start > signals.now && std::isfinite(load)) {
      wait.start = start;
      waits_.push(wait);
      continue;
    }
    const std::size_t most = std::min(left, blocks_.size());
    Emit(context, TransferClass::kPredictedPrefetch, most, plan);
    counters_->predicted_prefetches += most;
    left -= most;
  }
}

void PrefetchPlanner::Emit(MigrationContext& context, TransferClass cls, std::size_t most,
                           std::vector<PlannedCopy>& plan) {
  for (std::size_t i = 0; i < most; ++i) {
    TierIndex from = 1;  // MissingInHbm: some tier has it
    while (context.blocks().Copy(blocks_[i], from) != CopyState::kValid) ++from;
    plan.push_back({.block = blocks_[i], .from = from, .to = kHbmTier, .transfer_class = cls});
  }
}

}  // namespace tidepool
