// A tier's file: locked, preallocated, for direct I/O where the file system takes it.
// Exported for the uring component; no public interface. Thread contract: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "tidepool/export.h"
#include "tidepool/status.h"
#include "tidepool/transfer/file_io.h"

namespace tidepool {

/// An open and locked file, closed with the object. Empty by default.
class TIDEPOOL_EXPORT DirectFile {
 public:
  DirectFile() = default;
  ~DirectFile();
  DirectFile(DirectFile&& other) noexcept;
  DirectFile& operator=(DirectFile&& other) noexcept;

  /// Creates or truncates the regular file `path` with mode 0600 and allocates `bytes`. Errors name
  /// path and size; a file that could not be allocated is removed again.
  static StatusOr<DirectFile> Create(const std::string& path, std::uint64_t bytes);
  /// Opens or creates a regular file, or opens a block device; what is there stays.
  static StatusOr<DirectFile> OpenKept(const std::string& path);

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] bool direct() const noexcept { return alignment_ > 1; }
  /// What the file system asks of memory, length and offset; 1 when buffered.
  [[nodiscard]] std::uint32_t alignment() const noexcept { return alignment_; }
  /// "O_DIRECT" or "buffered".
  [[nodiscard]] const char* mode() const noexcept { return direct() ? "O_DIRECT" : "buffered"; }

  /// Of a file or device.
  [[nodiscard]] StatusOr<std::uint64_t> Size() const;
  /// Makes it at least so long and allocates that; a device must be long enough.
  Status Reserve(std::uint64_t bytes);
  // Through the page cache, see FileIo.
  std::int64_t Read(std::span<std::byte> data, std::uint64_t offset) const;
  std::int64_t Write(std::span<const std::byte> data, std::uint64_t offset) const;
  int Sync() const;
  void Discard(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  DirectFile(std::string path, int fd, std::uint32_t alignment) noexcept
      : path_(std::move(path)), fd_(fd), alignment_(alignment) {}
  static StatusOr<DirectFile> OpenLocked(const std::string& path, const char* doing);
  Status OpenBuffered();

  std::string path_;
  int fd_ = -1;
  int buffered_fd_ = -1;  // the same file without O_DIRECT, when fd_ has it
  std::uint32_t alignment_ = 1;
};

/// A FileIo whose file is a DirectFile.
class TIDEPOOL_EXPORT DiskFileIo : public FileIo {
 public:
  Status Reserve(std::uint64_t bytes) override { return file_.Reserve(bytes); }
  std::int64_t ReadNow(std::span<std::byte> data, std::uint64_t offset) override {
    return file_.Read(data, offset);
  }
  std::int64_t WriteNow(std::span<const std::byte> data, std::uint64_t offset) override {
    return file_.Write(data, offset);
  }
  int SyncNow() override { return file_.Sync(); }
  void DiscardNow(std::uint64_t offset, std::uint64_t bytes) override {
    file_.Discard(offset, bytes);
  }

 protected:
  DirectFile file_;
};

}  // namespace tidepool
