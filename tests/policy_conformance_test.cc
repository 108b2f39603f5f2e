// Every policy of the library through the suite that the package installs for users' policies, and
// proof that the suite tells a policy that breaks a rule.
#include "tidepool/testing/policy_conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/built_in_policies.h"
#include "tidepool/policy/arc.h"
#include "tidepool/policy/asym_cache.h"
#include "tidepool/policy/lru.h"
#include "tidepool/policy/sieve.h"
#include "tidepool/policy/spear.h"
#include "tidepool/policy/spear_paper.h"
#include "tidepool/policy/ttl.h"
#include "tidepool/testing/policy_decorator.h"
#include "tidepool/tide/tide.h"

namespace tidepool {
namespace {

TIDEPOOL_POLICY_CONFORMANCE(Lru, [](TierIndex) { return MakeLruPolicy(); });
TIDEPOOL_POLICY_CONFORMANCE(Arc, [](TierIndex) { return MakeArcPolicy(); });
TIDEPOOL_POLICY_CONFORMANCE(Sieve, [](TierIndex) { return MakeSievePolicy(); });
TIDEPOOL_POLICY_CONFORMANCE(Spear, [](TierIndex) { return MakeSpearPolicy(); });
TIDEPOOL_POLICY_CONFORMANCE(SpearCost, [](TierIndex) { return MakeSpearPolicy(SpearForCost()); });
TIDEPOOL_POLICY_CONFORMANCE(SpearPaper, [](TierIndex) { return MakeSpearPaperPolicy(); });
TIDEPOOL_POLICY_CONFORMANCE(Ttl, [](TierIndex) { return MakeTtlPolicy(); });
TIDEPOOL_POLICY_CONFORMANCE(AsymCache, [](TierIndex) { return MakeAsymCachePolicy(); });
TIDEPOOL_POLICY_CONFORMANCE(Bayes, [](TierIndex) { return MakeBayesPolicy(); });

TIDEPOOL_POLICY_CONFORMANCE(TideTier, [](TierIndex tier) { return Tide().MakePolicy(tier); });

TEST(BuiltInPolicies, AreFoundByName) {
  std::set<std::string_view> names;
  for (const BuiltInPolicy& policy : BuiltInPolicies()) {
    EXPECT_TRUE(names.insert(policy.name).second) << policy.name;
    const StatusOr<PolicyFactory> found = PolicyByName(policy.name);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, policy.make);
    // Presets of one policy share its name.
    EXPECT_TRUE(policy.name.starts_with(policy.make()->name())) << policy.name;
  }
  EXPECT_EQ(names.size(), 9u);
}

TEST(BuiltInPolicies, AnUnknownNameIsAnErrorThatListsThem) {
  const StatusOr<PolicyFactory> found = PolicyByName("fifo");
  ASSERT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(found.status().message(),
            "no policy \"fifo\"; there are: lru, arc, sieve, spear, spear_cost, spear_paper, ttl, "
            "asym_cache, bayes");
}

// --- Policies that break a rule, one each. ---

enum class Flaw {
  kNone,
  kNameless,
  kNamesTwice,
  kNamesTooMany,
  kChangesItsMind,
  kIgnoresTheFilter,
  kForgetsBlocks,
  kLocksCriticalBlocks,
  kTurnsPrioritiesRound,
  kForgetsWhatWasHeld,
  kLearnsFromQueries,
  kKeepsHistory,
};

// LRU, but for the flaw.
class FlawedPolicy final : public testing::PolicyDecorator {
 public:
  explicit FlawedPolicy(Flaw flaw) : PolicyDecorator(MakeLruPolicy()), flaw_(flaw) {}

