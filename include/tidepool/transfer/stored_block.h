// tidepool/transfer/stored_block.h - what a tier that is kept across restarts knows of a block: who
// it is, which the manager says when it writes it, and what the tier found when it was opened.
//
// Thread contract: plain values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tidepool/types.h"

namespace tidepool {

/// Who a block is. Digests are those of docs/digest.md, keyed by ManagerOptions::digest_seed.
struct BlockIdentity {
  PrefixHash root;    ///< of its namespace and epoch
  PrefixHash parent;  ///< the block before it, or the root
  PrefixHash digest;
  PrefixHash content;  ///< key of content that is not tokens; all zero = none
  std::uint64_t epoch = 0;
  std::uint32_t position = 0;     ///< block index in its prefix
  std::span<const Token> tokens;  ///< a whole block of them, or none: known by its digest alone
};

/// A block that was found in a tier when it was opened.
struct StoredBlock {
  SlotId slot;
  std::uint32_t position = 0;
  std::uint64_t generation = 0;  ///< of the write: larger is later
  std::uint64_t epoch = 0;
  PrefixHash root;
  PrefixHash digest;
  PrefixHash content;
};

/// What opening a tier came to. Slots: all = sound + the others.
struct RecoveryReport {
  std::uint32_t slots = 0;
  std::uint32_t recovered = 0;   ///< may be found again
  std::uint32_t empty = 0;       ///< never written
  std::uint32_t torn = 0;        ///< damaged header
  std::uint32_t misplaced = 0;   ///< header of another slot
  std::uint32_t foreign = 0;     ///< header of another layout
  std::uint32_t stale = 0;       ///< of an earlier epoch, a dropped namespace or a cleared file
  std::uint32_t superseded = 0;  ///< the same block was written again elsewhere, later
  std::uint32_t corrupt = 0;     ///< payload does not match (only when payloads are verified)
  std::uint32_t beyond_end = 0;  ///< the file ends before
};

struct StoredBlocks {
  std::vector<StoredBlock> blocks;
  std::vector<Token> tokens;  ///< block_tokens for each block, or empty: digests only
  std::uint64_t epoch = 0;    ///< of the file: blocks of earlier ones are not in the list
  RecoveryReport report;
};

}  // namespace tidepool
