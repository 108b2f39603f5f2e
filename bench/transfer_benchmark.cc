// Bytes through the host engine: HBM arena to DRAM arena and back, and DRAM arena to a file and
// back, beside a plain memcpy in the same run.
//
// Working set: 256 MiB in each arena, 512 MiB in the file, taken round robin, so that no cache
// holds what comes next. The file is made in $TIDEPOOL_BENCH_DIR, else in /tmp.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/transfer/host_engine.h"
#if defined(TIDEPOOL_HAVE_URING)
#include "tidepool/transfer/uring_file_io.h"
#endif

namespace tidepool {
namespace {

constexpr std::uint64_t kArenaBytes = 256_MiB;
constexpr std::uint64_t kFileBytes = 512_MiB;
constexpr std::uint64_t kBatchBytes = 64_MiB;
constexpr std::uint64_t kMaxInFlightBytes = 16_MiB;  // for the file: 1 MiB at depth 16
constexpr TierIndex kHbm = 0;
constexpr TierIndex kDram = 1;
constexpr TierIndex kNvme = 2;

struct Route {
  TierIndex from;
  TierIndex to;
};

class Bench {
 public:
  Bench(std::uint64_t block_bytes, bool with_file) : block_bytes_(block_bytes) {
    std::vector<TierBinding> tiers(with_file ? 3 : 2);
    for (TierBinding& tier : tiers) {
      tier.slots = static_cast<std::uint32_t>(kArenaBytes / block_bytes);
      tier.slot_bytes = block_bytes;
    }
    for (TierIndex i : {kHbm, kDram}) {
      StatusOr<Arena> arena = AllocateHostArena(tiers[i].slots, 1, block_bytes);
      if (!arena.ok()) return;
      std::memset(arena->layer_base[0], i + 1, kArenaBytes);
      tiers[i].arena = *std::move(arena);
    }
    HostEngineOptions options;
    if (with_file) {
      const char* dir = std::getenv("TIDEPOOL_BENCH_DIR");
      path_ = std::string(dir != nullptr ? dir : "/tmp") + "/tidepool_bench." +
              std::to_string(::getpid());
      tiers[kNvme].kind = TierKind::kNvme;
      tiers[kNvme].path = path_;
      tiers[kNvme].slots = static_cast<std::uint32_t>(kFileBytes / block_bytes);
#if defined(TIDEPOOL_HAVE_URING)
      options.file_io = MakeUringFileIo();
#else
      options.file_io = MakeThreadFileIo(16);
#endif
    }
    for (const TierBinding& tier : tiers) slots_.push_back(tier.slots);
    engine_ = MakeHostEngine(std::move(options));
    status_ = engine_->Attach(tiers, nullptr);
  }
  ~Bench() {
    engine_.reset();
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] std::string Describe() const { return engine_->Describe(); }

  // Moves `bytes` in whole blocks, at most `in_flight` bytes at a time; false if a copy failed.
  bool Move(Route route, std::uint64_t bytes, std::uint64_t in_flight) {
    const std::uint64_t blocks = bytes / block_bytes_;
    const std::uint64_t window = std::max<std::uint64_t>(1, in_flight / block_bytes_);
    std::uint64_t submitted = 0;
    std::uint64_t ended = 0;
    while (ended < blocks) {
      batch_.clear();
      for (; submitted < blocks && submitted - ended < window; ++submitted) {
        batch_.push_back({.id = TransferId(++next_id_),
                          .from = route.from,
                          .to = route.to,
                          .source = Next(route.from),
                          .destination = Next(route.to),
                          .transfer_class = TransferClass::kDemandLoad});
      }
      if (engine_->Submit(batch_) != batch_.size()) return false;
      engine_->Wait(std::chrono::seconds(10));
      completions_.clear();
      engine_->Poll(completions_);
      for (const Completion& completion : completions_) {
        if (!completion.terminal) continue;
        if (completion.result != TransferResult::kOk) return false;
        ++ended;
      }
    }
    return true;
  }

