#include "payload.h"

#include <algorithm>
#include <cstring>

#include "random.h"

namespace agent_replay {
namespace {

constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;

std::uint64_t Key(std::uint64_t seed, BlockIdentity block) {
  return Mix(Mix(seed ^ block.scope) ^ block.id);
}

// Bit 30 tells tails from blocks.
constexpr std::uint32_t kTailBit = 1u << 30;
constexpr std::uint32_t kTokenMask = kTailBit - 1;

tidepool::Token ToToken(std::uint64_t bits) {
  return static_cast<tidepool::Token>(bits & kTokenMask);
}

/// A permutation of 60 bits for each scope (odd factors and shifts are invertible): ids that are
/// close, equal in their lower half, or equal in another scope, differ in both halves of it.
std::uint64_t Permuted(std::uint64_t id, std::uint64_t scope) {
  constexpr std::uint64_t kMask = (std::uint64_t{1} << 60) - 1;
  id = (id ^ Mix(scope)) * kStep & kMask;
  id ^= id >> 30;
  return id * 0xbf58476d1ce4e5b9u & kMask;
}

}  // namespace

void FillPayload(std::uint64_t seed, BlockIdentity block, std::span<std::byte> bytes) noexcept {
  std::uint64_t word = Key(seed, block);
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8, word += kStep) std::memcpy(&bytes[at], &word, 8);
  if (at < bytes.size()) std::memcpy(&bytes[at], &word, bytes.size() - at);
}

bool CheckPayload(std::uint64_t seed, BlockIdentity block,
                  std::span<const std::byte> bytes) noexcept {
  // Differences are collected over a line before they are looked at: no branch a word.
  constexpr std::size_t kLineWords = 64;
  std::uint64_t word = Key(seed, block);
  std::size_t at = 0;
  for (; at + kLineWords * 8 <= bytes.size(); at += kLineWords * 8) {
    std::uint64_t line[kLineWords];
    std::memcpy(line, &bytes[at], sizeof(line));
    std::uint64_t difference = 0;
    for (std::size_t i = 0; i < kLineWords; ++i) difference |= line[i] ^ (word + i * kStep);
    if (difference != 0) return false;
    word += kLineWords * kStep;
  }
  for (; at < bytes.size(); at += 8, word += kStep) {
    if (std::memcmp(&bytes[at], &word, std::min<std::size_t>(8, bytes.size() - at)) != 0) {
      return false;
    }
  }
  return true;
}

void FillTokens(BlockIdentity block, std::span<tidepool::Token> tokens) noexcept {
  const std::uint64_t id = Permuted(block.id, block.scope);
  tokens[0] = ToToken(id);
  tokens[1] = ToToken(id >> 30);
  tokens[2] = ToToken(block.scope);
  tokens[3] = ToToken(block.scope >> 30);
  std::uint64_t filler = Key(0, block);
  for (std::size_t i = 4; i < tokens.size(); ++i) tokens[i] = ToToken((filler += kStep) >> 20);
}

void FillTailTokens(std::uint64_t turn_key, std::span<tidepool::Token> tokens) noexcept {
  std::uint64_t filler = Mix(turn_key);
  for (tidepool::Token& token : tokens) {
    token = ToToken((filler += kStep) >> 20) | static_cast<tidepool::Token>(kTailBit);
  }
}

}  // namespace agent_replay
