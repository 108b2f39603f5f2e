// BlockPool: the phase machine edge by edge, atomic spans, accounts, slots and ids.
#include "tidepool/block_pool.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace tidepool {
namespace {

using Move = BlockPool::Move;

constexpr Move kCommit = {.to = Phase::kActive, .cause = Cause::kCommit};
constexpr Move kRelease = {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1};
constexpr Move kHit = {.to = Phase::kActive,
                       .cause = Cause::kReady,
                       .via = Phase::kReuse,
                       .via_cause = Cause::kMatch,
                       .hold = 1};
constexpr Move kSelect = {.to = Phase::kCandidate, .cause = Cause::kSelectVictim};
constexpr Move kOffload = {.to = Phase::kOffloaded, .cause = Cause::kOffload};
constexpr Move kDrop = {.to = Phase::kFree, .cause = Cause::kDrop};

BlockPool::Options SmallPool() { return {.block_tokens = 4, .slots = {8, 4, 4}}; }

int Holds(Phase phase) {
  return phase == Phase::kAllocated || phase == Phase::kActive || phase == Phase::kReuse ? 1 : 0;
}

// A block in `phase`, by the shortest way. It keeps its HBM copy and has one in tier 1.
BlockId BlockIn(BlockPool& pool, Phase phase) {
  std::vector<BlockId> b(1);
  if (phase == Phase::kFree) {
    EXPECT_TRUE(pool.AllocateIds(b));
    return b[0];
  }
  EXPECT_TRUE(pool.Allocate(b));
  if (phase == Phase::kAllocated) return b[0];
  EXPECT_EQ(pool.Transition(b, kCommit), Outcome::kOk);
  EXPECT_TRUE(pool.AttachSlot(b[0], 1));
  pool.CommitCopy(b[0], 1);
  if (phase == Phase::kActive) return b[0];
  EXPECT_EQ(pool.Transition(b, kRelease), Outcome::kOk);
  if (phase == Phase::kReuse) {
    EXPECT_EQ(pool.Transition(b, {.to = phase, .cause = Cause::kMatch, .hold = 1}), Outcome::kOk);
  }
  if (phase == Phase::kCandidate || phase == Phase::kOffloaded) {
    EXPECT_EQ(pool.Transition(b, kSelect), Outcome::kOk);
  }
  if (phase == Phase::kOffloaded) {
    EXPECT_EQ(pool.Transition(b, kOffload), Outcome::kOk);
  }
  return b[0];
}

std::string Name(Phase from, Phase to) {
  return std::string(ToString(from)) + " -> " + std::string(ToString(to));
}

// What a Transition may change, to see that a refused one did not.
struct Snapshot {
  std::uint32_t word;
  PoolCounts counts;
  std::uint32_t evictable;
  Snapshot(const BlockPool& pool, BlockId b)
      : word(pool.word(b)), counts(pool.Counts()), evictable(pool.evictable()) {}
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

TEST(BlockPoolTest, EveryLegalEdgeCanBeTaken) {
  for (const Edge& edge : kEdges) {
    SCOPED_TRACE(Name(edge.from, edge.to));
    BlockPool pool(SmallPool());
    const BlockId b = BlockIn(pool, edge.from);
    if (edge.from == Phase::kFree) {
      ASSERT_TRUE(pool.AttachSlot(b, kHbmTier));
    }
    const int hold = Holds(edge.to) - Holds(edge.from);
    EXPECT_EQ(pool.Transition({&b, 1}, {.to = edge.to, .cause = Cause::kCommit, .hold = hold}),
              Outcome::kOk);
    EXPECT_EQ(pool.phase(b), edge.to);
    if (edge.to == Phase::kFree) pool.DetachSlot(b, kHbmTier);
    EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
  }
}

TEST(BlockPoolTest, EveryOtherEdgeIsRefusedAndChangesNothing) {
  for (std::size_t from = 0; from < kPhaseCount; ++from) {
    for (std::size_t to = 0; to < kPhaseCount; ++to) {
      const Phase source = static_cast<Phase>(from);
      const Phase target = static_cast<Phase>(to);
      if (IsLegal(source, target)) continue;
      for (int hold : {-1, 0, 1}) {
        if (hold == 1 && Holds(source) == 1) continue;  // a second holder changes no phase
        SCOPED_TRACE(Name(source, target) + " hold " + std::to_string(hold));
        BlockPool pool(SmallPool());
        const BlockId b = BlockIn(pool, source);
        const Snapshot before(pool, b);
        EXPECT_EQ(pool.Transition({&b, 1}, {.to = target, .cause = Cause::kCommit, .hold = hold}),
                  Outcome::kIllegalTransition);
        EXPECT_EQ(Snapshot(pool, b), before);
      }
    }
  }
}

TEST(BlockPoolTest, PhasesKeepToTheirHolds) {
  BlockPool pool(SmallPool());
  const BlockId active = BlockIn(pool, Phase::kActive);
  const BlockId reuse = BlockIn(pool, Phase::kReuse);
  const Move idle_but_held = {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = 0};
  EXPECT_EQ(pool.Transition({&active, 1}, idle_but_held), Outcome::kIllegalTransition);
  const Move active_without_holder = {.to = Phase::kActive, .cause = Cause::kReady, .hold = -1};
  EXPECT_EQ(pool.Transition({&reuse, 1}, active_without_holder), Outcome::kIllegalTransition);
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
}

TEST(BlockPoolTest, ALoadNeedsASlotFirstAndBytesBeforeUse) {
  BlockPool pool(SmallPool());
  const BlockId b = BlockIn(pool, Phase::kOffloaded);
  pool.DetachSlot(b, kHbmTier);
  const Move load = {.to = Phase::kReuse, .cause = Cause::kOnboard, .hold = 1};
  const Move ready = {.to = Phase::kActive, .cause = Cause::kReady};
  EXPECT_EQ(pool.Transition({&b, 1}, load), Outcome::kIllegalTransition);
  ASSERT_TRUE(pool.AttachSlot(b, kHbmTier));
  EXPECT_EQ(pool.Transition({&b, 1}, load), Outcome::kOk);
  EXPECT_EQ(pool.Transition({&b, 1}, ready), Outcome::kIllegalTransition);
  pool.CommitCopy(b, kHbmTier);
  EXPECT_EQ(pool.Transition({&b, 1}, ready), Outcome::kOk);
  EXPECT_TRUE(pool.Clean(b, kHbmTier));
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
}

TEST(BlockPoolTest, ASecondHolderChangesNoPhaseAndTheLastReleaseDoes) {
  BlockPool pool(SmallPool());
  const BlockId b = BlockIn(pool, Phase::kIdle);
  std::vector<BlockId> changed;
  EXPECT_EQ(pool.Transition({&b, 1}, kHit, &changed), Outcome::kOk);
  EXPECT_EQ(changed.size(), 1u);
  EXPECT_EQ(pool.Transition({&b, 1}, kHit, &changed), Outcome::kOk);
  EXPECT_TRUE(changed.empty());
  EXPECT_EQ(pool.holds(b), 2u);
  EXPECT_EQ(pool.Transition({&b, 1}, kRelease, &changed), Outcome::kOk);
  EXPECT_TRUE(changed.empty());
  EXPECT_EQ(pool.phase(b), Phase::kActive);
  EXPECT_EQ(pool.Transition({&b, 1}, kRelease, &changed), Outcome::kOk);
  EXPECT_EQ(pool.phase(b), Phase::kIdle);
  EXPECT_EQ(pool.Transition({&b, 1}, kRelease), Outcome::kIllegalTransition);
}

TEST(BlockPoolTest, ASpanIsAllOrNothing) {
  BlockPool pool({.block_tokens = 4, .slots = {100}});
  std::vector<BlockId> blocks(64);
  ASSERT_TRUE(pool.Allocate(blocks));
  ASSERT_EQ(pool.Transition(blocks, kCommit), Outcome::kOk);
  for (std::size_t odd : {0u, 15u, 16u, 40u, 63u}) {
    const BlockId shared = blocks[odd];
    ASSERT_EQ(pool.Transition({&shared, 1}, kRelease), Outcome::kOk);
    const PoolCounts before = pool.Counts();
    EXPECT_EQ(pool.Transition(blocks, kRelease), Outcome::kIllegalTransition);  // one has no hold
    EXPECT_EQ(pool.Counts(), before);
    ASSERT_EQ(pool.Transition({&shared, 1}, kHit), Outcome::kOk);
    EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
  }
  EXPECT_EQ(pool.Transition(blocks, kRelease), Outcome::kOk);
  EXPECT_EQ(pool.evictable(), 64u);
}

TEST(BlockPoolTest, HoldsAndPinsThatRunOutAreRefused) {
  BlockPool pool(SmallPool());
  const BlockId b = BlockIn(pool, Phase::kIdle);
  for (std::uint32_t i = 0; i < word::kHoldMask; ++i) {
    ASSERT_EQ(pool.Transition({&b, 1}, kHit), Outcome::kOk);
  }
  EXPECT_EQ(pool.Transition({&b, 1}, kHit), Outcome::kBusy);
  EXPECT_EQ(pool.holds(b), 16'383u);
  for (int i = 0; i < 31; ++i) EXPECT_TRUE(pool.Pin(b));
  EXPECT_FALSE(pool.Pin(b));
  for (int i = 0; i < 31; ++i) EXPECT_TRUE(pool.Unpin(b));
  EXPECT_FALSE(pool.Unpin(b));
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
}

TEST(BlockPoolTest, AllocateIsContiguousAllOrNothing) {
  BlockPool pool({.block_tokens = 4, .slots = {70}, .reserve_null_slot = true});
  EXPECT_EQ(pool.slots(kHbmTier), 69u);
  std::vector<BlockId> blocks(70);
  EXPECT_FALSE(pool.Allocate(blocks));
  EXPECT_EQ(pool.free_slots(kHbmTier), 69u);
  blocks.resize(69);
  ASSERT_TRUE(pool.Allocate(blocks));
  for (std::uint32_t i = 0; i < 69; ++i) {
    EXPECT_EQ(blocks[i].value(), i);
    EXPECT_EQ(pool.slot(blocks[i], kHbmTier).value(), i + 1);  // slot 0 is the engine's
    EXPECT_EQ(pool.holds(blocks[i]), 1u);
    EXPECT_EQ(pool.copy(blocks[i], kHbmTier), CopyState::kWriting);
  }
  EXPECT_FALSE(pool.Allocate({blocks.data(), 1}));
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
}

TEST(BlockPoolTest, AFreedIdHasANewGeneration) {
  BlockPool pool(SmallPool());
  const BlockId b = BlockIn(pool, Phase::kAllocated);
  const BlockRef stale = pool.ref(b);
  EXPECT_TRUE(pool.alive(stale));
  ASSERT_EQ(pool.Transition({&b, 1}, {.to = Phase::kFree, .cause = Cause::kAbandon, .hold = -1}),
            Outcome::kOk);
  pool.FreeBlocks({&b, 1});
  EXPECT_FALSE(pool.alive(stale));
  EXPECT_EQ(BlockIn(pool, Phase::kAllocated), b);
  EXPECT_FALSE(pool.alive(stale));
  EXPECT_FALSE(pool.alive(BlockRef{}));
}

TEST(BlockPoolTest, CleanAndEvictableFollowCopiesPinsAndScratchFlags) {
  BlockPool pool(SmallPool());
  const BlockId b = BlockIn(pool, Phase::kIdle);  // valid in HBM and tier 1
  EXPECT_EQ(pool.evictable_clean(), 1u);
  EXPECT_TRUE(pool.Clean(b, 1));
  EXPECT_EQ(pool.best_tier(b), kHbmTier);
  EXPECT_TRUE(pool.Pin(b));
  EXPECT_FALSE(pool.Evictable(b, kHbmTier) || pool.Evictable(b, 1));
  EXPECT_EQ(pool.evictable(), 0u);
  EXPECT_TRUE(pool.Unpin(b));
  pool.SetFlag(b, word::kExcluded);
  EXPECT_FALSE(pool.Evictable(b, kHbmTier));
  EXPECT_EQ(pool.evictable(), 1u);  // the account ignores a plan's scratch flags
  pool.ClearFlag(b, word::kExcluded);
  pool.DetachSlot(b, 1);
  EXPECT_FALSE(pool.Clean(b, kHbmTier));
  EXPECT_EQ(pool.evictable_clean(), 0u);
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
}

TEST(BlockPoolTest, PublishingMovesABlockFromClaimedToCached) {
  BlockPool pool(SmallPool());
  const BlockId b = BlockIn(pool, Phase::kIdle);
  EXPECT_EQ(pool.Counts().claimed, 1u);
  pool.SetFlag(b, word::kPublished);
  EXPECT_EQ(pool.Counts().cached, 1u);
  EXPECT_EQ(pool.Counts().claimed, 0u);
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
  pool.ClearFlag(b, word::kPublished);
  EXPECT_EQ(pool.Counts().claimed, 1u);
}

TEST(BlockPoolTest, AQuarantinedSlotIsNotFreeUntilReturned) {
  BlockPool pool(SmallPool());
  const BlockId b = BlockIn(pool, Phase::kIdle);
  ASSERT_EQ(pool.Transition({&b, 1}, kDrop), Outcome::kOk);
  const SlotId slot = pool.DetachSlot(b, kHbmTier, /*quarantine=*/true);
  EXPECT_EQ(pool.Counts(), (PoolCounts{.free = 7, .quarantined = 1}));
  pool.DetachSlot(b, 1);
  pool.FreeId(b);
  pool.ReturnQuarantined(kHbmTier, {&slot, 1});
  EXPECT_EQ(pool.Counts(), (PoolCounts{.free = 8}));
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
}

TEST(BlockPoolTest, ResizeWithdrawsSlotsAsTheyBecomeFree) {
  BlockPool pool({.block_tokens = 4, .slots = {8}});
  std::vector<BlockId> blocks(6);
  ASSERT_TRUE(pool.Allocate(blocks));
  ASSERT_TRUE(pool.Resize(kHbmTier, 4).ok());
  EXPECT_EQ(pool.slots(kHbmTier), 6u);  // two still hold blocks
  EXPECT_EQ(pool.BlocksBeyondLimit(kHbmTier), (std::vector<BlockId>{blocks[4], blocks[5]}));
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
  const Move abandon = {.to = Phase::kFree, .cause = Cause::kAbandon, .hold = -1};
  ASSERT_EQ(pool.Transition(blocks, abandon), Outcome::kOk);
  pool.FreeBlocks(blocks);
  EXPECT_EQ(pool.slots(kHbmTier), 4u);
  EXPECT_EQ(pool.free_slots(kHbmTier), 4u);
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
  ASSERT_TRUE(pool.Resize(kHbmTier, 8).ok());
  EXPECT_EQ(pool.free_slots(kHbmTier), 8u);
  EXPECT_EQ(pool.Resize(kHbmTier, 9).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(pool.Resize(3, 1).code(), absl::StatusCode::kOutOfRange);
}

class Recorder final : public Observer {
 public:
  void OnTransition(const TransitionEvent& event) noexcept override {
    edges.push_back(Name(event.from, event.to) + " x" + std::to_string(event.blocks.size()) + " " +
                    std::string(ToString(event.cause)));
  }
  std::vector<std::string> edges;
};

TEST(BlockPoolTest, TheObserverHearsOfEachEdgeOncePerSpan) {
  Recorder recorder;
  BlockPool pool({.block_tokens = 4, .slots = {8}, .observer = &recorder});
  std::vector<BlockId> blocks(4);
  ASSERT_TRUE(pool.Allocate(blocks));
  ASSERT_EQ(pool.Transition(blocks, kCommit), Outcome::kOk);
  ASSERT_EQ(pool.Transition(blocks, kRelease), Outcome::kOk);
  ASSERT_EQ(pool.Transition({blocks.data() + 3, 1}, kSelect), Outcome::kOk);
  ASSERT_TRUE(pool.Pin(blocks[1]));  // differs, but takes the same edge as its neighbours
  recorder.edges.clear();
  ASSERT_EQ(pool.Transition(blocks, kHit), Outcome::kOk);
  EXPECT_EQ(recorder.edges,
            (std::vector<std::string>{"idle -> reuse x3 match", "reuse -> active x3 ready",
                                      "candidate -> reuse x1 match", "reuse -> active x1 ready"}));
  recorder.edges.clear();
  ASSERT_EQ(pool.Transition(blocks, kHit), Outcome::kOk);
  EXPECT_TRUE(recorder.edges.empty());
}

TEST(BlockPoolTest, OptionsOutOfRangeGiveAnInvalidPool) {
  EXPECT_FALSE(BlockPool(BlockPool::Options{}).valid());
  EXPECT_FALSE(BlockPool({.block_tokens = 0, .slots = {8}}).valid());
  EXPECT_FALSE(BlockPool({.block_tokens = 4, .slots = {0xFFFFFFFF, 0xFFFFFFFF}}).valid());
  EXPECT_FALSE(BlockPool({.block_tokens = 4, .slots = {1, 1, 1, 1, 1, 1, 1}}).valid());
  EXPECT_TRUE(BlockPool({.block_tokens = 4, .slots = {1}}).valid());
}

std::uint64_t ResidentBytes() {
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

TEST(BlockPoolTest, ALargePoolCostsNoMemoryBeforeItIsUsed) {
  const std::uint64_t before = ResidentBytes();
  const BlockPool pool({.block_tokens = 16, .slots = {1'000'000, 4'000'000, 10'000'000}});
  ASSERT_TRUE(pool.valid());
  EXPECT_GE(pool.MemoryBytes(), 15'000'000u * (16 + 16 + 4 + 4 + 4));
  EXPECT_LT(pool.MemoryBytes(), 15'600'000u * (16 + 16 + 4 + 4 + 4 + 1));
  EXPECT_LT(ResidentBytes() - before, 16u << 20);
}

}  // namespace
}  // namespace tidepool
