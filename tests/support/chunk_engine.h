// tests/support/chunk_engine.h - the host engine's queue of copies on modelled links and a manual
// clock, with a record of what was handed out when. Each direction's link moves its chunks one
// after the other at its speed; a test ends the next one, well or not.
//
// Thread contract: one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/transfer/copy_queue.h"
#include "src/transfer/memory_copy.h"
#include "tidepool/testing/manual_clock.h"
#include "tidepool/transfer/engine.h"

namespace tidepool::testing {

struct ChunkEngineOptions {
  ManualClock* clock = nullptr;
  double bytes_per_second = 1e9;
  std::uint64_t max_chunk_bytes = kMaxChunkBytes;
  std::uint32_t max_queued = 4096;
  std::size_t depth = 64;  ///< chunks that the device has at a time, in all directions together
  bool move_bytes = true;  ///< false: tiers need no memory
};

class ChunkEngine final : public TransferEngine {
 public:
  enum class What : std::uint8_t { kSubmitted, kTaken, kMoved, kEnded };
  /// Something that happened to a copy, in order.
  struct Event {
    What what;
    CopyRequest request;
    TimePoint time{};
    std::uint64_t bytes = 0;  ///< of a chunk; of all of it when submitted
    TransferResult result = TransferResult::kOk;
  };

  explicit ChunkEngine(const ChunkEngineOptions& options)
      : options_(options), queue_(options.clock, options.max_queued) {}

  // --- What a test does and reads. ---
  [[nodiscard]] std::size_t in_flight() const { return moving_.size(); }
  [[nodiscard]] std::optional<TimePoint> NextDone() const {
    if (moving_.empty()) return std::nullopt;
    return std::min_element(moving_.begin(), moving_.end(), Earlier)->done;
  }
  /// Moves the clock to the end of the next chunk and ends it; false if none is in flight.
  bool FinishNext(bool ok = true) {
    if (moving_.empty()) return false;
    const auto at = std::min_element(moving_.begin(), moving_.end(), Earlier);
    const Moving next = *at;
    moving_.erase(at);
    if (next.done > options_.clock->Now()) options_.clock->Set(next.done);
    if (options_.move_bytes) Move(next.chunk, ok);
    Record(What::kMoved, next.request, next.chunk.bytes);
    queue_.Finish({&next.chunk, 1}, ok ? TransferResult::kOk : TransferResult::kFailed);
    Pump();
    return true;
  }
  [[nodiscard]] const std::vector<Event>& events() const { return events_; }
  [[nodiscard]] const ChunkPlan& plan() const { return plan_; }

  // --- TransferEngine. ---
  Status Attach(std::span<const TierBinding> tiers, Observer* /*observer*/) override {
    tiers_.assign(tiers.begin(), tiers.end());
    plan_ = ChunkPlan({.payload_bytes = tiers_[0].slot_bytes,
                       .layers = tiers_[0].layers,
                       .max_chunk_bytes = options_.max_chunk_bytes});
    for (TierBinding& tier : tiers_) {
      if (!options_.move_bytes || !tier.arena.layer_base.empty()) continue;
      StatusOr<Arena> arena =
          AllocateHostArena(tier.slots, tier.layers, tier.slot_bytes / tier.layers);
      if (!arena.ok()) return arena.status();
      tier.arena = *std::move(arena);
    }
    for (TierIndex from = 0; from < tiers_.size(); ++from) {
      for (TierIndex to = 0; to < tiers_.size(); ++to) {
        if (from == to) continue;
        queue_.AddDirection({.from = from,
                             .to = to,
                             .plan = plan_,
                             .from_slots = tiers_[from].slots,
                             .to_slots = tiers_[to].slots,
                             .prior_bytes_per_second = options_.bytes_per_second});
      }
    }
    return {};
  }
  bool Supports(TierIndex from, TierIndex to) const noexcept override {
    return queue_.Supports(from, to);
  }
  std::size_t Submit(std::span<const CopyRequest> copies) noexcept override {
    const std::size_t accepted = queue_.Submit(copies);
    for (const CopyRequest& copy : copies.first(accepted)) {
      requests_[copy.id.value()] = copy;
      id_at_[SlotKey(copy.to, copy.destination)] = copy.id.value();
      Record(What::kSubmitted, copy, plan_.total());
    }
    Pump();
    return accepted;
  }
  void Poll(std::vector<Completion>& completions) noexcept override {
    completions.insert(completions.end(), completions_.begin(), completions_.end());
    completions_.clear();
  }
  bool Wait(Duration /*timeout*/) noexcept override {
    while (completions_.empty() && FinishNext()) {
    }
    return !completions_.empty();
  }
  void Cancel(TransferId id) noexcept override {
    queue_.Cancel(id);
    Pump();
  }
  void Withdraw(TransferId id) noexcept override {
    queue_.Withdraw(id);
    Pump();
  }
  TransferEstimate EstimateCost(TierIndex from, TierIndex to,
                                std::uint64_t bytes) const noexcept override {
    return queue_.Estimate(from, to, bytes);
  }
  double BytesPerSecond(TierIndex from, TierIndex to) const noexcept override {
    return queue_.BytesPerSecond(from, to);
  }
  std::uint64_t QueuedBytes(TierIndex from, TierIndex to) const noexcept override {
    return queue_.QueuedBytes(from, to);
  }
  /// Memory of a tier, file tiers included.
  [[nodiscard]] const Arena& arena(TierIndex tier) const { return tiers_[tier].arena; }

