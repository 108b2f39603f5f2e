#include "src/transfer/file_worker.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "src/transfer/memory_copy.h"

namespace tidepool {
namespace {

// Large enough for a disk's full speed at some depth, small enough for layers to arrive early.
constexpr std::uint64_t kFileChunkBytes = 1u << 20;
// Slots begin on such a boundary of the file, whatever the device asks for today.
constexpr std::uint64_t kMinSlotAlignment = 4096;
constexpr std::uint32_t kMaxRetries = 8;
// Hashed in one go while other I/O is in flight.
constexpr std::uint64_t kHashBytes = 1u << 20;
constexpr std::uint32_t kMaxRoundsWaited = 64;   // by a header, or a copy that needs a sync
constexpr std::uint32_t kUsesMask = 0x7fffffff;  // with an index: a tag

constexpr std::uint64_t RoundUp(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

FileWorker::FileWorker(FileIo* io, CopyQueue* queue, std::span<const TierBinding> tiers,
                       Options options)
    : io_(io), queue_(queue), tiers_(tiers), options_(options) {}

Status FileWorker::Open(StoredBlocks& stored) {
  const TierBinding& tier = tiers_[options_.tier];
  if (tier.store.durable && !tier.store.keep) {
    return absl::InvalidArgumentError("store.durable needs store.keep");
  }
  if (tier.store.keep && !options_.checksums) {
    return absl::InvalidArgumentError("store.keep needs checksums");
  }
  if (Status status = tier.store.keep ? OpenKept(stored) : OpenFresh(); !status.ok()) return status;
  ops_.resize(2 * std::size_t{io_->Depth()});  // some are hashed while others are in flight
  free_.resize(ops_.size());
  std::iota(free_.rbegin(), free_.rend(), 0u);
  if (Status status = MakeStaging(); !status.ok()) return status;
  RegisterMemory();
  return {};
}

void FileWorker::PlanChunks(std::uint64_t unit) {
  const TierBinding& tier = tiers_[options_.tier];
  slot_stride_ = RoundUp(tier.slot_bytes, unit);
  const std::uint64_t least = RoundUp(tier.slot_bytes / kMaxFileSegments + 1, unit);
  plan_ = ChunkPlan({.payload_bytes = tier.slot_bytes,
                     .layers = tier.layers,
                     .max_chunk_bytes = std::max({kFileChunkBytes, unit, least}),
                     .alignment = unit});
  if (!options_.checksums) return;
  MutexLock lock(sums_mutex_);
  sums_.assign(std::uint64_t{tier.slots} * plan_.count(), 0);
  has_sum_.assign(sums_.size(), false);
}

Status FileWorker::OpenFresh() {
  const TierBinding& tier = tiers_[options_.tier];
  // The alignment is known only once the file is open; more than the minimum is rare, and then
  // the file is made once more.
  std::uint64_t unit = kMinSlotAlignment;
  do {
    unit = std::max(unit, alignment_);
    PlanChunks(unit);
    if (Status status = io_->Open(tier.path, slot_stride_ * tier.slots); !status.ok()) {
      return status;
    }
    alignment_ = std::bit_ceil(std::max(1u, io_->Alignment()));
  } while (alignment_ > unit);
  return {};
}

Status FileWorker::OpenKept(StoredBlocks& stored) {
  const TierBinding& tier = tiers_[options_.tier];
  StatusOr<std::uint64_t> bytes = io_->OpenKept(tier.path);
  if (!bytes.ok()) return bytes.status();
  alignment_ = std::bit_ceil(std::max(1u, io_->Alignment()));
  PlanChunks(std::max(kMinSlotAlignment, alignment_));
  SlotFileLayout layout{.identity = tier.store.identity,
                        .digest_check = tier.digest_check,
                        .slots = tier.slots,
                        .layers = tier.layers,
                        .block_tokens = tier.block_tokens,
                        .stores_tokens = tier.store.tokens,
                        .slot_bytes = tier.slot_bytes,
                        .slot_stride = slot_stride_,
                        .segment_ends = {}};
  for (std::uint32_t i = 0; i < plan_.count(); ++i) {
    layout.segment_ends.push_back(plan_.Begin(i) + plan_.Bytes(i));
  }
  store_ = std::make_unique<SlotStore>(io_, &counters_);
  Status status = store_->Open(std::move(layout), *bytes, tier.epoch);
  if (status.ok()) {
    status = store_->Recover(stored, [this](std::uint32_t slot, const SlotHeader& header) {
      for (std::uint32_t i = 0; i < plan_.count(); ++i) StoreSum(SlotId(slot), i, header.sum(i));
    });
  }
  if (!status.ok()) {
    return Status(status.code(), tier.path + ": " + std::string(status.message()));
  }
  if (tier.store.verify) {
    store_->Verify(stored, [this](std::uint32_t slot, std::uint32_t segment) {
      std::uint64_t sum = 0;
      (void)LookUpSum(SlotId(slot), segment, sum);
      return sum;
    });
  }
  payloads_offset_ = store_->layout().payloads_offset();
  return {};
}

Status FileWorker::MakeStaging() {
  bool staging = false;
  contiguous_.resize(tiers_.size());
  for (TierIndex i = 0; i < tiers_.size(); ++i) {
    const Arena& arena = tiers_[i].arena;
    contiguous_[i] = IsContiguous(arena);
    if (i == options_.tier || arena.layer_base.empty()) continue;
    const CopyQueue::Chunk last{.index = plan_.count() - 1,
                                .offset = plan_.Begin(plan_.count() - 1),
                                .bytes = plan_.Bytes(plan_.count() - 1)};
    // Odd and even slots between them show whether stride and base suit.
    staging |=
        !contiguous_[i] || !Direct(arena, SlotId(0), last) || !Direct(arena, SlotId(1), last);
  }
  if (!staging) return {};
  StatusOr<Arena> memory =
      AllocateHostArena(static_cast<std::uint32_t>(ops_.size()), 1, Padded(plan_.largest()));
  if (!memory.ok()) return memory.status();
  staging_ = *std::move(memory);
  return {};
}

void FileWorker::RegisterMemory() {
  std::vector<std::span<std::byte>> regions;
  const auto add = [&regions](const Arena& arena) {
    regions.emplace_back(arena.layer_base[0],
                         static_cast<std::size_t>(arena.slot_stride_bytes * arena.slots));
  };
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    // Registered arenas are not ours to pin beyond their last payload: they are left out.
    if (contiguous_[i] && tiers_[i].arena.owner != nullptr) add(tiers_[i].arena);
  }
  if (staging_.slots > 0) add(staging_);
  io_->RegisterMemory(regions);
}

void FileWorker::Run() {
  for (;;) {
    const bool idle =
        in_flight_ == 0 && to_verify_.empty() && to_hash_.empty() && to_start_.empty();
    WriteHeaders(idle);
    if (idle && !queue_->WaitForWork(Lane::kFile)) break;
    TakeChunks();
    StartQueued();
    if (HashSome()) {
      Reap(false);
    } else if (in_flight_ > 0) {
      // Block only where new work would wake us, or could not start anyway.
      const bool block = taken_.empty() || free_.empty();
      if (block && !unsynced_.empty()) WriteHeaders(true);
      Reap(block);
    }
    GiveBack();
  }
  if (store_ != nullptr) (void)store_->Sync();
}

// Headers wait for company, but neither while there is nothing else to do nor for many rounds. So
// do the copies of a durable file, which also need a sync: it stops the thread, so many share it.
void FileWorker::WriteHeaders(bool before_waiting) {
  if (store_ == nullptr) return;
  const std::size_t gathered = store_->gathered();
  if (gathered == 0 && unsynced_.empty()) return;
  const bool now = before_waiting || ++rounds_waited_ >= kMaxRoundsWaited;
  if (!now && gathered < SlotStore::kGathered && unsynced_.size() < ops_.size()) return;
  rounds_waited_ = 0;
  if (unsynced_.empty()) {
    (void)store_->Flush();
  } else {
    Acknowledge();
  }
}

void FileWorker::Acknowledge() {
  const bool ok = store_->Sync();
  std::vector<CopyQueue::Chunk> over;
  over.swap(unsynced_);
  queue_->Finish(over, ok ? TransferResult::kOk : TransferResult::kFailed);
}

Status FileWorker::Invalidate(const Invalidation& what) {
  if (store_ == nullptr) return absl::OkStatus();
  Status status = store_->Invalidate(what);
  if (status.ok()) return status;
  return Status(status.code(), tiers_[options_.tier].path + ": " + std::string(status.message()));
}

void FileWorker::ForgetSlot(SlotId slot) {
  if (slot.value() >= tiers_[options_.tier].slots) return;
  if (counters_.no_space != 0) {  // its place may do for another
    io_->DiscardNow(payloads_offset_ + SlotOffset(slot, slot_stride_), slot_stride_);
  }
  ForgetSums(slot);
}

void FileWorker::ForgetSums(SlotId slot) {
  MutexLock lock(sums_mutex_);
  const std::uint64_t first = std::uint64_t{slot.value()} * plan_.count();
  if (first >= has_sum_.size()) return;
  std::fill_n(has_sum_.begin() + static_cast<std::ptrdiff_t>(first), plan_.count(), false);
}

// --- from the queue to the disk -------------------------------------------------------------

const Arena& FileWorker::MemoryOf(const CopyQueue::Chunk& chunk, bool write) const {
  return tiers_[write ? chunk.from : chunk.to].arena;
}

std::uint64_t FileWorker::Padded(std::uint64_t bytes) const { return RoundUp(bytes, alignment_); }

bool FileWorker::Direct(const Arena& arena, SlotId slot, const CopyQueue::Chunk& chunk) const {
  const auto address = reinterpret_cast<std::uintptr_t>(SlotBytes(arena, slot, chunk.offset));
  if (address % alignment_ != 0) return false;
  if (chunk.bytes % alignment_ == 0) return true;
  // The gap behind a payload is the library's to overwrite only in the library's own arenas.
  return arena.owner != nullptr && chunk.offset + Padded(chunk.bytes) <= arena.slot_stride_bytes;
}

void FileWorker::TakeChunks() {
  taken_.clear();
  const bool park = to_verify_.empty() && to_hash_.empty() && to_start_.empty() && in_flight_ > 0;
  queue_->Take(Lane::kFile, {.chunks = free_.size(), .park = park}, taken_);
  for (const CopyQueue::Chunk& chunk : taken_) {
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Prepare(index, chunk);
  }
}

void FileWorker::Prepare(std::uint32_t index, const CopyQueue::Chunk& chunk) {
  Op& op = ops_[index];
  const std::uint32_t uses = (op.uses + 1) & kUsesMask;
  op = Op{.chunk = chunk, .write = chunk.to == options_.tier, .uses = uses};
  const SlotId file_slot = op.write ? chunk.destination : chunk.source;
  const SlotId memory_slot = op.write ? chunk.source : chunk.destination;
  const Arena& arena = MemoryOf(chunk, op.write);
  op.file_offset = payloads_offset_ + SlotOffset(file_slot, slot_stride_) + chunk.offset;
  op.io_bytes = Padded(chunk.bytes);
  op.staged = !contiguous_[op.write ? chunk.from : chunk.to] || !Direct(arena, memory_slot, chunk);
  op.data = op.staged ? staging_.At(SlotId(index), 0) : SlotBytes(arena, memory_slot, chunk.offset);

  if (op.write && options_.checksums && chunk.index == 0) {
    ForgetSums(file_slot);
    const bool nameless = store_ != nullptr && chunk.request->identity == nullptr;
    if (nameless) store_->Erase(file_slot.value());  // a header there is of something else
  }
  if (op.write && op.staged) {
    GatherSlot(arena, {memory_slot, chunk.offset, chunk.bytes}, op.data);
    std::memset(op.data + chunk.bytes, 0, op.io_bytes - chunk.bytes);
  }
  if (!op.write && options_.checksums && !LookUpSum(file_slot, chunk.index, op.expected_sum)) {
    Report(op, "nothing valid was written there");
    return OnIoOver(index, TransferResult::kFailed);
  }
  if (op.write && options_.checksums) to_hash_.push_back(index);
  Queue(index);
}

void FileWorker::Queue(std::uint32_t index) {
  const Op& op = ops_[index];
  to_start_.push_back({.tag = std::uint64_t{op.uses} << 32 | index,
                       .write = op.write,
                       .data = op.data + op.started_at,
                       .bytes = op.io_bytes - op.started_at,
                       .offset = op.file_offset + op.started_at});
}

void FileWorker::StartQueued() {
  if (to_start_.empty()) return;
  const std::size_t started = io_->Start(to_start_);
  in_flight_ += started;
  if (started == 0 && in_flight_ == 0) {
    // Nothing will ever make room: give up on these instead of waiting.
    std::vector<FileOp> refused;
    refused.swap(to_start_);
    for (const FileOp& op : refused) {
      in_flight_ += 1;
      OnResult({.tag = op.tag, .result = -EBUSY});
    }
    return;
  }
  to_start_.erase(to_start_.begin(), to_start_.begin() + static_cast<std::ptrdiff_t>(started));
}

// --- and back -------------------------------------------------------------------------------

void FileWorker::Reap(bool block) {
  results_.clear();
  io_->Reap(results_, block);
  for (const FileOpResult& result : results_) OnResult(result);
}

void FileWorker::OnResult(const FileOpResult& result) {
  const auto index = static_cast<std::uint32_t>(result.tag);
  if (index >= ops_.size() || ops_[index].uses != result.tag >> 32 || ops_[index].io_over) return;
  Op& op = ops_[index];
  --in_flight_;
  if (result.result == 0) {
    Report(op, "end of file");
    return OnIoOver(index, TransferResult::kFailed);
  }
  std::uint64_t reached = op.started_at;
  if (result.result > 0) {
    const std::uint64_t left = op.io_bytes - op.started_at;
    reached += std::min(static_cast<std::uint64_t>(result.result), left);
    // Padding that the file has no room for does not matter.
    if (reached >= (op.write ? op.io_bytes : op.chunk.bytes)) {
      return OnIoOver(index, TransferResult::kOk);
    }
    reached = reached / alignment_ * alignment_;  // direct I/O goes on at a boundary
  } else if (result.result != -EINTR && result.result != -EAGAIN) {
    Report(op, std::strerror(static_cast<int>(-result.result)));
    const bool full = op.write && (result.result == -ENOSPC || result.result == -EDQUOT);
    if (full) ++counters_.no_space;
    return OnIoOver(index, full ? TransferResult::kNoSpace : TransferResult::kFailed);
  }
  op.retries = reached > op.started_at ? 0 : op.retries + 1;
  if (op.retries > kMaxRetries) {
    Report(op, "no progress");
    return OnIoOver(index, TransferResult::kFailed);
  }
  op.started_at = reached;
  Queue(index);
}

void FileWorker::OnIoOver(std::uint32_t index, TransferResult result) {
  Op& op = ops_[index];
  op.io_over = true;
  op.result = result;
  const bool ok = result == TransferResult::kOk;
  if (ok)
    (op.write ? counters_.payload_bytes_written : counters_.payload_bytes_read) += op.chunk.bytes;
  if (op.write) {
    if (op.hashed || !options_.checksums) Finish(index);
  } else if (ok && options_.checksums) {
    to_verify_.push_back(index);
  } else {
    Finish(index);
  }
}

// False if there was nothing to hash.
bool FileWorker::HashSome() {
  std::uint64_t bytes = 0;
  while (bytes < kHashBytes && !(to_verify_.empty() && to_hash_.empty())) {
    std::deque<std::uint32_t>& queue = to_verify_.empty() ? to_hash_ : to_verify_;
    const std::uint32_t index = queue.front();
    queue.pop_front();
    bytes += ops_[index].chunk.bytes;
    Hash(index);
  }
  return bytes != 0;
}

void FileWorker::Hash(std::uint32_t index) {
  Op& op = ops_[index];
  op.sum = SegmentSum({op.data, op.chunk.bytes});
  op.hashed = true;
  if (!op.write && op.sum != op.expected_sum) {
    Report(op, "checksum mismatch");
    ++counters_.checksum_failures;
    op.result = TransferResult::kFailed;
    if (store_ != nullptr) store_->Erase(op.chunk.source.value());
  }
  if (op.io_over) Finish(index);
}

void FileWorker::Finish(std::uint32_t index) {
  Op& op = ops_[index];
  const CopyQueue::Chunk& chunk = op.chunk;
  const bool ok = op.result == TransferResult::kOk;
  if (ok && !op.write && op.staged) {
    ScatterSlot(MemoryOf(chunk, false), {chunk.destination, chunk.offset, chunk.bytes}, op.data);
  }
  if (ok && op.write && options_.checksums) {
    FinishWrite(op);
  } else if (ok) {
    finished_.push_back(chunk);
  } else {
    queue_->Finish({&chunk, 1}, op.result);
  }
  free_.push_back(index);
}

void FileWorker::GiveBack() {
  if (finished_.empty()) return;
  queue_->Finish(finished_, TransferResult::kOk);
  finished_.clear();
}

// The last of a slot's chunks brings its header.
void FileWorker::FinishWrite(const Op& op) {
  const CopyQueue::Chunk& chunk = op.chunk;
  StoreSum(chunk.destination, chunk.index, op.sum);
  const bool named = store_ != nullptr && chunk.request->identity != nullptr;
  if (named && AllSums(chunk.destination, slot_sums_)) {
    store_->Add(*chunk.request, slot_sums_);
    if (tiers_[options_.tier].store.durable) return unsynced_.push_back(chunk);
  }
  finished_.push_back(chunk);
}

// A dead disk must not flood the log: the first error, then the second, fourth, eighth and so on.
void FileWorker::Report(const Op& op, std::string_view what) {
  if (!std::has_single_bit(++counters_.errors) || options_.observer == nullptr) return;
  const std::string text = "tier " + std::to_string(options_.tier) + ", " +
                           tiers_[options_.tier].path + ": " + (op.write ? "write" : "read") +
                           " of " + std::to_string(op.chunk.bytes) + " bytes at " +
                           std::to_string(op.file_offset) + ": " + std::string(what) + " (error " +
                           std::to_string(counters_.errors) + " of this tier)";
  options_.observer->OnLog(LogLevel::kError, text);
}

// --- checksums ------------------------------------------------------------------------------

bool FileWorker::LookUpSum(SlotId slot, std::uint32_t chunk, std::uint64_t& sum) {
  MutexLock lock(sums_mutex_);
  const std::uint64_t at = std::uint64_t{slot.value()} * plan_.count() + chunk;
  sum = sums_[at];
  return has_sum_[at];
}

void FileWorker::StoreSum(SlotId slot, std::uint32_t chunk, std::uint64_t sum) {
  MutexLock lock(sums_mutex_);
  const std::uint64_t at = std::uint64_t{slot.value()} * plan_.count() + chunk;
  sums_[at] = sum;
  has_sum_[at] = true;
}

bool FileWorker::AllSums(SlotId slot, std::vector<std::uint64_t>& sums) {
  MutexLock lock(sums_mutex_);
  const auto first = static_cast<std::ptrdiff_t>(std::uint64_t{slot.value()} * plan_.count());
  const auto has = has_sum_.begin() + first;
  if (!std::all_of(has, has + plan_.count(), [](bool b) { return b; })) return false;
  sums.assign(sums_.begin() + first, sums_.begin() + first + plan_.count());
  return true;
}

}  // namespace tidepool
