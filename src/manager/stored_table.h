// Blocks that a kept tier had when it was opened and that nobody has asked for yet. They have slots
// but no ids: a request that continues into one makes it a block like any other. Until then they
// are the first to leave the tier, in the order in which they were written, which is about that in
// which they had left the tiers above: tails first.
//
// Thread contract: scheduler thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tidepool/transfer/stored_block.h"

namespace tidepool::internal {

class StoredTable {
 public:
  StoredTable() = default;
  /// Of several slots with one block the latest counts; the others are appended to `superseded`.
  StoredTable(StoredBlocks&& stored, std::uint32_t block_tokens, std::vector<SlotId>& superseded);

  /// Blocks that still have their slots.
  [[nodiscard]] std::uint32_t size() const noexcept { return left_; }
  [[nodiscard]] std::span<const StoredBlock> blocks() const noexcept { return blocks_; }

  /// The block of this digest, if its tokens and content are these too; null if there is none. In a
  /// tier without tokens the digest has to do.
  [[nodiscard]] const StoredBlock* Find(const PrefixHash& digest, std::span<const Token> tokens,
                                        const PrefixHash* content) const noexcept;
  /// It has become a block, or has left.
  void Erase(const StoredBlock& block) noexcept;
  /// Nothing is found any more; slots are given up as before.
  void Hide() noexcept { by_digest_.clear(); }

  // Giving up: appends slots.
  void TakeOldest(std::uint32_t count, std::vector<SlotId>& slots);
  void TakeRoot(const PrefixHash& root, std::vector<SlotId>& slots);
  void TakeBeyond(std::uint32_t limit, std::vector<SlotId>& slots);

 private:
  struct DigestHash {
    std::size_t operator()(const PrefixHash& digest) const noexcept { return digest.low; }
  };
  template <typename Wanted>
  void TakeWhere(const Wanted& wanted, std::vector<SlotId>& slots);

  std::uint32_t block_tokens_ = 0;
  std::vector<StoredBlock> blocks_;  // gone ones have no slot
  std::vector<Token> tokens_;        // in the same order
  std::vector<std::uint32_t> by_generation_;
  std::size_t oldest_ = 0;  // in by_generation_; none before has a slot
  std::uint32_t left_ = 0;
  absl::flat_hash_map<PrefixHash, std::uint32_t, DigestHash> by_digest_;
};

}  // namespace tidepool::internal
