// tidepool/testing/flat_cache.h - a policy alone, driven by a flat stream of references through the
// public hooks, as caching papers define hits and misses: no tree, no holds, one block a key.
//
// Thread contract: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "tidepool/block_pool.h"
#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"

namespace tidepool::testing {

/// A key of a flat stream, as the digest its block will have.
[[nodiscard]] constexpr PrefixHash FlatKey(std::uint64_t scope, std::uint64_t id) {
  return {scope + 1, id + 1};
}

class TIDEPOOL_EXPORT FlatCache {
 public:
  /// Room for `capacity` blocks, and for up to `most` after Resize. The policy believes it serves a
  /// tier below HBM, where the stream alone makes recency.
  FlatCache(std::unique_ptr<EvictionPolicy> policy, std::uint32_t capacity, std::uint32_t most = 0);

  /// One reference. Returns true on a hit; a miss makes room if it must and inserts the key.
  bool Reference(const PrefixHash& key);
  /// Victims the policy would name now, as keys; nothing leaves.
  [[nodiscard]] std::vector<PrefixHash> Victims(std::uint32_t count);
  /// Asks for up to `count` victims and evicts them; returns their keys in order.
  std::vector<PrefixHash> Evict(std::uint32_t count);
  /// Pinned blocks are resident but no candidates. REQUIRES: the key is resident.
  void Pin(const PrefixHash& key) { (void)pool_.Pin(blocks_.find(key)->second); }
  void Unpin(const PrefixHash& key) { (void)pool_.Unpin(blocks_.find(key)->second); }
  /// A smaller capacity evicts at once.
  void Resize(std::uint32_t capacity);

  [[nodiscard]] std::size_t resident() const { return blocks_.size(); }
  [[nodiscard]] std::uint32_t capacity() const { return capacity_; }
  [[nodiscard]] bool Has(const PrefixHash& key) const { return blocks_.count(key) != 0; }
  [[nodiscard]] EvictionPolicy& policy() { return *policy_; }

 private:
  struct KeyHash {
    std::size_t operator()(const PrefixHash& key) const noexcept {
      return key.high * 0x9E3779B97F4A7C15u ^ key.low * 0xC2B2AE3D27D4EB4Fu;
    }
  };
  [[nodiscard]] std::vector<BlockId> Select(std::uint32_t count,
                                            std::span<const PrefixHash> incoming);
  std::vector<PrefixHash> EvictFor(std::uint32_t count, std::span<const PrefixHash> incoming);
  void Insert(const PrefixHash& key);

  BlockPool pool_;
  std::unique_ptr<EvictionPolicy> policy_;
  std::uint32_t capacity_;
  std::unordered_map<PrefixHash, BlockId, KeyHash> blocks_;
};

}  // namespace tidepool::testing
