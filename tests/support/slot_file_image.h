// tests/support/slot_file_image.h - a kept file in memory, written with the public functions of
// slot_file.h: for tests of the format, of its reader and of tidepool-inspect, and for the corpus
// of the fuzzer.
//
// Thread contract: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tidepool/transfer/slot_file.h"

namespace tidepool::testing {

/// A small one: payloads of 600 bytes in segments of 200, blocks of 4 tokens.
SlotFileLayout SmallLayout(std::uint32_t slots);
/// Any that CheckLayout takes, with payloads of at most 8 KiB.
SlotFileLayout RandomLayout(std::mt19937_64& random, std::uint32_t slots);
/// All fields random, no tokens.
BlockIdentity RandomIdentity(std::mt19937_64& random);

class SlotFileImage {
 public:
  /// A superblock, state pages of sequence 1 and 2, empty slots.
  explicit SlotFileImage(const SlotFileLayout& layout);

  void Put(const SlotFileState& state);
  /// A random payload and its header, with random tokens if the layout stores them.
  void Write(std::uint32_t slot, std::uint64_t generation, BlockIdentity who);

  [[nodiscard]] const SlotFileLayout& layout() const { return layout_; }
  [[nodiscard]] std::span<std::byte> bytes() { return bytes_; }
  [[nodiscard]] std::span<std::byte> header(std::uint32_t slot);
  [[nodiscard]] std::span<std::byte> payload(std::uint32_t slot);
  /// REQUIRES: the header is sound.
  [[nodiscard]] SlotHeader Parsed(std::uint32_t slot);

 private:
  SlotFileLayout layout_;
  std::vector<std::byte> bytes_;
  std::mt19937_64 random_{7};
};

/// Makes the checksum at the end of a page or header right again, as a program that writes
/// nonsense would.
void Reseal(std::span<std::byte> page_or_header);

void SaveBytes(const std::string& path, std::span<const std::byte> bytes);
/// Empty if there is none.
std::vector<std::byte> LoadBytes(const std::string& path);

}  // namespace tidepool::testing
