// tidepool/testing/fault_file_io.h - a file in memory that errs on command or by seed: errors, full
// disk, short transfers, end of file, flipped bytes, held and reordered completions.
//
// Bytes move when an op completes, not when it starts: a buffer that is reused too early shows.
//
// The disk below it outlives it: the next FaultFileIo on the same FaultDisk finds what this one has
// written. A power cut takes from it any of what was written since the last sync, sector by sector.
//
// Thread contract: as FileIo; the test's side may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "tidepool/export.h"
#include "tidepool/transfer/file_io.h"

namespace tidepool::testing {

struct FileFaults {
  double error = 0;           ///< ends with -EIO
  double short_transfer = 0;  ///< moves a part only
  double flip = 0;            ///< one bit of what was read or written is wrong
  double delay = 0;           ///< is passed over by some reaps, so that others overtake it
};

/// What is on the medium. Shared by the files that stand for one file over time.
class TIDEPOOL_EXPORT FaultDisk {
 public:
  /// Of each sector that was written since the last sync, it is drawn anew whether the medium has
  /// got it: all of a write, none of it, or any of its sectors.
  void PowerCut(std::uint64_t seed);
  [[nodiscard]] std::vector<std::byte>& bytes() noexcept { return now_; }

 private:
  friend class FaultFileIo;
  struct Write {
    std::uint64_t offset;
    std::vector<std::byte> data;
  };
  void Record(std::uint64_t offset, std::span<const std::byte> data);
  void Sync();

  std::vector<std::byte> now_;     // with all writes
  std::vector<std::byte> synced_;  // as of the last sync
  std::vector<Write> unsynced_;    // since, in order
};

struct FaultFileOptions {
  std::uint32_t alignment = 1;  ///< ops that break it end with -EINVAL
  std::uint32_t depth = 32;
  std::uint64_t disk_bytes = static_cast<std::uint64_t>(-1);  ///< Open of more is ENOSPC
  FileFaults faults;
  std::uint64_t seed = 1;
  std::shared_ptr<FaultDisk> disk;  ///< null = one of its own
};

class TIDEPOOL_EXPORT FaultFileIo final : public FileIo {
 public:
  explicit FaultFileIo(FaultFileOptions options = {});

  // The test's side.

  /// Results of the next ops of that kind, in the order they complete: at most so many bytes
  /// (positive), end of file (0), or -errno.
  void Script(bool write, const std::vector<std::int64_t>& results);
  void set_faults(const FileFaults& faults);
  /// Completions stay inside until Release, which lets out what is there now, or Resume.
  void Hold();
  void Release(bool reversed = false);
  void Resume();
  void ReleaseWrites();  ///< lets out the writes that are there now
  [[nodiscard]] std::size_t held() const;
  /// Reads past `bytes` see the end of the file; writes go on as before.
  void Truncate(std::uint64_t bytes);
  void FlipBit(std::uint64_t offset);
  /// Everything that was started, in order.
  [[nodiscard]] std::vector<FileOp> started() const;
  [[nodiscard]] std::uint64_t file_bytes() const;
  [[nodiscard]] std::vector<std::byte> Contents(std::uint64_t offset, std::uint64_t bytes) const;

  /// Calls that end in Now, and the sync, end so from here on: 0 = well, else an errno.
  void FailNow(int error);
  /// From here on ops that write end with -ENOSPC, but for as many bytes as are discarded.
  void Fill(bool full);

  Status Open(const std::string& path, std::uint64_t bytes) override;
  StatusOr<std::uint64_t> OpenKept(const std::string& path) override;
  Status Reserve(std::uint64_t bytes) override;
  std::int64_t ReadNow(std::span<std::byte> data, std::uint64_t offset) override;
  std::int64_t WriteNow(std::span<const std::byte> data, std::uint64_t offset) override;
  int SyncNow() override;
  void DiscardNow(std::uint64_t offset, std::uint64_t bytes) override;
  [[nodiscard]] std::uint32_t Alignment() const noexcept override { return options_.alignment; }
  [[nodiscard]] std::uint32_t Depth() const noexcept override { return options_.depth; }
  std::size_t Start(std::span<const FileOp> ops) override;
  void Reap(std::vector<FileOpResult>& results, bool block) override;
  void Wake() override;
  [[nodiscard]] std::string Describe() const override { return "fault-injecting file"; }

 private:
  struct Pending {
    FileOp op;
    std::uint32_t delay_reaps = 0;
  };
  [[nodiscard]] bool Chance(double probability);
  [[nodiscard]] std::int64_t Complete(const FileOp& op);
  [[nodiscard]] std::int64_t Move(const FileOp& op, std::uint64_t bytes);
  bool ReapReady(std::vector<FileOpResult>& results);

  const FaultFileOptions options_;
  // Everything below is guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  FileFaults faults_;
  std::mt19937_64 random_;
  const std::shared_ptr<FaultDisk> disk_;
  std::uint64_t end_ = 0;
  int now_error_ = 0;
  bool full_ = false;
  std::uint64_t discarded_ = 0;  // bytes: so many may be written although it is full
  std::deque<std::int64_t> read_script_;
  std::deque<std::int64_t> write_script_;
  std::vector<Pending> pending_;
  std::vector<Pending> released_;
  std::vector<FileOp> started_;
  bool holding_ = false;
  bool woken_ = false;
};

}  // namespace tidepool::testing
