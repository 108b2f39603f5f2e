#include "tidepool/transfer/uring_file_io.h"

#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "src/transfer/direct_file.h"

namespace tidepool {
namespace {

constexpr std::uint32_t kMinEntries = 8;
constexpr std::uint32_t kMaxDepth = 4096;
// The ring also carries the read of the event that Wake signals.
constexpr std::uint32_t kWakeEntries = 1;
constexpr std::uint64_t kWakeTag = std::numeric_limits<std::uint64_t>::max();
// The kernel registers at most 1 GiB in one buffer and 16,384 buffers.
constexpr std::uint64_t kMaxBufferBytes = 1u << 30;
constexpr std::size_t kMaxBuffers = 1u << 14;

constexpr int kNoBuffer = -1;
constexpr unsigned kPollIdleMs = 10;  // until the polling thread sleeps

// Small neighbours go in one operation. Its tag has a bit that the ops' own, which are a use count
// and an index (file_worker.cc), leave free.
constexpr std::uint64_t kTogetherTag = std::uint64_t{1} << 63;
constexpr std::uint64_t kMaxTogetherBytes = 512u << 10;
constexpr std::uint64_t kMaxOnePieceBytes = 4u << 20;
constexpr std::size_t kMaxPieces = 16;

class UringFileIo final : public DiskFileIo {
 public:
  explicit UringFileIo(UringOptions options) : options_(options) {
    options_.depth = std::clamp(options_.depth, 1u, kMaxDepth);
    if (const int error = SetUpRing(); error != 0) {
      fallback_ = MakeThreadFileIo(options_.fallback_threads);
      reason_ = "io_uring refused: " + std::string(std::strerror(error));
    }
  }

  ~UringFileIo() override {
    // Closing a ring does not wait for its I/O, and the I/O writes into memory that goes away.
    std::vector<FileOpResult> ignored;
    while (in_flight_ > 0 && WaitForOne()) TakeCompletions(ignored);
    if (has_ring_) ::io_uring_queue_exit(&ring_);
    if (wake_fd_ >= 0) ::close(wake_fd_);
  }

  Status Open(const std::string& path, std::uint64_t bytes) override {
    if (fallback_ != nullptr) return fallback_->Open(path, bytes);
    Drop();
    return Use(DirectFile::Create(path, bytes));
  }
  StatusOr<std::uint64_t> OpenKept(const std::string& path) override {
    if (fallback_ != nullptr) return fallback_->OpenKept(path);
    Drop();
    if (Status status = Use(DirectFile::OpenKept(path)); !status.ok()) return status;
    return file_.Size();
  }
  Status Reserve(std::uint64_t bytes) override {
    return fallback_ != nullptr ? fallback_->Reserve(bytes) : DiskFileIo::Reserve(bytes);
  }
  std::int64_t ReadNow(std::span<std::byte> data, std::uint64_t offset) override {
    return fallback_ != nullptr ? fallback_->ReadNow(data, offset)
                                : DiskFileIo::ReadNow(data, offset);
  }
  std::int64_t WriteNow(std::span<const std::byte> data, std::uint64_t offset) override {
    return fallback_ != nullptr ? fallback_->WriteNow(data, offset)
                                : DiskFileIo::WriteNow(data, offset);
  }
  int SyncNow() override {
    return fallback_ != nullptr ? fallback_->SyncNow() : DiskFileIo::SyncNow();
  }
  void DiscardNow(std::uint64_t offset, std::uint64_t bytes) override {
    if (fallback_ != nullptr) return fallback_->DiscardNow(offset, bytes);
    DiskFileIo::DiscardNow(offset, bytes);
  }

