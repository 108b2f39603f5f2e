// select_victim/<policy>: what a victim costs the policy, SelectVictims and OnEvicted together.
//
// One HBM tier full of sessions of 100 blocks that wait for tools, users or nothing known, of all
// priorities, idle for up to 20 minutes, finished in random order. Victims leave through the real
// manager, 256 at a time, so that ranks, claims and tails are what they are in use; only the time
// inside the policy counts (`ns_per_victim`: `select_ns` and `evicted_ns`; manual time, items are
// victims). `held` percent of the
// sessions run meanwhile. At most half of what is evictable leaves before it is cached again,
// untimed. Working set at 1M blocks: beyond the caches for every policy.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/manager_world.h"
#include "tidepool/built_in_policies.h"
#include "tidepool/testing/manual_clock.h"
#include "tidepool/testing/policy_decorator.h"

namespace tidepool::bench {
namespace {

struct Spent {
  std::chrono::nanoseconds selecting{};
  std::chrono::nanoseconds evicting{};
};

// Adds up the time that victims take.
class TimedPolicy final : public testing::PolicyDecorator {
 public:
  TimedPolicy(std::unique_ptr<EvictionPolicy> policy, Spent* spent)
      : PolicyDecorator(std::move(policy)), spent_(spent) {}

  void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept override {
    const auto start = std::chrono::steady_clock::now();
    policy().OnEvicted(blocks, reason);
    spent_->evicting += std::chrono::steady_clock::now() - start;
  }
  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override {
    const auto start = std::chrono::steady_clock::now();
    policy().SelectVictims(query, signals, victims);
    spent_->selecting += std::chrono::steady_clock::now() - start;
  }

 private:
  Spent* spent_;
};

class WaitingSessions {
 public:
  static constexpr std::uint32_t kSessionBlocks = 100;
  static constexpr std::uint32_t kBatch = 256;

  WaitingSessions(const BuiltInPolicy& contender, std::uint32_t blocks, std::uint32_t held_percent)
      : contender_(&contender), blocks_(blocks), held_percent_(held_percent) {
    MakeWorld();
    std::vector<std::uint32_t> names(blocks / kSessionBlocks);
    for (std::uint32_t i = 0; i < names.size(); ++i) names[i] = i;
    CacheAll(names);
    std::shuffle(names.begin(), names.end(), random_);
    const std::size_t held = names.size() * held_percent / 100;
    for (std::size_t i = 0; i < held; ++i) Hold(names[i]);
    idle_.assign(names.begin() + static_cast<std::ptrdiff_t>(held), names.end());
  }

  [[nodiscard]] bool Is(const BuiltInPolicy& contender, std::uint32_t blocks,
                        std::uint32_t held_percent) const {
    return contender_ == &contender && blocks_ == blocks && held_percent_ == held_percent;
  }
  /// Evicts a batch; returns the time that took the policy.
  Spent EvictBatch() {
    spent_ = {};
    const std::uint32_t evicted = manager_->Evict(kHbmTier, kBatch);
    if (evicted != kBatch) Die("too few victims");
    left_ += evicted;
    return spent_;
  }
  [[nodiscard]] bool low() const { return left_ + kBatch > idle_.size() * kSessionBlocks / 2; }
  void Refill() {
    CacheAll(idle_);
    left_ = 0;
  }
  [[nodiscard]] double PolicyBytesPerBlock() const {
    return static_cast<double>(policy_->MemoryBytes()) / static_cast<double>(blocks_);
  }