 private:
  SlotId Next(TierIndex tier) { return SlotId(next_slot_[tier]++ % slots_[tier]); }

  const std::uint64_t block_bytes_;
  std::string path_;
  std::vector<std::uint32_t> slots_;
  std::unique_ptr<TransferEngine> engine_;
  Status status_ = absl::ResourceExhaustedError("no memory for the arenas");
  std::vector<CopyRequest> batch_;
  std::vector<Completion> completions_;
  std::uint32_t next_slot_[3] = {};
  std::uint64_t next_id_ = 0;
};

void RunRoutes(benchmark::State& state, Bench& bench, const std::vector<Route>& routes,
               std::uint64_t in_flight) {
  for (auto _ : state) {
    for (const Route& route : routes) {
      if (!bench.Move(route, kBatchBytes, in_flight)) {
        state.SkipWithError("a copy failed");
        return;
      }
    }
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(static_cast<std::uint64_t>(state.iterations()) *
                                                    routes.size() * kBatchBytes));
  state.SetLabel(bench.Describe());
}

void TransferDram(benchmark::State& state) {
  Bench bench(static_cast<std::uint64_t>(state.range(0)), false);
  if (!bench.status().ok()) return state.SkipWithError(bench.status().ToString().c_str());
  RunRoutes(state, bench, {{kHbm, kDram}, {kDram, kHbm}}, kBatchBytes);
}
BENCHMARK(TransferDram)
    ->Name("transfer_dram")
    ->UseRealTime()
    ->Arg(64 << 10)
    ->Arg(256 << 10)
    ->Arg(1 << 20)
    ->Arg(4 << 20)
    ->Arg(16 << 20);

void TransferNvme(benchmark::State& state, bool write) {
  Bench bench(static_cast<std::uint64_t>(state.range(0)), true);
  if (!bench.status().ok()) return state.SkipWithError(bench.status().ToString().c_str());
  // Written once before: a first write also allocates.
  if (!bench.Move({kDram, kNvme}, kFileBytes, kMaxInFlightBytes)) {
    return state.SkipWithError("cannot write the file");
  }
  RunRoutes(state, bench, {write ? Route{kDram, kNvme} : Route{kNvme, kDram}}, kMaxInFlightBytes);
}
void TransferNvmeWrite(benchmark::State& state) { TransferNvme(state, true); }
void TransferNvmeRead(benchmark::State& state) { TransferNvme(state, false); }
BENCHMARK(TransferNvmeWrite)
    ->Name("transfer_nvme/write")
    ->UseRealTime()
    ->Arg(64 << 10)
    ->Arg(1 << 20)
    ->Arg(4 << 20);
BENCHMARK(TransferNvmeRead)
    ->Name("transfer_nvme/read")
    ->UseRealTime()
    ->Arg(64 << 10)
    ->Arg(1 << 20)
    ->Arg(4 << 20);

// What one thread's plain memcpy does with pieces of that size, from cold memory to cold memory.
void RefMemcpy(benchmark::State& state) {
  const auto bytes = static_cast<std::uint64_t>(state.range(0));
  const StatusOr<Arena> from = AllocateHostArena(1, 1, kArenaBytes);
  const StatusOr<Arena> to = AllocateHostArena(1, 1, kArenaBytes);
  if (!from.ok() || !to.ok()) return state.SkipWithError("no memory");
  std::memset(from->layer_base[0], 1, kArenaBytes);
  std::memset(to->layer_base[0], 2, kArenaBytes);
  std::uint64_t at = 0;
  for (auto _ : state) {
    std::memcpy(to->layer_base[0] + at, from->layer_base[0] + at, bytes);
    benchmark::ClobberMemory();
    at = at + 2 * bytes <= kArenaBytes ? at + bytes : 0;
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(RefMemcpy)->Name("ref_memcpy")->Arg(1 << 20)->Arg(64 << 20);

}  // namespace
}  // namespace tidepool
