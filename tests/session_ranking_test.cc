// The ranking against brute force: in random traffic on a real manager the block that leaves next
// must be one that a plain search over all tails and all claimants would choose too.
#include "tidepool/session_ranking.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "tidepool/kv_cache_manager.h"
#include "tidepool/testing/manual_clock.h"

namespace tidepool {
namespace {

using std::chrono::seconds;

constexpr std::uint32_t kBlockTokens = 4;
constexpr std::uint32_t kSlots = 96;
constexpr std::uint64_t kSessions = 14;
constexpr double kNothing = -std::numeric_limits<double>::infinity();

/// Worth by session and age, up and down in steps of five seconds.
double WorthOf(SessionId session, TimePoint since, TimePoint now) {
  const auto step = static_cast<std::uint64_t>((now - since) / seconds(5));
  return std::log(1.0 + static_cast<double>((session.value() * 7919 + step * 104729) % 1009));
}

class StepScorer final : public SessionScorer {
 public:
  [[nodiscard]] Rating Rate(const Claimant& c, TimePoint now) const noexcept override {
    return {WorthOf(c.session, c.since, now) + LogPriority(c),
            c.since + seconds(5) * ((now - c.since) / seconds(5) + 1)};
  }
};

class RankingWorld {
 public:
  explicit RankingWorld(std::uint64_t seed) : random_(seed) {
    ManagerOptions options;
    options.layout = KvLayout::Gqa({.layers = 1,
                                    .kv_heads = 1,
                                    .head_dim = 8,
                                    .dtype = DType::kBf16,
                                    .block_tokens = kBlockTokens});
    options.tiers = {Hbm(HostArena(std::uint64_t{kSlots} * kBlockTokens * 8 * 2 * 2))};
    options.clock = &clock_;
    options.match_partial_tail = false;
    options.policy = [](TierIndex) {
      return MakeRankedPolicy("steps", std::make_unique<StepScorer>());
    };
    manager_ = std::move(KvCacheManager::Create(std::move(options)).value());
  }

  void Step() {
    const std::uint64_t id = random_() % kSessions;
    Session& s = sessions_[id];
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        s.sequence.alive() ? EndTurn(s) : BeginTurn(id, s);
        break;
      case 3:
        clock_.Advance(seconds(random_() % 7));
        manager_->Poll();
        break;
      case 4:
        if (random_() % 4 == 0 && !s.sequence.alive()) Complete(id, s);
        break;
      default:
        for (std::uint64_t n = random_() % 4; n-- > 0;) EvictOne();
    }
    ASSERT_TRUE(manager_->Audit().ok()) << manager_->Audit();
  }
  void EvictAll() {
    for (auto& [id, s] : sessions_) {
      if (s.sequence.alive()) EndTurn(s);
    }
    while (manager_->counts().cached != 0) {
      const std::uint32_t before = manager_->counts().cached;
      EvictOne();
      ASSERT_LT(manager_->counts().cached, before) << "nothing offered";
    }
  }
  [[nodiscard]] std::uint64_t compared() const { return compared_; }

 private:
  struct Session {
    std::vector<Token> prompt;
    std::vector<BlockRef> claimed;
    Sequence sequence;
    TimePoint since{};
    TimePoint arrived = kNever;  // and was refused
    Priority priority = Priority::kNormal;
  };

