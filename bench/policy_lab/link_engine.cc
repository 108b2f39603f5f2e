#include "link_engine.h"

#include <algorithm>
#include <tuple>

namespace policy_lab {

using tidepool::CopyRequest;
using tidepool::Duration;
using tidepool::TierIndex;
using tidepool::TimePoint;

bool LinkEngine::Copy::operator<(const Copy& other) const {
  return std::tie(transfer_class, deadline, order) >
         std::tie(other.transfer_class, other.deadline, other.order);
}

tidepool::Status LinkEngine::Attach(std::span<const tidepool::TierBinding> tiers,
                                    tidepool::Observer* /*observer*/) {
  tiers_ = static_cast<TierIndex>(tiers.size());
  slot_bytes_ = tiers[0].slot_bytes;
  layers_ = tiers[0].layers;
  return absl::OkStatus();
}

bool LinkEngine::Supports(TierIndex from, TierIndex to) const noexcept {
  return from != to && from < tiers_ && to < tiers_;
}

double LinkEngine::SecondsFor(TierIndex from, TierIndex to, double blocks) const {
  if (model_.instant || blocks == 0) return 0;
  return std::chrono::duration<double>(model_.latency).count() +
         blocks * model_.block_bytes / ModelledRate(from, to);
}

std::size_t LinkEngine::Submit(std::span<const CopyRequest> copies) noexcept {
  for (const CopyRequest& copy : copies) {
    const std::size_t index = std::size_t{copy.from} * tidepool::kMaxTiers + copy.to;
    links_[index].waiting.push(
        {copy.id, copy.transfer_class, copy.deadline, next_order_++, clock_->Now()});
  }
  for (std::size_t i = 0; i < links_.size(); ++i) Advance(i);
  return copies.size();
}

void LinkEngine::StartNext(std::size_t index) {
  Link& link = links_[index];
  const Copy copy = link.waiting.top();
  link.waiting.pop();
  const auto from = static_cast<TierIndex>(index / tidepool::kMaxTiers);
  const auto to = static_cast<TierIndex>(index % tidepool::kMaxTiers);
  link.moving = copy.id;
  link.free = std::max(link.free, copy.submitted);
  if (!model_.instant) {
    const double seconds = model_.block_bytes / ModelledRate(from, to);
    link.free += Duration(static_cast<Duration::rep>(seconds * 1e9));
  }
  link.done = model_.instant ? link.free : link.free + model_.latency;
}

void LinkEngine::Advance(std::size_t index) {
  Link& link = links_[index];
  for (;;) {
    if (link.moving.valid()) {
      if (link.done > clock_->Now()) return;
      done_.push_back({.id = link.moving,
                       .terminal = true,
                       .result = tidepool::TransferResult::kOk,
                       .layers_done = layers_});
      ++link.moved;
      link.moving = tidepool::TransferId();
    }
    if (link.waiting.empty()) return;
    StartNext(index);
  }
}

void LinkEngine::Poll(std::vector<tidepool::Completion>& completions) noexcept {
  for (std::size_t i = 0; i < links_.size(); ++i) Advance(i);
  completions.insert(completions.end(), done_.begin(), done_.end());
  done_.clear();
}

bool LinkEngine::Wait(Duration /*timeout*/) noexcept {
  for (std::size_t i = 0; i < links_.size(); ++i) Advance(i);
  return !done_.empty();
}

TimePoint LinkEngine::NextDone() const {
  TimePoint next = done_.empty() ? tidepool::kNever : clock_->Now();
  for (const Link& link : links_) {
    if (link.moving.valid()) next = std::min(next, link.done);
  }
  return next;
}

tidepool::TransferEstimate LinkEngine::EstimateCost(TierIndex from, TierIndex to,
                                                    std::uint64_t bytes) const noexcept {
  if (!Supports(from, to)) return {};
  const double queued = static_cast<double>(QueuedBytes(from, to));
  const double seconds = (queued + static_cast<double>(bytes)) / BytesPerSecond(from, to);
  return {.time = model_.latency + Duration(static_cast<Duration::rep>(seconds * 1e9)),
          .margin = Duration(0),
          .method = "measured"};
}

double LinkEngine::BytesPerSecond(TierIndex from, TierIndex to) const noexcept {
  if (!Supports(from, to)) return 0;
  return ModelledRate(from, to) * static_cast<double>(slot_bytes_) / model_.block_bytes;
}

std::uint64_t LinkEngine::QueuedBytes(TierIndex from, TierIndex to) const noexcept {
  const Link& link = LinkAt(from, to);
  return (link.waiting.size() + (link.moving.valid() ? 1 : 0)) * slot_bytes_;
}

}  // namespace policy_lab
