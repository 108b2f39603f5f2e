// A file in memory that keeps only what was written, for tests that move many small blocks: no
// disk, no waiting, completions in the order of submission.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "tidepool/transfer/file_io.h"

namespace tidepool::testing {

class SparseFileIo final : public FileIo {
 public:
  Status Open(const std::string& path, std::uint64_t bytes) override {
    (void)path, (void)bytes;
    return absl::OkStatus();
  }
  [[nodiscard]] std::uint32_t Alignment() const noexcept override { return 1; }
  [[nodiscard]] std::uint32_t Depth() const noexcept override { return 64; }
  std::size_t Start(std::span<const FileOp> ops) override {
    for (const FileOp& op : ops) {
      std::string& extent = extents_[op.offset];
      if (op.write) {
        extent.assign(reinterpret_cast<const char*>(op.data), op.bytes);
      } else {
        std::memcpy(op.data, extent.data(), std::min<std::size_t>(op.bytes, extent.size()));
      }
      done_.push_back({.tag = op.tag, .result = static_cast<std::int64_t>(op.bytes)});
    }
    return ops.size();
  }
  void Reap(std::vector<FileOpResult>& results, bool block) override {
    (void)block;
    results.insert(results.end(), done_.begin(), done_.end());
    done_.clear();
  }
  void Wake() override {}
  [[nodiscard]] std::string Describe() const override { return "memory"; }

 private:
  std::unordered_map<std::uint64_t, std::string> extents_;  // by offset of their first byte
  std::vector<FileOpResult> done_;
};

}  // namespace tidepool::testing
