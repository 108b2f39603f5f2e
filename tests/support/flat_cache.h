// flat_cache.h - a policy alone, driven by a flat stream of references through the public hooks, as
// caching papers define hits and misses: no tree, no holds, one block a key.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tidepool/block_pool.h"
#include "tidepool/eviction_policy.h"

namespace tidepool::testing {

/// A key of a flat stream, as the digest its block will have.
[[nodiscard]] constexpr PrefixHash FlatKey(std::uint64_t scope, std::uint64_t id) {
  return {scope + 1, id + 1};
}

class FlatCache {
 public:
  /// Room for `capacity` blocks, and for up to `most` after Resize.
  FlatCache(std::unique_ptr<EvictionPolicy> policy, std::uint32_t capacity, std::uint32_t most = 0);

  /// One reference. Returns true on a hit; a miss makes room if it must and inserts the key.
  bool Reference(const PrefixHash& key);
  /// Asks for up to `count` victims and evicts them; returns their keys in order.
  std::vector<PrefixHash> Evict(std::uint32_t count);
  /// Pinned blocks are resident but no candidates. REQUIRES: the key is resident.
  void Pin(const PrefixHash& key) { (void)pool_.Pin(blocks_.at(key)); }
  void Unpin(const PrefixHash& key) { (void)pool_.Unpin(blocks_.at(key)); }
  /// A smaller capacity evicts at once.
  void Resize(std::uint32_t capacity);

  [[nodiscard]] std::size_t resident() const { return blocks_.size(); }
  [[nodiscard]] bool Has(const PrefixHash& key) const { return blocks_.count(key) != 0; }
  [[nodiscard]] EvictionPolicy& policy() { return *policy_; }

 private:
  struct KeyHash {
    std::size_t operator()(const PrefixHash& key) const noexcept {
      return key.high * 0x9E3779B97F4A7C15u ^ key.low * 0xC2B2AE3D27D4EB4Fu;
    }
  };
  std::vector<PrefixHash> EvictFor(std::uint32_t count, std::span<const PrefixHash> incoming);
  void Insert(const PrefixHash& key);

  BlockPool pool_;
  std::unique_ptr<EvictionPolicy> policy_;
  std::uint32_t capacity_;
  std::unordered_map<PrefixHash, BlockId, KeyHash> blocks_;
};

/// Every block of every request of a trace in order, key = (scope, id); empty if it cannot be read.
std::vector<PrefixHash> ReadFlatReferences(const std::string& ttrace_path);

}  // namespace tidepool::testing
