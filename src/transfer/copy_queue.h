// Every copy that the host engine has accepted: which chunk goes next, what is in flight, and the
// one terminal completion of each. Workers take chunks and give them back; they know nothing else.
//
// Invariants, with mutex_ held:
//   * a copy is in copies_ from Submit to its terminal completion, and in its direction's `waiting`
//     as long as it has chunks to hand out;
//   * a cancelled or failed copy hands out no more chunks, and completes when the last of its
//     chunks in flight comes back;
//   * while a direction has a live demand load, a background chunk starts only when no other is in
//     flight there, and none starts before a chunk of a demand load that could;
//   * by_age lists the background copies of `waiting`, and of every kBackgroundPatience background
//     chunks of a direction one at least goes to its first.
//
// Between copies of equal class and deadline tenants take turns: each copy gets a start tag, which
// is where its tenant's last one ends, in bytes, or the tag of what was handed out last (start-time
// fair queueing, Goyal, Vin and Cheng 1996).
//
// Thread contract: thread-safe; AddDirection only before the first other call.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "src/annotated_mutex.h"
#include "src/transfer/chunk_plan.h"
#include "src/transfer/rate_estimate.h"
#include "tidepool/clock.h"
#include "tidepool/transfer/engine.h"

namespace tidepool {

/// Who moves the bytes of a direction.
enum class Lane : std::uint8_t { kMemory, kFile };
inline constexpr std::size_t kLaneCount = 2;

class CopyQueue {
  struct Copy;

 public:
  struct DirectionOptions {
    TierIndex from = 0;
    TierIndex to = 0;
    Lane lane = Lane::kMemory;
    ChunkPlan plan;
    std::uint32_t from_slots = 0;
    std::uint32_t to_slots = 0;
    double prior_bytes_per_second = 0;
    Duration prior_latency{0};
  };

  struct Chunk {
    Copy* copy = nullptr;
    TierIndex from = 0;
    TierIndex to = 0;
    SlotId source;
    SlotId destination;
    std::uint32_t index = 0;
    std::uint64_t offset = 0;  ///< in the payload
    std::uint64_t bytes = 0;
    const CopyRequest* request = nullptr;  ///< lives until the chunk is given back
  };

  CopyQueue(const Clock* clock, std::uint32_t max_queued);
  ~CopyQueue();

  void AddDirection(DirectionOptions options);
  /// Called, without the mutex, when the file lane gets work after it parked itself.
  void set_wake_file_lane(std::function<void()> wake) { wake_file_lane_ = std::move(wake); }

  // The scheduler's side; see TransferEngine.
  [[nodiscard]] bool Supports(TierIndex from, TierIndex to) const;
  std::size_t Submit(std::span<const CopyRequest> requests) TIDEPOOL_EXCLUDES(mutex_);
  void Cancel(TransferId id) TIDEPOOL_EXCLUDES(mutex_);
  void Withdraw(TransferId id) TIDEPOOL_EXCLUDES(mutex_);
  void Poll(std::vector<Completion>& completions) TIDEPOOL_EXCLUDES(mutex_);
  bool Wait(Duration timeout) TIDEPOOL_EXCLUDES(mutex_);
  [[nodiscard]] TransferEstimate Estimate(TierIndex from, TierIndex to, std::uint64_t bytes) const
      TIDEPOOL_EXCLUDES(mutex_);
  [[nodiscard]] double BytesPerSecond(TierIndex from, TierIndex to) const TIDEPOOL_EXCLUDES(mutex_);
  [[nodiscard]] std::uint64_t QueuedBytes(TierIndex from, TierIndex to) const
      TIDEPOOL_EXCLUDES(mutex_);
  /// Cancels what has not started and makes the workers leave when they have nothing in flight.
  void Stop() TIDEPOOL_EXCLUDES(mutex_);

  // The workers' side.

  /// Appends chunks that may start now, at most so many, and beyond the first at most so many
  /// bytes. If there is none and `park`, the next one to come wakes the file lane.
  struct TakeLimits {
    std::size_t chunks = 0;
    std::uint64_t bytes = static_cast<std::uint64_t>(-1);
    bool park = false;
  };
  void Take(Lane lane, TakeLimits limits, std::vector<Chunk>& chunks) TIDEPOOL_EXCLUDES(mutex_);
  /// Waits until Take would find a chunk; false once stopped.
  bool WaitForWork(Lane lane) TIDEPOOL_EXCLUDES(mutex_);
  /// Gives chunks of one lane back: kOk, kFailed or kNoSpace.
  void Finish(std::span<const Chunk> chunks, TransferResult result) TIDEPOOL_EXCLUDES(mutex_);

