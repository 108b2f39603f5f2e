#include "tidepool/testing/policy_conformance.h"

#include <algorithm>
#include <limits>
#include <ostream>
#include <utility>
#include <vector>

#include "src/testing/conformance_world.h"
#include "tidepool/testing/flat_cache.h"

namespace tidepool::testing {
namespace {

constexpr std::uint32_t kAll = std::numeric_limits<std::uint32_t>::max();

std::string HasAName(const PolicyMaker& make) {
  const std::unique_ptr<EvictionPolicy> policy = make(kHbmTier);
  if (policy == nullptr) return "there is no policy";
  const std::string name(policy->name());
  if (name.empty()) return "the name is empty";
  return make(kHbmTier)->name() == name ? "" : "the name differs between two policies";
}

// --- Random steps. ---

std::string Survives(const PolicyMaker& make, const WorldOptions& options, int steps) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    WorldOptions world_options = options;
    world_options.seed = seed;
    ConformanceWorld world(make, world_options);
    for (int step = 0; step < steps && world.violation().empty(); ++step) world.RandomStep();
    world.Drain();
    if (!world.violation().empty()) {
      return world.violation() + " (seed " + std::to_string(seed) + ")";
    }
  }
  return "";
}

std::string SelectsWithinTheQuery(const PolicyMaker& make) {
  return Survives(make, {.slots = {24}}, 600);
}

std::string ServesTwoTiers(const PolicyMaker& make) {
  return Survives(make, {.slots = {16, 20}, .faults = true}, 600);
}

std::string ToleratesHostileSignals(const PolicyMaker& make) {
  return Survives(make, {.slots = {16, 12}, .hostile_signals = true}, 300);
}

std::string ToleratesAnyClock(const PolicyMaker& make) {
  return Survives(make, {.slots = {16, 12}, .any_clock = true}, 300);
}

// --- What leaves, and what does not. ---

constexpr PauseHint kTool = {.wait = WaitClass::kTool, .expected_return = std::chrono::seconds(5)};

std::string GivesEveryBlockInTheEnd(const PolicyMaker& make) {
  constexpr std::uint32_t kTexts = 8;
  constexpr std::uint32_t kBlocks = 4;
  for (const std::uint32_t batch : {1u, 3u, kAll}) {
    ConformanceWorld world(make, {.slots = {kTexts * kBlocks}});
    for (std::uint32_t i = 0; i < kTexts; ++i) {
      world.Cache(i, kBlocks, static_cast<Priority>(i % kPriorityCount), kTool);
      world.clock().Advance(std::chrono::seconds(1));
    }
    std::uint32_t evicted = 0;
    while (const std::uint32_t n = world.manager().Evict(kHbmTier, batch)) evicted += n;
    world.Expect(evicted == kTexts * kBlocks, "some unprotected blocks cannot be evicted");
    if (!world.violation().empty()) return world.violation();
  }
  return "";
}

std::string KeepsWhatIsHeld(const PolicyMaker& make) {
  constexpr std::uint32_t kBlocks = 4;
  constexpr std::uint32_t kRunning[] = {0, 2, 5};
  ConformanceWorld world(make, {.slots = {6 * kBlocks + 3}});
  for (std::uint32_t i = 0; i < 6; ++i) world.Cache(i, kBlocks);
  std::vector<Sequence> running;
  for (const std::uint32_t i : kRunning) running.push_back(world.Run(i, kBlocks + 1));
  world.Expect(world.manager().Evict(kHbmTier, kAll) == 3 * kBlocks,
               "some blocks that nothing holds cannot be evicted");
  for (const std::uint32_t i : kRunning) {
    world.Expect(world.Found(i, kBlocks + 1) == kBlocks + 1, "a held block left");
  }
  for (Sequence& sequence : running) (void)sequence.Finish();
  world.Expect(world.manager().Evict(kHbmTier, kAll) == 3 * (kBlocks + 1),
               "some blocks that were held once cannot be evicted");
  return world.violation();
}

std::string TakesTailsBeforeHeads(const PolicyMaker& make) {
  constexpr std::uint32_t kBlocks = 3;
  ConformanceWorld world(make, {.slots = {kBlocks + 1}});
  for (std::uint32_t round = 0; round < 200; ++round) {
    world.Cache(round % 7, kBlocks);
    for (std::uint32_t left = kBlocks; left-- > 0;) {
      world.Expect(world.manager().Evict(kHbmTier, 1) == 1, "a block cannot be evicted");
      world.Expect(world.Found(round % 7, kBlocks) == left, "a head left before its tail");
    }
  }
  return world.violation();
}

std::string TreatsRetentionAsABias(const PolicyMaker& make) {
  ConformanceWorld world(make, {.slots = {4}});
  for (std::uint32_t i = 0; i < 4; ++i) world.Cache(i, 1, Priority::kCritical, kTool);
  world.clock().Advance(std::chrono::seconds(1));
  world.manager().Poll();
  world.Expect(world.FillHbm(), "blocks of critical sessions that are due soon cannot be had");
  return world.violation();
}

