// Ids, slots, phases and holds: what admission, append and finish cost below the prefix index.
// items_per_second counts blocks. Working set: a pool of 64k blocks has 256 KiB of words and 1 MiB
// of records; each benchmark touches only the blocks named in its comment, which then sit in L1/L2.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tidepool/block_pool.h"
#include "tidepool/policy/lru.h"

namespace tidepool {
namespace {

constexpr BlockPool::Move kAbandon = {.to = Phase::kFree, .cause = Cause::kAbandon, .hold = -1};
constexpr BlockPool::Move kRelease = {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1};
constexpr BlockPool::Move kHit = {.to = Phase::kActive,
                                  .cause = Cause::kReady,
                                  .via = Phase::kReuse,
                                  .via_cause = Cause::kMatch,
                                  .hold = 1};

BlockPool::Options PoolOf(std::uint32_t slots) { return {.block_tokens = 16, .slots = {slots}}; }

// Allocates and frees `range(0)` blocks a time. Working set: 20 bytes a block and two bitmaps.
void AllocateFree(benchmark::State& state) {
  BlockPool pool(PoolOf(65'536));
  std::vector<BlockId> blocks(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    if (!pool.Allocate(blocks)) state.SkipWithError("the pool is full");
    (void)pool.Transition(blocks, kAbandon);
    pool.FreeBlocks(blocks);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(AllocateFree)->Name("allocate_free")->Arg(1);
BENCHMARK(AllocateFree)->Name("allocate_free_bulk")->Arg(1000);

// Blocks committed and released once: an idle, cached prefix.
std::vector<BlockId> CachedPrefix(BlockPool& pool, std::size_t count) {
  std::vector<BlockId> blocks(count);
  (void)pool.Allocate(blocks);
  (void)pool.Transition(blocks, {.to = Phase::kActive, .cause = Cause::kCommit});
  for (BlockId b : blocks) pool.SetFlag(b, word::kPublished);
  (void)pool.Transition(blocks, kRelease);
  return blocks;
}

// One hit and one release of a cached prefix, the policy told. An item is a block held and
// released. Working set: 4 bytes of word and 4 of stamp a block, 4 KiB for 512.
void PoolHoldRelease(benchmark::State& state) {
  BlockPool pool(PoolOf(65'536));
  const std::unique_ptr<EvictionPolicy> lru = MakeLruPolicy();
  lru->Attach(BlockView(&pool, nullptr), kHbmTier, pool.slots(kHbmTier));
  const std::vector<BlockId> blocks = CachedPrefix(pool, static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    if (pool.Transition(blocks, kHit) != Outcome::kOk) state.SkipWithError("no hit");
    lru->OnProtected(blocks);
    (void)pool.Transition(blocks, kRelease);
    lru->OnEvictable(blocks);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(PoolHoldRelease)->Name("pool_hold_release")->Arg(512);

}  // namespace
}  // namespace tidepool
