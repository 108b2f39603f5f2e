// Invariants:
//   * a copy is in `copies` and `by_id` from Submit to its one terminal completion, and has one
//   part
//     per rank: waiting, then drained, then over; it completes when no part is open;
//   * `owed` of a rank and direction counts demand parts that are not over, `background_bytes` what
//     the rank has been given and not reported of the other classes;
//   * once a part has failed or was cancelled the copy is stopped: no rank is given it any more,
//   and
//     the ranks that have it are told to cancel.
#include "tidepool/transfer/rank_engine.h"

#include <algorithm>
#include <array>
#include <compare>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "src/transfer/rate_estimate.h"

namespace tidepool {
namespace {

Duration SecondsToDuration(double seconds) {
  constexpr double kLongest = 1e9;  // keeps a rate of nearly nothing within 64 bits
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(seconds, kLongest)));
}

bool IsDemand(const CopyRequest& request) {
  return request.transfer_class == TransferClass::kDemandLoad;
}

}  // namespace

struct RankEngine::Impl {
  enum class State : std::uint8_t { kWaiting, kDrained, kOver };
  struct Part {
    State state = State::kWaiting;
    bool told_to_cancel = false;
    std::uint32_t layers = 0;
  };
  struct Copy {
    CopyRequest request;
    std::uint64_t sequence = 0;  // of submission, from 1; 0 = not in use
    std::uint32_t open = 0;      // parts that are not over
    std::uint32_t layers_told = 0;
    bool begun = false;  // some rank has been given it
    bool failed = false;
    bool cancelled = false;
    [[nodiscard]] bool stopped() const { return failed || cancelled; }
  };
  /// A copy in a rank's queue; out of date when `sequence` is not the copy's any more.
  struct Waiting {
    TransferClass transfer_class;
    TimePoint deadline;
    std::uint64_t sequence;
    std::uint32_t copy;
    friend auto operator<=>(const Waiting&, const Waiting&) = default;
  };
  struct Direction {
    bool supported = false;
    RateEstimate rate;
    Duration prior_latency{0};
    std::uint64_t bytes = 0;  // of one copy
    std::uint32_t live = 0;
  };
  struct Queue {
    std::vector<Waiting> heap;  // most urgent first
    std::uint32_t owed = 0;
    std::uint32_t background = 0;  // copies
    std::uint64_t background_bytes = 0;
  };
  static constexpr std::size_t kDirections = std::size_t{kMaxTiers} * kMaxTiers;
  struct Rank {
    bool lost = false;
    std::array<Queue, kDirections> queues;
    std::vector<FreedSlot> freed;
    std::vector<TransferId> cancels;
  };

  explicit Impl(RankEngineOptions o) : options(std::move(o)) {
    if (options.clock == nullptr) options.clock = Clock::Steady();
  }

  static std::size_t DirectionOf(TierIndex from, TierIndex to) {
    return std::size_t{from} * kMaxTiers + to;
  }
  [[nodiscard]] const Direction* Find(TierIndex from, TierIndex to) const {
    if (from >= kMaxTiers || to >= kMaxTiers) return nullptr;
    const Direction& direction = directions[DirectionOf(from, to)];
    return direction.supported ? &direction : nullptr;
  }
  [[nodiscard]] std::size_t DirectionOf(const Copy& copy) const {
    return DirectionOf(copy.request.from, copy.request.to);
  }
  Part& PartOf(std::uint32_t copy, std::uint32_t rank) {
    return parts[std::size_t{copy} * options.ranks + rank];
  }
  [[nodiscard]] bool Valid(const CopyRequest& request) const;
  void Accept(const CopyRequest& request);
  std::uint32_t NewCopy();
  [[nodiscard]] bool Current(const Waiting& waiting, std::uint32_t rank) {
    return copies[waiting.copy].sequence == waiting.sequence &&
           PartOf(waiting.copy, rank).state == State::kWaiting;
  }
  void Enqueue(const Waiting& waiting, std::uint32_t rank, std::size_t direction);
  bool MayDrain(const Queue& queue, const Direction& direction, TransferClass next) const;
  void DrainQueue(std::uint32_t rank, std::size_t direction);
  void Begin(const Waiting& next, std::uint32_t rank);
  void ReportOne(std::uint32_t rank, const Completion& completion);
  void EndPart(std::uint32_t copy, std::uint32_t rank, TransferResult result);
  void Settle(std::uint32_t copy);
  void CallOff(std::uint32_t copy);
  void TellLayers(std::uint32_t copy);
  void Complete(std::uint32_t copy);

