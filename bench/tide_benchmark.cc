// What the planner costs, by HBM's policy, at 10,000 waiting sessions and 1,000,000 blocks:
//
//   tide_refresh/<policy>    the clean pool is listed anew, once a second: ns_per_block for each
//                            block listed, planned or not
//   tide_gap_start/<policy>  a session began to wait: the next Poll looks at the pool's beginning
//
// Two tiers; all that waits is clean after the first refreshes, so nothing is copied and only
// Migrator::Plan is timed (manual time). The engine is the fake one.
#include <benchmark/benchmark.h>
#include <time.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/manager_world.h"
#include "tidepool/built_in_policies.h"
#include "tidepool/testing/fake_transfer_engine.h"
#include "tidepool/testing/manual_clock.h"
#include "tidepool/tide/tide.h"

namespace tidepool::bench {
namespace {

constexpr std::uint32_t kSessionBlocks = 100;
constexpr std::uint32_t kBlocks = 1'000'000;
constexpr double kPool = 0.15;
constexpr double kCopiesPerRefresh = 4000;

// Of this thread: what else runs on the machine does not count.
std::chrono::nanoseconds CpuTime() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Adds up the CPU time that planning takes.
class TimedPlanner final : public Migrator {
 public:
  TimedPlanner(std::unique_ptr<Migrator> planner, std::chrono::nanoseconds* spent)
      : planner_(std::move(planner)), spent_(spent) {}
  [[nodiscard]] std::string_view name() const noexcept override { return planner_->name(); }
  void OnSession(const SessionSignals& session, TimePoint now) noexcept override {
    planner_->OnSession(session, now);
  }
  void Plan(TierIndex tier, MigrationContext& context, const SchedulingSignals& signals,
            std::vector<PlannedCopy>& plan) noexcept override {
    const std::chrono::nanoseconds start = CpuTime();
    planner_->Plan(tier, context, signals, plan);
    *spent_ += CpuTime() - start;
  }

 private:
  std::unique_ptr<Migrator> planner_;
  std::chrono::nanoseconds* spent_;
};

class TideWorld {
 public:
  explicit TideWorld(const BuiltInPolicy& policy) : policy_(&policy) {
    auto tide = std::make_shared<Tide>(TideOptions{.clean_pool = kPool});
    ManagerOptions options;
    options.layout = KvLayout::Opaque(kBlockBytes, kBlockTokens);
    options.tiers = {Hbm(HostArena(0)), Dram(0)};
    options.tiers[0].slots = kBlocks + kSessionBlocks + 1;
    options.tiers[1].slots = kBlocks;
    options.max_sequence_blocks = kSessionBlocks + 1;
    options.clock = &clock_;
    auto engine = std::make_unique<testing::FakeTransferEngine>(
        testing::FakeEngineOptions{.automatic = true, .check_sources = false});
    testing::FakeTransferEngine& links = *engine;
    options.engine = std::move(engine);
    options.migrator = std::make_unique<TimedPlanner>(tide->MakePlanner(), &spent_);
    options.policy = [tide, make = policy.make](TierIndex tier) {
      return tier == kHbmTier ? make() : tide->MakePolicy(tier);
    };
    auto manager = KvCacheManager::Create(std::move(options));
    if (!manager.ok()) Die(manager.status().ToString().c_str());
    manager_ = *std::move(manager);
    // The fake engine's cost grows with what is in flight: some thousand copies a refresh.
    links.SetLink(kHbmTier, 1, kCopiesPerRefresh * static_cast<double>(kBlockBytes), Duration(0));
    for (std::uint32_t name = 0; name < kBlocks / kSessionBlocks; ++name) Turn(name);
    std::uint64_t copies = ~std::uint64_t{0};
    while (copies != manager_->stats().offloads) {  // until the pool is clean
      copies = manager_->stats().offloads;
      for (int i = 0; i < 3; ++i) Pass(std::chrono::seconds(2));
    }
  }
  [[nodiscard]] bool Is(const BuiltInPolicy& policy) const { return policy_ == &policy; }

  // One turn of a session, which then waits.
  void Turn(std::uint32_t name) {
    Write({.tokens = kSessionBlocks * kBlockTokens + 1, .own = name}, tokens_);
    Admission a = manager_->Admit({.session = name, .request = name, .tokens = tokens_});
    if (!a.granted()) Die("a session was not admitted");
    (void)a.sequence.Commit(kSessionBlocks * kBlockTokens, Fence::Done());
    (void)a.sequence.Finish(Fence::Done(), {.wait = WaitClass::kTool});
    clock_.Advance(std::chrono::milliseconds(10));
  }
  // Returns what planning took.
  std::chrono::nanoseconds Pass(Duration time) {
    clock_.Advance(time);
    spent_ = {};
    manager_->Poll();
    return spent_;
  }

 private:
  const BuiltInPolicy* policy_;
  testing::ManualClock clock_{TimePoint{std::chrono::hours(1)}};
  std::chrono::nanoseconds spent_{};
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<Token> tokens_;
};

TideWorld& World(const BuiltInPolicy& policy) {
  static std::unique_ptr<TideWorld> world;  // kept between runs: making it takes long
  if (world == nullptr || !world->Is(policy)) {
    world.reset();
    world = std::make_unique<TideWorld>(policy);
  }
  return *world;
}

void SetTime(benchmark::State& state, std::chrono::nanoseconds time) {
  state.SetIterationTime(std::chrono::duration<double>(time).count());
}

void Refresh(benchmark::State& state, const BuiltInPolicy& policy) {
  TideWorld& world = World(policy);
  std::chrono::nanoseconds spent{};
  for (auto _ : state) {
    const std::chrono::nanoseconds pass = world.Pass(std::chrono::seconds(2));
    SetTime(state, pass);
    spent += pass;
  }
  state.counters["ns_per_block"] = static_cast<double>(spent.count()) /
                                   (kPool * kBlocks * static_cast<double>(state.iterations()));
}

void GapStart(benchmark::State& state, const BuiltInPolicy& policy) {
  TideWorld& world = World(policy);
  std::uint32_t name = 0;
  (void)world.Pass(std::chrono::seconds(2));
  for (auto _ : state) {
    world.Turn(name++ % (kBlocks / kSessionBlocks));
    SetTime(state, world.Pass(std::chrono::microseconds(1)));
    if (name % 64 == 0) (void)world.Pass(std::chrono::seconds(2));
  }
}

[[maybe_unused]] const bool registered = [] {
  for (const BuiltInPolicy& policy : BuiltInPolicies()) {
    if (policy.name != "lru" && policy.name != "spear") continue;
    const std::string name(policy.name);
    benchmark::RegisterBenchmark(("tide_refresh/" + name).c_str(), [&policy](
                                                                       benchmark::State& state) {
      Refresh(state, policy);
    })->UseManualTime();
    benchmark::RegisterBenchmark(("tide_gap_start/" + name).c_str(), [&policy](
                                                                         benchmark::State& state) {
      GapStart(state, policy);
    })->UseManualTime();
  }
  return true;
}();

}  // namespace
}  // namespace tidepool::bench
