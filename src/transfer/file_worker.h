// The host engine's file thread: moves chunks between arenas and the file of one tier, keeps a
// checksum of each chunk it wrote, and checks it when the chunk is read.
//
// An I/O goes straight between arena and file where address and length suit direct I/O, and
// through a staging buffer otherwise. Checksums are computed after a write was started and after a
// read has ended, while other I/O is in flight.
//
// In a kept file a slot whose chunks have all been written gets its header (slot_store.h). In a
// durable one the copy ends only then and after a sync, which many copies share.
//
// Thread contract: Run, in a thread of its own; ForgetSlot, Invalidate, stats and Wake from any
// thread; the rest before Run.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/annotated_mutex.h"
#include "src/transfer/copy_queue.h"
#include "src/transfer/slot_store.h"
#include "tidepool/observer.h"
#include "tidepool/status.h"
#include "tidepool/transfer/engine.h"
#include "tidepool/transfer/file_io.h"

namespace tidepool {

class FileWorker {
 public:
  struct Options {
    TierIndex tier = 0;  ///< of the file, in `tiers`
    bool checksums = true;
    Observer* observer = nullptr;
  };

  /// `tiers` and the pointers must live as long as the worker.
  FileWorker(FileIo* io, CopyQueue* queue, std::span<const TierBinding> tiers, Options options);

  /// Opens the file and registers memory. After it plan() is what directions must use. What a kept
  /// file has is appended to `stored`.
  Status Open(StoredBlocks& stored);
  [[nodiscard]] const ChunkPlan& plan() const { return plan_; }

  /// Until the queue is stopped and nothing is in flight.
  void Run();
  void Wake() { io_->Wake(); }
  void ForgetSlot(SlotId slot) TIDEPOOL_EXCLUDES(sums_mutex_);
  Status Invalidate(const Invalidation& what);
  [[nodiscard]] FileTierStats stats() const noexcept { return counters_.Read(); }

 private:
  struct Op {
    CopyQueue::Chunk chunk;
    bool write = false;
    bool staged = false;
    bool io_over = false;
    TransferResult result = TransferResult::kOk;
    bool hashed = false;
    std::byte* data = nullptr;
    std::uint64_t io_bytes = 0;  // with padding
    std::uint64_t file_offset = 0;
    std::uint64_t started_at = 0;    // distance from `data` of the I/O in flight
    std::uint32_t retries = 0;       // without progress
    std::uint64_t expected_sum = 0;  // reads
    std::uint64_t sum = 0;
    std::uint32_t uses = 0;  // tells a late result of an earlier op apart
  };

  [[nodiscard]] const Arena& MemoryOf(const CopyQueue::Chunk& chunk, bool write) const;
  [[nodiscard]] bool Direct(const Arena& arena, SlotId slot, const CopyQueue::Chunk& chunk) const;
  [[nodiscard]] std::uint64_t Padded(std::uint64_t bytes) const;
  Status OpenFresh();
  Status OpenKept(StoredBlocks& stored);
  Status MakeStaging();
  void RegisterMemory();
  void PlanChunks(std::uint64_t unit);
  void TakeChunks();
  void Prepare(std::uint32_t index, const CopyQueue::Chunk& chunk);
  void Queue(std::uint32_t index);
  void StartQueued();
  void Reap(bool block);
  void OnResult(const FileOpResult& result);
  void OnIoOver(std::uint32_t index, TransferResult result);
  [[nodiscard]] bool HashSome();
  void Hash(std::uint32_t index);
  void GiveBack();
  void Finish(std::uint32_t index);
  void FinishWrite(const Op& op);
  void WriteHeaders(bool before_waiting);
  void Acknowledge();
  void Report(const Op& op, std::string_view what);
  void ForgetSums(SlotId slot) TIDEPOOL_EXCLUDES(sums_mutex_);
  [[nodiscard]] bool LookUpSum(SlotId slot, std::uint32_t chunk, std::uint64_t& sum)
      TIDEPOOL_EXCLUDES(sums_mutex_);
  void StoreSum(SlotId slot, std::uint32_t chunk, std::uint64_t sum) TIDEPOOL_EXCLUDES(sums_mutex_);
  /// All sums of the slot, or nothing while one is missing.
  [[nodiscard]] bool AllSums(SlotId slot, std::vector<std::uint64_t>& sums)
      TIDEPOOL_EXCLUDES(sums_mutex_);

  FileIo* const io_;
  CopyQueue* const queue_;
  const std::span<const TierBinding> tiers_;
  const Options options_;
  FileCounters counters_;
  std::unique_ptr<SlotStore> store_;  // of a kept file
  ChunkPlan plan_;
  std::uint64_t payloads_offset_ = 0;
  std::uint64_t slot_stride_ = 0;
  std::uint64_t alignment_ = 1;
  Arena staging_;                 // one slot per op, or empty
  std::vector<bool> contiguous_;  // by tier

  std::vector<Op> ops_;
  std::vector<std::uint32_t> free_;
  std::vector<FileOp> to_start_;
  std::deque<std::uint32_t> to_verify_;  // ended reads: first, somebody waits for them
  std::deque<std::uint32_t> to_hash_;    // started writes
  std::vector<CopyQueue::Chunk> taken_;
  std::vector<FileOpResult> results_;
  std::vector<CopyQueue::Chunk> finished_;  // well, to be given back together
  std::vector<CopyQueue::Chunk> unsynced_;  // last chunks of slots, written but not acknowledged
  std::uint32_t rounds_waited_ = 0;         // with headers or unsynced copies at hand
  std::vector<std::uint64_t> slot_sums_;    // scratch
  std::size_t in_flight_ = 0;

  Mutex sums_mutex_;
  std::vector<std::uint64_t> sums_ TIDEPOOL_GUARDED_BY(sums_mutex_);  // by slot, then chunk
  std::vector<bool> has_sum_ TIDEPOOL_GUARDED_BY(sums_mutex_);
};

}  // namespace tidepool
