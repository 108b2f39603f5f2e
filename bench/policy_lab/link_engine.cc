#include "link_engine.h"

#include <algorithm>
#include <tuple>

namespace policy_lab {

using tidepool::CopyRequest;
using tidepool::Duration;
using tidepool::TierIndex;
using tidepool::TimePoint;

bool LinkEngine::Copy::operator<(const Copy& other) const {
  return std::tie(transfer_class, deadline, order) <
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
    Lane& lane = lanes_[LaneIndex(copy.from, copy.to)];
    const auto [at, added] = lane.waiting.insert({.id = copy.id,
                                                  .block = copy.block,
                                                  .from = copy.from,
                                                  .to = copy.to,
                                                  .transfer_class = copy.transfer_class,
                                                  .deadline = copy.deadline,
                                                  .order = next_order_++,
                                                  .submitted = clock_->Now()});
    waiting_[copy.id.value()] = {&lane, at};
    ++pairs_[PairIndex(copy.from, copy.to)].queued;
  }
  AdvanceAll();
  return copies.size();
}

void LinkEngine::Cancel(tidepool::TransferId id) noexcept {
  const auto found = waiting_.find(id.value());
  if (found == waiting_.end()) return;
  const auto [lane, at] = found->second;
  --pairs_[PairIndex(at->from, at->to)].queued;
  lane->waiting.erase(at);
  waiting_.erase(found);
  done_.push_back({.id = id, .terminal = true, .result = tidepool::TransferResult::kCancelled});
}

void LinkEngine::StartNext(Lane& lane) {
  lane.moving = *lane.waiting.begin();
  lane.waiting.erase(lane.waiting.begin());
  waiting_.erase(lane.moving.id.value());
  lane.free = std::max(lane.free, lane.moving.submitted);
  if (!model_.instant) {
    const double seconds = model_.block_bytes / ModelledRate(lane.moving.from, lane.moving.to);
    lane.free += Duration(static_cast<Duration::rep>(seconds * 1e9));
  }
  lane.done = model_.instant ? lane.free : lane.free + model_.latency;
}

void LinkEngine::Advance(Lane& lane) {
  for (;;) {
    if (lane.moving.id.valid()) {
      if (lane.done > clock_->Now()) return;
      done_.push_back({.id = lane.moving.id,
                       .terminal = true,
                       .result = tidepool::TransferResult::kOk,
                       .layers_done = layers_});
      Pair& pair = pairs_[PairIndex(lane.moving.from, lane.moving.to)];
      ++pair.moved;
      --pair.queued;
      const bool prefetch =
          lane.moving.transfer_class == tidepool::TransferClass::kCertainPrefetch ||
          lane.moving.transfer_class == tidepool::TransferClass::kPredictedPrefetch;
      if (prefetch && prefetches_ != nullptr) {
        prefetches_->Arrived(lane.moving.block, lane.moving.to);
      }
      lane.moving.id = tidepool::TransferId();
    }
    if (lane.waiting.empty()) return;
    StartNext(lane);
  }
}

void LinkEngine::AdvanceAll() {
  for (Lane& lane : lanes_) Advance(lane);
}

void LinkEngine::Poll(std::vector<tidepool::Completion>& completions) noexcept {
  AdvanceAll();
  completions.insert(completions.end(), done_.begin(), done_.end());
  done_.clear();
}

bool LinkEngine::Wait(Duration /*timeout*/) noexcept {
  AdvanceAll();
  return !done_.empty();
}

TimePoint LinkEngine::NextDone() const {
  TimePoint next = done_.empty() ? tidepool::kNever : clock_->Now();
  for (const Lane& lane : lanes_) {
    if (lane.moving.id.valid()) next = std::min(next, lane.done);
  }
  return next;
}

tidepool::TransferEstimate LinkEngine::EstimateCost(TierIndex from, TierIndex to,
                                                    std::uint64_t bytes) const noexcept {
  if (!Supports(from, to)) return {};
  const double queued = static_cast<double>(lanes_[LaneIndex(from, to)].blocks() * slot_bytes_);
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
  return PairAt(from, to).queued * slot_bytes_;
}

}  // namespace policy_lab
