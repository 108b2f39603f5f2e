#include "tidepool/testing/fault_file_io.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

namespace tidepool::testing {
namespace {

using Lock = std::lock_guard<std::mutex>;

constexpr std::uint64_t kSectorBytes = 512;

}  // namespace

void FaultDisk::Record(std::uint64_t offset, std::span<const std::byte> data) {
  if (now_.size() < offset + data.size()) now_.resize(offset + data.size());
  std::ranges::copy(data, now_.begin() + static_cast<std::ptrdiff_t>(offset));
  unsynced_.push_back({offset, {data.begin(), data.end()}});
}

void FaultDisk::Sync() {
  synced_.resize(now_.size());
  for (const Write& write : unsynced_) {
    std::ranges::copy(write.data, synced_.begin() + static_cast<std::ptrdiff_t>(write.offset));
  }
  unsynced_.clear();
}

void FaultDisk::PowerCut(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  synced_.resize(now_.size());
  for (const Write& write : unsynced_) {
    const std::uint64_t fate = random() % 3;  // lost, whole, torn
    for (std::uint64_t at = 0; at < write.data.size();) {
      const std::uint64_t place = write.offset + at;
      const std::uint64_t bytes =
          std::min(write.data.size() - at, kSectorBytes - place % kSectorBytes);
      if (fate == 1 || (fate == 2 && random() % 2 == 0)) {
        std::memcpy(synced_.data() + place, write.data.data() + at, bytes);
      }
      at += bytes;
    }
  }
  unsynced_.clear();
  now_ = synced_;
}

FaultFileIo::FaultFileIo(FaultFileOptions options)
    : options_(options),
      faults_(options.faults),
      random_(options.seed),
      disk_(options.disk != nullptr ? options.disk : std::make_shared<FaultDisk>()) {}

void FaultFileIo::Script(bool write, const std::vector<std::int64_t>& results) {
  Lock lock(mutex_);
  auto& script = write ? write_script_ : read_script_;
  script.insert(script.end(), results.begin(), results.end());
}

void FaultFileIo::set_faults(const FileFaults& faults) {
  Lock lock(mutex_);
  faults_ = faults;
}

void FaultFileIo::Hold() {
  Lock lock(mutex_);
  holding_ = true;
}

void FaultFileIo::Release(bool reversed) {
  {
    Lock lock(mutex_);
    if (reversed) std::ranges::reverse(pending_);
    std::ranges::move(pending_, std::back_inserter(released_));
    pending_.clear();
  }
  changed_.notify_all();
}

void FaultFileIo::ReleaseWrites() {
  {
    Lock lock(mutex_);
    const auto writes = std::stable_partition(
        pending_.begin(), pending_.end(), [](const Pending& pending) { return !pending.op.write; });
    std::move(writes, pending_.end(), std::back_inserter(released_));
    pending_.erase(writes, pending_.end());
  }
  changed_.notify_all();
}

void FaultFileIo::Resume() {
  {
    Lock lock(mutex_);
    holding_ = false;
  }
  Release();
}

std::size_t FaultFileIo::held() const {
  Lock lock(mutex_);
  return holding_ ? pending_.size() : 0;
}

void FaultFileIo::Truncate(std::uint64_t bytes) {
  Lock lock(mutex_);
  end_ = std::min(end_, bytes);
}

void FaultFileIo::FlipBit(std::uint64_t offset) {
  Lock lock(mutex_);
  disk_->now_[offset] ^= std::byte{1};
}

std::vector<FileOp> FaultFileIo::started() const {
  Lock lock(mutex_);
  return started_;
}

std::uint64_t FaultFileIo::file_bytes() const {
  Lock lock(mutex_);
  return end_;
}

std::vector<std::byte> FaultFileIo::Contents(std::uint64_t offset, std::uint64_t bytes) const {
  Lock lock(mutex_);
  const auto first = disk_->now_.begin() + static_cast<std::ptrdiff_t>(offset);
  return {first, first + static_cast<std::ptrdiff_t>(bytes)};
}

Status FaultFileIo::Open(const std::string& path, std::uint64_t bytes) {
  Lock lock(mutex_);
  if (bytes > options_.disk_bytes) {
    return absl::ResourceExhaustedError(path + ": cannot allocate " + std::to_string(bytes) +
                                        " bytes: " + std::strerror(ENOSPC));
  }
  disk_->now_.assign(bytes, std::byte{0});
  disk_->synced_ = disk_->now_;
  disk_->unsynced_.clear();
  end_ = bytes;
  return {};
}

StatusOr<std::uint64_t> FaultFileIo::OpenKept(const std::string&) {
  Lock lock(mutex_);
  end_ = disk_->now_.size();
  return end_;
}

Status FaultFileIo::Reserve(std::uint64_t bytes) {
  Lock lock(mutex_);
  if (bytes > options_.disk_bytes) {
    return absl::ResourceExhaustedError("cannot allocate " + std::to_string(bytes) +
                                        " bytes: " + std::strerror(ENOSPC));
  }
  if (disk_->now_.size() < bytes) disk_->now_.resize(bytes);
  if (disk_->synced_.size() < bytes) disk_->synced_.resize(bytes);
  end_ = disk_->now_.size();
  return {};
}

void FaultFileIo::FailNow(int error) {
  Lock lock(mutex_);
  now_error_ = error;
}

void FaultFileIo::Fill(bool full) {
  Lock lock(mutex_);
  full_ = full;
  discarded_ = 0;
}

std::int64_t FaultFileIo::ReadNow(std::span<std::byte> data, std::uint64_t offset) {
  Lock lock(mutex_);
  if (now_error_ != 0) return -now_error_;
  if (offset >= end_) return 0;
  const std::uint64_t bytes = std::min<std::uint64_t>(data.size(), end_ - offset);
  std::memcpy(data.data(), disk_->now_.data() + offset, bytes);
  return static_cast<std::int64_t>(bytes);
}

std::int64_t FaultFileIo::WriteNow(std::span<const std::byte> data, std::uint64_t offset) {
  Lock lock(mutex_);
  if (now_error_ != 0) return -now_error_;
  disk_->Record(offset, data);
  return static_cast<std::int64_t>(data.size());
}

int FaultFileIo::SyncNow() {
  Lock lock(mutex_);
  if (now_error_ != 0) return -now_error_;
  disk_->Sync();
  return 0;
}

void FaultFileIo::DiscardNow(std::uint64_t, std::uint64_t bytes) {
  Lock lock(mutex_);
  discarded_ += bytes;
}

std::size_t FaultFileIo::Start(std::span<const FileOp> ops) {
  Lock lock(mutex_);
  const std::size_t in_flight = pending_.size() + released_.size();
  const std::size_t accepted = std::min<std::size_t>(ops.size(), options_.depth - in_flight);
  for (const FileOp& op : ops.first(accepted)) {
    started_.push_back(op);
    pending_.push_back({op});
    if (Chance(faults_.delay)) {
      pending_.back().delay_reaps = 1 + static_cast<std::uint32_t>(random_() % 4);
    }
  }
  return accepted;
}

void FaultFileIo::Reap(std::vector<FileOpResult>& results, bool block) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ReapReady(results) && block && !std::exchange(woken_, false)) {
    const bool in_flight = !pending_.empty() || !released_.empty();
    if (!in_flight) return;
    // Delayed ops come nearer with each try; held ones need somebody else.
    if (holding_ && released_.empty()) changed_.wait(lock);
  }
}