  [[nodiscard]] std::string_view name() const noexcept override {
    return flaw_ == Flaw::kNameless ? "" : "flawed";
  }
  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) override {
    view_ = blocks;
    policy().Attach(blocks, tier, slots);
  }
  void OnAccessed(std::span<const BlockId> blocks) noexcept override {
    policy().OnAccessed(blocks);
    if (flaw_ == Flaw::kForgetsWhatWasHeld) lost_.insert(blocks.begin(), blocks.end());
  }
  void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept override {
    policy().OnEvicted(blocks, reason);
    for (const BlockId b : blocks) lost_.erase(b);
    history_ += blocks.size();
  }
  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override {
    VictimQuery all = query;
    all.blocks = view_.capacity();
    if (flaw_ == Flaw::kIgnoresTheFilter) all.filter = nullptr;
    std::vector<BlockId> named;
    policy().SelectVictims(all, signals, named);
    std::erase_if(named, [this](BlockId b) { return Hidden(b); });
    Spoil(named);
    const std::size_t most = query.blocks + (flaw_ == Flaw::kNamesTooMany ? 1u : 0u);
    if (named.size() > most) named.resize(most);
    victims.insert(victims.end(), named.begin(), named.end());
    ++queries_;
  }
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override {
    return policy().MemoryBytes() + (flaw_ == Flaw::kKeepsHistory ? history_ * 64 : 0);
  }

 private:
  [[nodiscard]] bool Hidden(BlockId b) const {
    return (flaw_ == Flaw::kForgetsBlocks && b.value() % 8 >= 4) || lost_.count(b) != 0 ||
           (flaw_ == Flaw::kLocksCriticalBlocks && view_.ClaimPriority(b) == Priority::kCritical);
  }
  void Spoil(std::vector<BlockId>& named) const {
    if (named.empty()) return;
    if (flaw_ == Flaw::kNamesTwice) named.insert(named.begin(), named.front());
    if (flaw_ == Flaw::kTurnsPrioritiesRound) std::reverse(named.begin(), named.end());
    const bool turn = (flaw_ == Flaw::kChangesItsMind && queries_ % 2 == 1) ||
                      (flaw_ == Flaw::kLearnsFromQueries && queries_ / 2 % 2 == 1);
    if (turn) std::rotate(named.begin(), named.begin() + 1, named.end());
  }

  Flaw flaw_;
  BlockView view_{nullptr, nullptr};
  std::set<BlockId> lost_;
  std::uint64_t history_ = 0;
  std::uint64_t queries_ = 0;
};

bool Fails(const testing::PolicyCheck& check, Flaw flaw) {
  return !check.run([flaw](TierIndex) { return std::make_unique<FlawedPolicy>(flaw); }).empty();
}

std::set<std::string> Failed(Flaw flaw) {
  std::set<std::string> failed;
  for (const testing::PolicyCheck& check : testing::PolicyChecks()) {
    if (Fails(check, flaw)) failed.insert(check.name);
  }
  return failed;
}

TEST(PolicyConformanceSuite, TellsFlawedPolicies) {
  EXPECT_EQ(Failed(Flaw::kNone), std::set<std::string>{});
  EXPECT_EQ(Failed(Flaw::kNameless), std::set<std::string>{"HasAName"});
  EXPECT_EQ(Failed(Flaw::kKeepsHistory), std::set<std::string>{"BoundsItsMemory"});
  EXPECT_EQ(Failed(Flaw::kTurnsPrioritiesRound),
            std::set<std::string>{"CriticalOutlivesBackground"});
  const std::pair<Flaw, const char*> flaws[] = {
      {Flaw::kNamesTwice, "SelectsWithinTheQuery"},
      {Flaw::kNamesTooMany, "SelectsWithinTheQuery"},
      {Flaw::kChangesItsMind, "SelectsWithinTheQuery"},
      {Flaw::kIgnoresTheFilter, "ServesTwoTiers"},
      {Flaw::kForgetsBlocks, "GivesEveryBlockInTheEnd"},
      {Flaw::kLocksCriticalBlocks, "TreatsRetentionAsABias"},
      {Flaw::kForgetsWhatWasHeld, "KeepsWhatIsHeld"},
      {Flaw::kLearnsFromQueries, "ProbesChangeNothing"},
  };
  const auto checks = testing::PolicyChecks();
  for (const auto& [flaw, name] : flaws) {
    const auto check =
        std::find_if(checks.begin(), checks.end(),
                     [name = std::string(name)](const auto& c) { return c.name == name; });
    ASSERT_NE(check, checks.end()) << name;
    EXPECT_TRUE(Fails(*check, flaw)) << name << ", flaw " << static_cast<int>(flaw);
  }
}

}  // namespace
}  // namespace tidepool
