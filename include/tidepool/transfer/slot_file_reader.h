// tidepool/transfer/slot_file_reader.h - reads a kept file (slot_file.h), live or a copy, and
// changes nothing: what tidepool-inspect is made of, for tools that want the same.
//
//   auto reader = SlotFileReader::Open(path);
//   for (SlotFileReader::Entry entry; reader->Next(entry);) {
//     if (entry.state == HeaderState::kSound) auto bad = reader->MismatchedSegments(entry.header);
//   }
//
// It takes no lock. In a live file a slot that is being written may read as torn, or its payload
// as not matching: read its header again before calling it damage.
//
// Memory: two buffers of at most 512 KiB, whatever the file says.
//
// Thread contract: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/export.h"
#include "tidepool/status.h"
#include "tidepool/transfer/slot_file.h"

namespace tidepool {

class TIDEPOOL_EXPORT SlotFileReader {
 public:
  /// What stands at one slot. `header` is set for kSound only, and its views are good until the
  /// next call of Next, ReadHeader or Rewind.
  struct Entry {
    std::uint32_t slot = 0;
    HeaderState state = HeaderState::kEmpty;
    SlotHeader header;
  };

  /// Opens a regular file or a block device. Errors have the path: those of ParseSuperblock,
  /// kInvalidArgument for anything else than a file, and those of the file system.
  static StatusOr<SlotFileReader> Open(const std::string& path);

  [[nodiscard]] const SlotFileLayout& layout() const noexcept { return layout_; }
  /// At Open. A truncated file has fewer than layout().file_bytes().
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  /// Slots whose header lies within the file: what Next goes through.
  [[nodiscard]] std::uint32_t readable_slots() const noexcept { return readable_slots_; }
  /// Borrowed; for fstat and the like.
  [[nodiscard]] int fd() const noexcept { return file_.fd; }

  /// The one that holds, read at Open; see ParseStatePages.
  [[nodiscard]] const StatusOr<SlotFileState>& state() const noexcept { return state_; }
  /// As they were at Open.
  [[nodiscard]] StatusOr<SlotFileState> StatePage(std::uint32_t index) const;

  /// Headers in the order of slots. False at the end, or at the first one that cannot be read:
  /// then status() says why. COMPLEXITY: one read for every 256 KiB of headers.
  [[nodiscard]] bool Next(Entry& entry);
  [[nodiscard]] const Status& status() const noexcept { return status_; }
  /// Next starts over.
  void Rewind() noexcept;
  /// One header, read afresh; Next goes on behind it.
  Status ReadHeader(std::uint32_t slot, Entry& entry);

  /// The segments whose bytes do not have the sum that `header` says, or lie beyond the end of the
  /// file. REQUIRES: a sound header of this file. COMPLEXITY: reads the payload once.
  [[nodiscard]] StatusOr<std::vector<std::uint32_t>> MismatchedSegments(const SlotHeader& header);

 private:
  struct File {
    File() = default;
    ~File();
    File(File&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
    File& operator=(File&& other) noexcept {
      std::swap(fd, other.fd);
      return *this;
    }
    int fd = -1;
  };

  SlotFileReader() = default;
  Status Load();
  [[nodiscard]] StatusOr<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> into) const;
  [[nodiscard]] StatusOr<bool> Matches(std::uint64_t offset, std::uint64_t bytes,
                                       std::uint64_t sum);
  Status Fill();

  File file_;
  std::string path_;
  SlotFileLayout layout_;
  std::uint64_t file_bytes_ = 0;
  std::uint32_t readable_slots_ = 0;
  std::vector<std::byte> state_pages_;
  StatusOr<SlotFileState> state_;
  Status status_;
  std::uint32_t next_slot_ = 0;
  std::uint32_t buffered_from_ = 0;  // slots [buffered_from_, buffered_to_) are in headers_
  std::uint32_t buffered_to_ = 0;
  std::vector<std::byte> headers_;
  std::vector<std::byte> payload_;
};

}  // namespace tidepool
