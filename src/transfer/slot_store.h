// What a kept file says about itself, for the worker that moves its payloads: opens or makes the
// file, finds what is in it, writes headers and state.
//
// A header is written when all of its slot's payload has been, without waiting for either to reach
// the device: whatever of the two a crash leaves, the sums in the header tell whether they belong
// together. Headers are gathered and written some at a time, neighbours in one write.
//
// Thread contract: Open, Recover and Verify before everything else, from one thread; then
// Invalidate from any thread, the rest from the file's thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "src/annotated_mutex.h"
#include "src/transfer/chunk_plan.h"
#include "tidepool/status.h"
#include "tidepool/transfer/engine.h"
#include "tidepool/transfer/file_io.h"
#include "tidepool/transfer/slot_file.h"

namespace tidepool {

/// Counters of a file tier that any thread may read.
struct FileCounters {
  std::atomic<std::uint64_t> payload_bytes_written{0};
  std::atomic<std::uint64_t> header_bytes_written{0};
  std::atomic<std::uint64_t> payload_bytes_read{0};
  std::atomic<std::uint64_t> headers_written{0};
  std::atomic<std::uint64_t> syncs{0};
  std::atomic<std::uint64_t> errors{0};
  std::atomic<std::uint64_t> checksum_failures{0};
  std::atomic<std::uint64_t> no_space{0};
  [[nodiscard]] FileTierStats Read() const noexcept;
};

class SlotStore {
 public:
  /// Headers gathered before they are written although more work is at hand.
  static constexpr std::size_t kGathered = 64;

  SlotStore(FileIo* io, FileCounters* counters) : io_(io), counters_(counters) {}

  /// The file is open already and has `file_bytes`; `wanted` is what it should look like. Makes a
  /// new one of an empty one; refuses what it does not understand or was made for something else,
  /// and leaves that as it is. `epoch`: the least that the file is to be at.
  Status Open(SlotFileLayout wanted, std::uint64_t file_bytes, std::uint64_t epoch);
  /// Reads all headers. The blocks that count are appended to `stored`, their sums handed to
  /// `use_sums`.
  using UseSums = std::function<void(std::uint32_t slot, const SlotHeader& header)>;
  Status Recover(StoredBlocks& stored, const UseSums& use_sums);
  /// Drops from `stored` what does not match its sums; reads all payloads.
  using SumOf = std::function<std::uint64_t(std::uint32_t slot, std::uint32_t segment)>;
  void Verify(StoredBlocks& stored, const SumOf& sum_of);

  [[nodiscard]] const SlotFileLayout& layout() const noexcept { return layout_; }

  // Gathered until Flush. The last word on a slot counts.
  void Add(const CopyRequest& request, std::span<const std::uint64_t> sums)
      TIDEPOOL_EXCLUDES(mutex_);
  void Erase(std::uint32_t slot) TIDEPOOL_EXCLUDES(mutex_);
  [[nodiscard]] std::size_t gathered() const TIDEPOOL_EXCLUDES(mutex_);
  /// Writes what was gathered. False if some of it could not be: those blocks will not be found.
  bool Flush() TIDEPOOL_EXCLUDES(mutex_);
  /// Flushes, and waits for the device. False if any of it failed.
  bool Sync() TIDEPOOL_EXCLUDES(mutex_);

  Status Invalidate(const Invalidation& what) TIDEPOOL_EXCLUDES(mutex_);

 private:
  struct Gathered {
    std::uint32_t slot;
    std::uint32_t place;  // of its bytes in headers_, in headers
  };
  Status Create(std::uint64_t file_bytes);
  Status ReadState();
  Status WriteState() TIDEPOOL_REQUIRES(mutex_);
  Status WriteStatePage() TIDEPOOL_REQUIRES(mutex_);
  Status EraseDropped() TIDEPOOL_REQUIRES(mutex_);
  std::span<std::byte> NewHeader(std::uint32_t slot) TIDEPOOL_REQUIRES(mutex_);
  bool WriteGathered() TIDEPOOL_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t Generation(std::uint64_t order) const noexcept {
    return first_generation_ + order;
  }
  [[nodiscard]] Status Problem(std::string_view what, std::int64_t result) const;

  FileIo* const io_;
  FileCounters* const counters_;
  SlotFileLayout layout_;
  std::uint64_t first_generation_ = 1;  // of this process

  struct DigestHash {
    std::size_t operator()(const PrefixHash& digest) const noexcept { return digest.low; }
  };

  mutable Mutex mutex_;
  SlotFileState state_ TIDEPOOL_GUARDED_BY(mutex_);
  bool state_written_ TIDEPOOL_GUARDED_BY(mutex_) = true;
  std::vector<std::byte> headers_ TIDEPOOL_GUARDED_BY(mutex_);
  std::vector<Gathered> gathered_ TIDEPOOL_GUARDED_BY(mutex_);
  std::vector<std::byte> run_ TIDEPOOL_GUARDED_BY(mutex_);  // scratch: neighbours together
  /// Roots that were dropped since the file was opened, and before which generation.
  absl::flat_hash_map<PrefixHash, std::uint64_t, DigestHash> revoked_ TIDEPOOL_GUARDED_BY(mutex_);
};

}  // namespace tidepool
