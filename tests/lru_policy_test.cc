// The LRU policy through the public interface: exact against a naive list, idempotent, tail first,
// priority classes, lower tiers.
#include "tidepool/policy/lru.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tidepool/block_pool.h"

namespace tidepool {
namespace {

constexpr BlockPool::Move kHit = {.to = Phase::kActive,
                                  .cause = Cause::kReady,
                                  .via = Phase::kReuse,
                                  .via_cause = Cause::kMatch,
                                  .hold = 1};
constexpr BlockPool::Move kRelease = {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1};

using Blocks = std::vector<BlockId>;

class EvenOnly final : public VictimFilter {
 public:
  [[nodiscard]] bool Allows(BlockId block) const noexcept override {
    return block.value() % 2 == 0;
  }
};

// A pool and an LRU policy that hear of the same things.
class Rig {
 public:
  explicit Rig(std::uint32_t slots, TierIndex tier = kHbmTier)
      : pool_({.block_tokens = 1, .slots = {slots, slots}}), tier_(tier) {
    lru_->Attach(BlockView(&pool_, nullptr), tier, slots);
  }

  // Fresh blocks, committed and held.
  Blocks Fresh(std::size_t count) {
    Blocks blocks(count);
    EXPECT_TRUE(pool_.Allocate(blocks));
    EXPECT_EQ(pool_.Transition(blocks, {.to = Phase::kActive, .cause = Cause::kCommit}),
              Outcome::kOk);
    lru_->OnInserted(blocks);
    return blocks;
  }
  Blocks Cached(std::size_t count) {
    const Blocks blocks = Fresh(count);
    Release(blocks);
    return blocks;
  }
  void Hit(const Blocks& blocks) {
    Blocks changed;
    EXPECT_EQ(pool_.Transition(blocks, kHit, &changed), Outcome::kOk);
    lru_->OnProtected(changed);
    lru_->OnAccessed(blocks);
  }
  Blocks Release(const Blocks& blocks) {
    Blocks changed;
    EXPECT_EQ(pool_.Transition(blocks, kRelease, &changed), Outcome::kOk);
    lru_->OnEvictable(changed);
    return changed;
  }
  void SetPriority(const Blocks& blocks, Priority priority) {
    for (BlockId b : blocks) pool_.set_claim_priority(b, priority);
    lru_->OnPriorityChanged(blocks, priority);
  }
  void CopyDown(const Blocks& blocks) {
    for (BlockId b : blocks) {
      EXPECT_TRUE(pool_.AttachSlot(b, 1));
      pool_.CommitCopy(b, 1);
    }
    lru_->OnInserted(blocks);
  }
  void Evict(const Blocks& blocks) {
    EXPECT_EQ(pool_.Transition(blocks, {.to = Phase::kFree, .cause = Cause::kDrop}), Outcome::kOk);
    lru_->OnEvicted(blocks, EvictReason::kCapacity);
    pool_.FreeBlocks(blocks);
  }
  Blocks Victims(std::uint32_t count, const VictimFilter* filter = nullptr) {
    Blocks victims;
    VictimQuery query;
    query.blocks = count;
    query.filter = filter;
    lru_->SelectVictims(query, SchedulingSignals{}, victims);
    return victims;
  }
  BlockPool& pool() { return pool_; }
  EvictionPolicy& lru() { return *lru_; }
  [[nodiscard]] TierIndex tier() const { return tier_; }