 private:
  void MakeWorld() {
    ManagerOptions options;
    options.layout = KvLayout::Opaque(kBlockBytes, kBlockTokens);
    options.tiers = {Hbm(HostArena(0))};
    // A running session has a block of its own besides: a prompt never hits completely.
    options.tiers[0].slots = blocks_ + blocks_ / kSessionBlocks + 1;
    options.max_sequences = 16'000;
    options.max_sequence_blocks = kSessionBlocks + 1;
    options.clock = &clock_;
    options.recompute = {.c0_seconds = 1e-3, .c1_seconds_per_token = 1e-7};
    options.policy = [this](TierIndex) {
      auto policy = std::make_unique<TimedPolicy>(contender_->make(), &spent_);
      policy_ = policy.get();
      return policy;
    };
    auto manager = KvCacheManager::Create(std::move(options));
    if (!manager.ok()) Die(manager.status().ToString().c_str());
    manager_ = *std::move(manager);
  }
  [[nodiscard]] Admission Admit(std::uint32_t name) {
    Write({.tokens = kSessionBlocks * kBlockTokens + 1, .own = name}, tokens_);
    Admission a = manager_->Admit({.session = name,
                                   .request = name,
                                   .tokens = tokens_,
                                   .priority = static_cast<Priority>(name % kPriorityCount)});
    if (!a.granted()) Die("a session was not admitted");
    return a;
  }
  // Brings back what has left of these sessions. They run in groups and finish in random order, a
  // while apart.
  void CacheAll(std::vector<std::uint32_t> names) {
    std::shuffle(names.begin(), names.end(), random_);
    constexpr std::chrono::minutes kOldest(20);
    for (const std::uint32_t name : names) {
      Admission a = Admit(name);
      if (a.sequence.Commit(kSessionBlocks * kBlockTokens, Fence::Done()) != Outcome::kOk) {
        Die("commit");
      }
      constexpr WaitClass kWaits[] = {WaitClass::kTool, WaitClass::kUser, WaitClass::kUnknown};
      (void)a.sequence.Finish(Fence::Done(), {.wait = kWaits[random_() % 3]});
      clock_.Advance(std::chrono::nanoseconds(kOldest) / names.size());
    }
    manager_->Poll();
  }
  void Hold(std::uint32_t name) { running_.push_back(std::move(Admit(name).sequence)); }

  const BuiltInPolicy* contender_;
  std::uint32_t blocks_;
  std::uint32_t held_percent_;
  std::mt19937 random_{1};
  testing::ManualClock clock_{TimePoint{std::chrono::hours(1)}};
  Spent spent_;
  const EvictionPolicy* policy_ = nullptr;  // the manager's
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<Token> tokens_;
  std::vector<Sequence> running_;
  std::vector<std::uint32_t> idle_;
  std::uint64_t left_ = 0;
};

void SelectVictim(benchmark::State& state, const BuiltInPolicy& contender) {
  static std::unique_ptr<WaitingSessions> sessions;  // kept between runs: making it takes long
  const auto blocks = static_cast<std::uint32_t>(state.range(0));
  const auto held = static_cast<std::uint32_t>(state.range(1));
  if (sessions == nullptr || !sessions->Is(contender, blocks, held)) {
    sessions.reset();
    sessions = std::make_unique<WaitingSessions>(contender, blocks, held);
  }
  Spent spent;
  for (auto _ : state) {
    const Spent batch = sessions->EvictBatch();
    spent.selecting += batch.selecting;
    spent.evicting += batch.evicting;
    state.SetIterationTime(std::chrono::duration<double>(batch.selecting + batch.evicting).count());
    if (sessions->low()) sessions->Refill();
  }
  const std::int64_t victims = state.iterations() * WaitingSessions::kBatch;
  const auto per_victim = [victims](std::chrono::nanoseconds time) {
    return static_cast<double>(time.count()) / static_cast<double>(victims);
  };
  state.SetItemsProcessed(victims);
  state.counters["ns_per_victim"] = per_victim(spent.selecting + spent.evicting);
  state.counters["select_ns"] = per_victim(spent.selecting);
  state.counters["evicted_ns"] = per_victim(spent.evicting);
  state.counters["bytes_per_block"] = sessions->PolicyBytesPerBlock();
}

const bool registered = [] {
  for (const BuiltInPolicy& contender : BuiltInPolicies()) {
    benchmark::RegisterBenchmark(
        ("select_victim/" + std::string(contender.name)).c_str(),
        [&contender](benchmark::State& state) { SelectVictim(state, contender); })
        ->ArgNames({"blocks", "held"})
        ->ArgsProduct({{50'000, 1'000'000}, {0, 90}})
        ->UseManualTime();
  }
  return true;
}();

}  // namespace
}  // namespace tidepool::bench
