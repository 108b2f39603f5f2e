// Moves blocks between a DRAM arena and a file through the host engine on io_uring, up to 16 in
// flight; the tool side of nvme_vs_fio.sh, which runs fio on the same file in between.
//
//   nvme_io_tool FILE MIB [OPTION...]  makes FILE of MIB in blocks and writes it once, then says
//                                      "ready", where the payloads begin, and what is in use
//   write | read | hash | quit         on standard input: one pass over the file, or over as many
//                                      bytes of memory
//
//   block=KIB    size of a block (1024)
//   nosums       without checksums
//   keep         a file that is kept: with headers
//   background   copies are spills instead of demand loads: fewer of them are in flight at a time
//
// Each pass prints: bytes per second, CPU seconds per GiB (all threads).
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tidepool/transfer/host_engine.h"
#include "tidepool/transfer/slot_file.h"
#include "tidepool/transfer/uring_file_io.h"

namespace {

using tidepool::Completion;
using tidepool::CopyRequest;
using tidepool::SlotId;
using tidepool::TierIndex;

constexpr std::uint32_t kDepth = 16;  // blocks in flight, at most
// As in an engine, which keeps the queue filled and looks at it once a step.
constexpr std::uint32_t kMaxQueued = 32 * kDepth;
constexpr std::uint32_t kMinQueued = 2 * kDepth;
constexpr std::uint64_t kQueuedBytes = 64u << 20;
constexpr std::chrono::milliseconds kStep{4};
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
    std::uint64_t mib = 0;
    std::uint64_t block_bytes = 1u << 20;
    bool checksums = true;
    bool background = false;
    bool keep = false;
  };

  tidepool::Status Start(const Options& tool_options) {
    options_ = tool_options;
    blocks_ = static_cast<std::uint32_t>((tool_options.mib << 20) / tool_options.block_bytes);
    const std::uint64_t block_bytes = tool_options.block_bytes;
    queued_ = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(kQueuedBytes / block_bytes, kMinQueued, kMaxQueued));
    queued_ = std::min(queued_, blocks_);
    if (tool_options.background) class_ = tidepool::TransferClass::kSpill;
    tidepool::StatusOr<tidepool::Arena> arena =
        tidepool::AllocateHostArena(queued_, 1, block_bytes);
    if (!arena.ok()) return arena.status();
    for (std::uint32_t i = 0; i < queued_; ++i) {
      std::byte* block = arena->At(SlotId(i), 0);
      for (std::uint64_t at = 0; at < block_bytes; at += 8) {
        const std::uint64_t word = (at + i + 1) * 0x9E3779B97F4A7C15u;
        std::memcpy(block + at, &word, sizeof(word));
      }
    }
    std::vector<tidepool::TierBinding> tiers(2);
    for (tidepool::TierBinding& tier : tiers) {
      tier.slot_bytes = block_bytes;
      tier.block_tokens = kBlockTokens;
    }
    tiers[kDram].arena = *arena;
    arena_ = *std::move(arena);
    tiers[kDram].slots = queued_;
    tiers[kFile].kind = tidepool::TierKind::kNvme;
    tiers[kFile].path = tool_options.path;
    tiers[kFile].slots = blocks_;
    tiers[kFile].store.keep = tool_options.keep;
    // Blocks of more than 1 MiB go in pieces of that. More than the default in flight leave the
    // cache before they are hashed.
    const auto pieces = static_cast<std::uint32_t>(std::max<std::uint64_t>(block_bytes >> 20, 1));
    const std::uint32_t depth = std::min(kDepth * pieces, tidepool::UringOptions{}.depth);
    tidepool::HostEngineOptions options;
    options.file_io = tidepool::MakeUringFileIo({.depth = depth});
    options.checksums = tool_options.checksums;
    engine_ = tidepool::MakeHostEngine(std::move(options));
    return engine_->Attach(tiers, nullptr);
  }

  // Returns false if a copy failed.
  bool Pass(bool write) {
    std::vector<std::uint32_t> free(queued_);
    for (std::uint32_t i = 0; i < queued_; ++i) free[i] = queued_ - 1 - i;
    std::vector<Completion> completions;
    std::uint32_t ended = 0;
    bool ok = true;
    for (std::uint32_t next = 0; ended < blocks_;) {
      std::vector<CopyRequest> batch;
      for (; next < blocks_ && !free.empty(); ++next) {
        const SlotId block(next);
        const SlotId memory(free.back());
        free.pop_back();
        batch.push_back({.id = tidepool::TransferId(memory.value()),
                         .from = write ? kDram : kFile,
                         .to = write ? kFile : kDram,
                         .source = write ? memory : block,
                         .destination = write ? block : memory,
                         .transfer_class = class_,
                         .order = next_order_++});
        if (write && options_.keep) batch.back().identity = IdentityOf(next);
      }
      engine_->Submit(batch);
      std::this_thread::sleep_for(kStep);
      engine_->Wait(std::chrono::seconds(10));
      completions.clear();
      engine_->Poll(completions);
      for (const Completion& completion : completions) {
        if (!completion.terminal) continue;
        ok = ok && completion.result == tidepool::TransferResult::kOk;
        free.push_back(static_cast<std::uint32_t>(completion.id.value() % queued_));
        ++ended;
      }
    }
    return ok;
  }

  // The checksums alone, of as many bytes.
  bool Hash() {
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < blocks_; ++i) {
      sum += tidepool::SegmentSum({arena_.At(SlotId(i % queued_), 0), options_.block_bytes});
    }
    return sum != 0;
  }

  bool TimedPass(const std::string& command) {
    const double cpu = CpuSeconds();
    const auto start = std::chrono::steady_clock::now();
    const bool ok = command == "hash" ? Hash() : Pass(command == "write");
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    const double bytes = static_cast<double>(blocks_) * static_cast<double>(options_.block_bytes);
    const double gib = bytes / (1u << 30);
    std::printf("%.0f %.4f\n", bytes / time.count(), (CpuSeconds() - cpu) / gib);
    return ok;
  }

  // Where fio may read and write without touching anything else.
  [[nodiscard]] std::uint64_t PayloadsOffset() const {
    if (!options_.keep) return 0;
    std::array<std::byte, tidepool::kSlotFilePageBytes> page{};
    std::FILE* const file = std::fopen(options_.path.c_str(), "rb");
    if (file == nullptr) return 0;
    const std::size_t read = std::fread(page.data(), 1, page.size(), file);
    std::fclose(file);
    const auto layout = tidepool::ParseSuperblock(std::span(page).first(read));
    return layout.ok() ? layout->payloads_offset() : 0;
  }

  [[nodiscard]] std::string Describe() const { return engine_->Describe(); }

 private:
  static constexpr std::uint32_t kBlockTokens = 64;

  static std::shared_ptr<const tidepool::BlockIdentity> IdentityOf(std::uint32_t block) {
    const std::vector<tidepool::Token> tokens(kBlockTokens, static_cast<tidepool::Token>(block));
    return tidepool::KeepIdentity(
        {.root = {1, 1}, .digest = {1, block + 2}, .position = 0, .tokens = tokens});
  }

  Options options_;
  tidepool::Arena arena_;
  std::unique_ptr<tidepool::TransferEngine> engine_;
  std::uint32_t blocks_ = 0;
  std::uint32_t queued_ = 0;
  tidepool::TransferClass class_ = tidepool::TransferClass::kDemandLoad;
  std::uint64_t next_order_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Tool::Options options;
  if (argc > 2) {
    options.path = argv[1];
    options.mib = static_cast<std::uint64_t>(std::max(0L, std::atol(argv[2])));
  }
  for (int i = 3; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "nosums") options.checksums = false;
    if (option == "background") options.background = true;
    if (option == "keep") options.keep = true;
    if (option.starts_with("block=")) {
      options.block_bytes = static_cast<std::uint64_t>(std::atol(option.c_str() + 6)) << 10;
    }
  }
  const bool good = options.block_bytes >= 4096 && options.mib <= 1u << 24 &&
                    (options.mib << 20) / options.block_bytes >= kMinQueued;
  if (!good) {
    std::fprintf(stderr,
                 "usage: nvme_io_tool FILE MIB [block=KIB] [nosums] [keep] [background]\n"
                 "       at least %u blocks\n",
                 kMinQueued);
    return 2;
  }
  Tool tool;
  const tidepool::Status status = tool.Start(options);
  if (!status.ok()) {
    std::fprintf(stderr, "nvme_io_tool: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  if (!tool.Pass(true)) return 1;
  std::printf("ready %llu %s\n", static_cast<unsigned long long>(tool.PayloadsOffset()),
              tool.Describe().c_str());
  std::fflush(stdout);
  for (std::string command; std::getline(std::cin, command) && command != "quit";) {
    if (!tool.TimedPass(command)) {
      std::fprintf(stderr, "nvme_io_tool: a copy failed\n");
      return 1;
    }
    std::fflush(stdout);
  }
  return 0;
}
