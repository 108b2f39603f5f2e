// spear_paper, ttl, asym_cache, bayes and spear on a real manager: the order in which sessions'
// tails leave against the published formulas, written out here once more.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tidepool/kv_cache_manager.h"
#include "tidepool/policy/asym_cache.h"
#include "tidepool/policy/spear.h"
#include "tidepool/policy/spear_paper.h"
#include "tidepool/policy/ttl.h"
#include "tidepool/testing/manual_clock.h"

namespace tidepool {
namespace {

using std::chrono::duration;
using std::chrono::duration_cast;
using std::chrono::seconds;
using Maker = std::function<std::unique_ptr<EvictionPolicy>(TierIndex)>;

constexpr std::uint32_t kBlockTokens = 4;
constexpr std::uint32_t kSlots = 512;
constexpr CostModel kCost = {.c0_seconds = 0.01, .c1_seconds_per_token = 0.001};

double Uniform(std::mt19937_64& random, double from, double to) {
  return std::uniform_real_distribution<double>(from, to)(random);
}

/// Sessions with prompts of their own on one HBM tier.
class Engine {
 public:
  explicit Engine(Maker policy, CostModel cost = kCost) {
    ManagerOptions options;
    options.layout = KvLayout::Gqa({.layers = 1,
                                    .kv_heads = 1,
                                    .head_dim = 8,
                                    .dtype = DType::kBf16,
                                    .block_tokens = kBlockTokens});
    options.tiers = {Hbm(HostArena(std::uint64_t{kSlots} * kBlockTokens * 8 * 2 * 2))};
    options.clock = &clock_;
    options.recompute = cost;
    options.policy = std::move(policy);
    manager_ = std::move(KvCacheManager::Create(std::move(options)).value());
  }

  /// One turn that takes no time and ends in a wait.
  void Turn(std::uint64_t id, std::uint32_t blocks, const PauseHint& wait = {},
            Priority priority = Priority::kNormal) {
    std::vector<Token> prompt(std::size_t{blocks} * kBlockTokens, static_cast<Token>(id + 1));
    prompt.push_back(-1);
    Admission a = manager_->Admit({.session = id, .tokens = prompt, .priority = priority});
    ASSERT_TRUE(a.granted());
    ASSERT_EQ(a.sequence.Commit(static_cast<std::uint32_t>(prompt.size()), Fence::Done()),
              Outcome::kOk);
    ASSERT_EQ(a.sequence.Finish(Fence::Done(), wait), Outcome::kOk);
    blocks_[id] = blocks;
    since_[id] = now();
  }
  void Wait(double s) {
    clock_.Advance(duration_cast<Duration>(duration<double>(s)));
    manager_->Poll();
  }
  void Complete(std::uint64_t id) { (void)manager_->CompleteSession(id); }

  /// Evicts one block and says whose it was.
  std::uint64_t Evict() {
    EXPECT_EQ(manager_->Evict(kHbmTier, 1), 1u);
    for (auto& [id, n] : blocks_) {
      const std::uint32_t left = Resident(id);
      if (left == n) continue;
      EXPECT_EQ(left + 1, n);
      n = left;
      return id;
    }
    ADD_FAILURE() << "nothing left";
    return 0;
  }
  [[nodiscard]] std::uint32_t Resident(std::uint64_t id) const {
    const std::vector<Token> prompt(std::size_t{64} * kBlockTokens, static_cast<Token>(id + 1));
    return manager_->Probe({.tokens = prompt}).tokens / kBlockTokens;
  }

  [[nodiscard]] double now() const {
    return duration<double>(clock_.Now().time_since_epoch()).count();
  }
  [[nodiscard]] const std::map<std::uint64_t, std::uint32_t>& blocks() const { return blocks_; }
  [[nodiscard]] double age(std::uint64_t id) const { return now() - since_.at(id); }

