#include "src/transfer/copy_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tidepool {
namespace {

// Background bytes in flight when no demand load is there: enough to keep a device busy, little
// enough to be out of a demand load's way in this time.
constexpr double kBackgroundSeconds = 0.002;

// Strict classes hold within a direction. Between directions that share a worker, one that was
// passed over so often goes next: loads alone must not starve the write-back they wait for.
constexpr std::uint32_t kPatience = 8;

Duration SecondsToDuration(double seconds) {
  constexpr double kLongest = 1e9;  // keeps a rate of nearly nothing within 64 bits
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(seconds, kLongest)));
}

}  // namespace

bool CopyQueue::ByUrgency::operator()(const Copy* a, const Copy* b) const {
  return a->urgency < b->urgency;
}

bool CopyQueue::ByAge::operator()(const Copy* a, const Copy* b) const {
  return a->urgency.sequence < b->urgency.sequence;
}

CopyQueue::CopyQueue(const Clock* clock, std::uint32_t max_queued)
    : clock_(clock), max_queued_(max_queued) {}

CopyQueue::~CopyQueue() = default;

void CopyQueue::AddDirection(DirectionOptions options) {
  auto direction = std::make_unique<Direction>();
  direction->rate = RateEstimate(options.prior_bytes_per_second);
  by_tiers_[std::size_t{options.from} * kMaxTiers + options.to] = direction.get();
  direction->options = std::move(options);
  directions_.push_back(std::move(direction));
}

const CopyQueue::Direction* CopyQueue::Find(TierIndex from, TierIndex to) const {
  if (from >= kMaxTiers || to >= kMaxTiers) return nullptr;
  return by_tiers_[std::size_t{from} * kMaxTiers + to];
}

bool CopyQueue::Supports(TierIndex from, TierIndex to) const { return Find(from, to) != nullptr; }

bool CopyQueue::Valid(const CopyRequest& request) const {
  const Direction* direction = Find(request.from, request.to);
  return direction != nullptr && request.source.value() < direction->options.from_slots &&
         request.destination.value() < direction->options.to_slots &&
         static_cast<std::size_t>(request.transfer_class) < kTransferClassCount &&
         !copies_.contains(request.id.value());
}

std::size_t CopyQueue::Submit(std::span<const CopyRequest> requests) {
  std::size_t accepted = 0;
  std::array<bool, kLaneCount> fed{};
  bool wake_file_lane = false;
  {
    MutexLock lock(mutex_);
    for (const CopyRequest& request : requests) {
      if (!Valid(request)) {
        Complete({.id = request.id, .terminal = true, .result = TransferResult::kFailed});
      } else {
        Direction& direction = *by_tiers_[std::size_t{request.from} * kMaxTiers + request.to];
        if (Full(direction, request)) break;
        Accept(request, direction);
        fed[static_cast<std::size_t>(direction.options.lane)] = true;
      }
      ++accepted;
    }
    if (fed[static_cast<std::size_t>(Lane::kFile)]) {
      wake_file_lane = std::exchange(file_lane_parked_, false);
    }
  }
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    if (fed[lane]) work_[lane].NotifyAll();
  }
  if (wake_file_lane && wake_file_lane_) wake_file_lane_();
  return accepted;
}

// A demand load never waits outside because of background copies.
bool CopyQueue::Full(const Direction& direction, const CopyRequest& request) const {
  const std::uint32_t demand = direction.live_demand;
  const bool load = request.transfer_class == TransferClass::kDemandLoad;
  return (load ? demand : direction.live - demand) >= max_queued_;
}

std::uint64_t CopyQueue::NextStartTag(const CopyRequest& request, Direction& direction) {
  Turns& turns = direction.turns[static_cast<std::size_t>(request.transfer_class)];
  std::uint64_t& end = turns.end[request.tenant];
  const std::uint64_t start = std::max(turns.now, end);
  end = start + direction.options.plan.total();
  return start;
}

void CopyQueue::Accept(const CopyRequest& request, Direction& direction) {
  auto copy = std::make_unique<Copy>();
  copy->request = request;
  copy->direction = &direction;
  copy->urgency = {.transfer_class = request.transfer_class,
                   .deadline = request.deadline,
                   .start_tag = NextStartTag(request, direction),
                   .sequence = next_sequence_++};
  if (direction.options.plan.count() > 1) copy->done.resize(direction.options.plan.count());
  direction.waiting.insert(copy.get());
  ++direction.live;
  if (copy->demand()) {
    ++direction.live_demand;
  } else {
    direction.by_age.insert(copy.get());
  }
  direction.live_bytes += direction.options.plan.total();
  copies_.emplace(request.id.value(), std::move(copy));
}

void CopyQueue::Cancel(TransferId id) {
  MutexLock lock(mutex_);
  const auto it = copies_.find(id.value());
  if (it != copies_.end()) CancelRest(*it->second);
}

