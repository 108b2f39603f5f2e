// BlockPool against a naive model: random operations on small pools, everything compared and
// audited after each.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/block_pool.h"

namespace tidepool {
namespace {

constexpr TierIndex kTiers = 3;

// A block as the documents describe it, one field a fact.
struct ModelBlock {
  Phase phase = Phase::kFree;
  std::uint32_t holds = 0;
  std::uint32_t pins = 0;
  bool published = false;
  std::array<CopyState, kTiers> copies{};
  [[nodiscard]] bool hbm(CopyState state) const { return copies[0] == state; }
};

bool TakeEdge(ModelBlock& block, Phase to) {
  const auto edge = std::find_if(kEdges.begin(), kEdges.end(), [&](const Edge& e) {
    return e.from == block.phase && e.to == to;
  });
  if (edge == kEdges.end()) return false;
  const bool first_bytes = block.phase == Phase::kAllocated && to != Phase::kFree;
  if (first_bytes) block.copies[0] = CopyState::kValid;
  block.phase = to;
  switch (to) {
    case Phase::kActive:
    case Phase::kIdle:
    case Phase::kCandidate:
      return block.hbm(CopyState::kValid);
    case Phase::kAllocated:
      return block.hbm(CopyState::kWriting) && block.copies[1] == CopyState::kAbsent &&
             block.copies[2] == CopyState::kAbsent;
    case Phase::kReuse:
      return !block.hbm(CopyState::kAbsent);
    default:
      return true;
  }
}

std::optional<ModelBlock> AfterMove(ModelBlock block, const BlockPool::Move& move) {
  if (move.hold < 0 && block.holds == 0) return std::nullopt;
  const bool moves = move.hold == 0 || (move.hold > 0 ? block.holds == 0 : block.holds == 1);
  block.holds += static_cast<std::uint32_t>(move.hold);
  if (!moves) return block;
  if (move.via != Phase::kFree && !TakeEdge(block, move.via)) return std::nullopt;
  if (!TakeEdge(block, move.to)) return std::nullopt;
  const bool must_be_held = move.to == Phase::kAllocated || move.to == Phase::kActive;
  const bool may_be_held = must_be_held || move.to == Phase::kReuse;
  if (must_be_held && block.holds == 0) return std::nullopt;
  if (!may_be_held && block.holds > 0) return std::nullopt;
  return block;
}

class PoolModel {
 public:
  explicit PoolModel(std::uint32_t seed)
      : random_(seed), pool_({.block_tokens = 2, .slots = {40, 12, 12}}) {}

  void Step() {
    switch (Pick(20)) {
      case 0:
        return Allocate();
      case 1:
        return AllocateIds();
      case 2:
        return Attach();
      case 3:
        return Commit();
      case 4:
        return Detach();
      case 5:
        return Free();
      case 6:
        return Pin();
      case 7:
        return Publish();
      case 8:
        return ReturnQuarantined();
      case 9:
        return Resize();
      default:
        return Transition();
    }
  }

  void Compare() const {
    ASSERT_TRUE(pool_.Audit().ok()) << pool_.Audit();
    PoolCounts counts = {.free = pool_.free_slots(0), .quarantined = pool_.quarantined(0)};
    std::uint32_t evictable = 0;
    std::uint32_t clean = 0;
    for (const auto& [b, block] : blocks_) {
      CompareBlock(b, block);
      if (block.hbm(CopyState::kAbsent)) continue;
      const bool rests = block.holds == 0 && block.pins == 0 && block.hbm(CopyState::kValid);
      std::uint32_t& place = block.holds > 0   ? counts.held
                             : !rests          ? counts.moving
                             : block.published ? counts.cached
                                               : counts.claimed;
      ++place;
      if (!rests || block.phase != Phase::kIdle) continue;
      ++evictable;
      clean += block.copies[1] == CopyState::kValid;
    }
    ASSERT_EQ(pool_.Counts(), counts);
    ASSERT_EQ(pool_.evictable(), evictable);
    ASSERT_EQ(pool_.evictable_clean(), clean);
    ASSERT_EQ(counts.free + counts.held + counts.cached + counts.claimed + counts.moving +
                  counts.quarantined,
              pool_.slots(kHbmTier));
  }

  [[nodiscard]] const std::set<std::pair<Phase, Phase>>& edges() const { return edges_; }

