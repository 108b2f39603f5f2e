#include "tidepool/testing/flat_cache.h"

#include <algorithm>
#include <utility>

namespace tidepool::testing {
namespace {

constexpr TierIndex kTier = 1;  // no holds below HBM: recency is what the stream makes it

}  // namespace

FlatCache::FlatCache(std::unique_ptr<EvictionPolicy> policy, std::uint32_t capacity,
                     std::uint32_t most)
    : pool_({.block_tokens = 1, .slots = {1, std::max(capacity, most)}}),
      policy_(std::move(policy)),
      capacity_(capacity) {
  policy_->Attach(BlockView(&pool_, nullptr), kTier, capacity);
}

bool FlatCache::Reference(const PrefixHash& key) {
  const auto found = blocks_.find(key);
  if (found != blocks_.end()) {
    policy_->OnAccessed({&found->second, 1});
    return true;
  }
  policy_->OnMissed({&key, 1});
  if (blocks_.size() >= capacity_) EvictFor(1, {&key, 1});
  if (blocks_.size() < capacity_) Insert(key);
  return false;
}

void FlatCache::Insert(const PrefixHash& key) {
  BlockId b;
  (void)pool_.AllocateIds({&b, 1});
  (void)pool_.AttachSlot(b, kTier);
  pool_.CommitCopy(b, kTier);
  pool_.set_digest(b, key);
  pool_.SetFlag(b, word::kPublished);
  blocks_[key] = b;
  policy_->OnInserted({&b, 1});
}

std::vector<BlockId> FlatCache::Select(std::uint32_t count, std::span<const PrefixHash> incoming) {
  VictimQuery query;
  query.blocks = count;
  query.incoming = incoming;
  std::vector<BlockId> victims;
  policy_->SelectVictims(query, SchedulingSignals{}, victims);
  return victims;
}

std::vector<PrefixHash> FlatCache::Victims(std::uint32_t count) {
  std::vector<PrefixHash> keys;
  for (const BlockId b : Select(count, {})) keys.push_back(pool_.digest(b));
  return keys;
}

std::vector<PrefixHash> FlatCache::Evict(std::uint32_t count) { return EvictFor(count, {}); }

std::vector<PrefixHash> FlatCache::EvictFor(std::uint32_t count,
                                            std::span<const PrefixHash> incoming) {
  std::vector<PrefixHash> keys;
  for (const BlockId b : Select(count, incoming)) {
    if (!pool_.Evictable(b, kTier)) continue;  // as the manager does
    keys.push_back(pool_.digest(b));
    blocks_.erase(keys.back());
    policy_->OnEvicted({&b, 1}, EvictReason::kCapacity);
    pool_.ClearFlag(b, word::kPublished);
    pool_.DetachSlot(b, kTier);
    pool_.FreeId(b);
  }
  return keys;
}

void FlatCache::Resize(std::uint32_t capacity) {
  capacity_ = capacity;
  if (blocks_.size() > capacity) Evict(static_cast<std::uint32_t>(blocks_.size()) - capacity);
  policy_->Attach(BlockView(&pool_, nullptr), kTier, capacity);
}

}  // namespace tidepool::testing
