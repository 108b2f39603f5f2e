// The host engine: a queue of copies, threads that copy memory, and one thread for the file.
#include "tidepool/transfer/host_engine.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "src/transfer/copy_queue.h"
#include "src/transfer/file_worker.h"
#include "src/transfer/memory_copy.h"
#include "src/transfer/worker_thread.h"

namespace tidepool {
namespace {

// Small blocks are copied some at a time, so that locks and wake-ups cost little; a demand load
// waits for at most so many bytes (some 30 us) behind them.
constexpr std::size_t kBatchChunks = 32;
constexpr std::uint64_t kBatchBytes = 256u << 10;

bool IsFile(const TierBinding& tier) { return tier.arena.layer_base.empty(); }

std::string TierName(std::span<const TierBinding> tiers, std::size_t i) {
  return "tier " + std::to_string(i) + " (" + std::string(ToString(tiers[i].kind)) + ")";
}

Status CheckTier(const TierBinding& tier) {
  const Arena& arena = tier.arena;
  if (tier.slots == 0) return absl::InvalidArgumentError("has no slots");
  if (tier.slot_bytes == 0 || tier.layers == 0 || tier.slot_bytes % tier.layers != 0) {
    return absl::InvalidArgumentError(std::to_string(tier.slot_bytes) +
                                      " bytes a slot do not make " + std::to_string(tier.layers) +
                                      " equal layers");
  }
  if (IsFile(tier)) {
    if (tier.path.empty()) return absl::InvalidArgumentError("has neither an arena nor a path");
    return {};
  }
  if (arena.layer_base.size() != tier.layers ||
      arena.layer_bytes * tier.layers != tier.slot_bytes) {
    return absl::InvalidArgumentError(
        "arena of " + std::to_string(arena.layer_base.size()) + " layers of " +
        std::to_string(arena.layer_bytes) + " bytes; the tier has " + std::to_string(tier.layers) +
        " layers of " + std::to_string(tier.slot_bytes / tier.layers));
  }
  if (arena.slots < tier.slots) {
    return absl::InvalidArgumentError("arena of " + std::to_string(arena.slots) + " slots; " +
                                      std::to_string(tier.slots) + " wanted");
  }
  return {};
}

class HostEngine final : public TransferEngine {
 public:
  explicit HostEngine(HostEngineOptions options)
      : options_(std::move(options)),
        queue_(options_.clock != nullptr ? options_.clock : Clock::Steady(),
               options_.max_queued_copies) {
    options_.copy_threads = std::max(1u, options_.copy_threads);
    if (options_.file_io == nullptr) options_.file_io = MakeThreadFileIo();
  }

  ~HostEngine() override {
    queue_.Stop();
    threads_.clear();
  }

  Status Attach(std::span<const TierBinding> tiers, Observer* observer) override {
    if (!tiers_.empty()) return absl::FailedPreconditionError("host engine: attached already");
    if (tiers.size() > kMaxTiers) {
      return absl::InvalidArgumentError("host engine: " + std::to_string(tiers.size()) +
                                        " tiers; it takes " + std::to_string(kMaxTiers));
    }
    tiers_.assign(tiers.begin(), tiers.end());
    if (Status status = CheckTiers(); !status.ok()) return status;
    if (Status status = OpenFile(observer); !status.ok()) return status;
    AddDirections();
    if (observer != nullptr) observer->OnLog(LogLevel::kInfo, Describe());
    return StartThreads();
  }