  void RegisterMemory(std::span<const std::span<std::byte>> regions) override {
    if (fallback_ != nullptr || !options_.register_buffers) return;
    if (!buffers_.empty()) ::io_uring_unregister_buffers(&ring_);
    buffers_.clear();
    for (const std::span<std::byte>& region : regions) {
      for (std::uint64_t at = 0; at < region.size(); at += kMaxBufferBytes) {
        buffers_.push_back({region.data() + at, std::min(kMaxBufferBytes, region.size() - at)});
      }
    }
    std::ranges::sort(buffers_, {}, &iovec::iov_base);
    if (buffers_.empty()) return;
    int rc = -E2BIG;
    if (buffers_.size() <= kMaxBuffers) {
      rc = ::io_uring_register_buffers(&ring_, buffers_.data(),
                                       static_cast<unsigned>(buffers_.size()));
    }
    if (rc == 0) return;
    buffers_.clear();
    reason_ = "buffers not registered: " + std::string(std::strerror(-rc));
  }

  std::uint32_t Alignment() const noexcept override {
    return fallback_ != nullptr ? fallback_->Alignment() : file_.alignment();
  }
  std::uint32_t Depth() const noexcept override {
    return fallback_ != nullptr ? fallback_->Depth() : depth_;
  }

  std::size_t Start(std::span<const FileOp> ops) override {
    if (fallback_ != nullptr) return fallback_->Start(ops);
    const std::size_t count = std::min<std::size_t>(ops.size(), depth_ - in_flight_);
    std::size_t started = 0;
    while (started < count) {
      io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
      if (sqe == nullptr) break;
      const std::size_t neighbours = Neighbours(ops.subspan(started, count - started));
      if (neighbours > 1) {
        FillTogether(sqe, ops.subspan(started, neighbours));
      } else {
        Fill(sqe, ops[started]);
      }
      started += neighbours;
    }
    in_flight_ += started;
    if (started > 0) ::io_uring_submit(&ring_);  // what it leaves goes with the next call
    return started;
  }

  void Reap(std::vector<FileOpResult>& results, bool block) override {
    if (fallback_ != nullptr) return fallback_->Reap(results, block);
    if (TakeCompletions(results) || !block || in_flight_ == 0) return;
    WaitForOne();
    TakeCompletions(results);
  }

  void Wake() override {
    if (fallback_ != nullptr) return fallback_->Wake();
    const std::uint64_t one = 1;
    // Fails only when the counter is full, and then the waiter is awake already.
    [[maybe_unused]] const ssize_t rc = ::write(wake_fd_, &one, sizeof(one));
  }

  std::string Describe() const override {
    std::string text;
    if (fallback_ != nullptr) {
      text = fallback_->Describe();
    } else {
      text = "io_uring " + std::string(file_.mode()) + " depth " + std::to_string(depth_);
      if (polled_) text += ", polled";
      if (fixed_file_) text += ", registered file";
      if (!buffers_.empty()) text += fixed_file_ ? " and buffers" : ", registered buffers";
    }
    if (!reason_.empty()) text += " (" + reason_ + ")";
    return text;
  }

 private:
  // The lock of the file in use may be in the way of the next.
  void Drop() {
    if (std::exchange(fixed_file_, false)) ::io_uring_unregister_files(&ring_);
    file_ = DirectFile();
  }

  Status Use(StatusOr<DirectFile> file) {
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
    const int fd = file_.fd();
    fixed_file_ = ::io_uring_register_files(&ring_, &fd, 1) == 0;
    return {};
  }

  int ForcedError(std::uint32_t entries) const {
    return options_.forced_error != nullptr ? options_.forced_error(entries) : 0;
  }

  // Returns 0 or an errno.
  int SetUpRing() {
    std::uint32_t entries = std::bit_ceil(options_.depth + kWakeEntries);
    int error = TryRing(entries);
    while (error == ENOMEM && entries > kMinEntries) {
      entries /= 2;
      error = TryRing(entries);
    }
    if (error != 0) return error;
    has_ring_ = true;
    depth_ = std::min(options_.depth, entries - kWakeEntries);
    if (depth_ < options_.depth)
      reason_ = "not enough memory for depth " + std::to_string(options_.depth);
    if (!CanReadAndWrite()) return ENOSYS;
    wake_fd_ = ::eventfd(0, EFD_CLOEXEC);
    if (wake_fd_ < 0) return errno;
    AwaitWake();
    return ::io_uring_submit(&ring_) >= 0 ? 0 : EIO;
  }

