// The manager under random operations against the reference model. A failure prints the seed, the
// step and the shortest log of operations that still fails. TIDEPOOL_MODEL_SEED and
// TIDEPOOL_MODEL_STEPS replay and lengthen it, TIDEPOOL_MODEL_LOG names a file with a printed log,
// and with TIDEPOOL_MODEL_FORK a crash counts as a failure.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/model_world.h"
#include "tidepool/built_in_policies.h"

namespace tidepool::testing {
namespace {

constexpr FakeFaults kFaulty = ModelFaults(0.08);

ModelConfig Config(std::string name, std::vector<std::uint32_t> slots) {
  ModelConfig config;
  config.name = std::move(name);
  config.slots = std::move(slots);
  if (config.slots.size() > 1) config.faults = kFaulty;
  config.max_blocks = std::clamp(config.slots[0] / 2, 2u, 12u);
  return config;
}

std::vector<ModelConfig> Configs() {
  std::vector<ModelConfig> configs = {
      Config("OneTier", {12}),
      Config("OneTierTiny", {3}),
      Config("OneTierEvents", {24}),
      Config("OneTierTokens", {40}),
      Config("OneTierQueued", {16}),
      Config("OneTierQuotas", {14}),
      Config("TwoTiers", {10, 16}),
      Config("TwoTiersTiny", {3, 2}),
      Config("TwoTiersQueued", {16, 8}),
      Config("TwoTiersRecompute", {12, 10}),
      Config("TwoTiersQuotas", {16, 12}),
      Config("TwoTiersEvents", {12, 12}),
      Config("ThreeTiers", {8, 6, 20}),
      Config("ThreeTiersLarge", {64, 48, 128}),
      Config("ThreeTiersEvents", {10, 8, 16}),
      Config("ThreeTiersTokens", {20, 20, 20}),
      Config("StormOneTier", {8}),
      Config("StormTwoTiers", {8, 5}),
      Config("StormTwoTiersRecompute", {9, 24}),
      Config("StormThreeTiersQueued", {8, 4, 10}),
  };
  for (const auto& slots : {std::vector<std::uint32_t>{12, 10}, {8, 6, 20}, {32, 64, 16}}) {
    configs.push_back(
        Config("Tide" + std::to_string(slots.size()) + "Tiers" + std::to_string(slots[0]), slots));
    configs.back().tide = true;
  }
  configs.push_back(Config("TideWaits3Tiers", {24, 24, 32}));
  configs.back().tide = true;
  configs.back().accept_limit = 2;
  configs.push_back(Config("Taken2Tiers", {16, 20}));
  configs.push_back(Config("Taken2TiersRecompute", {16, 20}));
  configs.push_back(Config("Taken3TiersQueued", {20, 12, 24}));
  configs.push_back(Config("TakenStorm2Tiers", {10, 20}));
  configs.push_back(Config("TakenTide3Tiers", {24, 24, 32}));
  configs.back().tide = true;
  configs.push_back(Config("TideTierFaults3Tiers", {16, 12, 24}));
  configs.back().tide = configs.back().tier_faults = true;
  configs.push_back(Config("ThreeTiersTierFaults", {16, 12, 24}));
  configs.back().tier_faults = true;
  for (const BuiltInPolicy& policy : BuiltInPolicies()) {
    for (const auto& slots : {std::vector<std::uint32_t>{14}, {10, 8, 16}}) {
      std::string name(policy.name);
      std::erase(name, '_');
      configs.push_back(Config(name + (slots.size() == 1 ? "OneTier" : "ThreeTiers"), slots));
      configs.back().policy = policy.make;
      configs.back().steps = 3000;
    }
  }
  for (ModelConfig& config : configs) {
    const auto has = [&](const char* word) { return config.name.find(word) != std::string::npos; };
    if (has("Events")) config.event_capacity = config.slots.size() == 2 ? 16 : 4096;
    if (has("Queued")) config.queued_work = config.null_slot = true;
    if (has("Tokens")) config.block_tokens = 1;
    if (has("Taken")) {  // the engine is slow: loads wait for it
      config.accept_limit = 1;
      config.faults.delay = 0.8;
      config.faults.finish_anyway = 0.2;
    }
    config.quotas = has("Quotas");
    config.recompute = has("Recompute");
    if (has("Large")) config.layers = 3;
    if (has("Tiny")) config.partial_tail = false;
    if (has("Storm")) {
      config.storm = true;
      config.resize = false;
      config.steps = 4000;
    }
  }
  return configs;
}

struct Weight {
  ModelOpKind kind;
  std::uint32_t weight;
};
constexpr Weight kWeights[] = {
    {ModelOpKind::kAdmit, 24},        {ModelOpKind::kAppend, 14},
    {ModelOpKind::kStep, 40},         {ModelOpKind::kTruncate, 4},
    {ModelOpKind::kFork, 4},          {ModelOpKind::kDropLeading, 2},
    {ModelOpKind::kPause, 6},         {ModelOpKind::kResume, 8},
    {ModelOpKind::kPreempt, 4},       {ModelOpKind::kFinish, 8},
    {ModelOpKind::kDropHandle, 2},    {ModelOpKind::kCompleteSession, 1},
    {ModelOpKind::kProbe, 4},         {ModelOpKind::kEvict, 8},
    {ModelOpKind::kOffload, 9},       {ModelOpKind::kOnboard, 5},
    {ModelOpKind::kCompleteStep, 18}, {ModelOpKind::kRunDevice, 6},
    {ModelOpKind::kPoll, 14},         {ModelOpKind::kClock, 4},
    {ModelOpKind::kSignals, 1},       {ModelOpKind::kPlanReclaim, 1},
    {ModelOpKind::kCancelDemand, 1},  {ModelOpKind::kMisuse, 1},
    {ModelOpKind::kQuota, 1},         {ModelOpKind::kResize, 1},
    {ModelOpKind::kArrive, 6},        {ModelOpKind::kTierFault, 4},
    {ModelOpKind::kTakeLoads, 12},    {ModelOpKind::kCommitTaken, 10},
    {ModelOpKind::kLinkLimit, 1},
};

constexpr Weight kStormWeights[] = {
    {ModelOpKind::kAdmit, 16},       {ModelOpKind::kAppend, 10},
    {ModelOpKind::kStep, 30},        {ModelOpKind::kFork, 1},
    {ModelOpKind::kDropLeading, 1},  {ModelOpKind::kPause, 4},
    {ModelOpKind::kResume, 50},      {ModelOpKind::kPreempt, 40},
    {ModelOpKind::kFinish, 6},       {ModelOpKind::kCompleteStep, 20},
    {ModelOpKind::kPoll, 14},        {ModelOpKind::kClock, 4},
    {ModelOpKind::kPlanReclaim, 4},  {ModelOpKind::kRunDevice, 4},
    {ModelOpKind::kCancelDemand, 1}, {ModelOpKind::kEvict, 2},
    {ModelOpKind::kTakeLoads, 6},    {ModelOpKind::kCommitTaken, 5},
    {ModelOpKind::kLinkLimit, 1},
};

// Mostly admissions of what only tiers below HBM have.
constexpr Weight kTakenWeights[] = {
    {ModelOpKind::kAdmit, 24},     {ModelOpKind::kAppend, 4},
    {ModelOpKind::kStep, 24},      {ModelOpKind::kTruncate, 2},
    {ModelOpKind::kFork, 2},       {ModelOpKind::kDropLeading, 1},
    {ModelOpKind::kPause, 4},      {ModelOpKind::kResume, 10},
    {ModelOpKind::kPreempt, 3},    {ModelOpKind::kFinish, 16},
    {ModelOpKind::kDropHandle, 2}, {ModelOpKind::kCompleteSession, 1},
    {ModelOpKind::kEvict, 16},     {ModelOpKind::kOffload, 16},
    {ModelOpKind::kOnboard, 2},    {ModelOpKind::kCompleteStep, 24},
    {ModelOpKind::kRunDevice, 6},  {ModelOpKind::kPoll, 12},
    {ModelOpKind::kClock, 2},      {ModelOpKind::kCancelDemand, 4},
    {ModelOpKind::kArrive, 2},     {ModelOpKind::kResize, 1},
    {ModelOpKind::kTakeLoads, 24}, {ModelOpKind::kCommitTaken, 12},
    {ModelOpKind::kLinkLimit, 1},  {ModelOpKind::kPlanReclaim, 1},
};

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : otherwise;
}

std::span<const Weight> WeightsOf(const ModelConfig& config) {
  if (config.storm) return kStormWeights;
  if (config.name.starts_with("Taken")) return kTakenWeights;
  return kWeights;
}

std::vector<ModelOp> RandomOps(std::uint64_t seed, std::uint64_t count,
                               std::span<const Weight> weights) {
  std::mt19937_64 random(seed);
  std::uint32_t total = 0;
  for (const Weight& w : weights) total += w.weight;
  std::vector<ModelOp> ops(count);
  for (ModelOp& op : ops) {
    auto at = static_cast<std::uint32_t>(random() % total);
    for (const Weight& w : weights) {
      if (at < w.weight) {
        op.kind = w.kind;
        break;
      }
      at -= w.weight;
    }
    if (random() % 500 == 0) op.kind = ModelOpKind::kNamespace;
    if (random() % 2500 == 0) op.kind = ModelOpKind::kClear;
    if (random() % 2000 == 0) op.kind = ModelOpKind::kAdvanceEpoch;
    for (std::uint32_t& arg : op.arg) arg = static_cast<std::uint32_t>(random());
  }
  return ops;
}

std::vector<ModelOp> ReadOps(const char* path) {
  std::vector<ModelOp> ops;
  std::ifstream in(path);
  ModelOp op;
  for (std::string line; std::getline(in, line);) {
    if (FromString(line, &op)) ops.push_back(op);
  }
  return ops;
}

/// Runs the operations; how many it took to fail, or 0.
std::size_t ReplayHere(const ModelConfig& config, std::uint64_t seed,
                       const std::vector<ModelOp>& ops, std::string* failure,
                       ModelTally* tally = nullptr) {
  ModelWorld world(config, seed);
  for (std::size_t i = 0; i < ops.size() && world.failure().empty(); ++i) {
    world.Apply(ops[i]);
    if (!world.failure().empty()) {
      *failure = world.failure();
      return i + 1;
    }
  }
  if (config.storm) world.FinishAll();
  world.WindDown();
  *failure = world.failure();
  if (tally != nullptr) *tally = world.tally();
  return failure->empty() ? 0 : ops.size();
}

/// The same; with TIDEPOOL_MODEL_FORK set in a process of its own, so that a crash is a failure
/// too.
std::size_t Replay(const ModelConfig& config, std::uint64_t seed, const std::vector<ModelOp>& ops,
                   std::string* failure, ModelTally* tally = nullptr) {
  if (FromEnvironment("TIDEPOOL_MODEL_FORK", 0) == 0) {
    return ReplayHere(config, seed, ops, failure, tally);
  }
  int ends[2];
  if (pipe(ends) != 0) return 0;
  const pid_t child = fork();
  if (child == 0) {
    const std::size_t failed = ReplayHere(config, seed, ops, failure);
    const std::string text = std::to_string(failed) + ' ' + *failure;
    (void)!write(ends[1], text.data(), text.size());
    _exit(0);
  }
  close(ends[1]);
  std::string text(1 << 14, '\0');
  const ssize_t n = read(ends[0], text.data(), text.size());
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (n <= 0) {
    *failure = "crashed with signal " + std::to_string(WTERMSIG(status));
    return ops.size();
  }
  text.resize(static_cast<std::size_t>(n));
  *failure = text.substr(text.find(' ') + 1);
  return std::strtoull(text.c_str(), nullptr, 10);
}

/// What two failures have in common if they are the same: the text without its numbers.
std::string Kind(const std::string& failure) {
  std::string kind = failure;
  std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
  return kind;
}

/// Leaves operations out, in ever smaller pieces, as long as the rest still fails.
std::vector<ModelOp> Shrink(const ModelConfig& config, std::uint64_t seed, std::vector<ModelOp> ops,
                            std::string* failure) {
  const auto stop = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (std::size_t piece = std::max<std::size_t>(ops.size() / 2, 1);;) {
    bool shorter = false;
    for (std::size_t at = 0; at < ops.size();) {
      if (std::chrono::steady_clock::now() > stop) return ops;
      std::vector<ModelOp> rest(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(at));
      const std::size_t end = std::min(at + piece, ops.size());
      rest.insert(rest.end(), ops.begin() + static_cast<std::ptrdiff_t>(end), ops.end());
      std::string why;
      const std::size_t failed = Replay(config, seed, rest, &why);
      if (failed == 0 || Kind(why) != Kind(*failure)) {
        at = end;
        continue;
      }
      rest.resize(failed);
      ops = std::move(rest);
      *failure = why;
      shorter = true;
    }
    if (piece == 1 && !shorter) return ops;
    if (!shorter || piece > ops.size()) piece = std::max<std::size_t>(piece / 2, 1);
  }
}

void Print(const std::string& name, const ModelTally& tally) {
  const ManagerStats& s = tally.stats;
  std::cout << name << ": granted " << tally.granted << ", busy " << tally.busy << ", never "
            << tally.never_fits << ", resumed " << tally.resumed << ", hit tokens "
            << tally.hit_tokens << ", loads " << s.loads << " (ready " << tally.loads_ready
            << ", failed " << tally.loads_failed << ", joined " << s.loads_joined << ", timed out "
            << s.loads_timed_out << "), offloads " << s.offloads << " (failed " << s.offloads_failed
            << ", refused " << s.offloads_refused << ", rescued " << s.rescued << ", withdrawn "
            << s.withdrawn << "), evicted " << s.evicted[0] << '/' << s.evicted[1] << '/'
            << s.evicted[2] << ", dirty " << s.dropped_dirty << ", copies " << s.cow_copies
            << ", zeroed " << s.zeroed_slots << ", duplicates " << s.duplicate_blocks << ", late "
            << s.late_completions << ", preempted " << s.preempted_keep << '/'
            << s.preempted_offload << '/' << s.preempted_recompute << " (as planned "
            << tally.planned << "), taken " << tally.taken << ", spared " << s.spared_loads
            << ", cells " << tally.verified_cells << '\n';
}

class ModelTest : public ::testing::TestWithParam<ModelConfig> {};

TEST_P(ModelTest, RandomOperations) {
  const std::uint64_t seed = FromEnvironment("TIDEPOOL_MODEL_SEED", 1);
  const std::uint64_t steps = FromEnvironment("TIDEPOOL_MODEL_STEPS", GetParam().steps);
  std::vector<ModelOp> ops = RandomOps(seed, steps, WeightsOf(GetParam()));
  if (const char* log = std::getenv("TIDEPOOL_MODEL_LOG")) ops = ReadOps(log);
  std::string failure;
  ModelTally tally;
  const std::size_t failed = Replay(GetParam(), seed, ops, &failure, &tally);
  Print(GetParam().name, tally);
  if (failed == 0) return;
  std::string log;
  ops.resize(failed);
  std::string shortest = failure;
  ops = Shrink(GetParam(), seed, std::move(ops), &shortest);
  for (const ModelOp& op : ops) log += "\n  " + ToString(op);
  FAIL() << failure << "\nseed " << seed << " (TIDEPOOL_MODEL_SEED), shortest log fails with\n"
         << shortest << log;
}

INSTANTIATE_TEST_SUITE_P(Model, ModelTest, ::testing::ValuesIn(Configs()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tidepool::testing
