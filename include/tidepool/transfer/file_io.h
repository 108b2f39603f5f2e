// tidepool/transfer/file_io.h - the file operations below an NVMe tier, so that io_uring, plain
// positional I/O and the fault-injecting store of the tests are the same thing to the engine.
//
// Thread contract: one thread at a time (the host engine's file thread); Wake and the calls that
// end in Now from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tidepool/export.h"
#include "tidepool/status.h"

namespace tidepool {

struct FileOp {
  std::uint64_t tag = 0;  ///< comes back with the result; less than 2^63
  bool write = false;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;
};

struct FileOpResult {
  std::uint64_t tag = 0;
  std::int64_t result = 0;  ///< bytes transferred (may be short), or -errno
};

class TIDEPOOL_EXPORT FileIo {
 public:
  virtual ~FileIo() = default;

  /// Creates (or truncates) the file with mode 0600, locks it and preallocates `bytes`. ENOSPC and
  /// friends come back as a Status that names the path and the size asked for; a file that another
  /// open FileIo has locked is kFailedPrecondition, and unchanged.
  virtual Status Open(const std::string& path, std::uint64_t bytes) = 0;

  // Files that are kept. By default there are none.

  /// Opens or creates the file, or opens a block device, locks it and changes nothing. Returns its
  /// size.
  virtual StatusOr<std::uint64_t> OpenKept(const std::string& path);
  /// Makes a kept file at least so long and allocates it.
  virtual Status Reserve(std::uint64_t bytes);
  /// Small buffered reads and writes, done when they return. Bytes moved, or -errno.
  virtual std::int64_t ReadNow(std::span<std::byte> data, std::uint64_t offset);
  virtual std::int64_t WriteNow(std::span<const std::byte> data, std::uint64_t offset);
  /// All that was written so far survives a power cut once this has returned 0; else -errno.
  virtual int SyncNow();
  /// The bytes are not needed any more; what they read as is undefined.
  virtual void DiscardNow(std::uint64_t offset, std::uint64_t bytes) { (void)offset, (void)bytes; }

  /// Memory that ops will point into; registration is a hint and may be refused silently.
  virtual void RegisterMemory(std::span<const std::span<std::byte>> regions) { (void)regions; }
  /// Alignment that data, bytes and offset must have for direct I/O (1 = buffered).
  [[nodiscard]] virtual std::uint32_t Alignment() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t Depth() const noexcept = 0;
  /// Starts a leading part of `ops`; returns its length (bounded by the free depth). Data stays in
  /// use until the op's result was reaped.
  virtual std::size_t Start(std::span<const FileOp> ops) = 0;
  /// Appends finished ops; if `block` and something is in flight, waits for at least one or Wake.
  virtual void Reap(std::vector<FileOpResult>& results, bool block) = 0;
  /// Makes the Reap that blocks, or else the next one that would, return at once.
  virtual void Wake() = 0;
  /// What is in use and, where that is not the best there is, why: "io_uring O_DIRECT depth 32".
  [[nodiscard]] virtual std::string Describe() const = 0;
};

/// Positional reads and writes in `threads` threads, O_DIRECT where the file system takes it.
TIDEPOOL_EXPORT std::unique_ptr<FileIo> MakeThreadFileIo(unsigned threads = 4);

}  // namespace tidepool