std::string CriticalOutlivesBackground(const PolicyMaker& make) {
  constexpr std::uint32_t kTexts = 16;
  ConformanceWorld world(make, {.slots = {kTexts}});
  for (std::uint32_t i = 0; i < kTexts; ++i) {
    world.Cache(i, 1, i % 2 == 0 ? Priority::kCritical : Priority::kBackground, kTool);
  }
  world.clock().Advance(std::chrono::seconds(1));
  world.manager().Poll();
  (void)world.manager().Evict(kHbmTier, kTexts / 2);
  for (std::uint32_t i = 0; i < kTexts; i += 2) {
    world.Expect(world.Found(i, 1) == 1, "all else equal, a critical block left before background");
  }
  return world.violation();
}

std::string ProbesChangeNothing(const PolicyMaker& make) {
  ConformanceWorld world(make, {.slots = {24}});
  for (int step = 0; step < 200; ++step) world.RandomStep();
  world.EndAll();
  for (std::uint32_t i = 100; i < 104; ++i) world.Cache(i, 3);
  world.manager().Poll();
  const std::vector<BlockId> before = world.Victims(kHbmTier, 24);
  const std::uint64_t bytes = world.policy(kHbmTier).MemoryBytes();
  for (std::uint32_t i = 0; i < 400; ++i) (void)world.Found(100 + i % 8, 6);
  world.Expect(world.Victims(kHbmTier, 24) == before, "probes changed what leaves next");
  world.Expect(world.policy(kHbmTier).MemoryBytes() == bytes, "probes take memory");
  return world.violation();
}

// --- Memory. ---

std::string BoundsItsMemory(const PolicyMaker& make) {
  constexpr std::uint32_t kSlots = 64;
  constexpr std::uint64_t kFixed = 1u << 20;
  constexpr std::uint64_t kPerSlot = 1024;
  ConformanceWorld world(make, {.slots = {kSlots}});
  std::uint64_t early = 0;
  for (std::uint32_t round = 0; round < 120; ++round) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t text = round * 8 + i;
      world.Cache(text, 6, Priority::kNormal, kTool);
      if (i % 2 == 0) (void)world.manager().CompleteSession(SessionId(text));
    }
    for (std::uint32_t i = 0; i < 8; ++i) {
      (void)world.manager().CompleteSession(SessionId(round * 8 + i));
    }
    (void)world.manager().Evict(kHbmTier, kAll);
    world.clock().Advance(std::chrono::seconds(10));
    world.manager().Poll();
    if (round == 40) early = world.policy(kHbmTier).MemoryBytes();
  }
  const std::uint64_t late = world.policy(kHbmTier).MemoryBytes();
  world.Expect(early != 0, "MemoryBytes is zero");
  world.Expect(late <= early + early / 4 + 4096, "memory grows with every session that has ended");
  world.Expect(late <= kFixed + kPerSlot * kSlots,
               "an empty tier takes more than a kilobyte a slot");
  return world.violation();
}

// --- Without an index. ---

std::vector<PrefixHash> Sorted(std::vector<PrefixHash> keys) {
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::string NeedsNoIndex(const PolicyMaker& make) {
  constexpr std::uint32_t kCapacity = 40;
  std::string violation;
  FlatCache cache(Watched(make, &violation)(1), kCapacity / 2, kCapacity);
  std::mt19937_64 random(1);
  for (int i = 0; i < 4'000 && violation.empty(); ++i) {
    const std::uint64_t id = random() % (random() % 2 == 0 ? 20 : 200);
    (void)cache.Reference(FlatKey(0, id));
    if (!cache.Has(FlatKey(0, id))) return "no room was made for a newcomer";
    if (i % 500 == 499) cache.Resize(kCapacity / 2 + static_cast<std::uint32_t>(random() % 21));
    if (cache.resident() > cache.capacity()) return "the tier holds more than it has room for";
  }
  const PrefixHash pinned = cache.Victims(1).empty() ? PrefixHash{} : cache.Victims(1)[0];
  if (!cache.Has(pinned)) return "no victim was named";
  cache.Pin(pinned);
  const std::size_t others = cache.resident() - 1;
  const std::vector<PrefixHash> left = Sorted(cache.Evict(kCapacity));
  if (left.size() != others) return "not every block that nothing protects was given";
  if (std::binary_search(left.begin(), left.end(), pinned)) return "a pinned block left";
  cache.Unpin(pinned);
  if (cache.Evict(1).size() != 1) return "a block that was pinned once cannot be had";
  return violation;
}

constexpr PolicyCheck kChecks[] = {
    {"HasAName", &HasAName},
    {"SelectsWithinTheQuery", &SelectsWithinTheQuery},
    {"ServesTwoTiers", &ServesTwoTiers},
    {"ToleratesHostileSignals", &ToleratesHostileSignals},
    {"ToleratesAnyClock", &ToleratesAnyClock},
    {"GivesEveryBlockInTheEnd", &GivesEveryBlockInTheEnd},
    {"KeepsWhatIsHeld", &KeepsWhatIsHeld},
    {"TakesTailsBeforeHeads", &TakesTailsBeforeHeads},
    {"TreatsRetentionAsABias", &TreatsRetentionAsABias},
    {"CriticalOutlivesBackground", &CriticalOutlivesBackground},
    {"ProbesChangeNothing", &ProbesChangeNothing},
    {"BoundsItsMemory", &BoundsItsMemory},
    {"NeedsNoIndex", &NeedsNoIndex},
};

}  // namespace

void PrintTo(const PolicyCheck& check, std::ostream* out) { *out << check.name; }

std::span<const PolicyCheck> PolicyChecks() noexcept { return kChecks; }

}  // namespace tidepool::testing