 private:
  struct Moving {
    CopyQueue::Chunk chunk;
    CopyRequest request;
    TimePoint done{};
    std::uint64_t order = 0;
  };
  static bool Earlier(const Moving& a, const Moving& b) {
    return a.done != b.done ? a.done < b.done : a.order < b.order;
  }

  void Record(What what, const CopyRequest& request, std::uint64_t bytes,
              TransferResult result = TransferResult::kOk) {
    events_.push_back({what, request, options_.clock->Now(), bytes, result});
  }

  static std::uint64_t SlotKey(TierIndex tier, SlotId slot) {
    return std::uint64_t{tier} << 32 | slot.value();
  }
  // A chunk names its slots; of the copies under way only one writes there.
  [[nodiscard]] const CopyRequest& RequestOf(const CopyQueue::Chunk& chunk) const {
    return requests_.at(id_at_.at(SlotKey(chunk.to, chunk.destination)));
  }

  // Notes what has ended, and takes what may start.
  void Pump() {
    NoteEnds();
    std::vector<CopyQueue::Chunk> chunks;
    queue_.Take(Lane::kMemory, {.chunks = options_.depth - moving_.size()}, chunks);
    for (const CopyQueue::Chunk& chunk : chunks) {
      TimePoint& free = free_at_[std::size_t{chunk.from} * kMaxTiers + chunk.to];
      free = std::max(free, options_.clock->Now()) +
             Duration(static_cast<Duration::rep>(static_cast<double>(chunk.bytes) * 1e9 /
                                                 options_.bytes_per_second));
      moving_.push_back({chunk, RequestOf(chunk), free, next_order_++});
      Record(What::kTaken, moving_.back().request, chunk.bytes);
    }
  }

  void NoteEnds() {
    const std::size_t before = completions_.size();
    queue_.Poll(completions_);
    for (std::size_t i = before; i < completions_.size(); ++i) {
      const Completion& completion = completions_[i];
      if (!completion.terminal) continue;
      const auto at = requests_.find(completion.id.value());
      Record(What::kEnded, at->second, 0, completion.result);
      requests_.erase(at);
    }
  }

  void Move(const CopyQueue::Chunk& chunk, bool ok) {
    const Arena& to = tiers_[chunk.to].arena;
    CopySlot(tiers_[chunk.from].arena, {chunk.source, chunk.offset, chunk.bytes}, to,
             chunk.destination);
    if (ok) return;
    for (std::uint32_t layer = 0; layer < tiers_[chunk.to].layers; ++layer) {
      std::memset(to.At(chunk.destination, layer), 0xDB, to.layer_bytes);
    }
  }

  const ChunkEngineOptions options_;
  CopyQueue queue_;
  std::vector<TierBinding> tiers_;
  ChunkPlan plan_;
  std::unordered_map<std::uint64_t, CopyRequest> requests_;  // not ended, by id
  std::unordered_map<std::uint64_t, std::uint64_t> id_at_;   // by destination
  std::vector<Moving> moving_;
  std::array<TimePoint, std::size_t{kMaxTiers} * kMaxTiers> free_at_{};
  std::vector<Completion> completions_;
  std::vector<Event> events_;
  std::uint64_t next_order_ = 0;
};

}  // namespace tidepool::testing