 private:
  testing::ManualClock clock_;
  std::unique_ptr<KvCacheManager> manager_;
  std::map<std::uint64_t, std::uint32_t> blocks_;
  std::map<std::uint64_t, double> since_;
};

/// Evicts everything; each block must be a session's of the least worth.
void ExpectLeastFirst(Engine& engine,
                      const std::function<double(std::uint64_t, std::uint32_t)>& worth) {
  std::uint32_t left = 0;
  for (const auto& [id, n] : engine.blocks()) left += n;
  for (; left != 0; --left) {
    double least = std::numeric_limits<double>::infinity();
    std::map<std::uint64_t, double> before;
    for (const auto& [id, n] : engine.blocks()) {
      if (n == 0) continue;
      before[id] = worth(id, n);
      least = std::min(least, before[id]);
    }
    const std::uint64_t victim = engine.Evict();
    ASSERT_LE(before.at(victim), least + 1e-9 * std::abs(least)) << "session " << victim;
  }
}

// --- spear_paper ---

TEST(SpearPaperPolicy, LeavesInTheOrderOfThePublishedScore) {
  std::mt19937_64 random(3);
  Engine engine([](TierIndex) { return MakeSpearPaperPolicy(); });
  std::map<std::uint64_t, double> gap;
  std::map<std::uint64_t, int> turns;
  std::map<int, int> reached;
  for (int round = 0; round < 6; ++round) {
    for (std::uint64_t id = 0; id < 30; ++id) {
      if (round != 0 && random() % 3 == 0) continue;
      if (round != 0) {
        const double g = engine.age(id);
        gap[id] = gap.count(id) == 0 ? g : 0.3 * g + 0.7 * gap[id];
      }
      ++reached[++turns[id]];
      ASSERT_NO_FATAL_FAILURE(engine.Turn(id, 3));
      engine.Wait(Uniform(random, 0.1, 3));
    }
  }
  for (std::uint64_t id = 0; id < 30; ++id) {
    if (gap.count(id) != 0) continue;  // seen once only: the paper has no gap for it
    engine.Wait(1);
    gap[id] = engine.age(id);
    ++reached[++turns[id]];
    ASSERT_NO_FATAL_FAILURE(engine.Turn(id, 3));
  }
  engine.Wait(6);  // by then every score has seen the hazards as they are now
  ExpectLeastFirst(engine, [&](std::uint64_t id, std::uint32_t) {
    const double h = 1.0 / (reached[turns[id]] + 61);
    const double sigma = std::max(0.01, 1 - h);
    return -(gap[id] / sigma + (1 - sigma) * 500) * (1 + 1e-6);  // EMA in single precision
  });
}

// --- ttl ---

TEST(TtlPolicy, RetainsForTheTimeThatPays) {
  auto model = std::make_shared<SessionModel>();
  const TtlOptions options = {.model = model, .queue_delay = seconds(20)};
  Engine engine([&](TierIndex) { return MakeTtlPolicy(options); });
  const PauseHint tool = {.wait = WaitClass::kTool};
  const PauseHint user = {.wait = WaitClass::kUser};
  std::mt19937_64 random(4);
  for (int i = 0; i < 400; ++i) {  // tools take 5 s, users 100 s
    const auto id = 1000 + static_cast<std::uint64_t>(i % 2);
    ASSERT_NO_FATAL_FAILURE(engine.Turn(id, 1, i % 2 == 0 ? tool : user));
    engine.Wait(i % 2 == 0 ? 2 : 3);
  }
  for (const std::uint64_t id : {1000u, 1001u}) engine.Complete(id);
  while (engine.blocks().at(1000) + engine.blocks().at(1001) != 0) engine.Evict();
  for (std::uint64_t id = 0; id < 20; ++id) {
    ASSERT_NO_FATAL_FAILURE(
        engine.Turn(id, 1 + static_cast<std::uint32_t>(id % 4), id % 2 == 0 ? tool : user));
    engine.Wait(Uniform(random, 0.1, 2));
  }
  std::map<std::uint64_t, std::uint32_t> size = engine.blocks();
  const auto ttl = [&](std::uint64_t id) {
    const double benefit = 20 + 0.008 * size[id];
    double best = 0;
    double gain = 0;
    for (std::size_t bin = 1; gap_bins::Edge(bin) < benefit; ++bin) {
      const double t = gap_bins::Edge(bin);
      const auto within = duration_cast<Duration>(duration<double>(t));
      const double p =
          model->WithinFromStart(id % 2 == 0 ? WaitClass::kTool : WaitClass::kUser, 0, within);
      if (p * benefit - t > gain) gain = p * benefit - t, best = t;
    }
    return best;
  };
  EXPECT_GT(ttl(0), 3);
  ExpectLeastFirst(engine, [&](std::uint64_t id, std::uint32_t) {
    const bool retained = engine.age(id) < ttl(id);
    return (retained ? 1e6 + ttl(id) : 0.0) - engine.age(id);
  });
}

// --- asym_cache, bayes ---

double Restore(std::uint32_t blocks) { return 0.01 + 0.001 * (blocks - 1) * kBlockTokens; }

double AsymWorth(double age, std::uint32_t blocks, double long_gap, double p, double r) {
  const double alpha = -long_gap / std::log(p);
  const double beta = alpha / r;
  const double age0 = long_gap * (1 - 1 / r);
  return std::min(std::exp(-age / alpha), std::exp(-(age - age0) / beta)) * Restore(blocks);
}

TEST(AsymCachePolicy, LeavesByExpectedCostInBothBranches) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    std::mt19937_64 random(seed);
    Engine engine([](TierIndex) {
      return MakeAsymCachePolicy(
          {.long_gap = seconds(30), .reuse_at_long_gap = 0.4, .slope_ratio = 8});
    });
    for (std::uint64_t id = 0; id < 25; ++id) {
      ASSERT_NO_FATAL_FAILURE(engine.Turn(id, 1 + static_cast<std::uint32_t>(random() % 16)));
      engine.Wait(Uniform(random, 0.5, 4));
    }
    ExpectLeastFirst(engine, [&](std::uint64_t id, std::uint32_t blocks) {
      if (random() % 64 == 0) engine.Wait(0);
      return AsymWorth(engine.age(id), blocks, 30, 0.4, 8);
    });
  }
}

