// Hits of every policy on a small generated trace, so that a change of what a policy decides is
// seen. The same counts stand in the pages of docs/policies.
#ifdef TIDEPOOL_POLICY_LAB

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/policy_lab/experiment.h"
#include "gtest/gtest.h"

namespace policy_lab {
namespace {

TEST(PolicyLabGolden, HitsOfEveryPolicy) {
  const std::map<std::string, std::vector<std::uint64_t>> golden = {
      {"lru", {649365, 1200167}},        {"arc", {650015, 1199350}},
      {"sieve", {650274, 1200200}},      {"spear", {651044, 1201291}},
      {"spear_cost", {650788, 1202648}}, {"spear_paper", {649359, 1180051}},
      {"ttl", {649365, 1202027}},        {"asym_cache", {647414, 1188143}},
      {"bayes", {648636, 1199061}},      {"belady", {653938, 1221558}},
  };
  Settings settings;
  settings.source.preset = "coding";
  settings.source.sessions = 12;
  settings.source.mean_start_gap_s = 30;
  settings.seed = 2;
  settings.capacities = {{.blocks = 1500}, {.blocks = 4000}};
  for (const auto& [policy, hits] : golden) settings.policies.push_back(policy);
  const auto results = RunExperiment(settings, nullptr);
  ASSERT_TRUE(results.ok()) << results.status();
  std::map<std::string, std::vector<std::uint64_t>> hits;
  for (const ResultRow& row : results->rows) {
    hits[row.policy].push_back(static_cast<std::uint64_t>(row.Of("hits").mean));
  }
  EXPECT_EQ(hits, golden);
}

}  // namespace
}  // namespace policy_lab

#endif  // TIDEPOOL_POLICY_LAB