  bool Supports(TierIndex from, TierIndex to) const noexcept override {
    return queue_.Supports(from, to);
  }
  std::size_t Submit(std::span<const CopyRequest> copies) noexcept override {
    return queue_.Submit(copies);
  }
  void Poll(std::vector<Completion>& completions) noexcept override { queue_.Poll(completions); }
  bool Wait(Duration timeout) noexcept override { return queue_.Wait(timeout); }
  void Cancel(TransferId id) noexcept override { queue_.Cancel(id); }
  void Withdraw(TransferId id) noexcept override { queue_.Withdraw(id); }
  void OnSlotFreed(TierIndex tier, SlotId slot) noexcept override {
    if (file_ != nullptr && tier == file_tier_) file_->ForgetSlot(slot);
  }
  void TakeStored(TierIndex tier, StoredBlocks& stored) override {
    if (tier == file_tier_) stored = std::exchange(stored_, {});
  }
  Status Invalidate(const Invalidation& what) override {
    return file_ != nullptr ? file_->Invalidate(what) : absl::OkStatus();
  }
  FileTierStats file_stats(TierIndex tier) const noexcept override {
    return file_ != nullptr && tier == file_tier_ ? file_->stats() : FileTierStats{};
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
  std::string Describe() const override {
    std::string text = "host: memory copies x" + std::to_string(options_.copy_threads);
    if (file_ != nullptr) {
      text += ", " + options_.file_io->Describe();
      text += options_.checksums ? ", XXH3 checksums" : ", no checksums";
    }
    return text;
  }

 private:
  Status CheckTiers() {
    for (std::size_t i = 0; i < tiers_.size(); ++i) {
      Status status = CheckTier(tiers_[i]);
      if (status.ok() && IsFile(tiers_[i]) && std::exchange(has_file_, true)) {
        status = absl::InvalidArgumentError("is a second file; the engine takes one");
      }
      if (!status.ok()) return Named(i, status);
      if (IsFile(tiers_[i])) file_tier_ = static_cast<TierIndex>(i);
    }
    return {};
  }

  Status Named(std::size_t tier, const Status& status) const {
    return Status(status.code(), TierName(tiers_, tier) + ": " + std::string(status.message()));
  }

  Status OpenFile(Observer* observer) {
    if (!has_file_) return {};
    file_ = std::make_unique<FileWorker>(
        options_.file_io.get(), &queue_, tiers_,
        FileWorker::Options{
            .tier = file_tier_, .checksums = options_.checksums, .observer = observer});
    if (Status status = file_->Open(stored_); !status.ok()) return Named(file_tier_, status);
    if (observer != nullptr && tiers_[file_tier_].store.keep) {
      observer->OnLog(LogLevel::kInfo, Describe(stored_.report));
    }
    queue_.set_wake_file_lane([this] { file_->Wake(); });
    return {};
  }

  std::string Describe(const RecoveryReport& report) const {
    std::string text = tiers_[file_tier_].path + ": " + std::to_string(report.recovered) +
                       " blocks found in " + std::to_string(report.slots) + " slots";
    const auto add = [&text](std::uint32_t count, const char* what) {
      if (count != 0) text += ", " + std::to_string(count) + " " + what;
    };
    add(report.empty, "empty");
    add(report.torn, "torn");
    add(report.misplaced, "misplaced");
    add(report.foreign, "of another layout");
    add(report.stale, "stale");
    add(report.superseded, "superseded");
    add(report.corrupt, "corrupt");
    return text;
  }

  void AddDirections() {
    for (TierIndex from = 0; from < tiers_.size(); ++from) {
      for (TierIndex to = 0; to < tiers_.size(); ++to) {
        if (from != to) AddDirection(from, to);
      }
    }
  }

  void AddDirection(TierIndex from, TierIndex to) {
    const TierBinding& source = tiers_[from];
    const TierBinding& destination = tiers_[to];
    if (source.slot_bytes != destination.slot_bytes || source.layers != destination.layers) return;
    const bool file = IsFile(source) || IsFile(destination);
    queue_.AddDirection(
        {.from = from,
         .to = to,
         .lane = file ? Lane::kFile : Lane::kMemory,
         .plan = file ? file_->plan()
                      : ChunkPlan({.payload_bytes = source.slot_bytes,
                                   .layers = source.layers,
                                   .max_chunk_bytes = kMaxChunkBytes}),
         .from_slots = source.slots,
         .to_slots = destination.slots,
         .prior_bytes_per_second =
             std::min(source.prior_bytes_per_second, destination.prior_bytes_per_second),
         .prior_latency = std::max(source.prior_latency, destination.prior_latency)});
  }

  Status StartThreads() {
    for (unsigned i = 0; i < options_.copy_threads; ++i) {
      if (Status status = StartThread("tidepool-copy", [this] { CopyMemory(); }); !status.ok()) {
        return status;
      }
    }
    if (file_ == nullptr) return {};
    return StartThread("tidepool-file", [this] { file_->Run(); });
  }

  Status StartThread(const char* name, std::function<void()> body) {
    StatusOr<WorkerThread> thread = WorkerThread::Start(name, std::move(body));
    if (!thread.ok()) return thread.status();
    threads_.push_back(*std::move(thread));
    return {};
  }

  void CopyMemory() {
    std::vector<CopyQueue::Chunk> chunks;
    while (queue_.WaitForWork(Lane::kMemory)) {
      chunks.clear();
      queue_.Take(Lane::kMemory, {.chunks = kBatchChunks, .bytes = kBatchBytes}, chunks);
      for (const CopyQueue::Chunk& chunk : chunks) {
        CopySlot(tiers_[chunk.from].arena, {chunk.source, chunk.offset, chunk.bytes},
                 tiers_[chunk.to].arena, chunk.destination);
      }
      queue_.Finish(chunks, TransferResult::kOk);
    }
  }

  HostEngineOptions options_;
  CopyQueue queue_;
  std::vector<TierBinding> tiers_;
  bool has_file_ = false;
  TierIndex file_tier_ = 0;
  std::unique_ptr<FileWorker> file_;
  StoredBlocks stored_;  // until they are taken
  std::vector<WorkerThread> threads_;
};

}  // namespace

std::unique_ptr<TransferEngine> MakeHostEngine(HostEngineOptions options) {
  return std::make_unique<HostEngine>(std::move(options));
}

}  // namespace tidepool
