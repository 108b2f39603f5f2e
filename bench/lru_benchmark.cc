// Victim choice by the LRU policy. items_per_second counts victims.
//
// Working set: `range(0)` evictable blocks, filed one by one in random id order (the worst case:
// one log entry, one stamp and one pool word and record a block, none near its neighbour). At 1M
// blocks that is 28 MB, beyond the caches.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "tidepool/block_pool.h"
#include "tidepool/policy/lru.h"

namespace tidepool {
namespace {

constexpr std::uint32_t kBatch = 256;

// Selects a batch and evicts it; the blocks are then filed again, as if used once more.
void LruEvict(benchmark::State& state) {
  const auto count = static_cast<std::uint32_t>(state.range(0));
  BlockPool pool({.block_tokens = 1, .slots = {count}});
  const std::unique_ptr<EvictionPolicy> lru = MakeLruPolicy();
  lru->Attach(BlockView(&pool, nullptr), kHbmTier, count);
  std::vector<BlockId> blocks(count);
  (void)pool.Allocate(blocks);
  (void)pool.Transition(blocks, {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1});
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  lru->OnEvictable(blocks);
  const SchedulingSignals signals;
  VictimQuery query;
  query.blocks = kBatch;
  std::vector<BlockId> victims;
  for (auto _ : state) {
    victims.clear();
    lru->SelectVictims(query, signals, victims);
    lru->OnEvicted(victims, EvictReason::kCapacity);
    lru->OnEvictable(victims);
  }
  if (victims.size() != kBatch) state.SkipWithError("too few victims");
  state.SetItemsProcessed(state.iterations() * kBatch);
  state.counters["bytes_per_block"] =
      static_cast<double>(lru->MemoryBytes()) / static_cast<double>(count);
}
BENCHMARK(LruEvict)->Name("lru_evict")->RangeMultiplier(32)->Range(1 << 10, 1 << 20);

}  // namespace
}  // namespace tidepool
