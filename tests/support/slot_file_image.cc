#include "tests/support/slot_file_image.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace tidepool::testing {
namespace {

// % instead of a distribution: the same bytes with every standard library.
std::uint64_t Below(std::mt19937_64& random, std::uint64_t bound) { return random() % bound; }

PrefixHash RandomHash(std::mt19937_64& random) {
  const std::uint64_t high = random();
  return {high, random()};
}

}  // namespace

SlotFileLayout SmallLayout(std::uint32_t slots) {
  SlotFileLayout layout;
  layout.identity = "weights-7 bf16 shard 0 of 1";
  layout.digest_check = 0x1122334455667788;
  layout.slots = slots;
  layout.layers = 3;
  layout.block_tokens = 4;
  layout.slot_bytes = 600;
  layout.slot_stride = 4096;
  layout.segment_ends = {200, 400, 600};
  return layout;
}

SlotFileLayout RandomLayout(std::mt19937_64& random, std::uint32_t slots) {
  SlotFileLayout layout;
  layout.identity.resize(Below(random, 8) == 0 ? kMaxIdentityBytes : Below(random, 100));
  for (char& c : layout.identity) c = static_cast<char>(Below(random, 256));
  layout.digest_check = random();
  layout.slots = slots;
  layout.layers = static_cast<std::uint32_t>(1 + Below(random, 8));
  layout.block_tokens = static_cast<std::uint32_t>(1 + Below(random, 64));
  layout.stores_tokens = Below(random, 2) == 0;
  layout.slot_bytes = layout.layers * (1 + Below(random, 1024));
  layout.slot_stride = (layout.slot_bytes + 4095) / 4096 * 4096 + 4096 * Below(random, 2);
  const std::uint64_t segments = 1 + Below(random, std::min<std::uint64_t>(layout.slot_bytes, 9));
  for (std::uint64_t i = 1; i <= segments; ++i) {
    layout.segment_ends.push_back(layout.slot_bytes * i / segments);
  }
  return layout;
}

BlockIdentity RandomIdentity(std::mt19937_64& random) {
  BlockIdentity who;
  who.root = RandomHash(random);
  who.parent = RandomHash(random);
  who.digest = RandomHash(random);
  who.content = Below(random, 2) == 0 ? PrefixHash{} : RandomHash(random);
  who.epoch = random();
  who.position = static_cast<std::uint32_t>(random());
  return who;
}

SlotFileImage::SlotFileImage(const SlotFileLayout& layout)
    : layout_(layout), bytes_(layout.file_bytes()) {
  std::ranges::copy(EncodeSuperblock(layout), bytes_.begin());
  Put({.sequence = 1});
  Put({.sequence = 2});
}

void SlotFileImage::Put(const SlotFileState& state) {
  std::ranges::copy(EncodeState(state), bytes().subspan(StatePageOffset(state.sequence)).begin());
}

void SlotFileImage::Write(std::uint32_t slot, std::uint64_t generation, BlockIdentity who) {
  std::vector<Token> tokens(layout_.stores_tokens ? layout_.block_tokens : 0);
  for (Token& token : tokens) token = static_cast<Token>(random_());
  who.tokens = tokens;
  const std::span<std::byte> data = payload(slot);
  for (std::byte& b : data) b = static_cast<std::byte>(Below(random_, 256));
  std::vector<std::uint64_t> sums;
  std::uint64_t begin = 0;
  for (const std::uint64_t end : layout_.segment_ends) {
    sums.push_back(SegmentSum(data.subspan(begin, end - begin)));
    begin = end;
  }
  EncodeSlotHeader({slot, generation, who, std::as_bytes(std::span(sums))}, layout_, header(slot));
}

std::span<std::byte> SlotFileImage::header(std::uint32_t slot) {
  return bytes().subspan(layout_.HeaderOffset(slot), layout_.header_bytes());
}

std::span<std::byte> SlotFileImage::payload(std::uint32_t slot) {
  return bytes().subspan(layout_.PayloadOffset(slot), layout_.slot_bytes);
}

SlotHeader SlotFileImage::Parsed(std::uint32_t slot) {
  SlotHeader parsed;
  if (ParseSlotHeader(header(slot), layout_, slot, parsed) != HeaderState::kSound) std::abort();
  return parsed;
}

void Reseal(std::span<std::byte> page_or_header) {
  const std::size_t at = page_or_header.size() - sizeof(std::uint64_t);
  const std::uint64_t sum = SegmentSum(page_or_header.first(at));
  std::memcpy(page_or_header.data() + at, &sum, sizeof(sum));
}

void SaveBytes(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

std::vector<std::byte> LoadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> chars((std::istreambuf_iterator<char>(file)), {});
  const auto bytes = std::as_bytes(std::span(chars));
  return {bytes.begin(), bytes.end()};
}

}  // namespace tidepool::testing