 private:
  void CompareBlock(BlockId b, const ModelBlock& block) const {
    ASSERT_EQ(pool_.phase(b), block.phase);
    ASSERT_EQ(pool_.holds(b), block.holds);
    ASSERT_EQ(pool_.pins(b), block.pins);
    for (TierIndex tier = 0; tier < kTiers; ++tier) {
      ASSERT_EQ(pool_.copy(b, tier), block.copies[tier]);
    }
    const bool rests = block.holds == 0 && block.pins == 0 && block.hbm(CopyState::kValid);
    ASSERT_EQ(pool_.Evictable(b, kHbmTier), rests && block.phase == Phase::kIdle);
    ASSERT_EQ(pool_.Evictable(b, 2), block.pins == 0 && block.copies[2] == CopyState::kValid);
    ASSERT_EQ(pool_.Clean(b, 1),
              block.hbm(CopyState::kValid) || block.copies[2] == CopyState::kValid);
  }

  std::uint32_t Pick(std::size_t below) { return static_cast<std::uint32_t>(random_() % below); }

  // A random known block, or nothing.
  std::map<BlockId, ModelBlock>::iterator Any() {
    if (blocks_.empty()) return blocks_.end();
    return std::next(blocks_.begin(), Pick(blocks_.size()));
  }

  void Allocate() {
    std::vector<BlockId> out(1 + Pick(20));
    const bool fits = out.size() <= pool_.free_slots(0) && out.size() <= pool_.free_blocks();
    ASSERT_EQ(pool_.Allocate(out), fits);
    if (!fits) return;
    for (BlockId b : out) {
      const ModelBlock fresh = {
          .phase = Phase::kAllocated, .holds = 1, .copies = {CopyState::kWriting}};
      ASSERT_TRUE(blocks_.emplace(b, fresh).second);
    }
  }

  void AllocateIds() {
    std::vector<BlockId> out(1);
    if (Pick(4) != 0 || !pool_.AllocateIds(out)) return;
    ASSERT_TRUE(blocks_.emplace(out[0], ModelBlock{}).second);
  }

  void Attach() {
    const auto it = Any();
    if (it == blocks_.end()) return;
    const auto tier = static_cast<TierIndex>(Pick(kTiers));
    auto& [b, block] = *it;
    const bool bare = block.copies == ModelBlock{}.copies;
    const bool may_hbm = block.phase == Phase::kOffloaded || (block.phase == Phase::kFree && bare);
    if (block.copies[tier] != CopyState::kAbsent || (tier == 0 && !may_hbm)) return;
    const bool allowed = tier == 0 || block.phase != Phase::kAllocated;
    const bool fits = allowed && pool_.free_slots(tier) > 0;
    ASSERT_EQ(pool_.AttachSlot(b, tier), fits);
    if (!fits) return;
    block.copies[tier] = CopyState::kWriting;
    // At rest a block that is free has no HBM slot.
    if (tier == 0 && block.phase == Phase::kFree) Apply({b}, Phase::kAllocated, 1);
  }

  void Commit() {
    const auto it = Any();
    if (it == blocks_.end()) return;
    auto& [b, block] = *it;
    const auto tier = static_cast<TierIndex>(Pick(kTiers));
    const bool first_bytes = tier == 0 && block.phase == Phase::kAllocated;
    if (block.copies[tier] != CopyState::kWriting || first_bytes) return;
    pool_.CommitCopy(b, tier);
    block.copies[tier] = CopyState::kValid;
  }

  void Detach() {
    const auto it = Any();
    if (it == blocks_.end()) return;
    auto& [b, block] = *it;
    const auto tier = static_cast<TierIndex>(Pick(kTiers));
    const bool needed = tier == 0 && block.phase != Phase::kOffloaded;
    if (block.copies[tier] == CopyState::kAbsent || needed) return;
    DetachFrom(b, block, tier);
  }

  void DetachFrom(BlockId b, ModelBlock& block, TierIndex tier) {
    const bool quarantine = Pick(2) == 0;
    const SlotId slot = pool_.slot(b, tier);
    ASSERT_EQ(pool_.DetachSlot(b, tier, quarantine), slot);
    if (quarantine) quarantine_[tier].push_back(slot);
    block.copies[tier] = CopyState::kAbsent;
  }

  void Free() {
    const auto it = std::find_if(blocks_.begin(), blocks_.end(), [](const auto& entry) {
      const ModelBlock& block = entry.second;
      return block.phase == Phase::kFree && block.pins == 0 && !block.published;
    });
    if (it == blocks_.end()) return;
    auto& [b, block] = *it;
    for (TierIndex tier = 0; tier < kTiers; ++tier) {
      if (block.copies[tier] != CopyState::kAbsent) DetachFrom(b, block, tier);
    }
    pool_.FreeId(b);
    blocks_.erase(it);
  }

  void Pin() {
    const auto it = Any();
    if (it == blocks_.end()) return;
    auto& [b, block] = *it;
    if (Pick(2 + block.pins) == 0) {
      const bool can = block.pins < 31;
      ASSERT_EQ(pool_.Pin(b), can);
      block.pins += can;
    } else {
      const bool can = block.pins > 0;
      ASSERT_EQ(pool_.Unpin(b), can);
      block.pins -= can;
    }
  }

