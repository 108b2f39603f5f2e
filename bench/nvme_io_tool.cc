// Moves 1 MiB blocks between a DRAM arena and a file through the host engine on io_uring, 16 at a
// time; the tool side of nvme_vs_fio.sh, which runs fio on the same file in between.
//
//   nvme_io_tool FILE MIB [nosums]     makes FILE of MIB blocks and writes it once, then says
//   "ready" write | read | quit                on standard input: one pass over the file
//
// With `background`, copies are spills instead of demand loads: fewer of them are in flight at a
// time. Each pass prints: bytes per second, CPU seconds per GiB (all threads).
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/transfer/host_engine.h"
#include "tidepool/transfer/uring_file_io.h"

namespace {

using tidepool::Completion;
using tidepool::CopyRequest;
using tidepool::SlotId;
using tidepool::TierIndex;

constexpr std::uint64_t kBlockBytes = 1u << 20;
constexpr std::uint32_t kDepth = 16;
constexpr TierIndex kDram = 0;
constexpr TierIndex kFile = 1;

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Tool {
 public:
  struct Options {
    std::string path;
    std::uint32_t blocks = 0;
    bool checksums = true;
    bool background = false;
  };

  tidepool::Status Start(const Options& tool_options) {
    blocks_ = tool_options.blocks;
    if (tool_options.background) class_ = tidepool::TransferClass::kSpill;
    tidepool::StatusOr<tidepool::Arena> arena = tidepool::AllocateHostArena(kDepth, 1, kBlockBytes);
    if (!arena.ok()) return arena.status();
    for (std::uint32_t i = 0; i < kDepth; ++i) {
      std::byte* block = arena->At(SlotId(i), 0);
      for (std::uint64_t at = 0; at < kBlockBytes; at += 8) {
        const std::uint64_t word = (at + i + 1) * 0x9E3779B97F4A7C15u;
        std::memcpy(block + at, &word, sizeof(word));
      }
    }
    std::vector<tidepool::TierBinding> tiers(2);
    for (tidepool::TierBinding& tier : tiers) tier.slot_bytes = kBlockBytes;
    tiers[kDram].arena = *std::move(arena);
    tiers[kDram].slots = kDepth;
    tiers[kFile].kind = tidepool::TierKind::kNvme;
    tiers[kFile].path = tool_options.path;
    tiers[kFile].slots = blocks_;
    tidepool::HostEngineOptions options;
    options.file_io = tidepool::MakeUringFileIo();
    options.checksums = tool_options.checksums;
    engine_ = tidepool::MakeHostEngine(std::move(options));
    return engine_->Attach(tiers, nullptr);
  }

  // Returns false if a copy failed.
  bool Pass(bool write) {
    std::vector<std::uint32_t> free(kDepth);
    for (std::uint32_t i = 0; i < kDepth; ++i) free[i] = i;
    std::vector<Completion> completions;
    std::uint32_t ended = 0;
    bool ok = true;
    for (std::uint32_t next = 0; ended < blocks_;) {
      std::vector<CopyRequest> batch;
      for (; next < blocks_ && !free.empty(); ++next) {
        const SlotId block(next);
        const SlotId memory(free.back());
        free.pop_back();
        batch.push_back({.id = tidepool::TransferId(next_id_ + memory.value()),
                         .from = write ? kDram : kFile,
                         .to = write ? kFile : kDram,
                         .source = write ? memory : block,
                         .destination = write ? block : memory,
                         .transfer_class = class_});
      }
      engine_->Submit(batch);
      engine_->Wait(std::chrono::seconds(10));
      completions.clear();
      engine_->Poll(completions);
      for (const Completion& completion : completions) {
        if (!completion.terminal) continue;
        ok = ok && completion.result == tidepool::TransferResult::kOk;
        free.push_back(static_cast<std::uint32_t>(completion.id.value() % kDepth));
        ++ended;
      }
    }
    return ok;
  }

  bool TimedPass(bool write) {
    const double cpu = CpuSeconds();
    const auto start = std::chrono::steady_clock::now();
    const bool ok = Pass(write);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    const double bytes = static_cast<double>(blocks_) * kBlockBytes;
    const double gib = bytes / (1u << 30);
    std::printf("%.0f %.4f\n", bytes / time.count(), (CpuSeconds() - cpu) / gib);
    return ok;
  }

  [[nodiscard]] std::string Describe() const { return engine_->Describe(); }

 private:
  std::unique_ptr<tidepool::TransferEngine> engine_;
  std::uint32_t blocks_ = 0;
  tidepool::TransferClass class_ = tidepool::TransferClass::kDemandLoad;
  std::uint64_t next_id_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const long blocks = argc > 2 ? std::atol(argv[2]) : 0;
  if (blocks < kDepth || blocks > 1 << 24) {
    std::fprintf(stderr, "usage: nvme_io_tool FILE MIB [nosums] [background]   (MIB >= %u)\n",
                 kDepth);
    return 2;
  }
  Tool::Options options{.path = argv[1], .blocks = static_cast<std::uint32_t>(blocks)};
  for (int i = 3; i < argc; ++i) {
    if (std::string(argv[i]) == "nosums") options.checksums = false;
    if (std::string(argv[i]) == "background") options.background = true;
  }
  Tool tool;
  const tidepool::Status status = tool.Start(options);
  if (!status.ok()) {
    std::fprintf(stderr, "nvme_io_tool: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  if (!tool.Pass(true)) return 1;
  std::printf("ready %s\n", tool.Describe().c_str());
  std::fflush(stdout);
  for (std::string command; std::getline(std::cin, command) && command != "quit";) {
    if (!tool.TimedPass(command == "write")) {
      std::fprintf(stderr, "nvme_io_tool: a copy failed\n");
      return 1;
    }
    std::fflush(stdout);
  }
  return 0;
}