TEST(AsymCachePolicy, IsLruWhereEveryBlockCostsTheSame) {
  Engine engine([](TierIndex) { return MakeAsymCachePolicy(); }, CostModel{});
  for (std::uint64_t id = 0; id < 20; ++id) {
    ASSERT_NO_FATAL_FAILURE(engine.Turn((id * 7) % 20, 3));
    engine.Wait(1);
  }
  ExpectLeastFirst(engine, [&](std::uint64_t id, std::uint32_t) { return -engine.age(id); });
}

TEST(AsymCachePolicy, NonsenseOptionsAreReplaced) {
  const double nan = std::nan("");
  for (const AsymCacheOptions& options :
       {AsymCacheOptions{.long_gap = seconds(0)}, AsymCacheOptions{.reuse_at_long_gap = nan},
        AsymCacheOptions{.reuse_at_long_gap = 2}, AsymCacheOptions{.slope_ratio = nan},
        AsymCacheOptions{.slope_ratio = -1}}) {
    Engine engine([&](TierIndex) { return MakeAsymCachePolicy(options); });
    for (std::uint64_t id = 0; id < 8; ++id) {
      ASSERT_NO_FATAL_FAILURE(engine.Turn(id, 1 + static_cast<std::uint32_t>(id)));
      engine.Wait(1);
    }
    ExpectLeastFirst(engine, [&](std::uint64_t id, std::uint32_t blocks) {
      return AsymWorth(engine.age(id), blocks, 1000, 0.5, 10);
    });
  }
}