  int TryRing(std::uint32_t entries) {
    if (const int forced = ForcedError(entries); forced != 0) return forced;
    if (options_.poll_submissions) {
      io_uring_params params{};
      params.flags = IORING_SETUP_SQPOLL;
      params.sq_thread_idle = kPollIdleMs;
      polled_ = ::io_uring_queue_init_params(entries, &ring_, &params) == 0;
      if (polled_) return 0;
      reason_ = "no polling of submissions";
    }
    // Completions are looked at when we ask: no need to interrupt anybody, but a flag to see.
    for (const unsigned flags : {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0u}) {
      const int rc = ::io_uring_queue_init(entries, &ring_, flags);
      if (rc == 0) return 0;
      if (rc != -EINVAL) return -rc;
    }
    return EINVAL;
  }

  bool CanReadAndWrite() {
    if (ForcedError(0) != 0) return false;
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) return false;
    bool can = true;
    for (const int op :
         {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED}) {
      can = can && ::io_uring_opcode_supported(probe, op) != 0;
    }
    ::io_uring_free_probe(probe);
    return can;
  }

  void AwaitWake() {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return;  // cannot be: the ring has an entry to spare
    ::io_uring_prep_read(sqe, wake_fd_, &wake_count_, sizeof(wake_count_), 0);
    sqe->user_data = kWakeTag;
  }

  int BufferOf(const FileOp& op) const {
    const auto after =
        std::ranges::upper_bound(buffers_, static_cast<void*>(op.data), {}, &iovec::iov_base);
    if (after == buffers_.begin()) return kNoBuffer;
    const iovec& buffer = *std::prev(after);
    const auto* begin = static_cast<const std::byte*>(buffer.iov_base);
    if (op.data + op.bytes > begin + buffer.iov_len) return kNoBuffer;
    return static_cast<int>(std::prev(after) - buffers_.begin());
  }

  void Fill(io_uring_sqe* sqe, const FileOp& op) const {
    const int fd = fixed_file_ ? 0 : file_.fd();
    const auto bytes = static_cast<unsigned>(op.bytes);
    const int buffer = BufferOf(op);
    if (buffer != kNoBuffer) {
      if (op.write) {
        ::io_uring_prep_write_fixed(sqe, fd, op.data, bytes, op.offset, buffer);
      } else {
        ::io_uring_prep_read_fixed(sqe, fd, op.data, bytes, op.offset, buffer);
      }
    } else if (op.write) {
      ::io_uring_prep_write(sqe, fd, op.data, bytes, op.offset);
    } else {
      ::io_uring_prep_read(sqe, fd, op.data, bytes, op.offset);
    }
    if (fixed_file_) ::io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    sqe->user_data = op.tag;
  }

  // How many of the first ops are better one: in one direction, one behind the other in the file,
  // and small unless they are one behind the other in memory as well.
  static std::size_t Neighbours(std::span<const FileOp> ops) {
    std::size_t count = 1;
    std::uint64_t bytes = ops[0].bytes;
    bool one_piece = true;
    for (; count < ops.size() && count < kMaxPieces; ++count) {
      const FileOp& last = ops[count - 1];
      const FileOp& next = ops[count];
      bytes += next.bytes;
      one_piece = one_piece && last.data + last.bytes == next.data;
      if (next.write != last.write || next.offset != last.offset + last.bytes ||
          bytes > (one_piece ? kMaxOnePieceBytes : kMaxTogetherBytes)) {
        break;
      }
    }
    return count;
  }