 private:
  BlockPool pool_;
  TierIndex tier_;
  std::unique_ptr<EvictionPolicy> lru_ = MakeLruPolicy();
};

Blocks Reversed(Blocks blocks) {
  std::reverse(blocks.begin(), blocks.end());
  return blocks;
}

TEST(LruPolicyTest, S25AskingIsNotUsing) {
  Rig rig(8);
  const Blocks a = rig.Cached(1);
  const Blocks c = rig.Cached(1);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(rig.Victims(1), a);  // a query is a probe too
  rig.Hit(a);
  rig.Release(a);
  EXPECT_EQ(rig.Victims(1), c);
}

TEST(LruPolicyTest, S26ATailGoesBeforeItsHead) {
  Rig rig(8);
  const Blocks chain = rig.Cached(3);
  EXPECT_EQ(rig.Victims(3), Reversed(chain));
  rig.Evict({chain[2]});
  EXPECT_EQ(rig.Victims(1), Blocks{chain[1]});
}

TEST(LruPolicyTest, HeldPinnedAndFilteredBlocksAreNotNamed) {
  Rig rig(8);
  const Blocks blocks = rig.Cached(6);
  rig.Hit({blocks[5]});
  EXPECT_TRUE(rig.pool().Pin(blocks[4]));
  rig.pool().SetFlag(blocks[3], word::kExcluded);
  EXPECT_EQ(rig.Victims(9), (Blocks{blocks[2], blocks[1], blocks[0]}));
  const EvenOnly even;
  EXPECT_EQ(rig.Victims(9, &even), (Blocks{blocks[2], blocks[0]}));
  EXPECT_TRUE(rig.pool().Unpin(blocks[4]));
  rig.pool().ClearFlag(blocks[3], word::kExcluded);
  rig.Release({blocks[5]});
  EXPECT_EQ(rig.Victims(9),
            (Blocks{blocks[4], blocks[3], blocks[2], blocks[1], blocks[0], blocks[5]}));
  EXPECT_TRUE(rig.Victims(0).empty());
}

TEST(LruPolicyTest, APriorityClassGoesBeforeRecency) {
  Rig rig(16);
  const Blocks critical = rig.Cached(2);
  const Blocks normal = rig.Cached(2);
  const Blocks nobody = rig.Cached(2);
  rig.SetPriority(critical, Priority::kCritical);
  rig.SetPriority(normal, Priority::kNormal);
  EXPECT_EQ(rig.Victims(6),
            (Blocks{nobody[1], nobody[0], normal[1], normal[0], critical[1], critical[0]}));
  rig.Hit(nobody);
  rig.SetPriority(nobody, Priority::kCritical);  // while it is held: takes effect at release
  rig.Release(nobody);
  rig.SetPriority(critical, Priority::kBackground);
  EXPECT_EQ(rig.Victims(6),
            (Blocks{critical[1], critical[0], normal[1], normal[0], nobody[1], nobody[0]}));
}

TEST(LruPolicyTest, ASpanOfMixedClassesKeepsTailFirstInEach) {
  Rig rig(16);
  const Blocks blocks = rig.Fresh(5);
  for (std::size_t i : {1u, 3u}) rig.pool().set_claim_priority(blocks[i], Priority::kNormal);
  rig.Release(blocks);
  EXPECT_EQ(rig.Victims(5), (Blocks{blocks[4], blocks[2], blocks[0], blocks[3], blocks[1]}));
}

TEST(LruPolicyTest, LowerTiersOrderByArrivalAndAccess) {
  Rig rig(16, 1);
  const Blocks a = rig.Cached(3);
  const Blocks c = rig.Cached(2);
  EXPECT_TRUE(rig.Victims(9).empty());
  rig.CopyDown(a);
  rig.CopyDown(c);
  EXPECT_EQ(rig.Victims(9), (Blocks{a[2], a[1], a[0], c[1], c[0]}));
  rig.Hit(a);  // served: young again, and a hold protects no copy below
  EXPECT_EQ(rig.Victims(9), (Blocks{c[1], c[0], a[2], a[1], a[0]}));
}

TEST(LruPolicyTest, ResizeKeepsTheOrder) {
  Rig rig(8);
  const Blocks blocks = rig.Cached(3);
  rig.lru().Attach(BlockView(&rig.pool(), nullptr), kHbmTier, 4);
  EXPECT_EQ(rig.Victims(3), Reversed(blocks));
}

// The order as a plain list, oldest first, one for each class.
class NaiveLru {
 public:
  void File(const BlockPool& pool, const Blocks& blocks) {
    for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) {
      Forget(*b);
      order_[static_cast<std::size_t>(pool.claim_priority(*b))].push_back(*b);
    }
  }
  void Forget(BlockId b) {
    for (Blocks& order : order_) std::erase(order, b);
  }
  [[nodiscard]] bool Has(BlockId b) const {
    return std::any_of(order_.begin(), order_.end(), [b](const Blocks& order) {
      return std::find(order.begin(), order.end(), b) != order.end();
    });
  }
  [[nodiscard]] Blocks Victims(const BlockPool& pool, std::size_t count,
                               const VictimFilter* filter) const {
    Blocks victims;
    for (const Blocks& order : order_) {
      for (BlockId b : order) {
        if (victims.size() == count) return victims;
        if (!pool.Evictable(b, kHbmTier)) continue;
        if (filter == nullptr || filter->Allows(b)) victims.push_back(b);
      }
    }
    return victims;
  }

