// File I/O by pread and pwrite in a few threads, which share a queue of ops.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <iterator>
#include <memory>
#include <utility>

#include "src/annotated_mutex.h"
#include "src/transfer/direct_file.h"
#include "src/transfer/worker_thread.h"
#include "tidepool/transfer/file_io.h"

namespace tidepool {
namespace {

class ThreadFileIo final : public DiskFileIo {
 public:
  explicit ThreadFileIo(unsigned threads) : thread_count_(std::max(1u, threads)) {}
  ~ThreadFileIo() override { Join(); }

  Status Open(const std::string& path, std::uint64_t bytes) override {
    Join();
    file_ = DirectFile();  // its lock may be in the way
    StatusOr<DirectFile> file = DirectFile::Create(path, bytes);
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
    return StartThreads();
  }
  StatusOr<std::uint64_t> OpenKept(const std::string& path) override {
    Join();
    file_ = DirectFile();  // its lock may be in the way
    StatusOr<DirectFile> file = DirectFile::OpenKept(path);
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
    if (Status status = StartThreads(); !status.ok()) return status;
    return file_.Size();
  }
  std::uint32_t Alignment() const noexcept override { return file_.alignment(); }
  // Twice the threads: one finds its next op waiting.
  std::uint32_t Depth() const noexcept override { return 2 * thread_count_; }

  std::size_t Start(std::span<const FileOp> ops) override {
    std::size_t accepted = 0;
    {
      MutexLock lock(mutex_);
      accepted = std::min<std::size_t>(ops.size(), Depth() - in_flight_);
      queue_.insert(queue_.end(), ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(accepted));
      in_flight_ += accepted;
    }
    if (accepted > 1) {
      work_.NotifyAll();
    } else if (accepted == 1) {
      work_.NotifyOne();
    }
    return accepted;
  }

  void Reap(std::vector<FileOpResult>& results, bool block) override {
    MutexLock lock(mutex_);
    while (block && results_.empty() && in_flight_ > 0 && !woken_) done_.Wait(mutex_);
    if (block) woken_ = false;
    in_flight_ -= results_.size();
    results.insert(results.end(), results_.begin(), results_.end());
    results_.clear();
  }

  void Wake() override {
    {
      MutexLock lock(mutex_);
      woken_ = true;
    }
    done_.NotifyAll();
  }

  std::string Describe() const override {
    return "pread/pwrite " + std::string(file_.mode()) + " threads " +
           std::to_string(thread_count_);
  }

 private:
  static std::int64_t Do(int fd, const FileOp& op) {
    const auto offset = static_cast<off_t>(op.offset);
    ssize_t rc = 0;
    do {
      rc = op.write ? ::pwrite(fd, op.data, op.bytes, offset)
                    : ::pread(fd, op.data, op.bytes, offset);
    } while (rc < 0 && errno == EINTR);
    return rc < 0 ? -errno : rc;
  }

  void Work() TIDEPOOL_EXCLUDES(mutex_) {
    FileOp op;
    while (Next(op)) {
      const FileOpResult result{op.tag, Do(file_.fd(), op)};
      {
        MutexLock lock(mutex_);
        results_.push_back(result);
      }
      done_.NotifyOne();
    }
  }

  Status StartThreads() {
    threads_.reserve(thread_count_);
    for (unsigned i = 0; i < thread_count_; ++i) {
      StatusOr<WorkerThread> thread = WorkerThread::Start("tidepool-io", [this] { Work(); });
      if (!thread.ok()) {
        Join();
        return thread.status();
      }
      threads_.push_back(*std::move(thread));
    }
    return {};
  }

  bool Next(FileOp& op) TIDEPOOL_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (queue_.empty() && !stopped_) work_.Wait(mutex_);
    if (queue_.empty()) return false;  // what was started is finished first
    op = queue_.front();
    queue_.pop_front();
    return true;
  }

  void Join() TIDEPOOL_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      stopped_ = true;
    }
    work_.NotifyAll();
    threads_.clear();
    MutexLock lock(mutex_);
    stopped_ = false;
  }

  const unsigned thread_count_;
  std::vector<WorkerThread> threads_;

  Mutex mutex_;
  CondVar work_;
  CondVar done_;
  std::deque<FileOp> queue_ TIDEPOOL_GUARDED_BY(mutex_);
  std::vector<FileOpResult> results_ TIDEPOOL_GUARDED_BY(mutex_);
  std::size_t in_flight_ TIDEPOOL_GUARDED_BY(mutex_) = 0;
  bool stopped_ TIDEPOOL_GUARDED_BY(mutex_) = false;
  bool woken_ TIDEPOOL_GUARDED_BY(mutex_) = false;
};

}  // namespace

StatusOr<std::uint64_t> FileIo::OpenKept(const std::string& path) {
  return absl::UnimplementedError(path + ": this kind of file cannot be kept");
}
Status FileIo::Reserve(std::uint64_t) {
  return absl::UnimplementedError("this kind of file cannot be kept");
}
std::int64_t FileIo::ReadNow(std::span<std::byte>, std::uint64_t) { return -ENOTSUP; }
std::int64_t FileIo::WriteNow(std::span<const std::byte>, std::uint64_t) { return -ENOTSUP; }
int FileIo::SyncNow() { return -ENOTSUP; }

std::unique_ptr<FileIo> MakeThreadFileIo(unsigned threads) {
  return std::make_unique<ThreadFileIo>(threads);
}

}  // namespace tidepool