  void FillTogether(io_uring_sqe* sqe, std::span<const FileOp> ops) {
    if (free_together_.empty()) {
      free_together_.push_back(static_cast<std::uint32_t>(together_.size()));
      together_.push_back(std::make_unique<Together>());
    }
    const std::uint32_t index = free_together_.back();
    free_together_.pop_back();
    Together& together = *together_[index];
    together.ops.assign(ops.begin(), ops.end());
    together.pieces.clear();
    for (const FileOp& op : ops) {
      iovec* const last = together.pieces.empty() ? nullptr : &together.pieces.back();
      if (last != nullptr && static_cast<std::byte*>(last->iov_base) + last->iov_len == op.data) {
        last->iov_len += op.bytes;
      } else {
        together.pieces.push_back({op.data, op.bytes});
      }
    }
    if (together.pieces.size() == 1) {
      FileOp whole = ops[0];
      whole.bytes = together.pieces[0].iov_len;
      Fill(sqe, whole);
    } else {
      const int fd = fixed_file_ ? 0 : file_.fd();
      const auto count = static_cast<unsigned>(together.pieces.size());
      if (ops[0].write) {
        ::io_uring_prep_writev(sqe, fd, together.pieces.data(), count, ops[0].offset);
      } else {
        ::io_uring_prep_readv(sqe, fd, together.pieces.data(), count, ops[0].offset);
      }
      if (fixed_file_) ::io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    }
    sqe->user_data = kTogetherTag | index;
  }

  // What was moved belongs to the first ops; those that got nothing are to be tried again, unless
  // nobody got any.
  void EndTogether(std::uint32_t index, std::int64_t result, std::vector<FileOpResult>& results) {
    std::int64_t left = result;
    for (const FileOp& op : together_[index]->ops) {
      const auto bytes = std::min(left, static_cast<std::int64_t>(op.bytes));
      const bool later = left == 0 && result > 0;
      results.push_back({op.tag, result <= 0 ? result : later ? -EAGAIN : bytes});
      if (result > 0) left -= bytes;
      --in_flight_;
    }
    free_together_.push_back(index);
  }

  // False if waiting makes no sense any more.
  bool WaitForOne() {
    const int rc = ::io_uring_submit_and_wait(&ring_, 1);
    return rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY;
  }

  // Returns true if there was any, the wake event included.
  bool TakeCompletions(std::vector<FileOpResult>& results) {
    bool any = false;
    bool woken = false;
    io_uring_cqe* cqe = nullptr;
    while (::io_uring_peek_cqe(&ring_, &cqe) == 0) {
      any = true;
      if (cqe->user_data == kWakeTag) {
        woken = true;
      } else if ((cqe->user_data & kTogetherTag) != 0) {
        EndTogether(static_cast<std::uint32_t>(cqe->user_data), cqe->res, results);
      } else {
        results.push_back({cqe->user_data, cqe->res});
        --in_flight_;
      }
      ::io_uring_cqe_seen(&ring_, cqe);
    }
    if (woken) AwaitWake();  // goes with the next submission
    return any;
  }

  UringOptions options_;
  std::unique_ptr<FileIo> fallback_;
  std::string reason_;
  io_uring ring_{};
  bool has_ring_ = false;
  bool fixed_file_ = false;
  bool polled_ = false;
  std::uint32_t depth_ = 0;
  std::size_t in_flight_ = 0;
  struct Together {
    std::vector<FileOp> ops;
    std::vector<iovec> pieces;
  };
  std::vector<std::unique_ptr<Together>> together_;
  std::vector<std::uint32_t> free_together_;
  std::vector<iovec> buffers_;  // by address; empty when not registered
  int wake_fd_ = -1;
  std::uint64_t wake_count_ = 0;
};

}  // namespace

std::unique_ptr<FileIo> MakeUringFileIo(UringOptions options) {
  return std::make_unique<UringFileIo>(options);
}

}  // namespace tidepool
