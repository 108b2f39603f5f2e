#include "src/transfer/direct_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

namespace tidepool {
namespace {

// For a file system that takes O_DIRECT but does not say what it asks for: no device in use
// asks for more.
constexpr std::uint32_t kSafeAlignment = 4096;

// The I/O of a process that was killed may keep the lock for a moment.
constexpr int kLockAttempts = 50;
constexpr std::chrono::milliseconds kLockPause{10};

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::StatusCode::kResourceExhausted;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOENT:
    case ENOTDIR:
      return absl::StatusCode::kNotFound;
    case EISDIR:
    case EINVAL:
    case ENAMETOOLONG:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

Status FileError(const std::string& path, const std::string& what, int error) {
  return Status(CodeOf(error), path + ": " + what + ": " + std::strerror(error));
}

int OpenFile(const std::string& path, int extra_flags) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | extra_flags, 0600);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

std::uint32_t AskAlignment(int fd) {
#if defined(STATX_DIOALIGN)
  struct statx info = {};
  const int rc = ::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info);
  if (rc == 0 && (info.stx_mask & STATX_DIOALIGN) != 0 && info.stx_dio_offset_align != 0) {
    return std::max(info.stx_dio_mem_align, info.stx_dio_offset_align);
  }
#endif
  return kSafeAlignment;
}

