// A policy whose scores change with time, through the public interface: what S20 and S21 rest on.
#include "tests/support/session_ranked_policy.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <memory>
#include <vector>

#include "tidepool/block_pool.h"
#include "tidepool/policy/lru.h"

namespace tidepool {
namespace {

using std::chrono::seconds;
using Blocks = std::vector<BlockId>;

TimePoint At(int second) { return TimePoint(seconds(second)); }

// One-block sessions on one pool; each policy under test hears of everything.
class Rig {
 public:
  explicit Rig(std::unique_ptr<EvictionPolicy> policy) : policy_(std::move(policy)) {
    policy_->Attach(BlockView(&pool_, nullptr), kHbmTier, pool_.slots(kHbmTier));
  }

  // A session goes idle at `second` with one block of its own, to return at `due`.
  BlockId Idle(SessionId id, int second, TimePoint due, Priority priority = Priority::kNormal) {
    BlockId b;
    EXPECT_TRUE(pool_.Allocate({&b, 1}));
    policy_->OnInserted({&b, 1});
    EXPECT_EQ(pool_.Transition({&b, 1}, {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1}),
              Outcome::kOk);
    policy_->OnEvictable({&b, 1});
    SessionSignals session;
    session.session = id;
    session.idle_since = At(second);
    session.expected_return = due;
    session.priority = priority;
    sessions_.push_back(session);
    pool_.set_claim_priority(b, priority);
    policy_->OnPriorityChanged({&b, 1}, priority);
    policy_->OnClaimed(sessions_.back(), {&b, 1});
    return b;
  }

  Blocks Victims(int second, std::uint32_t count) {
    SchedulingSignals signals;
    signals.now = At(second);
    signals.sessions = sessions_;
    policy_->OnTimeAdvanced(signals);
    VictimQuery query;
    query.blocks = count;
    Blocks victims;
    policy_->SelectVictims(query, signals, victims);
    Blocks again;
    policy_->SelectVictims(query, signals, again);
    EXPECT_EQ(victims, again);
    return victims;
  }

  void Evict(BlockId b) {
    EXPECT_EQ(pool_.Transition({&b, 1}, {.to = Phase::kFree, .cause = Cause::kDrop}), Outcome::kOk);
    policy_->OnEvicted({&b, 1}, EvictReason::kCapacity);
    pool_.FreeBlocks({&b, 1});
  }

  SessionSignals& session(std::size_t i) { return sessions_[i]; }
  EvictionPolicy& policy() { return *policy_; }

 private:
  BlockPool pool_{{.block_tokens = 4, .slots = {16}}};
  std::unique_ptr<EvictionPolicy> policy_;
  std::vector<SessionSignals> sessions_;
};

Rig SessionRig() { return Rig(testing::MakeSessionRankedPolicy()); }

TEST(SessionRankedPolicyTest, S20WaitingIsNotCold) {
  for (const bool ranked : {false, true}) {
    Rig rig(ranked ? testing::MakeSessionRankedPolicy() : MakeLruPolicy());
    const BlockId a = rig.Idle(1, 0, At(12));
    const BlockId c = rig.Idle(2, 5, At(600));
    EXPECT_EQ(rig.Victims(10, 1), Blocks{ranked ? c : a});
  }
}

TEST(SessionRankedPolicyTest, S21RetentionIsABiasNotALock) {
  Rig rig = SessionRig();
  Blocks blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(rig.Idle(SessionId(static_cast<std::uint64_t>(i)), 0, At(i == 1 ? 900 : 200),
                              Priority::kCritical));
  }
  EXPECT_EQ(rig.Victims(10, 1), Blocks{blocks[1]});  // all are retained, one still leaves
  rig.Evict(blocks[1]);
  EXPECT_EQ(rig.Victims(150, 4), (Blocks{blocks[0], blocks[2], blocks[3]}));  // as LRU has them
}

TEST(SessionRankedPolicyTest, TheOrderFollowsTheSignals) {
  Rig rig = SessionRig();
  const BlockId a = rig.Idle(1, 0, At(40));
  const BlockId b = rig.Idle(2, 0, At(20));
  EXPECT_EQ(rig.Victims(1, 2), (Blocks{a, b}));
  rig.session(1).expected_return = At(500);  // its tool reported a delay
  EXPECT_EQ(rig.Victims(2, 2), (Blocks{b, a}));
  EXPECT_EQ(rig.Victims(59, 2), (Blocks{b, a}));
  EXPECT_EQ(rig.Victims(60, 2), (Blocks{a, b}));  // retention over: least recently used
}

TEST(SessionRankedPolicyTest, ASharedBlockTakesItsSoonestClaimant) {
  Rig rig = SessionRig();
  const BlockId shared = rig.Idle(1, 0, At(50));
  const BlockId own = rig.Idle(2, 0, At(30));
  EXPECT_EQ(rig.Victims(1, 1), Blocks{shared});
  rig.session(1).expected_return = At(10);
  rig.policy().OnClaimed(rig.session(1), {&shared, 1});
  EXPECT_EQ(rig.Victims(1, 2), (Blocks{shared, own}));  // both due in 9 s: least recently used
  rig.policy().OnUnclaimed(rig.session(1), {&own, 1});
  EXPECT_EQ(rig.Victims(1, 1), Blocks{own});  // nobody's
}

TEST(SessionRankedPolicyTest, S22S23HostileTimesAreTolerated) {
  Rig rig = SessionRig();
  const std::array<TimePoint, 5> due = {TimePoint::min(), TimePoint::max(), At(-5), At(0), At(7)};
  for (std::size_t i = 0; i < due.size(); ++i) rig.Idle(SessionId(i), 100, due[i]);
  for (int second : {100, -40, 101}) EXPECT_EQ(rig.Victims(second, 99).size(), due.size());
}

}  // namespace
}  // namespace tidepool