void FaultFileIo::Wake() {
  {
    Lock lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

bool FaultFileIo::ReapReady(std::vector<FileOpResult>& results) {
  if (!holding_) {
    std::ranges::move(pending_, std::back_inserter(released_));
    pending_.clear();
  }
  const std::size_t before = results.size();
  std::erase_if(released_, [&](Pending& pending) {
    if (pending.delay_reaps > 0) {
      --pending.delay_reaps;
      return false;
    }
    results.push_back({pending.op.tag, Complete(pending.op)});
    return true;
  });
  return results.size() > before;
}

bool FaultFileIo::Chance(double probability) {
  if (probability <= 0) return false;
  return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
}

std::int64_t FaultFileIo::Complete(const FileOp& op) {
  const auto misaligned = [&](std::uint64_t value) { return value % options_.alignment != 0; };
  if (misaligned(op.bytes) || misaligned(op.offset) ||
      misaligned(reinterpret_cast<std::uintptr_t>(op.data))) {
    return -EINVAL;
  }
  auto& script = op.write ? write_script_ : read_script_;
  if (!script.empty()) {
    const std::int64_t result = script.front();
    script.pop_front();
    return result > 0 ? Move(op, static_cast<std::uint64_t>(result)) : result;
  }
  if (Chance(faults_.error)) return -EIO;
  if (Chance(faults_.short_transfer) && op.bytes > 1)
    return Move(op, 1 + random_() % (op.bytes - 1));
  return Move(op, op.bytes);
}

std::int64_t FaultFileIo::Move(const FileOp& op, std::uint64_t bytes) {
  std::vector<std::byte>& file = disk_->now_;
  const std::uint64_t end = op.write ? file.size() : end_;
  if (op.offset >= end) return op.write ? -ENOSPC : 0;
  bytes = std::min({bytes, op.bytes, end - op.offset});
  if (op.write && full_) {
    if (discarded_ < bytes) return -ENOSPC;
    discarded_ -= bytes;
  }
  if (op.write) {
    disk_->Record(op.offset, {op.data, bytes});
  } else {
    std::memcpy(op.data, file.data() + op.offset, bytes);
  }
  std::byte* const to = op.write ? file.data() + op.offset : op.data;
  if (Chance(faults_.flip)) to[random_() % bytes] ^= std::byte{1};
  return static_cast<std::int64_t>(bytes);
}

}  // namespace tidepool::testing
