#include "src/transfer/chunk_plan.h"

#include <algorithm>

namespace tidepool {

ChunkPlan::ChunkPlan(const ChunkPlanOptions& options)
    : layer_bytes_(options.payload_bytes / options.layers) {
  const std::uint64_t end = options.payload_bytes;
  for (std::uint64_t begin = 0; begin < end;) {
    const std::uint64_t reach = std::min(end, begin + options.max_chunk_bytes);
    std::uint64_t cut = reach;
    if (reach < end) {
      cut = reach / options.alignment * options.alignment;
      std::uint64_t layer_end = reach / layer_bytes_ * layer_bytes_;
      while (layer_end > begin && layer_end % options.alignment != 0) layer_end -= layer_bytes_;
      if (layer_end > begin) cut = layer_end;
    }
    largest_ = std::max(largest_, cut - begin);
    bounds_.push_back(cut);
    begin = cut;
  }
}

}  // namespace tidepool
