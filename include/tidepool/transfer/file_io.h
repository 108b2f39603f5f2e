// tidepool/transfer/file_io.h - the file operations below an NVMe tier, so that io_uring, plain
// positional I/O and the fault-injecting store of the tests are the same thing to the engine.
//
// Thread contract: one thread at a time (the host engine's file thread); Wake from any thread.
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
  std::uint64_t tag = 0;  ///< comes back with the result
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
  /// Creates (or truncates) the file with mode 0600 and preallocates `bytes`. ENOSPC and friends
  /// come back as a Status that names the path and the size asked for.
  virtual Status Open(const std::string& path, std::uint64_t bytes) = 0;
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
