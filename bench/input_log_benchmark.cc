// What an input log costs, on (arg 1) against off (arg 0). items_per_second counts what each
// comment names. The sink throws the bytes away; bytes_per_second is what it was given.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "manager_world.h"
#include "src/decision_hash.h"
#include "tidepool/input_log.h"

namespace tidepool::bench {
namespace {

class NullLog final : public InputLog {
 public:
  void Append(std::span<const std::byte> bytes) noexcept override { bytes_ += bytes.size(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
};

std::unique_ptr<KvCacheManager> LoggedManager(std::uint32_t slots, InputLog* log) {
  ManagerOptions options;
  options.layout = KvLayout::Opaque(kBlockBytes, kBlockTokens);
  options.tiers = {Hbm(HostArena(0))};
  options.tiers[0].slots = slots;
  options.input_log = log;
  auto manager = KvCacheManager::Create(std::move(options));
  if (!manager.ok()) Die(manager.status().ToString().c_str());
  return *std::move(manager);
}

void Report(benchmark::State& state, const NullLog& log) {
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(static_cast<std::int64_t>(log.bytes()));
}

// --- logged_admit/0|1: admit and finish of 8192 tokens, 7168 cached. Items: prompts. ---
void LoggedAdmit(benchmark::State& state) {
  NullLog log;
  const auto manager = LoggedManager(8192, state.range(0) != 0 ? &log : nullptr);
  std::vector<Token> prompt;
  Write({.tokens = 8192, .shared = 0, .group = 0, .own = 1}, prompt);
  Cache(*manager, std::span(prompt).first(7168));
  for (auto _ : state) {
    Admission a = manager->Admit({.tokens = prompt});
    (void)a.sequence.Finish();
  }
  Report(state, log);
}
BENCHMARK(LoggedAdmit)->Name("logged_admit")->Arg(0)->Arg(1);

// --- logged_decode/0|1: append and commit of one token; a Poll each 64. Items: tokens. ---
void LoggedDecode(benchmark::State& state) {
  NullLog log;
  const auto manager = LoggedManager(8192, state.range(0) != 0 ? &log : nullptr);
  std::vector<Token> prompt;
  Write({.tokens = 64, .shared = 0, .group = 0, .own = 1}, prompt);
  Admission a = manager->Admit({.tokens = prompt});
  std::uint32_t length = 64;
  for (auto _ : state) {
    if (length == 65'536) {
      a = Admission();
      a = manager->Admit({.tokens = prompt});
      length = 64;
    }
    (void)a.sequence.Append(static_cast<Token>(length));
    (void)a.sequence.Commit(++length, Fence::Done());
    if (length % 64 == 0) manager->Poll();
  }
  Report(state, log);
}
BENCHMARK(LoggedDecode)->Name("logged_decode")->Arg(0)->Arg(1);

// --- decision_hash/n: n ids or slots of one decision. Items: decisions. ---
void HashDecision(benchmark::State& state) {
  const std::vector<std::uint32_t> ids(static_cast<std::size_t>(state.range(0)), 7);
  internal::DecisionHash hash;
  for (auto _ : state) {
    hash.Begin(internal::Decision::kGiveUp, 1);
    hash.Add(ids);
    benchmark::DoNotOptimize(hash);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(HashDecision)->Name("decision_hash")->Arg(1)->Arg(64)->Arg(512);

}  // namespace
}  // namespace tidepool::bench