 private:
  struct Urgency {
    TransferClass transfer_class;
    TimePoint deadline;
    std::uint64_t start_tag;
    std::uint64_t sequence;
    friend auto operator<=>(const Urgency&, const Urgency&) = default;
  };
  struct ByUrgency {
    bool operator()(const Copy* a, const Copy* b) const;
  };
  struct ByAge {
    bool operator()(const Copy* a, const Copy* b) const;
  };
  struct Turns {
    std::uint64_t now = 0;                                  // start tag of what was handed out last
    absl::flat_hash_map<std::uint32_t, std::uint64_t> end;  // of each tenant's last copy
  };
  struct Direction {
    DirectionOptions options;
    std::set<Copy*, ByUrgency> waiting;  // copies with chunks to hand out
    std::set<Copy*, ByAge> by_age;
    std::uint32_t since_oldest = 0;  // background chunks handed out, none of by_age's first
    std::array<Turns, kTransferClassCount> turns;
    RateEstimate rate;
    std::uint64_t live_bytes = 0;
    std::uint32_t live = 0;
    std::uint32_t live_demand = 0;
    std::uint32_t background_chunks = 0;  // in flight
    std::uint64_t background_bytes = 0;
    std::uint32_t passed_over = 0;
  };
  struct Copy {
    CopyRequest request;
    Direction* direction = nullptr;
    Urgency urgency{};
    std::uint32_t next_chunk = 0;
    std::uint32_t in_flight = 0;
    std::uint32_t leading = 0;                     // chunks done without a gap
    std::vector<bool> done;                        // by chunk; empty for a single one
    TransferResult failure = TransferResult::kOk;  // of its first chunk that failed
    bool cancelled = false;
    [[nodiscard]] bool failed() const { return failure != TransferResult::kOk; }
    [[nodiscard]] bool demand() const {
      return request.transfer_class == TransferClass::kDemandLoad;
    }
    [[nodiscard]] bool all_done() const { return leading == direction->options.plan.count(); }
  };

  [[nodiscard]] const Direction* Find(TierIndex from, TierIndex to) const;
  [[nodiscard]] bool Valid(const CopyRequest& request) const TIDEPOOL_REQUIRES(mutex_);
  [[nodiscard]] bool Full(const Direction& direction, const CopyRequest& request) const
      TIDEPOOL_REQUIRES(mutex_);
  void Accept(const CopyRequest& request, Direction& direction) TIDEPOOL_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t NextStartTag(const CopyRequest& request, Direction& direction)
      TIDEPOOL_REQUIRES(mutex_);
  bool StopHandingOut(Copy& copy) TIDEPOOL_REQUIRES(mutex_);
  void CancelRest(Copy& copy) TIDEPOOL_REQUIRES(mutex_);
  [[nodiscard]] Copy& Next(const Direction& direction) const TIDEPOOL_REQUIRES(mutex_);
  [[nodiscard]] bool MayStart(const Direction& direction) const TIDEPOOL_REQUIRES(mutex_);
  [[nodiscard]] Direction* Pick(Lane lane) TIDEPOOL_REQUIRES(mutex_);
  [[nodiscard]] Chunk HandOut(Direction& direction, TimePoint now) TIDEPOOL_REQUIRES(mutex_);
  void FinishOne(const Chunk& chunk, TransferResult result, TimePoint now)
      TIDEPOOL_REQUIRES(mutex_);
  void MarkDone(Copy& copy, std::uint32_t chunk) TIDEPOOL_REQUIRES(mutex_);
  void CompleteIfOver(Copy& copy) TIDEPOOL_REQUIRES(mutex_);
  void Complete(const Completion& completion) TIDEPOOL_REQUIRES(mutex_);

  const Clock* const clock_;
  const std::uint32_t max_queued_;
  std::function<void()> wake_file_lane_;
  std::vector<std::unique_ptr<Direction>> directions_;
  std::array<Direction*, std::size_t{kMaxTiers} * kMaxTiers> by_tiers_{};

  mutable Mutex mutex_;
  CondVar completed_;
  std::array<CondVar, kLaneCount> work_;
  absl::flat_hash_map<std::uint64_t, std::unique_ptr<Copy>> copies_ TIDEPOOL_GUARDED_BY(mutex_);
  std::vector<Completion> completions_ TIDEPOOL_GUARDED_BY(mutex_);
  std::uint32_t waiters_ TIDEPOOL_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_sequence_ TIDEPOOL_GUARDED_BY(mutex_) = 0;
  bool file_lane_parked_ TIDEPOOL_GUARDED_BY(mutex_) = false;
  bool stopped_ TIDEPOOL_GUARDED_BY(mutex_) = false;
};

}  // namespace tidepool
