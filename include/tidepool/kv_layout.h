// tidepool/kv_layout.h - the geometry of a model's KV cache, and the one function that says how
// many bytes a block takes. Allocator, tiers, codecs and kernels all call it.
//
// Thread contract: plain values, pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "tidepool/export.h"
#include "tidepool/status.h"
#include "tidepool/types.h"

namespace tidepool {

enum class DType : std::uint8_t { kBf16, kFp16, kFp32, kFp8 };

/// How a tier stores a block. kIdentity keeps the layout's own dtype.
enum class StorageFormat : std::uint8_t { kIdentity, kFp8E4m3, kNvfp4 };

enum class GroupKind : std::uint8_t { kFullAttention, kSlidingWindow, kRecurrent, kCross };

/// One cache group: layers that share a block geometry and an attention pattern.
struct CacheGroup {
  GroupKind kind = GroupKind::kFullAttention;
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t planes = 2;  ///< K and V; 1 for a latent (MLA) cache
  DType dtype = DType::kBf16;
  std::uint32_t window_tokens = 0;  ///< for kSlidingWindow
};

struct GqaOptions {
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  DType dtype = DType::kBf16;
  std::uint32_t block_tokens = 16;
};

/// Geometry of one model's cache. Blocks are `block_tokens` positions, layer-major inside.
struct KvLayout {
  std::uint32_t block_tokens = 16;
  std::vector<CacheGroup> groups;

  static KvLayout Gqa(const GqaOptions& options) {
    return {.block_tokens = options.block_tokens,
            .groups = {{.layers = options.layers,
                        .kv_heads = options.kv_heads,
                        .head_dim = options.head_dim,
                        .dtype = options.dtype}}};
  }
  /// A block of `bytes` opaque bytes in `layers` equal layers, for engines with their own packing
  /// and for tests. `bytes` must be a multiple of `layers`.
  static KvLayout Opaque(std::uint64_t bytes, std::uint32_t block_tokens, std::uint32_t layers = 1);

  std::uint64_t opaque_block_bytes = 0;  ///< when not 0, overrides the group's arithmetic
};

/// Bytes of one layer of one block of `group` in `format`, scales included (NVFP4: one byte per
/// 16 values). Error names the field that is zero, unknown or overflows 64 bits; never returns 0.
TIDEPOOL_EXPORT StatusOr<std::uint64_t> BlockLayerBytes(const KvLayout& layout, GroupIndex group,
                                                        StorageFormat format);

/// Bytes of one whole block: layers x BlockLayerBytes.
TIDEPOOL_EXPORT StatusOr<std::uint64_t> BlockBytes(const KvLayout& layout, GroupIndex group,
                                                   StorageFormat format);

/// Byte offset of a slot in an arena whose slots are `stride_bytes` apart. The id is widened
/// before the multiply, here and in every kernel.
[[nodiscard]] constexpr std::uint64_t SlotOffset(SlotId slot, std::uint64_t stride_bytes) noexcept {
  return static_cast<std::uint64_t>(slot.value()) * stride_bytes;
}

}  // namespace tidepool