void CopyQueue::Withdraw(TransferId id) {
  MutexLock lock(mutex_);
  const auto it = copies_.find(id.value());
  if (it != copies_.end() && it->second->next_chunk == 0) CancelRest(*it->second);
}

void CopyQueue::CancelRest(Copy& copy) {
  if (!StopHandingOut(copy)) return;  // all of it is under way: too late
  copy.cancelled = true;
  CompleteIfOver(copy);
}

// False if there was nothing left to hand out.
bool CopyQueue::StopHandingOut(Copy& copy) {
  Direction& direction = *copy.direction;
  if (direction.waiting.erase(&copy) == 0) return false;
  if (!copy.demand()) direction.by_age.erase(&copy);
  if (direction.waiting.empty()) direction.turns.fill({});
  return true;
}

void CopyQueue::Poll(std::vector<Completion>& completions) {
  MutexLock lock(mutex_);
  completions.insert(completions.end(), completions_.begin(), completions_.end());
  completions_.clear();
}

bool CopyQueue::Wait(Duration timeout) {
  // A caller's "for ever" must not overflow the clock.
  constexpr Duration kLongest = std::chrono::hours(24 * 365);
  const auto deadline = std::chrono::steady_clock::now() + std::min(timeout, kLongest);
  MutexLock lock(mutex_);
  ++waiters_;
  while (completions_.empty() && !copies_.empty()) {
    if (!completed_.WaitUntil(mutex_, deadline)) break;
  }
  --waiters_;
  return !completions_.empty();
}

TransferEstimate CopyQueue::Estimate(TierIndex from, TierIndex to, std::uint64_t bytes) const {
  const Direction* direction = Find(from, to);
  if (direction == nullptr) return {.time = Duration::max(), .method = "unsupported"};
  MutexLock lock(mutex_);
  const RateEstimate& rate = direction->rate;
  TransferEstimate estimate{.time = direction->options.prior_latency, .method = rate.method()};
  const double total = static_cast<double>(direction->live_bytes + bytes);
  if (rate.bytes_per_second() > 0) {
    estimate.time += SecondsToDuration(total / rate.bytes_per_second());
  }
  estimate.margin =
      rate.measured() ? SecondsToDuration(total * rate.seconds_per_byte_sd()) : estimate.time / 2;
  return estimate;
}

double CopyQueue::BytesPerSecond(TierIndex from, TierIndex to) const {
  const Direction* direction = Find(from, to);
  if (direction == nullptr) return 0;
  MutexLock lock(mutex_);
  return direction->rate.bytes_per_second();
}

std::uint64_t CopyQueue::QueuedBytes(TierIndex from, TierIndex to) const {
  const Direction* direction = Find(from, to);
  if (direction == nullptr) return 0;
  MutexLock lock(mutex_);
  return direction->live_bytes;
}

void CopyQueue::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    for (const auto& direction : directions_) {
      // Completing a copy frees it, so it leaves the set first.
      while (!direction->waiting.empty()) CancelRest(**direction->waiting.begin());
    }
  }
  for (CondVar& work : work_) work.NotifyAll();
  if (wake_file_lane_) wake_file_lane_();
}

// --- workers --------------------------------------------------------------------------------

void CopyQueue::Take(Lane lane, TakeLimits limits, std::vector<Chunk>& chunks) {
  if (limits.chunks == 0) return;
  MutexLock lock(mutex_);
  const TimePoint now = clock_->Now();
  std::size_t taken = 0;
  for (std::uint64_t bytes = 0; taken < limits.chunks && bytes < limits.bytes; ++taken) {
    Direction* direction = Pick(lane);
    if (direction == nullptr) break;
    const Copy& next = Next(*direction);
    bytes += direction->options.plan.Bytes(next.next_chunk);
    if (taken > 0 && bytes > limits.bytes) break;
    chunks.push_back(HandOut(*direction, now));
  }
  if (lane == Lane::kFile) file_lane_parked_ = limits.park && taken == 0;
}

bool CopyQueue::WaitForWork(Lane lane) {
  MutexLock lock(mutex_);
  while (!stopped_ && Pick(lane) == nullptr) work_[static_cast<std::size_t>(lane)].Wait(mutex_);
  return !stopped_;
}

// What the direction hands out next.
CopyQueue::Copy& CopyQueue::Next(const Direction& direction) const {
  Copy& first = **direction.waiting.begin();
  if (first.demand() || direction.since_oldest + 1 < kBackgroundPatience) return first;
  return **direction.by_age.begin();
}

bool CopyQueue::MayStart(const Direction& direction) const {
  if (direction.waiting.empty()) return false;
  const Copy& first = Next(direction);
  if (first.demand() || direction.background_chunks == 0) return true;
  if (direction.live_demand > 0) return false;
  const double window = std::max(static_cast<double>(kMaxChunkBytes),
                                 direction.rate.bytes_per_second() * kBackgroundSeconds);
  const std::uint64_t next = direction.options.plan.Bytes(first.next_chunk);
  return static_cast<double>(direction.background_bytes + next) <= window;
}

