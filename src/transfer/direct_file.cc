#include "src/transfer/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

namespace tidepool {
namespace {

// For a file system that takes O_DIRECT but does not say what it asks for: no device in use
// asks for more.
constexpr std::uint32_t kSafeAlignment = 4096;

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

// Devices, pipes and the like must be neither truncated nor, after an error, removed.
bool IsRegular(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

// Returns 0 or an errno.
int Allocate(int fd, std::uint64_t bytes) {
  if (::fchmod(fd, 0600) != 0 || ::ftruncate(fd, 0) != 0) return errno;
  int rc = 0;
  do {
    rc = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (rc != 0 && errno == EINTR);
  if (rc == 0) return 0;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
  return ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

}  // namespace

DirectFile::~DirectFile() {
  if (fd_ >= 0) ::close(fd_);
}

DirectFile::DirectFile(DirectFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), alignment_(std::exchange(other.alignment_, 1)) {}

DirectFile& DirectFile::operator=(DirectFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(alignment_, other.alignment_);
  return *this;
}

StatusOr<DirectFile> DirectFile::Create(const std::string& path, std::uint64_t bytes) {
  const std::string size = std::to_string(bytes) + " bytes";
  if (bytes == 0 || bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) {
    return absl::InvalidArgumentError(path + ": cannot make a file of " + size);
  }
  std::uint32_t alignment = 1;
  int fd = OpenFile(path, O_DIRECT);
  if (fd >= 0) {
    alignment = AskAlignment(fd);
  } else if (errno == EINVAL) {
    fd = OpenFile(path, 0);
  }
  if (fd < 0) return FileError(path, "cannot create", errno);
  DirectFile file(fd, alignment);
  if (!IsRegular(fd)) return absl::InvalidArgumentError(path + ": is not a regular file");
  if (const int error = Allocate(fd, bytes); error != 0) {
    ::unlink(path.c_str());
    return FileError(path, "cannot allocate " + size, error);
  }
  return file;
}

}  // namespace tidepool