 private:
  std::array<Blocks, kPriorityCount> order_;
};

// Sequences come, share, pause and go; the policy's answers must be the naive list's.
class RandomLoad {
 public:
  explicit RandomLoad(std::uint32_t seed) : random_(seed), rig_(300) {}

  void Step() {
    switch (random_() % 6) {
      case 0:
        return Admit();
      case 1:
        return Finish();
      case 2:
        return Evict();
      case 3:
        return ChangePriority();
      case 4:
        return TogglePin();
      default:
        return Share();
    }
  }

  void Compare() {
    const std::uint32_t count = random_() % 8 == 0 ? 400 : random_() % 30;
    const EvenOnly even;
    const VictimFilter* const filter = random_() % 3 == 0 ? &even : nullptr;
    const Blocks victims = rig_.Victims(count, filter);
    ASSERT_EQ(victims, naive_.Victims(rig_.pool(), count, filter));
    ASSERT_EQ(rig_.Victims(count, filter), victims);  // asked twice, answered twice
  }

 private:
  void Admit() {
    const std::size_t count = 1 + random_() % 40;
    if (count > rig_.pool().free_slots(kHbmTier)) return;
    running_.push_back(rig_.Fresh(count));
  }
  void Finish() {
    if (running_.empty()) return;
    std::swap(running_[random_() % running_.size()], running_.back());
    naive_.File(rig_.pool(), rig_.Release(running_.back()));
    cached_.push_back(running_.back());
    running_.pop_back();
  }
  // Another sequence runs with the leading part of a cached one that is still whole.
  void Share() {
    if (cached_.empty()) return;
    Blocks prefix = cached_[random_() % cached_.size()];
    prefix.resize(1 + random_() % prefix.size());
    const bool whole = std::all_of(prefix.begin(), prefix.end(), [this](BlockId b) {
      const Phase phase = rig_.pool().phase(b);
      return phase == Phase::kIdle || phase == Phase::kActive;
    });
    if (!whole) return;
    rig_.Hit(prefix);
    running_.push_back(prefix);
  }
  void Evict() {
    const Blocks victims = rig_.Victims(1 + random_() % 30);
    for (BlockId b : victims) {
      naive_.Forget(b);
      for (Blocks& blocks : cached_) std::erase(blocks, b);
    }
    std::erase_if(cached_, [](const Blocks& blocks) { return blocks.empty(); });
    for (BlockId b : victims) rig_.pool().ClearFlag(b, word::kPublished);
    rig_.Evict(victims);
  }
  void ChangePriority() {
    if (cached_.empty()) return;
    const Blocks& blocks = cached_[random_() % cached_.size()];
    const Priority priority = static_cast<Priority>(random_() % kPriorityCount);
    Blocks moved;
    for (BlockId b : blocks) {
      if (naive_.Has(b) && rig_.pool().claim_priority(b) != priority) moved.push_back(b);
    }
    rig_.SetPriority(blocks, priority);
    naive_.File(rig_.pool(), moved);
  }
  void TogglePin() {
    if (cached_.empty()) return;
    const Blocks& blocks = cached_[random_() % cached_.size()];
    const BlockId b = blocks[random_() % blocks.size()];
    if (!rig_.pool().Unpin(b)) {
      EXPECT_TRUE(rig_.pool().Pin(b));
    }
  }

  std::mt19937 random_;
  Rig rig_;
  NaiveLru naive_;
  std::vector<Blocks> running_;
  std::vector<Blocks> cached_;  // released at least once
};

TEST(LruPolicyTest, RandomLoadsMatchANaiveList) {
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomLoad load(seed);
    for (int step = 0; step < 3000; ++step) {
      load.Step();
      load.Compare();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tidepool
