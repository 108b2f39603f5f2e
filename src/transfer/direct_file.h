// Opening a tier's file: fresh, preallocated, for direct I/O where the file system takes it.
// Exported for the uring component; no public interface. Thread contract: thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "tidepool/export.h"
#include "tidepool/status.h"

namespace tidepool {

/// An open file descriptor, closed with the object. Empty by default.
class TIDEPOOL_EXPORT DirectFile {
 public:
  DirectFile() = default;
  ~DirectFile();
  DirectFile(DirectFile&& other) noexcept;
  DirectFile& operator=(DirectFile&& other) noexcept;

  /// Creates or truncates the regular file `path` with mode 0600 and allocates `bytes`. Errors name
  /// path and size; a file that could not be allocated is removed again.
  static StatusOr<DirectFile> Create(const std::string& path, std::uint64_t bytes);

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] bool direct() const noexcept { return alignment_ > 1; }
  /// What the file system asks of memory, length and offset; 1 when buffered.
  [[nodiscard]] std::uint32_t alignment() const noexcept { return alignment_; }
  /// "O_DIRECT" or "buffered".
  [[nodiscard]] const char* mode() const noexcept { return direct() ? "O_DIRECT" : "buffered"; }

 private:
  DirectFile(int fd, std::uint32_t alignment) noexcept : fd_(fd), alignment_(alignment) {}

  int fd_ = -1;
  std::uint32_t alignment_ = 1;
};

}  // namespace tidepool
