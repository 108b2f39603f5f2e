// Bytes of a block in every format, and the errors for geometries that have none.
#include "tidepool/kv_layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace tidepool {
namespace {

constexpr std::uint32_t kMax32 = std::numeric_limits<std::uint32_t>::max();

KvLayout OneLayer(DType dtype = DType::kBf16) {
  return KvLayout::Gqa(
      {.layers = 1, .kv_heads = 8, .head_dim = 128, .dtype = dtype, .block_tokens = 16});
}

std::uint64_t Bytes(const KvLayout& layout, StorageFormat format = StorageFormat::kIdentity) {
  const StatusOr<std::uint64_t> bytes = BlockBytes(layout, 0, format);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.ok() ? *bytes : 0;
}

void ExpectError(const KvLayout& layout, StorageFormat format, const std::string& words) {
  const StatusOr<std::uint64_t> bytes = BlockBytes(layout, 0, format);
  ASSERT_FALSE(bytes.ok()) << *bytes;
  EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(bytes.status().message()).find(words), std::string::npos) << bytes.status();
}

TEST(KvLayoutTest, S09BytesPerBlockForEveryStorageFormat) {
  EXPECT_EQ(Bytes(OneLayer()), 65'536u);
  EXPECT_EQ(Bytes(OneLayer(), StorageFormat::kFp8E4m3), 32'768u);
  EXPECT_EQ(Bytes(OneLayer(), StorageFormat::kNvfp4), 18'432u);
  ExpectError(OneLayer(), static_cast<StorageFormat>(77), "format is 77");
  ExpectError(OneLayer(static_cast<DType>(9)), StorageFormat::kIdentity, "dtype is 9");
}

TEST(KvLayoutTest, S10OffsetsBeyond2To31) {
  constexpr std::uint64_t kBlockBytes = 1'002'240;
  static_assert(SlotOffset(SlotId(2142), kBlockBytes) == 2'146'798'080);
  static_assert(SlotOffset(SlotId(2143), kBlockBytes) == 2'147'800'320);
  static_assert(SlotOffset(SlotId(5'000'000), kBlockBytes) == 5'011'200'000'000);
  static_assert(SlotOffset(SlotId(32'768), 65'536) == 2'147'483'648);
  EXPECT_EQ(SlotOffset(SlotId(kMax32 - 1), kBlockBytes), (std::uint64_t{kMax32} - 1) * kBlockBytes);
}

TEST(KvLayoutTest, ABlockIsItsLayers) {
  KvLayout layout = OneLayer();
  layout.groups[0].layers = 80;
  EXPECT_EQ(Bytes(layout), 80u * 65'536);
  EXPECT_EQ(*BlockLayerBytes(layout, 0, StorageFormat::kNvfp4), 18'432u);
  layout.groups[0].planes = 1;  // latent cache
  EXPECT_EQ(Bytes(layout), 80u * 32'768);
}

TEST(KvLayoutTest, DTypes) {
  EXPECT_EQ(Bytes(OneLayer(DType::kFp32)), 131'072u);
  EXPECT_EQ(Bytes(OneLayer(DType::kFp16)), 65'536u);
  EXPECT_EQ(Bytes(OneLayer(DType::kFp8)), 32'768u);
}

TEST(KvLayoutTest, GroupsHaveTheirOwnGeometry) {
  KvLayout layout = OneLayer();
  layout.groups.push_back({.kind = GroupKind::kSlidingWindow,
                           .layers = 2,
                           .kv_heads = 4,
                           .head_dim = 64,
                           .window_tokens = 1024});
  EXPECT_EQ(*BlockBytes(layout, 1, StorageFormat::kIdentity), 2u * 2 * 16 * 4 * 64 * 2);
  EXPECT_FALSE(BlockBytes(layout, 2, StorageFormat::kIdentity).ok());
}

TEST(KvLayoutTest, ErrorsNameTheField) {
  const auto with = [](auto change) {
    KvLayout layout = OneLayer();
    change(layout);
    return layout;
  };
  const auto identity = StorageFormat::kIdentity;
  ExpectError(with([](KvLayout& l) { l.groups.clear(); }), identity, "group is 0");
  ExpectError(with([](KvLayout& l) { l.groups[0].layers = 0; }), identity, "layers is 0");
  ExpectError(with([](KvLayout& l) { l.groups[0].kv_heads = 0; }), identity, "kv_heads is 0");
  ExpectError(with([](KvLayout& l) { l.groups[0].head_dim = 0; }), identity, "head_dim is 0");
  ExpectError(with([](KvLayout& l) { l.groups[0].planes = 0; }), identity, "planes is 0");
  ExpectError(with([](KvLayout& l) { l.block_tokens = 0; }), identity, "block_tokens is 0");
  const KvLayout odd = with([](KvLayout& l) {
    l.block_tokens = 1;
    l.groups[0] = {.layers = 1, .kv_heads = 1, .head_dim = 12, .planes = 1};
  });
  ExpectError(odd, StorageFormat::kNvfp4, "head_dim is 12");
}

TEST(KvLayoutTest, OverflowIsAnError) {
  KvLayout layout = OneLayer();
  layout.groups[0] = {.layers = 1, .kv_heads = kMax32, .head_dim = kMax32, .planes = 2};
  ExpectError(layout, StorageFormat::kIdentity, "overflows 64 bits");
  layout.block_tokens = 1;
  layout.groups[0] = {.layers = 16, .kv_heads = 1u << 30, .head_dim = 1u << 30, .planes = 1};
  ExpectError(layout, StorageFormat::kIdentity, "layers is 16");
}

TEST(KvLayoutTest, OpaqueBlocksAreTheirBytes) {
  const KvLayout layout = KvLayout::Opaque(6144, 16, 3);
  EXPECT_EQ(Bytes(layout), 6144u);
  EXPECT_EQ(*BlockLayerBytes(layout, 0, StorageFormat::kIdentity), 2048u);
  ExpectError(layout, StorageFormat::kFp8E4m3, "opaque");
  ExpectError(KvLayout::Opaque(100, 16, 3), StorageFormat::kIdentity, "opaque_block_bytes is 100");
  ExpectError(KvLayout::Opaque(0, 16), StorageFormat::kIdentity, "opaque_block_bytes is 0");
  ExpectError(KvLayout::Opaque(64, 16, 0), StorageFormat::kIdentity, "layers is 0");
  ExpectError(KvLayout::Opaque(64, 0), StorageFormat::kIdentity, "block_tokens is 0");
}

}  // namespace
}  // namespace tidepool
