// Failure scenarios S50-S56: what may be found under which key.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/support/scenario_fixture.h"

namespace tidepool::testing {
namespace {

using enum Outcome;

TEST(Scenario, S50HashCollision) {
  ScenarioFixture s({.hbm = 4, .adjust = [](ManagerOptions& options) {
                       options.child_hash = [](NodeId, std::span<const Token>) {
                         return std::uint64_t{42};
                       };
                       options.block_digest = [](const PrefixHash&, std::span<const Token>) {
                         return PrefixHash{.high = 4, .low = 2};
                       };
                     }});
  const Tokens a = {1, 2, 3, 4};
  const Tokens c = {9, 9, 9, 9};
  s.Cache(a);
  EXPECT_EQ(s.Found(c), 0u);
  s.Cache(c);
  EXPECT_EQ(s.Found(a), 4u);
  EXPECT_EQ(s.Found(c), 4u);
  EXPECT_NE(s.Blocks(a), s.Blocks(c));
  EXPECT_EQ(s.Allocate("A", Join(a, {5})), kOk);  // the fixture compares the bytes
  EXPECT_EQ(s.Allocate("C", Join(c, {5})), kOk);
}

TEST(Scenario, S51FieldsOfAKeyHaveTypes) {
  ScenarioFixture s({.hbm = 4});
  const NamespaceId adapter = s.manager().RegisterNamespace({"", "X", "", ""}).value();
  const NamespaceId tenant = s.manager().RegisterNamespace({"X", "", "", ""}).value();
  EXPECT_NE(adapter, tenant);
  const Tokens tokens = Text(1, 8);
  s.Cache(tokens, {.ns = adapter});
  EXPECT_EQ(s.Found(tokens, {.ns = tenant}), 0u);
  EXPECT_EQ(s.Found(tokens, {.ns = adapter}), 8u);
}

TEST(Scenario, S52TenantIsolationOnTheDevice) {
  ScenarioFixture s({.hbm = 6});
  const NamespaceId a = s.manager().RegisterNamespace({"a", "", "", ""}).value();
  const NamespaceId b = s.manager().RegisterNamespace({"b", "", "", ""}).value();
  const Tokens tokens = Text(1, 8);
  s.Cache(tokens, {.ns = a});
  EXPECT_EQ(s.Found(tokens, {.ns = a}), 8u);
  EXPECT_EQ(s.Found(tokens, {.ns = b}), 0u);
  EXPECT_EQ(s.Found(tokens), 0u);
  s.Cache(tokens, {.ns = b});
  EXPECT_EQ(s.Counts(), "free 2, cached 4");
  EXPECT_NE(s.Blocks(tokens, a), s.Blocks(tokens, b));
}

/// Keys of the last block of five fixed prompts, as hex.
std::vector<std::string> KeysOfFixedPrompts(std::uint64_t seed) {
  ScenarioFixture s(
      {.hbm = 16, .adjust = [seed](ManagerOptions& options) { options.digest_seed = seed; }});
  const NamespaceId ns = s.manager().RegisterNamespace({"acme", "lora", "m", "bf16"}).value();
  const std::array<How, 5> how = {How{}, How{}, How{.ns = ns},
                                  How{.content = {{.block = 0, .key = {.high = 7, .low = 8}}}},
                                  How{}};  // all but one without extra content
  const std::array<Tokens, 5> prompts = {Text(1, 4), Text(1, 8), Text(1, 8), Text(2, 8),
                                         Tokens{-1, 0, 2147483647, -2147483647 - 1}};
  static_cast<void>(s.DrainEvents());
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    s.Cache(prompts[i], how[i]);
    const std::vector<Event> events = s.DrainEvents();
    char hex[33] = "nothing stored";
    if (!events.empty()) {
      std::snprintf(hex, sizeof(hex), "%016llx%016llx",
                    static_cast<unsigned long long>(events.back().digest.high),
                    static_cast<unsigned long long>(events.back().digest.low));
    }
    keys.emplace_back(hex);
  }
  return keys;
}

constexpr std::uint64_t kSeed = 2026;

// Run by S53 in a process of its own.
TEST(ScenarioChild, DISABLED_S53PrintKeys) {
  for (const std::string& key : KeysOfFixedPrompts(kSeed)) std::printf("key %s\n", key.c_str());
}

TEST(Scenario, S53KeysAreTheSameInEveryProcess) {
  const std::vector<std::string> golden = {
      "1b2b2ac2118f497b1c136d49430a5ace", "d2668f4f02e3f58df197ad5ad60238cb",
      "9bf2843ac6e2375bd87eec86e20c7ed3", "65b73b34edf318dbf352c8e0772ff9d7",
      "6f4b839c9d22eccc34c981db02c1b551"};
  const std::vector<std::string> keys = KeysOfFixedPrompts(kSeed);
  EXPECT_EQ(keys, golden);
  EXPECT_EQ(KeysOfFixedPrompts(kSeed), keys);

  char self[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
  const std::string command = "'" + std::string(self) +
                              "' --gtest_also_run_disabled_tests "
                              "--gtest_filter=ScenarioChild.DISABLED_S53PrintKeys";
  const std::unique_ptr<FILE, int (*)(FILE*)> child(popen(command.c_str(), "r"), &pclose);
  ASSERT_NE(child, nullptr);
  std::vector<std::string> printed;
  for (char line[256]; std::fgets(line, sizeof(line), child.get()) != nullptr;) {
    const std::string text(line);
    if (text.starts_with("key ")) printed.push_back(text.substr(4, text.size() - 5));
  }
  EXPECT_EQ(printed, keys);

  const std::vector<std::string> other = KeysOfFixedPrompts(kSeed + 1);
  ASSERT_EQ(other.size(), keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_NE(other[i], keys[i]);
}

TEST(Scenario, S54WeightsChanged) {
  ScenarioFixture s({.hbm = 4, .dram = 4});
  const Tokens device = Text(1, 8);
  const Tokens host = Text(2, 8);
  s.Store(host);
  s.Cache(device);
  EXPECT_EQ(s.Found(device), 8u);
  EXPECT_EQ(s.Found(host), 8u);
  EXPECT_TRUE(s.manager().AdvanceEpoch().ok());
  s.Check("AdvanceEpoch");
  EXPECT_EQ(s.Found(device), 0u);
  EXPECT_EQ(s.Found(host), 0u);

  const Tokens fresh = Text(3, 16);
  EXPECT_EQ(s.Allocate("N", fresh), kOk);  // all of HBM, without write-back
  EXPECT_TRUE(s.engine().InFlight().empty());
  EXPECT_EQ(s.Commit("N", 16), kOk);
  EXPECT_EQ(s.Offload(fresh).accepted, 4u);  // all of DRAM
  s.Settle();
  EXPECT_EQ(s.Probe(fresh).tokens, 16u);
}

TEST(Scenario, S54ASequenceOfTheOldWeightsPublishesNothing) {
  ScenarioFixture s({.hbm = 4});
  const Tokens tokens = Text(1, 8);
  EXPECT_EQ(s.Allocate("old", tokens), kOk);
  EXPECT_EQ(s.Commit("old", 4), kOk);
  EXPECT_TRUE(s.manager().AdvanceEpoch().ok());
  EXPECT_EQ(s.Commit("old", 8), kOk);
  EXPECT_EQ(s.Found(tokens), 0u);
  EXPECT_EQ(s.Free("old"), kOk);
  EXPECT_EQ(s.Found(tokens), 0u);
  EXPECT_EQ(s.Allocate("new", Join(tokens, Text(2, 8))), kOk);  // the whole pool
  EXPECT_EQ(s.Hit("new"), 0u);
}

TEST(Scenario, S55SameTokensOtherContent) {
  ScenarioFixture s({.hbm = 4});
  const Tokens placeholder = {7, 7, 7, 7};
  const auto image = [](std::uint64_t digest) {
    return How{.content = {{.block = 0, .key = {.high = 1, .low = digest}}}};
  };
  s.Cache(placeholder, image(1));
  EXPECT_EQ(s.Found(placeholder, image(1)), 4u);
  EXPECT_EQ(s.Found(placeholder, image(2)), 0u);
  EXPECT_EQ(s.Found(placeholder), 0u);
}

TEST(Scenario, S56ABlockInTheMiddleCannotBeLoaded) {
  ScenarioFixture s({.hbm = 4, .dram = 4});
  const Tokens older = Text(1, 4);
  const Tokens k = Text(2, 12);
  s.Store(older);
  s.Store(k);
  const BlockId k3 = s.Blocks(k)[2];
  EXPECT_EQ(s.Allocate("R", Join(k, {7})), kOk);
  const std::vector<CopyRequest> loads = s.engine().InFlight();
  ASSERT_EQ(loads.size(), 3u);
  EXPECT_TRUE(s.engine().Finish(loads[0].id));
  EXPECT_TRUE(s.engine().Finish(loads[1].id, TransferResult::kFailed));
  EXPECT_TRUE(s.engine().Finish(loads[2].id));
  s.Poll();
  EXPECT_EQ(s.ticket("R").Ready(), kLoadFailed);
  EXPECT_EQ(s.seq("R").tokens(), 4u);
  EXPECT_EQ(s.seq("R").committed(), 4u);
  EXPECT_EQ(s.Found(k), 4u);

  // Whatever is left of k3 goes before anything else does.
  for (const TierIndex tier : {kHbmTier, kLowerTier}) {
    if (s.manager().pool().copy(k3, tier) == CopyState::kAbsent) continue;
    EXPECT_EQ(s.Evict(1, tier), 1u);
    EXPECT_EQ(s.manager().pool().copy(k3, tier), CopyState::kAbsent);
  }
  EXPECT_EQ(s.Found(older), 4u);
  EXPECT_EQ(s.Found(k), 4u);
}

}  // namespace
}  // namespace tidepool::testing