bool IsRegular(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

bool IsBlockDevice(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 && S_ISBLK(info.st_mode);
}

bool IsSameFile(int a, int b) {
  struct stat first = {};
  struct stat second = {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

// Returns 0 or an errno.
int Allocate(int fd, std::uint64_t bytes) {
  int rc = 0;
  do {
    rc = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (rc != 0 && errno == EINTR);
  if (rc == 0) return 0;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
  return ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

// OK if a file may be so long. Beyond the process's limit the kernel would send a signal.
Status CheckSize(const std::string& path, std::uint64_t bytes) {
  if (bytes == 0 || bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) {
    return absl::InvalidArgumentError(path + ": cannot make a file of " + std::to_string(bytes) +
                                      " bytes");
  }
  rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    return absl::ResourceExhaustedError(path + ": " + std::to_string(bytes) + " bytes are above " +
                                        std::to_string(limit.rlim_cur) + ", RLIMIT_FSIZE");
  }
  return absl::OkStatus();
}

}  // namespace

DirectFile::~DirectFile() {
  if (fd_ >= 0) {
    // A ring may keep the file open for some time more.
    ::flock(fd_, LOCK_UN);
    ::close(fd_);
  }
  if (buffered_fd_ >= 0) ::close(buffered_fd_);
}

DirectFile::DirectFile(DirectFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      buffered_fd_(std::exchange(other.buffered_fd_, -1)),
      alignment_(std::exchange(other.alignment_, 1)) {}

DirectFile& DirectFile::operator=(DirectFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(buffered_fd_, other.buffered_fd_);
  std::swap(alignment_, other.alignment_);
  return *this;
}

StatusOr<DirectFile> DirectFile::OpenLocked(const std::string& path, const char* doing) {
  std::uint32_t alignment = 1;
  int fd = OpenFile(path, O_DIRECT);
  if (fd >= 0) {
    alignment = AskAlignment(fd);
  } else if (errno == EINVAL) {
    fd = OpenFile(path, 0);
  }
  if (fd < 0) return FileError(path, doing, errno);
  DirectFile file(path, fd, alignment);
  for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return file;
    if (errno != EWOULDBLOCK) return FileError(path, "cannot lock", errno);
    std::this_thread::sleep_for(kLockPause);
  }
  return absl::FailedPreconditionError(path + ": is in use: another tier or process has locked it");
}

StatusOr<DirectFile> DirectFile::Create(const std::string& path, std::uint64_t bytes) {
  const std::string size = std::to_string(bytes) + " bytes";
  if (Status status = CheckSize(path, bytes); !status.ok()) return status;
  StatusOr<DirectFile> file = OpenLocked(path, "cannot create");
  if (!file.ok()) return file.status();
  // Devices, pipes and the like must be neither truncated nor, after an error, removed.
  if (!IsRegular(file->fd())) return absl::InvalidArgumentError(path + ": is not a regular file");
  const bool emptied = ::fchmod(file->fd(), 0600) == 0 && ::ftruncate(file->fd(), 0) == 0;
  if (const int error = emptied ? Allocate(file->fd(), bytes) : errno; error != 0) {
    ::unlink(path.c_str());
    return FileError(path, "cannot allocate " + size, error);
  }
  return file;
}

StatusOr<DirectFile> DirectFile::OpenKept(const std::string& path) {
  StatusOr<DirectFile> file = OpenLocked(path, "cannot open");
  if (!file.ok()) return file.status();
  if (!IsRegular(file->fd()) && !IsBlockDevice(file->fd())) {
    return absl::InvalidArgumentError(path + ": is neither a regular file nor a block device");
  }
  if (Status status = file->OpenBuffered(); !status.ok()) return status;
  return file;
}

Status DirectFile::OpenBuffered() {
  if (!direct()) return absl::OkStatus();
  buffered_fd_ = OpenFile(path_, 0);
  if (buffered_fd_ < 0) return FileError(path_, "cannot open", errno);
  if (IsSameFile(fd_, buffered_fd_)) return absl::OkStatus();
  return absl::AbortedError(path_ + ": was replaced while it was opened");
}

StatusOr<std::uint64_t> DirectFile::Size() const {
  if (IsBlockDevice(fd_)) {
    std::uint64_t bytes = 0;
    if (::ioctl(fd_, BLKGETSIZE64, &bytes) == 0) return bytes;
    return FileError(path_, "cannot ask its size", errno);
  }
  struct stat info = {};
  if (::fstat(fd_, &info) != 0) return FileError(path_, "cannot ask its size", errno);
  return static_cast<std::uint64_t>(info.st_size);
}

Status DirectFile::Reserve(std::uint64_t bytes) {
  const std::string size = std::to_string(bytes) + " bytes";
  if (IsBlockDevice(fd_)) {
    StatusOr<std::uint64_t> has = Size();
    if (!has.ok() || *has >= bytes) return has.status();
    return absl::ResourceExhaustedError(path_ + ": has " + std::to_string(*has) + " bytes, " +
                                        size + " wanted");
  }
  if (Status status = CheckSize(path_, bytes); !status.ok()) return status;
  if (::fchmod(fd_, 0600) != 0) return FileError(path_, "cannot change its mode", errno);
  const int error = Allocate(fd_, bytes);
  return error == 0 ? absl::OkStatus() : FileError(path_, "cannot allocate " + size, error);
}

std::int64_t DirectFile::Read(std::span<std::byte> data, std::uint64_t offset) const {
  const int fd = buffered_fd_ >= 0 ? buffered_fd_ : fd_;
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t rc =
        ::pread(fd, data.data() + done, data.size() - done, static_cast<off_t>(offset + done));
    if (rc == 0) break;
    if (rc < 0 && errno == EINTR) continue;
    if (rc < 0) return -errno;
    done += static_cast<std::size_t>(rc);
  }
  return static_cast<std::int64_t>(done);
}

std::int64_t DirectFile::Write(std::span<const std::byte> data, std::uint64_t offset) const {
  const int fd = buffered_fd_ >= 0 ? buffered_fd_ : fd_;
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t rc =
        ::pwrite(fd, data.data() + done, data.size() - done, static_cast<off_t>(offset + done));
    if (rc == 0) break;
    if (rc < 0 && errno == EINTR) continue;
    if (rc < 0) return -errno;
    done += static_cast<std::size_t>(rc);
  }
  return static_cast<std::int64_t>(done);
}

int DirectFile::Sync() const {
  int rc = 0;
  do {
    rc = ::fdatasync(fd_);
  } while (rc != 0 && errno == EINTR);
  return rc == 0 ? 0 : -errno;
}

void DirectFile::Discard(std::uint64_t offset, std::uint64_t bytes) const {
  // Where holes cannot be punched, the space stays taken.
  (void)::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes));
}

}  // namespace tidepool
