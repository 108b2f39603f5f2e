// How a block's payload is cut into the pieces that are moved, checked and reported one by one.
// Thread contract: plain values.
#pragma once

#include <cstdint>
#include <vector>

namespace tidepool {

struct ChunkPlanOptions {
  std::uint64_t payload_bytes = 0;
  std::uint32_t layers = 1;
  std::uint64_t max_chunk_bytes = 0;
  std::uint64_t alignment = 1;  ///< of all boundaries but the last; divides max_chunk_bytes
};

/// Chunk i is the bytes [bounds[i], bounds[i + 1]) of the payload. Boundaries lie between layers
/// where an aligned one is in reach.
class ChunkPlan {
 public:
  ChunkPlan() = default;
  explicit ChunkPlan(const ChunkPlanOptions& options);

  [[nodiscard]] std::uint32_t count() const {
    return static_cast<std::uint32_t>(bounds_.size() - 1);
  }
  [[nodiscard]] std::uint64_t Begin(std::uint32_t chunk) const { return bounds_[chunk]; }
  [[nodiscard]] std::uint64_t Bytes(std::uint32_t chunk) const {
    return bounds_[chunk + 1] - bounds_[chunk];
  }
  /// Whole layers in the first `chunks` chunks.
  [[nodiscard]] std::uint32_t Layers(std::uint32_t chunks) const {
    return static_cast<std::uint32_t>(bounds_[chunks] / layer_bytes_);
  }
  [[nodiscard]] std::uint64_t total() const { return bounds_.back(); }
  [[nodiscard]] std::uint64_t largest() const { return largest_; }

 private:
  std::vector<std::uint64_t> bounds_ = {0};
  std::uint64_t layer_bytes_ = 1;
  std::uint64_t largest_ = 0;
};

}  // namespace tidepool