  RankEngineOptions options;
  RankEngineStats stats;
  std::vector<TierBinding> tiers;
  std::array<Direction, kDirections> directions{};
  std::vector<Rank> ranks;
  std::uint32_t lost = 0;
  std::vector<Copy> copies;
  std::vector<Part> parts;  // by copy, then rank
  std::vector<std::uint32_t> free_copies;
  absl::flat_hash_map<std::uint64_t, std::uint32_t> by_id;
  std::uint64_t next_sequence = 1;
  std::vector<Completion> completions;
  std::vector<Waiting> drained;  // scratch
};

RankEngine::RankEngine(RankEngineOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
RankEngine::~RankEngine() = default;

std::uint32_t RankEngine::ranks() const noexcept { return impl_->options.ranks; }
std::uint32_t RankEngine::outstanding() const noexcept {
  return static_cast<std::uint32_t>(impl_->by_id.size());
}
const RankEngineStats& RankEngine::stats() const noexcept { return impl_->stats; }
std::string RankEngine::Describe() const {
  return "plans for " + std::to_string(impl_->options.ranks) + " ranks";
}

// --- The manager's side. ---

Status RankEngine::Attach(std::span<const TierBinding> tiers, Observer*) {
  const std::uint32_t ranks = impl_->options.ranks;
  if (!impl_->tiers.empty()) return absl::FailedPreconditionError("rank engine: attached already");
  if (ranks == 0 || ranks > kMaxRanks) {
    return absl::InvalidArgumentError("rank engine: ranks is " + std::to_string(ranks) +
                                      ", not in [1, " + std::to_string(kMaxRanks) + "]");
  }
  if (tiers.size() > kMaxTiers) {
    return absl::InvalidArgumentError("rank engine: " + std::to_string(tiers.size()) + " tiers");
  }
  impl_->tiers.assign(tiers.begin(), tiers.end());
  impl_->ranks.resize(ranks);
  for (TierIndex from = 0; from < tiers.size(); ++from) {
    for (TierIndex to = 0; to < tiers.size(); ++to) {
      const TierBinding& a = tiers[from];
      const TierBinding& b = tiers[to];
      if (from == to || a.slot_bytes != b.slot_bytes || a.layers != b.layers) continue;
      Impl::Direction& direction = impl_->directions[Impl::DirectionOf(from, to)];
      direction.supported = true;
      direction.rate = RateEstimate(std::min(a.prior_bytes_per_second, b.prior_bytes_per_second));
      direction.prior_latency = std::max(a.prior_latency, b.prior_latency);
      direction.bytes = a.slot_bytes;
    }
  }
  return {};
}

bool RankEngine::Supports(TierIndex from, TierIndex to) const noexcept {
  return impl_->Find(from, to) != nullptr;
}

bool RankEngine::Impl::Valid(const CopyRequest& request) const {
  return Find(request.from, request.to) != nullptr &&
         request.source.value() < tiers[request.from].slots &&
         request.destination.value() < tiers[request.to].slots &&
         !by_id.contains(request.id.value());
}

std::size_t RankEngine::Submit(std::span<const CopyRequest> copies) noexcept {
  if (impl_->lost != 0) return 0;
  std::size_t accepted = 0;
  for (const CopyRequest& request : copies) {
    if (!impl_->Valid(request)) {
      impl_->completions.push_back(
          {.id = request.id, .terminal = true, .result = TransferResult::kFailed});
    } else {
      const auto& direction = impl_->directions[Impl::DirectionOf(request.from, request.to)];
      if (direction.live >= impl_->options.max_queued_copies) break;
      impl_->Accept(request);
    }
    ++accepted;
  }
  return accepted;
}

std::uint32_t RankEngine::Impl::NewCopy() {
  if (free_copies.empty()) {
    free_copies.push_back(static_cast<std::uint32_t>(copies.size()));
    copies.emplace_back();
    parts.resize(parts.size() + options.ranks);
  }
  const std::uint32_t copy = free_copies.back();
  free_copies.pop_back();
  return copy;
}

void RankEngine::Impl::Accept(const CopyRequest& request) {
  const std::uint32_t index = NewCopy();
  const std::size_t direction = DirectionOf(request.from, request.to);
  Copy& copy = copies[index];
  copy = {.request = request, .sequence = next_sequence++, .open = options.ranks};
  const Waiting waiting{request.transfer_class, request.deadline, copy.sequence, index};
  for (std::uint32_t r = 0; r < options.ranks; ++r) {
    PartOf(index, r) = Part{};
    Enqueue(waiting, r, direction);
  }
  by_id.emplace(request.id.value(), index);
  ++directions[direction].live;
  ++stats.copies;
}

// What was called off stays in the heap until it comes up, or until such entries are the most.
void RankEngine::Impl::Enqueue(const Waiting& waiting, std::uint32_t rank, std::size_t direction) {
  Queue& queue = ranks[rank].queues[direction];
  if (queue.heap.size() > 2 * std::size_t{options.max_queued_copies}) {
    std::erase_if(queue.heap, [&](const Waiting& w) { return !Current(w, rank); });
    std::ranges::make_heap(queue.heap, std::greater<>{});
  }
  queue.heap.push_back(waiting);
  std::ranges::push_heap(queue.heap, std::greater<>{});
  if (waiting.transfer_class == TransferClass::kDemandLoad) ++queue.owed;
}

void RankEngine::Poll(std::vector<Completion>& completions) noexcept {
  completions.insert(completions.end(), impl_->completions.begin(), impl_->completions.end());
  impl_->completions.clear();
}

bool RankEngine::Wait(Duration timeout) noexcept {
  if (!impl_->completions.empty()) return true;
  if (impl_->by_id.empty() || !impl_->options.exchange) return false;
  impl_->options.exchange(timeout);
  return !impl_->completions.empty();
}

void RankEngine::Cancel(TransferId id) noexcept {
  const auto it = impl_->by_id.find(id.value());
  if (it == impl_->by_id.end()) return;
  const std::uint32_t copy = it->second;
  impl_->CallOff(copy);
  impl_->Settle(copy);
}

void RankEngine::Withdraw(TransferId id) noexcept {
  const auto it = impl_->by_id.find(id.value());
  if (it != impl_->by_id.end() && !impl_->copies[it->second].begun) Cancel(id);
}

void RankEngine::OnSlotFreed(TierIndex tier, SlotId slot) noexcept {
  if (!impl_->options.freed_slots) return;
  for (Impl::Rank& rank : impl_->ranks) {
    if (!rank.lost) rank.freed.push_back({tier, slot});
  }
}

TransferEstimate RankEngine::EstimateCost(TierIndex from, TierIndex to,
                                          std::uint64_t bytes) const noexcept {
  const Impl::Direction* const direction = impl_->Find(from, to);
  if (direction == nullptr) return {.time = Duration::max(), .method = "unsupported"};
  const RateEstimate& rate = direction->rate;
  TransferEstimate estimate{.time = direction->prior_latency, .method = rate.method()};
  const double total = static_cast<double>(QueuedBytes(from, to) + bytes);
  if (rate.bytes_per_second() > 0) {
    estimate.time += SecondsToDuration(total / rate.bytes_per_second());
  }
  estimate.margin =
      rate.measured() ? SecondsToDuration(total * rate.seconds_per_byte_sd()) : estimate.time / 2;
  return estimate;
}

double RankEngine::BytesPerSecond(TierIndex from, TierIndex to) const noexcept {
  const Impl::Direction* const direction = impl_->Find(from, to);
  return direction != nullptr ? direction->rate.bytes_per_second() : 0;
}

std::uint64_t RankEngine::QueuedBytes(TierIndex from, TierIndex to) const noexcept {
  const Impl::Direction* const direction = impl_->Find(from, to);
  return direction != nullptr ? direction->live * direction->bytes : 0;
}

// --- The ranks' side. ---

void RankEngine::DrainPlan(std::uint32_t rank, RankPlan& plan) {
  plan.freed.clear();
  plan.cancels.clear();
  plan.copies.clear();
  if (rank >= impl_->ranks.size() || impl_->ranks[rank].lost) return;
  plan.freed.swap(impl_->ranks[rank].freed);
  plan.cancels.swap(impl_->ranks[rank].cancels);
  impl_->drained.clear();
  for (std::size_t d = 0; d < Impl::kDirections; ++d) impl_->DrainQueue(rank, d);
  std::ranges::sort(impl_->drained);
  for (const Impl::Waiting& w : impl_->drained) {
    plan.copies.push_back(impl_->copies[w.copy].request);
  }
  impl_->stats.drained += plan.copies.size();
  impl_->stats.cancels += plan.cancels.size();
}

// Background copies wait their turn: behind a demand load one at a time, otherwise a window.
bool RankEngine::Impl::MayDrain(const Queue& queue, const Direction& direction,
                                TransferClass next) const {
  if (next == TransferClass::kDemandLoad || queue.background == 0) return true;
  if (queue.owed != 0) return false;
  const double window =
      std::max(static_cast<double>(kMaxChunkBytes),
               direction.rate.bytes_per_second() *
                   std::chrono::duration<double>(options.background_window).count());
  return static_cast<double>(queue.background_bytes + direction.bytes) <= window;
}

void RankEngine::Impl::DrainQueue(std::uint32_t rank, std::size_t direction) {
  Queue& queue = ranks[rank].queues[direction];
  while (!queue.heap.empty()) {
    const Waiting next = queue.heap.front();
    const bool current = Current(next, rank);
    if (current && !MayDrain(queue, directions[direction], next.transfer_class)) return;
    std::ranges::pop_heap(queue.heap, std::greater<>{});
    queue.heap.pop_back();
    if (current) Begin(next, rank);
  }
}

void RankEngine::Impl::Begin(const Waiting& next, std::uint32_t rank) {
  Copy& copy = copies[next.copy];
  const std::size_t direction = DirectionOf(copy);
  PartOf(next.copy, rank).state = State::kDrained;
  if (!std::exchange(copy.begun, true)) {
    directions[direction].rate.OnChunkStart(options.clock->Now());
  }
  if (!IsDemand(copy.request)) {
    ++ranks[rank].queues[direction].background;
    ranks[rank].queues[direction].background_bytes += directions[direction].bytes;
  }
  drained.push_back(next);
}

void RankEngine::Report(std::uint32_t rank, std::span<const Completion> completions) {
  if (rank >= impl_->ranks.size()) {
    impl_->stats.out_of_range += completions.size();
  } else if (impl_->ranks[rank].lost) {
    impl_->stats.from_lost += completions.size();
  } else {
    for (const Completion& c : completions) impl_->ReportOne(rank, c);
  }
}

void RankEngine::Impl::ReportOne(std::uint32_t rank, const Completion& completion) {
  const auto it = by_id.find(completion.id.value());
  if (it == by_id.end()) {
    ++stats.unknown;
    return;
  }
  const std::uint32_t copy = it->second;
  Part& part = PartOf(copy, rank);
  const std::uint32_t layers = tiers[copies[copy].request.from].layers;
  if (part.state != State::kDrained) {
    ++(part.state == State::kOver ? stats.repeated : stats.not_drained);
  } else if (completion.layers_done > layers) {
    ++stats.out_of_range;
  } else {
    const bool ok = completion.terminal && completion.result == TransferResult::kOk;
    part.layers = std::max(part.layers, ok ? layers : completion.layers_done);
    if (completion.terminal) EndPart(copy, rank, completion.result);
    Settle(copy);
  }
}

void RankEngine::Impl::EndPart(std::uint32_t index, std::uint32_t rank, TransferResult result) {
  Copy& copy = copies[index];
  Part& part = PartOf(index, rank);
  Queue& queue = ranks[rank].queues[DirectionOf(copy)];
  if (IsDemand(copy.request)) {
    --queue.owed;
  } else if (part.state == State::kDrained) {
    --queue.background;
    queue.background_bytes -= directions[DirectionOf(copy)].bytes;
  }
  part.state = State::kOver;
  --copy.open;
  copy.cancelled |= result == TransferResult::kCancelled;
  copy.failed |= result != TransferResult::kCancelled && result != TransferResult::kOk;
}

// What follows when a part has ended.
void RankEngine::Impl::Settle(std::uint32_t index) {
  if (copies[index].stopped()) CallOff(index);
  if (copies[index].open == 0) {
    Complete(index);
  } else {
    TellLayers(index);
  }
}

// No rank is given the copy any more; those that have it are told, once.
void RankEngine::Impl::CallOff(std::uint32_t index) {
  for (std::uint32_t r = 0; r < options.ranks; ++r) {
    Part& part = PartOf(index, r);
    if (part.state == State::kWaiting) {
      EndPart(index, r, TransferResult::kCancelled);
    } else if (part.state == State::kDrained && !std::exchange(part.told_to_cancel, true)) {
      ranks[r].cancels.push_back(copies[index].request.id);
    }
  }
}

void RankEngine::Impl::TellLayers(std::uint32_t index) {
  Copy& copy = copies[index];
  if (copy.stopped()) return;
  std::uint32_t least = PartOf(index, 0).layers;
  for (std::uint32_t r = 1; r < options.ranks; ++r) {
    least = std::min(least, PartOf(index, r).layers);
  }
  if (least <= copy.layers_told) return;
  copy.layers_told = least;
  completions.push_back({.id = copy.request.id, .layers_done = least});
}

void RankEngine::Impl::Complete(std::uint32_t index) {
  Copy& copy = copies[index];
  Direction& direction = directions[DirectionOf(copy)];
  std::uint32_t layers = PartOf(index, 0).layers;
  for (std::uint32_t r = 1; r < options.ranks; ++r) {
    layers = std::min(layers, PartOf(index, r).layers);
  }
  const TransferResult result = copy.failed      ? TransferResult::kFailed
                                : copy.cancelled ? TransferResult::kCancelled
                                                 : TransferResult::kOk;
  if (copy.begun) {
    direction.rate.OnChunkEnd(options.clock->Now(),
                              result == TransferResult::kOk ? direction.bytes : 0);
  }
  --direction.live;
  completions.push_back(
      {.id = copy.request.id, .terminal = true, .result = result, .layers_done = layers});
  by_id.erase(copy.request.id.value());
  copy.sequence = 0;
  free_copies.push_back(index);
}

Outcome RankEngine::RankLost(std::uint32_t rank) {
  if (rank >= impl_->ranks.size()) return Outcome::kInvalidArgument;
  Impl::Rank& gone = impl_->ranks[rank];
  if (std::exchange(gone.lost, true)) return Outcome::kOk;
  ++impl_->lost;
  gone.freed.clear();
  for (std::uint32_t i = 0; i < impl_->copies.size(); ++i) {
    if (impl_->copies[i].sequence == 0) continue;
    if (impl_->PartOf(i, rank).state == Impl::State::kOver) continue;
    impl_->EndPart(i, rank, TransferResult::kFailed);
    impl_->Settle(i);
  }
  gone.cancels.clear();
  return Outcome::kOk;
}

Outcome RankEngine::RankBack(std::uint32_t rank) {
  if (rank >= impl_->ranks.size()) return Outcome::kInvalidArgument;
  if (std::exchange(impl_->ranks[rank].lost, false)) --impl_->lost;
  return Outcome::kOk;
}

}  // namespace tidepool
