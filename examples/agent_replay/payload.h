// agent_replay/payload.h - what stands in a block's KV bytes, and its tokens: both are functions of
// the block's identity (scope, id) alone, so that every reuse can be checked byte for byte.
//
// Thread contract: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tidepool/types.h"

namespace agent_replay {

struct BlockIdentity {
  std::uint64_t scope = 0;
  std::uint64_t id = 0;
};

/// Writes the payload. Each 8-byte word differs from its neighbours and from the same word of other
/// blocks, so that stale, swapped, shifted and torn copies all show.
void FillPayload(std::uint64_t seed, BlockIdentity block, std::span<std::byte> bytes) noexcept;
/// True if `bytes` is exactly what FillPayload writes.
bool CheckPayload(std::uint64_t seed, BlockIdentity block,
                  std::span<const std::byte> bytes) noexcept;

/// Smallest block that holds a scope and an id below 2^60 exactly.
inline constexpr std::uint32_t kMinBlockTokens = 4;

/// Writes the tokens of a full block. Two blocks are equal in their tokens only if they are the
/// same block, and differ in the first one or two tokens unless their ids do not fit there.
void FillTokens(BlockIdentity block, std::span<tidepool::Token> tokens) noexcept;
/// Tokens of a prompt's end that is no full block: unlike any block's and any other turn's.
void FillTailTokens(std::uint64_t turn_key, std::span<tidepool::Token> tokens) noexcept;

}  // namespace agent_replay
