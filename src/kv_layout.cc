#include "tidepool/kv_layout.h"

#include <array>
#include <string>

namespace tidepool {
namespace {

// One scale byte for this many 4-bit values.
constexpr std::uint64_t kNvfp4Group = 16;

struct Factor {
  const char* name;
  std::uint64_t value;
};

std::string Named(const char* field, std::uint64_t value) {
  return std::string(field) + " is " + std::to_string(value);
}

Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

StatusOr<std::uint64_t> DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
    case DType::kFp16:
      return std::uint64_t{2};
    case DType::kFp32:
      return std::uint64_t{4};
    case DType::kFp8:
      return std::uint64_t{1};
  }
  return Invalid(Named("dtype", static_cast<std::uint64_t>(dtype)) + ", which is unknown");
}

// The product, or an error that names the factor that is zero or carries it past 64 bits.
template <std::size_t kFactors>
StatusOr<std::uint64_t> Product(const std::array<Factor, kFactors>& factors) {
  std::uint64_t product = 1;
  for (const Factor& factor : factors) {
    if (factor.value == 0) return Invalid(Named(factor.name, 0));
    if (__builtin_mul_overflow(product, factor.value, &product)) {
      return Invalid(Named(factor.name, factor.value) + ": the block overflows 64 bits of bytes");
    }
  }
  return product;
}

StatusOr<std::uint64_t> LayerValues(const KvLayout& layout, const CacheGroup& group) {
  return Product(
      std::array{Factor{"planes", group.planes}, Factor{"block_tokens", layout.block_tokens},
                 Factor{"kv_heads", group.kv_heads}, Factor{"head_dim", group.head_dim}});
}

StatusOr<std::uint64_t> Nvfp4Bytes(std::uint64_t values, const CacheGroup& group) {
  if (values % kNvfp4Group != 0) {
    return Invalid(Named("head_dim", group.head_dim) + ": " + std::to_string(values) +
                   " values a layer are no multiple of the 16 that share an NVFP4 scale");
  }
  return values / 2 + values / kNvfp4Group;
}

StatusOr<std::uint64_t> FormatBytes(std::uint64_t values, const CacheGroup& group,
                                    StorageFormat format) {
  switch (format) {
    case StorageFormat::kIdentity: {
      StatusOr<std::uint64_t> bytes = DTypeBytes(group.dtype);
      if (!bytes.ok()) return bytes;
      return Product(std::array{Factor{"values", values}, Factor{"dtype bytes", *bytes}});
    }
    case StorageFormat::kFp8E4m3:
      return values;
    case StorageFormat::kNvfp4:
      return Nvfp4Bytes(values, group);
  }
  return Invalid(Named("format", static_cast<std::uint64_t>(format)) + ", which is unknown");
}

bool IsOpaque(const KvLayout& layout, const CacheGroup& group) {
  return layout.opaque_block_bytes != 0 ||
         (group.planes == 0 && group.kv_heads == 0 && group.head_dim == 0);
}

// Opaque bytes have no numeric meaning, so they can only be stored as they are.
StatusOr<std::uint64_t> OpaqueLayerBytes(const KvLayout& layout, const CacheGroup& group,
                                         StorageFormat format) {
  if (layout.opaque_block_bytes == 0) return Invalid(Named("opaque_block_bytes", 0));
  if (layout.block_tokens == 0) return Invalid(Named("block_tokens", 0));
  if (format != StorageFormat::kIdentity) {
    return Invalid(Named("format", static_cast<std::uint64_t>(format)) +
                   ": an opaque layout can only be stored as kIdentity");
  }
  if (layout.opaque_block_bytes % group.layers != 0) {
    return Invalid(Named("opaque_block_bytes", layout.opaque_block_bytes) +
                   ", no multiple of layers = " + std::to_string(group.layers));
  }
  return layout.opaque_block_bytes / group.layers;
}

}  // namespace

KvLayout KvLayout::Opaque(std::uint64_t bytes, std::uint32_t block_tokens, std::uint32_t layers) {
  return {.block_tokens = block_tokens,
          .groups = {{.layers = layers, .planes = 0}},
          .opaque_block_bytes = bytes};
}

StatusOr<std::uint64_t> BlockLayerBytes(const KvLayout& layout, GroupIndex group,
                                        StorageFormat format) {
  if (group >= layout.groups.size()) {
    return Invalid(Named("group", group) + ", but the layout has " +
                   std::to_string(layout.groups.size()));
  }
  const CacheGroup& geometry = layout.groups[group];
  if (geometry.layers == 0) return Invalid(Named("layers", 0));
  if (IsOpaque(layout, geometry)) return OpaqueLayerBytes(layout, geometry, format);
  const StatusOr<std::uint64_t> values = LayerValues(layout, geometry);
  if (!values.ok()) return values;
  return FormatBytes(*values, geometry, format);
}

StatusOr<std::uint64_t> BlockBytes(const KvLayout& layout, GroupIndex group, StorageFormat format) {
  const StatusOr<std::uint64_t> layer = BlockLayerBytes(layout, group, format);
  if (!layer.ok()) return layer;
  return Product(
      std::array{Factor{"layer bytes", *layer}, Factor{"layers", layout.groups[group].layers}});
}

}  // namespace tidepool