  // Grows the prompt, now and then branches off it, and shares its beginning with others.
  void BeginTurn(std::uint64_t id, Session& s) {
    if (s.prompt.empty()) {
      for (std::uint32_t i = 0; i < 6 * kBlockTokens; ++i) {
        s.prompt.push_back(static_cast<Token>(i + 1000 * (id % 3)));
      }
    }
    if (random_() % 6 == 0) s.prompt.resize(s.prompt.size() - random_() % s.prompt.size() / 2);
    for (std::uint64_t n = random_() % (3 * kBlockTokens); n-- > 0;) {
      s.prompt.push_back(static_cast<Token>(100'000 + random_() % 3));
    }
    if (s.prompt.size() > 16 * kBlockTokens) s.prompt.resize(7 * kBlockTokens);
    const auto priority = static_cast<Priority>(random_() % 4);
    Admission a = manager_->Admit({.session = id, .tokens = s.prompt, .priority = priority});
    if (!a.granted()) {
      if (s.arrived == kNever) s.arrived = clock_.Now();
      return;
    }
    s.arrived = kNever;
    s.priority = priority;
    s.sequence = std::move(a.sequence);
    const auto length = static_cast<std::uint32_t>(s.prompt.size());
    ASSERT_EQ(s.sequence.Commit(length, Fence::Done()), Outcome::kOk);
  }

  void EndTurn(Session& s) {
    std::vector<BlockId> path;
    manager_->Lookup(s.prompt, NamespaceId(0), path);
    ASSERT_EQ(s.sequence.Finish(), Outcome::kOk);
    s.since = clock_.Now();
    s.claimed.clear();
    for (const BlockId b : path) s.claimed.push_back(manager_->pool().ref(b));
  }

  void Complete(std::uint64_t id, Session& s) {
    (void)manager_->CompleteSession(id);
    s.claimed.clear();
    s.arrived = kNever;
  }

  // Back already: before all others, and the first to have come before the last.
  static double Queued(const Session& s) {
    const auto came = std::chrono::duration<double>(s.arrived.time_since_epoch()).count();
    return 1e12 * (1 + static_cast<double>(s.priority)) - came;
  }

  [[nodiscard]] std::map<BlockId, double> Tails() {
    std::map<BlockId, double> tails;
    const BlockPool& pool = manager_->pool();
    for (std::uint32_t i = 0; i < pool.capacity(); ++i) {
      const BlockId b(i);
      if (pool.Has(b, word::kPublished) && pool.Evictable(b, kHbmTier) &&
          manager_->index().IsResidentTail(b, kHbmTier)) {
        tails[b] = kNothing;
      }
    }
    for (const auto& [id, s] : sessions_) {
      if (s.sequence.alive()) continue;
      const double worth = s.arrived != kNever
                               ? Queued(s)
                               : WorthOf(id, s.since, clock_.Now()) +
                                     (static_cast<double>(s.priority) - 1) * std::log(4.0);
      for (const BlockRef& ref : s.claimed) {
        const auto it = pool.alive(ref) ? tails.find(ref.block) : tails.end();
        if (it != tails.end()) it->second = std::max(it->second, worth);
      }
    }
    return tails;
  }

  void EvictOne() {
    const std::map<BlockId, double> tails = Tails();
    if (tails.empty()) return;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [b, worth] : tails) least = std::min(least, worth);
    std::vector<BlockRef> before;
    for (const auto& [b, worth] : tails) before.push_back(manager_->pool().ref(b));
    ASSERT_EQ(manager_->Evict(kHbmTier, 1), 1u);
    for (const BlockRef& ref : before) {
      if (manager_->pool().alive(ref)) continue;
      ASSERT_LE(tails.at(ref.block), least + 1e-9) << "not the least worth of all tails";
      ++compared_;
    }
  }

  testing::ManualClock clock_;
  std::unique_ptr<KvCacheManager> manager_;
  std::map<std::uint64_t, Session> sessions_;
  std::mt19937_64 random_;
  std::uint64_t compared_ = 0;
};

TEST(SessionRanking, EvictsWhatABruteForceSearchWould) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    RankingWorld world(seed);
    for (int i = 0; i < 1500; ++i) {
      ASSERT_NO_FATAL_FAILURE(world.Step()) << "seed " << seed << ", step " << i;
    }
    ASSERT_NO_FATAL_FAILURE(world.EvictAll()) << "seed " << seed;
    EXPECT_GT(world.compared(), 500u);
  }
}

}  // namespace
}  // namespace tidepool
