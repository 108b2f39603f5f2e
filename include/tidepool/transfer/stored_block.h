// tidepool/transfer/stored_block.h - what a tier that is kept across restarts knows of a block: who
// it is, which the manager says when it writes it, and what the tier found when it was opened.
//
// Thread contract: plain values.
#pragma once

#include <cstdint>
#include <memory>
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

/// A copy with tokens of its own, for what outlives the call that hands it over.
inline std::shared_ptr<const BlockIdentity> KeepIdentity(const BlockIdentity& who) {
  struct Kept {
    BlockIdentity identity;
    std::vector<Token> tokens;
  };
  auto kept = std::make_shared<Kept>();
  kept->identity = who;
  kept->tokens.assign(who.tokens.begin(), who.tokens.end());
  kept->identity.tokens = kept->tokens;
  return {kept, &kept->identity};
}

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
};

/// The same block may be there more than once: that of the latest generation counts.
struct StoredBlocks {
  std::vector<StoredBlock> blocks;
  std::vector<Token> tokens;  ///< block_tokens for each block, or empty: digests only
  std::uint64_t epoch = 0;    ///< of the file: blocks of earlier ones are not in the list
  RecoveryReport report;
};

/// What a kept tier must never find again, besides all of earlier epochs.
struct Invalidation {
  std::uint64_t epoch = 0;              ///< the current one
  std::uint64_t order = 0;              ///< copies of this order and later are not meant
  std::span<const PrefixHash> roots{};  ///< blocks of these namespaces
  bool all = false;                     ///< every block
};

/// Accounts of a file tier since it was opened.
struct FileTierStats {
  std::uint64_t payload_bytes_written = 0;
  std::uint64_t header_bytes_written = 0;
  std::uint64_t payload_bytes_read = 0;
  std::uint64_t headers_written = 0;
  std::uint64_t syncs = 0;
  std::uint64_t errors = 0;             ///< of the device, all kinds
  std::uint64_t checksum_failures = 0;  ///< bytes that came back wrong
  std::uint64_t no_space = 0;           ///< writes that the device had no room for
  /// Bytes written for each byte of payload; 1 before the first.
  [[nodiscard]] double write_amplification() const noexcept {
    if (payload_bytes_written == 0) return 1;
    return 1 +
           static_cast<double>(header_bytes_written) / static_cast<double>(payload_bytes_written);
  }
};

}  // namespace tidepool
