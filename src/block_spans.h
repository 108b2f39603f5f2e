// block_spans.h - spans of block ids read as numbers, and vector loops over per-block words.
//
// Blocks allocated together have consecutive ids, so most chunks of a span are consecutive and
// their words are neighbours; chunks that are not are gathered. Vectors are spelled out (the
// compilers' portable extension) because at -O2 neither compiler finds them. Private.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "tidepool/types.h"

namespace tidepool::internal {

// A BlockId is its number, so an array of ids can be read and written as an array of numbers.
static_assert(sizeof(BlockId) == sizeof(std::uint32_t) && std::is_standard_layout_v<BlockId>);
inline const std::uint32_t* Numbers(std::span<const BlockId> blocks) noexcept {
  return reinterpret_cast<const std::uint32_t*>(blocks.data());
}
inline std::uint32_t* Numbers(std::span<BlockId> blocks) noexcept {
  return reinterpret_cast<std::uint32_t*>(blocks.data());
}

/// Appends ids as bytes: std::vector copies types with a default value one by one.
inline void AppendIds(std::vector<BlockId>& to, std::span<const BlockId> ids) {
  if (ids.empty()) return;
  const std::size_t size = to.size();
  to.resize(size + ids.size());
  std::memcpy(static_cast<void*>(to.data() + size), ids.data(), ids.size_bytes());
}

/// Words handled at a time: enough to pay for the test at the end, few enough to stop early.
inline constexpr std::size_t kChunk = 16;

using Words4 [[gnu::vector_size(16)]] = std::uint32_t;

inline Words4 Load4(const std::uint32_t* words) noexcept {
  Words4 value;
  std::memcpy(&value, words, sizeof(value));
  return value;
}
inline void Store4(std::uint32_t* words, Words4 value) noexcept {
  std::memcpy(words, &value, sizeof(value));
}
inline std::uint64_t Fold(Words4 value) noexcept {
  std::uint64_t halves[2];
  std::memcpy(halves, &value, sizeof(halves));
  return halves[0] | halves[1];
}

/// Whether kChunk ids are consecutive and ascending.
inline bool ChunkConsecutive(const std::uint32_t* ids) noexcept {
  const Words4 first = ids[0] + Words4{0, 1, 2, 3};
  const Words4 differ = (Load4(ids) ^ first) | (Load4(ids + 4) ^ (first + 4)) |
                        (Load4(ids + 8) ^ (first + 8)) | (Load4(ids + 12) ^ (first + 12));
  return Fold(differ) == 0;
}

/// Whether kChunk neighbouring words equal `key` in the bits of `mask`.
inline bool NeighboursAlike(const std::uint32_t* words, std::uint32_t key,
                            std::uint32_t mask) noexcept {
  const Words4 differ = (Load4(words) ^ key) | (Load4(words + 4) ^ key) | (Load4(words + 8) ^ key) |
                        (Load4(words + 12) ^ key);
  return Fold(differ & mask) == 0;
}

/// Whether the words of kChunk ids equal `key` in the bits of `mask`.
inline bool ChunkAlike(const std::uint32_t* words, const std::uint32_t* ids, std::uint32_t key,
                       std::uint32_t mask) noexcept {
  if (ChunkConsecutive(ids)) return NeighboursAlike(words + ids[0], key, mask);
  std::uint32_t differ = 0;
  for (std::size_t i = 0; i < kChunk; ++i) differ |= words[ids[i]] ^ key;
  return (differ & mask) == 0;
}

/// How many leading blocks have the first one's word in the bits of `mask`. REQUIRES: not empty.
inline std::size_t AlikePrefix(const std::uint32_t* words, std::span<const BlockId> blocks,
                               std::uint32_t mask) noexcept {
  const std::uint32_t* const ids = Numbers(blocks);
  const std::uint32_t key = words[ids[0]];
  std::size_t end = 0;
  while (end + kChunk <= blocks.size() && ChunkAlike(words, ids + end, key, mask)) end += kChunk;
  while (end < blocks.size() && ((words[ids[end]] ^ key) & mask) == 0) ++end;
  return end;
}

/// How many of the last blocks have the very last one's. REQUIRES: not empty.
inline std::size_t AlikeSuffix(const std::uint32_t* words, std::span<const BlockId> blocks,
                               std::uint32_t mask) noexcept {
  const std::uint32_t* const ids = Numbers(blocks);
  const std::uint32_t key = words[ids[blocks.size() - 1]];
  std::size_t begin = blocks.size();
  while (begin >= kChunk && ChunkAlike(words, ids + begin - kChunk, key, mask)) begin -= kChunk;
  while (begin > 0 && ((words[ids[begin - 1]] ^ key) & mask) == 0) --begin;
  return blocks.size() - begin;
}

/// Flips the bits of `flip` in the word of each block.
inline void FlipWords(std::uint32_t* words, std::span<const BlockId> blocks,
                      std::uint32_t flip) noexcept {
  const std::uint32_t* ids = Numbers(blocks);
  std::size_t left = blocks.size();
  for (; left >= kChunk; left -= kChunk, ids += kChunk) {
    if (ChunkConsecutive(ids)) {
      std::uint32_t* const run = words + ids[0];
      for (std::size_t i = 0; i < kChunk; i += 4) Store4(run + i, Load4(run + i) ^ flip);
    } else {
      for (std::size_t i = 0; i < kChunk; ++i) words[ids[i]] ^= flip;
    }
  }
  for (; left > 0; --left, ++ids) words[*ids] ^= flip;
}

/// Length of the consecutive ascending run that ends the span. REQUIRES: not empty.
inline std::size_t TrailingRun(std::span<const BlockId> blocks) noexcept {
  const std::uint32_t* const ids = Numbers(blocks);
  const std::size_t size = blocks.size();
  const std::uint32_t last = ids[size - 1];
  std::size_t run = 1;
  for (; run + kChunk <= size; run += kChunk) {
    const std::uint32_t* const chunk = ids + (size - run - kChunk);
    if (chunk[kChunk - 1] + run != last || !ChunkConsecutive(chunk)) break;
  }
  while (run < size && ids[size - run - 1] + run == last) ++run;
  return run;
}

/// Sets `count` neighbouring words; returns how many were zero.
inline std::uint32_t FillWords(std::uint32_t* words, std::uint32_t count,
                               std::uint32_t value) noexcept {
  Words4 zeros = {0, 0, 0, 0};
  for (; count >= 4; count -= 4, words += 4) {
    zeros -= Words4(Load4(words) == 0);  // a true lane is all ones
    Store4(words, Words4{value, value, value, value});
  }
  std::uint32_t total = zeros[0] + zeros[1] + zeros[2] + zeros[3];
  for (; count > 0; --count, ++words) {
    total += *words == 0 ? 1u : 0u;
    *words = value;
  }
  return total;
}

/// How many of the `count` words that end before `end` differ from `value`, from the last backwards
/// to the first that equals it.
inline std::uint32_t DifferingSuffix(const std::uint32_t* end, std::uint32_t count,
                                     std::uint32_t value) noexcept {
  std::uint32_t differing = 0;
  for (; count - differing >= kChunk; differing += kChunk) {
    const std::uint32_t* const chunk = end - differing - kChunk;
    const Words4 equal = Words4(Load4(chunk) == value) | Words4(Load4(chunk + 4) == value) |
                         Words4(Load4(chunk + 8) == value) | Words4(Load4(chunk + 12) == value);
    if (Fold(equal) != 0) break;
  }
  while (differing < count && *(end - differing - 1) != value) ++differing;
  return differing;
}

}  // namespace tidepool::internal