  void Publish() {
    const auto it = Any();
    if (it == blocks_.end()) return;
    auto& [b, block] = *it;
    block.published = !block.published;
    block.published ? pool_.SetFlag(b, word::kPublished) : pool_.ClearFlag(b, word::kPublished);
  }

  void ReturnQuarantined() {
    const auto tier = static_cast<TierIndex>(Pick(kTiers));
    pool_.ReturnQuarantined(tier, quarantine_[tier]);
    quarantine_[tier].clear();
  }

  void Resize() {
    if (Pick(4) != 0) return;
    const auto tier = static_cast<TierIndex>(Pick(kTiers));
    ASSERT_TRUE(pool_.Resize(tier, (tier == 0 ? 30 : 6) + Pick(7)).ok());
  }

  // A legal edge of a random block, or any move; on the blocks it suits, or any.
  void Transition() {
    const auto it = Any();
    if (it == blocks_.end()) return;
    const BlockPool::Move move = Pick(4) == 0 ? AnyMove() : MoveOf(it->second);
    std::vector<BlockId> blocks;
    const bool suited = Pick(4) != 0;
    for (const auto& [b, block] : blocks_) {
      const bool suits = AfterMove(block, move).has_value();
      if (suited ? suits && Pick(3) != 0 : Pick(6) == 0) blocks.push_back(b);
    }
    if (Pick(2) == 0) std::shuffle(blocks.begin(), blocks.end(), random_);
    Apply(blocks, move);
  }

  BlockPool::Move AnyMove() {
    return {.to = static_cast<Phase>(Pick(kPhaseCount)),
            .cause = Cause::kMatch,
            .via = static_cast<Phase>(Pick(kPhaseCount)),
            .hold = static_cast<int>(Pick(3)) - 1};
  }

  BlockPool::Move MoveOf(const ModelBlock& block) {
    if (block.holds > 1) return {.to = Phase::kFree, .cause = Cause::kRelease, .hold = -1};
    const Edge* edge = nullptr;
    do edge = &kEdges[Pick(kEdges.size())];
    while (edge->from != block.phase);
    const bool held =
        edge->to == Phase::kAllocated || edge->to == Phase::kActive || edge->to == Phase::kReuse;
    return {.to = edge->to,
            .cause = Cause::kMatch,
            .hold = static_cast<int>(held) - static_cast<int>(block.holds)};
  }

  void Apply(const std::vector<BlockId>& blocks, Phase to, int hold) {
    Apply(blocks, {.to = to, .cause = Cause::kReserve, .hold = hold});
  }

  void Apply(const std::vector<BlockId>& blocks, const BlockPool::Move& move) {
    std::map<BlockId, ModelBlock> after = blocks_;
    std::vector<BlockId> changed;
    bool legal = true;
    for (BlockId b : blocks) {
      const std::optional<ModelBlock> next = AfterMove(blocks_[b], move);
      legal = legal && next.has_value();
      if (!legal) break;
      if (next->phase != blocks_[b].phase) changed.push_back(b);
      after[b] = *next;
    }
    std::vector<BlockId> got;
    ASSERT_EQ(pool_.Transition(blocks, move, &got),
              legal ? Outcome::kOk : Outcome::kIllegalTransition);
    if (!legal) return;
    ASSERT_EQ(got, changed);
    for (BlockId b : changed) {
      const Phase from = std::exchange(blocks_[b].phase, after[b].phase);
      if (move.via == Phase::kFree) edges_.emplace(from, after[b].phase);
    }
    blocks_ = after;
    for (BlockId b : changed) {
      ModelBlock& block = blocks_[b];
      if (block.phase == Phase::kFree && !block.hbm(CopyState::kAbsent)) DetachFrom(b, block, 0);
    }
  }

  std::mt19937 random_;
  BlockPool pool_;
  std::map<BlockId, ModelBlock> blocks_;
  std::array<std::vector<SlotId>, kTiers> quarantine_;
  std::set<std::pair<Phase, Phase>> edges_;  // taken directly
};

TEST(BlockPoolModelTest, RandomOperationsMatchANaiveModel) {
  std::set<std::pair<Phase, Phase>> edges;
  for (std::uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PoolModel model(seed);
    for (int step = 0; step < 1000; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      model.Step();
      model.Compare();
      if (::testing::Test::HasFatalFailure()) return;
    }
    edges.insert(model.edges().begin(), model.edges().end());
  }
  EXPECT_EQ(edges.size(), kEdges.size());  // every one was taken
}

}  // namespace
}  // namespace tidepool