CopyQueue::Direction* CopyQueue::Pick(Lane lane) {
  Direction* best = nullptr;
  const auto before = [](const Direction& a, const Direction& b) {
    const bool a_starves = a.passed_over >= kPatience;
    const bool b_starves = b.passed_over >= kPatience;
    if (a_starves != b_starves) return a_starves;
    return (*a.waiting.begin())->urgency < (*b.waiting.begin())->urgency;
  };
  for (const auto& direction : directions_) {
    if (direction->options.lane != lane || !MayStart(*direction)) continue;
    if (best == nullptr || before(*direction, *best)) best = direction.get();
  }
  return best;
}

CopyQueue::Chunk CopyQueue::HandOut(Direction& direction, TimePoint now) {
  for (const auto& other : directions_) {
    if (other->options.lane == direction.options.lane && !other->waiting.empty()) {
      ++other->passed_over;
    }
  }
  direction.passed_over = 0;

  Copy& copy = Next(direction);
  const ChunkPlan& plan = direction.options.plan;
  const CopyRequest& request = copy.request;
  const Chunk chunk{.copy = &copy,
                    .from = request.from,
                    .to = request.to,
                    .source = request.source,
                    .destination = request.destination,
                    .index = copy.next_chunk,
                    .offset = plan.Begin(copy.next_chunk),
                    .bytes = plan.Bytes(copy.next_chunk),
                    .request = &request};
  ++copy.in_flight;
  if (!copy.demand()) {
    ++direction.background_chunks;
    direction.background_bytes += chunk.bytes;
    const bool oldest = &copy == *direction.by_age.begin();
    direction.since_oldest = oldest ? 0 : direction.since_oldest + 1;
  }
  Turns& turns = direction.turns[static_cast<std::size_t>(request.transfer_class)];
  turns.now = std::max(turns.now, copy.urgency.start_tag);
  direction.rate.OnChunkStart(now);
  if (++copy.next_chunk == plan.count()) StopHandingOut(copy);
  return chunk;
}

void CopyQueue::Finish(std::span<const Chunk> chunks, TransferResult result) {
  bool more = false;
  bool notify = false;
  {
    MutexLock lock(mutex_);
    const TimePoint now = clock_->Now();
    for (const Chunk& chunk : chunks) {
      const Direction& direction = *chunk.copy->direction;
      FinishOne(chunk, result, now);
      // The file lane has one thread, and it is the one that is here.
      more |= direction.options.lane == Lane::kMemory && !direction.waiting.empty();
    }
    notify = waiters_ > 0 && !completions_.empty();
  }
  if (more) work_[static_cast<std::size_t>(Lane::kMemory)].NotifyAll();
  if (notify) completed_.NotifyAll();
}

void CopyQueue::FinishOne(const Chunk& chunk, TransferResult result, TimePoint now) {
  const bool ok = result == TransferResult::kOk;
  Copy& copy = *chunk.copy;
  Direction& direction = *copy.direction;
  direction.rate.OnChunkEnd(now, ok ? chunk.bytes : 0);
  --copy.in_flight;
  if (!copy.demand()) {
    --direction.background_chunks;
    direction.background_bytes -= chunk.bytes;
  }
  if (ok) {
    MarkDone(copy, chunk.index);
  } else {
    if (!copy.failed()) copy.failure = result;
    StopHandingOut(copy);
  }
  CompleteIfOver(copy);
}

void CopyQueue::MarkDone(Copy& copy, std::uint32_t chunk) {
  const ChunkPlan& plan = copy.direction->options.plan;
  if (copy.done.empty()) {
    copy.leading = 1;
    return;
  }
  copy.done[chunk] = true;
  const std::uint32_t layers = plan.Layers(copy.leading);
  while (!copy.all_done() && copy.done[copy.leading]) ++copy.leading;
  const bool over = copy.all_done() || copy.failed() || copy.cancelled;
  if (!over && plan.Layers(copy.leading) > layers) {
    Complete({.id = copy.request.id, .layers_done = plan.Layers(copy.leading)});
  }
}

void CopyQueue::CompleteIfOver(Copy& copy) {
  if (copy.in_flight > 0) return;
  if (!copy.all_done() && !copy.failed() && !copy.cancelled) return;
  Direction& direction = *copy.direction;
  TransferResult result = copy.failure;
  if (!copy.failed() && !copy.all_done()) result = TransferResult::kCancelled;
  --direction.live;
  if (copy.demand()) --direction.live_demand;
  direction.live_bytes -= direction.options.plan.total();
  Complete({.id = copy.request.id,
            .terminal = true,
            .result = result,
            .layers_done = direction.options.plan.Layers(copy.leading)});
  copies_.erase(copy.request.id.value());
}

void CopyQueue::Complete(const Completion& completion) { completions_.push_back(completion); }

}  // namespace tidepool
