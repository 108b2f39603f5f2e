// The corpus of tests/fuzz/slot_file_fuzz.cc: its seeds are what the code writes today, and all of
// it passes. TIDEPOOL_WRITE_CORPUS=DIRECTORY writes the seeds there instead, after a change of the
// format.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/slot_file_image.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace tidepool {
namespace {

using testing::LoadBytes;
using testing::RandomIdentity;
using testing::Reseal;
using testing::SaveBytes;
using testing::SlotFileImage;
using testing::SmallLayout;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kLargestSeed = 20'000;
const char kCorpus[] = TIDEPOOL_SOURCE_DIR "/tests/fuzz/corpus/slot_file";

template <typename T>
void PutAt(std::span<std::byte> bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

// A file of `slots` blocks, then `edit`; of large ones the first bytes.
Bytes Seed(const SlotFileLayout& layout, const std::function<void(SlotFileImage&)>& edit) {
  std::mt19937_64 random(1);
  SlotFileImage image(layout);
  for (std::uint32_t slot = 0; slot < layout.slots; ++slot) {
    image.Write(slot, slot + 1, RandomIdentity(random));
  }
  edit(image);
  const auto kept = image.bytes().first(std::min(image.bytes().size(), kLargestSeed));
  return {kept.begin(), kept.end()};
}

void Nothing(SlotFileImage&) {}

template <typename T>
std::function<void(SlotFileImage&)> PageField(std::size_t page, std::size_t at, T value) {
  return [=](SlotFileImage& image) {
    PutAt(image.bytes(), page * 4096 + at, value);
    Reseal(image.bytes().subspan(page * 4096, 4096));
  };
}

template <typename T>
std::function<void(SlotFileImage&)> HeaderField(std::size_t at, T value) {
  return [=](SlotFileImage& image) {
    PutAt(image.header(0), at, value);
    Reseal(image.header(0));
  };
}

Bytes First(Bytes bytes, std::size_t count) {
  bytes.resize(count);
  return bytes;
}

std::map<std::string, Bytes> SoundSeeds() {
  std::map<std::string, Bytes> seeds;
  seeds["sound"] = Seed(SmallLayout(1), Nothing);
  seeds["sound_two"] = Seed(SmallLayout(2), Nothing);
  SlotFileLayout layout = SmallLayout(2);
  layout.stores_tokens = false;
  seeds["digests_only"] = Seed(layout, Nothing);
  layout = SmallLayout(1);
  layout.identity = std::string(kMaxIdentityBytes, 'x');
  layout.layers = 1;
  layout.slot_bytes = kMaxFileSegments;
  layout.segment_ends.resize(kMaxFileSegments);
  for (std::uint32_t i = 0; i < kMaxFileSegments; ++i) layout.segment_ends[i] = i + 1;
  seeds["most_segments"] = Seed(layout, Nothing);
  layout = SmallLayout(1);
  layout.slot_stride = 8192;
  layout.block_tokens = 100;
  seeds["wide"] = Seed(layout, Nothing);
  seeds["all_dropped"] = Seed(SmallLayout(1), [](SlotFileImage& image) {
    SlotFileState state{.sequence = 3, .epoch = 1, .least_generation = 2};
    state.dropped.assign(SlotFileState::kMaxDropped, {image.Parsed(0).identity.root, 2});
    image.Put(state);
  });
  seeds["same_block_twice"] = Seed(
      SmallLayout(2), [](SlotFileImage& image) { image.Write(1, 9, image.Parsed(0).identity); });
  seeds["empty"] = Seed(SmallLayout(2), [](SlotFileImage& image) {
    std::ranges::fill(image.header(0), std::byte{0});
  });
  return seeds;
}

std::map<std::string, Bytes> DamagedSeeds() {
  std::map<std::string, Bytes> seeds;
  const Bytes sound = Seed(SmallLayout(1), Nothing);
  seeds["nothing"] = {};
  seeds["three_bytes"] = First(sound, 3);
  seeds["superblock_only"] = First(sound, 4096);
  seeds["ends_in_headers"] = First(Seed(SmallLayout(2), Nothing), 12'288 + 192 + 100);
  seeds["ends_in_payload"] = First(sound, 16'384 + 300);
  seeds["payload_flip"] =
      Seed(SmallLayout(1), [](SlotFileImage& image) { image.payload(0)[10] ^= std::byte{1}; });
  seeds["torn_header"] =
      Seed(SmallLayout(1), [](SlotFileImage& image) { image.header(0)[70] ^= std::byte{1}; });
  seeds["torn_state"] =
      Seed(SmallLayout(1), [](SlotFileImage& image) { image.bytes()[4106] ^= std::byte{1}; });
  seeds["swapped_states"] = Seed(SmallLayout(1), [](SlotFileImage& image) {
    const auto pages = image.bytes().subspan(4096, 8192);
    std::swap_ranges(pages.begin(), pages.begin() + 4096, pages.begin() + 4096);
  });
  return seeds;
}

std::map<std::string, Bytes> HostileSeeds() {
  std::map<std::string, Bytes> seeds;
  const auto page = [](std::size_t number, std::size_t at, auto value) {
    return Seed(SmallLayout(1), PageField(number, at, value));
  };
  const auto header = [](std::size_t at, auto value) {
    return Seed(SmallLayout(1), HeaderField(at, value));
  };
  seeds["wrong_magic"] = page(0, 0, 'X');
  seeds["version_2"] = page(0, 8, std::uint32_t{2});
  seeds["flags"] = page(0, 56, std::uint64_t{3});
  seeds["most_slots"] = page(0, 16, kMaxFileSlots);
  seeds["payload_2_63"] = page(0, 32, std::uint64_t{1} << 63);
  seeds["stride_2_40"] = page(0, 40, std::uint64_t{1} << 40);
  seeds["segments_2_32"] = page(0, 28, ~std::uint32_t{0});
  seeds["segment_end_2_63"] = page(0, 1088, std::uint64_t{1} << 63);
  seeds["dropped_2_32"] = page(1, 32, ~std::uint32_t{0});
  seeds["header_slot"] = header(8, ~std::uint32_t{0});
  seeds["header_tokens"] = header(96, ~std::uint32_t{0});
  seeds["header_sums"] = header(100, ~std::uint32_t{0});
  seeds["header_payload"] = header(104, std::uint64_t{1} << 63);
  seeds["header_fingerprint"] = header(112, std::uint64_t{1});
  return seeds;
}

TEST(SlotFileCorpus, SeedsAreWhatTheCodeWrites) {
  std::map<std::string, Bytes> seeds = SoundSeeds();
  seeds.merge(DamagedSeeds());
  seeds.merge(HostileSeeds());
  EXPECT_EQ(seeds.size(), 31u);
  const char* const write_to = std::getenv("TIDEPOOL_WRITE_CORPUS");
  for (const auto& [name, bytes] : seeds) {
    EXPECT_LE(bytes.size(), kLargestSeed) << name;
    if (write_to != nullptr) SaveBytes(std::string(write_to) + "/" + name, bytes);
    const std::string path = std::string(kCorpus) + "/" + name;
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
    EXPECT_TRUE(LoadBytes(path) == bytes) << path << " differs";
  }
}

TEST(SlotFileCorpus, Passes) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kCorpus)) {
    SCOPED_TRACE(entry.path());
    const Bytes bytes = LoadBytes(entry.path());
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()),
        0);
    ++files;
  }
  EXPECT_GE(files, 31);
}

}  // namespace
}  // namespace tidepool