// Sessions that wait for users are given up again and again, those that wait for tools return.
TEST(BayesPolicy, LearnsWhichWaitsEndInReuse) {
  auto reuse = std::make_shared<ReuseTable>();
  Engine engine([&](TierIndex) { return MakeBayesPolicy({.reuse = reuse}); });
  std::uint64_t next = 100;
  for (int i = 0; i < 60; ++i) {
    ASSERT_NO_FATAL_FAILURE(engine.Turn(1, 2, {.wait = WaitClass::kTool}));
    ASSERT_NO_FATAL_FAILURE(engine.Turn(next++, 2, {.wait = WaitClass::kUser}));
    engine.Wait(1);
    ASSERT_NO_FATAL_FAILURE(engine.Turn(1, 2, {.wait = WaitClass::kTool}));
    engine.Wait(1);
    if (i > 2) {
      engine.Evict();
      engine.Evict();
    }
  }
  EXPECT_GT(reuse->Probability(BlockKind::kTool, ReuseTransition::kToolReturn), 0.9);
  EXPECT_LT(reuse->Probability(BlockKind::kUser, ReuseTransition::kNextTurn), 0.2);
  EXPECT_EQ(engine.Resident(1), 2u);
}

// --- spear ---

TEST(SpearPolicy, CostExponentMovesWorthTowardsDeepBlocks) {
  for (const double gamma : {0.0, 1.0}) {
    SpearOptions options;
    options.cost_exponent = gamma;
    Engine engine([&](TierIndex) { return MakeSpearPolicy(options); });
    ASSERT_NO_FATAL_FAILURE(engine.Turn(1, 60, {.wait = WaitClass::kTool}));
    engine.Wait(2);
    ASSERT_NO_FATAL_FAILURE(engine.Turn(2, 1, {.wait = WaitClass::kTool}));
    engine.Wait(8);
    const double first = MakeSpearPolicy(options)->name() == "spear" ? gamma : -1;
    EXPECT_EQ(engine.Evict(), first == 0 ? 1u : 2u) << "gamma " << gamma;
  }
}

TEST(SpearPolicy, AHintDecidesAmongAlikeSessions) {
  Engine engine([](TierIndex) { return MakeSpearPolicy(); });
  const auto wait = [](double s) {
    return PauseHint{.wait = WaitClass::kTool,
                     .expected_return = duration_cast<Duration>(duration<double>(s)),
                     .expected_return_log_sd = 0.1f};
  };
  const std::vector<double> due = {40, 5, 300, 90, 15};
  for (std::uint64_t id = 0; id < due.size(); ++id) {
    ASSERT_NO_FATAL_FAILURE(engine.Turn(id, 2, wait(due[id])));
  }
  engine.Wait(1);
  for (const std::uint64_t id : {2u, 2u, 3u, 3u, 0u, 0u, 4u, 4u, 1u, 1u}) {
    EXPECT_EQ(engine.Evict(), id);
  }
}

TEST(SpearPolicy, PriorityMultipliesWorth) {
  Engine engine([](TierIndex) { return MakeSpearPolicy(); });
  for (std::uint64_t id = 0; id < 4; ++id) {
    ASSERT_NO_FATAL_FAILURE(
        engine.Turn(id, 1, {.wait = WaitClass::kUser}, static_cast<Priority>((id + 2) % 4)));
  }
  engine.Wait(5);
  for (const std::uint64_t id : {2u, 3u, 0u, 1u}) EXPECT_EQ(engine.Evict(), id);
}

TEST(SpearPolicy, CompletedSessionsGoFirst) {
  Engine engine([](TierIndex) { return MakeSpearPolicy(); });
  for (std::uint64_t id = 0; id < 5; ++id) {
    ASSERT_NO_FATAL_FAILURE(engine.Turn(id, 2, {.wait = WaitClass::kTool}));
    engine.Wait(1);
  }
  engine.Complete(3);
  EXPECT_EQ(engine.Evict(), 3u);
  EXPECT_EQ(engine.Evict(), 3u);
}

}  // namespace
}  // namespace tidepool
