// The links of a snapshot: the only place that reads the transfer engine's estimates, once a Poll.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "src/manager/core.h"
#include "src/time_math.h"

namespace tidepool::internal {
namespace {

constexpr double kQuanta = 1024;  // to a factor of two

// Rounded to ten bits, so that noise makes no difference; what moves nothing (negative, NaN) is 0.
double Quantized(double bytes_per_second) noexcept {
  if (!(bytes_per_second > 0)) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(std::min(bytes_per_second, 1e18), &exponent);
  return std::ldexp(std::round(mantissa * kQuanta) / kQuanta, exponent);
}

}  // namespace

void LinkMeter::Rate::Add(double more_bytes, double more_seconds) noexcept {
  const double keep = std::exp(-more_seconds / kRateSeconds);
  bytes = keep * bytes + more_bytes;
  seconds = keep * seconds + more_seconds;
}

void LinkMeter::Observe(const Sample& sample) noexcept {
  const double seconds = started_ ? SecondsBetween(last_, sample.now) : 0;
  if (started_ && !(seconds > 0)) return;  // the bytes stay with the caller
  if (seconds > 0) {
    const double share = 1 - std::exp(-seconds / kForegroundSeconds);
    foreground_ += share * (static_cast<double>(sample.foreground_bytes) / seconds - foreground_);
    if (was_busy_ && sample.busy) {
      if (was_opposite_busy_ && sample.opposite_busy) {
        shared_.Add(static_cast<double>(sample.moved_bytes), seconds);
      } else if (!was_opposite_busy_ && !sample.opposite_busy) {
        alone_.Add(static_cast<double>(sample.moved_bytes), seconds);
      }
    }
  }
  started_ = true;
  last_ = sample.now;
  was_busy_ = sample.busy;
  was_opposite_busy_ = sample.opposite_busy;
}

double LinkMeter::shared_ratio() const noexcept {
  if (alone_.seconds < kTrustedSeconds || shared_.seconds < kTrustedSeconds) return 1;
  if (alone_.bytes <= 0) return 1;
  return std::min(1.0, (shared_.bytes / shared_.seconds) / (alone_.bytes / alone_.seconds));
}

std::size_t ManagerCore::LinkOf(TierIndex from, TierIndex to) noexcept {
  return to == kHbmTier ? 2u * (from - 1u) + 1 : 2u * from;
}

Status ManagerCore::SetLinkLimit(TierIndex from, TierIndex to, LinkLimit limit) {
  BindThread();
  const bool exists = from < tiers_ && to < tiers_ && from != to && (to == from + 1 || to == 0);
  if (!exists) {
    return absl::OutOfRangeError("no link leads from tier " + std::to_string(from) + " to tier " +
                                 std::to_string(to));
  }
  for (const double value : {limit.bytes_per_second, limit.background_bytes_per_second}) {
    if (!(value >= 0)) {
      return absl::InvalidArgumentError("a link's limit must be at least 0, not " +
                                        std::to_string(value));
    }
  }
  links_[LinkOf(from, to)].limit = limit;
  return absl::OkStatus();
}

void ManagerCore::CountMoved(const Transfer& t) noexcept {
  LinkState& link = links_[LinkOf(t.from, t.to)];
  link.moved_bytes += block_bytes_;
  if (t.transfer_class <= TransferClass::kCertainPrefetch) link.foreground_bytes += block_bytes_;
}

// What is planned from these numbers moves in both directions at once: a link whose opposite is
// busy is taken for what it gives then.
void ManagerCore::SampleLinks() {
  for (std::size_t i = 0; i < link_signals_.size(); ++i) {
    LinkSignals& link = link_signals_[i];
    LinkState& state = links_[i];
    const TransferEstimate estimate = engine_->EstimateCost(link.from, link.to, block_bytes_);
    state.measured = Quantized(engine_->BytesPerSecond(link.from, link.to));
    link.queued_bytes =
        engine_->QueuedBytes(link.from, link.to) + UnsubmittedBytes(link.from, link.to);
    link.latency = estimate.time;
    link.latency_margin = estimate.margin;
    link.measured = estimate.method == "measured";
  }
  for (std::size_t i = 0; i < link_signals_.size(); ++i) {
    LinkSignals& link = link_signals_[i];
    LinkState& state = links_[i];
    const bool opposite_busy = link_signals_[i ^ 1].queued_bytes != 0;
    const bool later = signals_.now > state.sampled_at;
    if (later || state.sampled_at == TimePoint{}) {
      state.meter.Observe({.now = signals_.now,
                           .moved_bytes = state.moved_bytes,
                           .foreground_bytes = state.foreground_bytes,
                           .busy = link.queued_bytes != 0,
                           .opposite_busy = opposite_busy});
      state.sampled_at = signals_.now;
      state.moved_bytes = state.foreground_bytes = 0;
    }
    link.shared_ratio = state.meter.shared_ratio();
    link.foreground_bytes_per_second = state.meter.foreground_bytes_per_second();
    link.bytes_per_second = std::min(state.measured, state.limit.bytes_per_second);
    const double free = link.bytes_per_second * (opposite_busy ? link.shared_ratio : 1) -
                        link.foreground_bytes_per_second;
    link.background_bytes_per_second =
        std::clamp(free, 0.0, state.limit.background_bytes_per_second);
  }
}

}  // namespace tidepool::internal
