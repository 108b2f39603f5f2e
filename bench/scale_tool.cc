// Instructions of the manager's operations in a pool of so many cached blocks; the tool side of
// scale.sh. Half of the blocks belong to prompts of 512 blocks, half are leaves of one block.
//
//   scale_tool BLOCKS
//
// Prints "operation instructions-per-item" if the processor's counters can be read. Under callgrind
// it marks each operation with a dump instead. Otherwise it exits with 3.
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "manager_world.h"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define RUNNING_ON_VALGRIND 0
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_STOP_INSTRUMENTATION
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(name)
#endif

namespace tidepool::bench {
namespace {

constexpr std::uint32_t kPromptBlocks = 512;
constexpr std::uint32_t kPromptTokens = kPromptBlocks * kBlockTokens;
constexpr std::uint32_t kCachedTokens = 7168;
constexpr std::uint32_t kSpareBlocks = 8192;
constexpr std::uint32_t kRepeats = 64;
constexpr std::uint32_t kDecodeSteps = 256;
constexpr TimelineId kTimeline = 0;

/// Counts the user instructions of this thread, if the kernel lets it.
class Counter {
 public:
  Counter() {
    perf_event_attr attributes = {};
    attributes.type = PERF_TYPE_HARDWARE;
    attributes.size = sizeof(attributes);
    attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
    attributes.disabled = 1;
    attributes.exclude_kernel = 1;
    attributes.exclude_hv = 1;
    fd_ = static_cast<int>(::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0));
  }
  ~Counter() {
    if (fd_ >= 0) ::close(fd_);
  }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;
  [[nodiscard]] bool works() const { return fd_ >= 0; }

  template <typename Operation>
  void Measure(const char* name, std::uint64_t items, const Operation& operation) {
    if (RUNNING_ON_VALGRIND) {
      CALLGRIND_START_INSTRUMENTATION;
      CALLGRIND_ZERO_STATS;
      operation();
      CALLGRIND_DUMP_STATS_AT(name);
      CALLGRIND_STOP_INSTRUMENTATION;
      std::printf("items %s %llu\n", name, static_cast<unsigned long long>(items));
      return;
    }
    std::uint64_t instructions = 0;
    ::ioctl(fd_, PERF_EVENT_IOC_RESET, 0);
    ::ioctl(fd_, PERF_EVENT_IOC_ENABLE, 0);
    operation();
    ::ioctl(fd_, PERF_EVENT_IOC_DISABLE, 0);
    if (::read(fd_, &instructions, sizeof(instructions)) != sizeof(instructions)) Die("counter");
    std::printf("%s %.1f\n", name, static_cast<double>(instructions) / static_cast<double>(items));
  }

 private:
  int fd_ = -1;
};

class World {
 public:
  explicit World(std::uint32_t blocks) : prompts_(kRepeats) {
    const std::uint32_t count = std::max(blocks / 2 / kPromptBlocks, kRepeats);
    const std::uint32_t slots[] = {blocks + kSpareBlocks};
    manager_ = MakeManager(slots, kPromptBlocks);
    std::vector<Token> tokens;
    for (std::uint32_t i = 0; i < blocks - blocks / 2; ++i) {  // the oldest
      Write({.tokens = kBlockTokens + 1, .own = i}, tokens);
      Cache(*manager_, tokens);
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      Write({.tokens = kPromptTokens, .own = (1ull << 40) + i}, tokens);
      if (i < kRepeats) {
        prompts_[i] = tokens;
        tokens.resize(kCachedTokens);
      }
      Cache(*manager_, tokens);
    }
  }

  void Run(Counter& counter) {
    counter.Measure("probe/7168", kRepeats, [&] {
      for (const auto& p : prompts_) {
        if (manager_->Probe({.tokens = p}).tokens != kCachedTokens) Die("probe");
      }
    });
    counter.Measure("admit_finish/8192/7168", kRepeats, [&] {
      for (const auto& p : prompts_) {
        if (!manager_->Admit({.tokens = p}).granted()) Die("admit");
      }
    });
    counter.Measure("admit_commit_finish/8192/7168", kRepeats, [&] {
      for (const auto& p : prompts_) Cache(*manager_, p);
    });
    Decode(counter);
    counter.Measure("evict", kRepeats * 256, [&] {
      for (std::uint32_t i = 0; i < kRepeats; ++i) {
        if (manager_->Evict(kHbmTier, 256) != 256) Die("evict");
      }
    });
  }

 private:
  void Decode(Counter& counter) {
    std::vector<Admission> running;
    for (std::uint32_t i = 0; i < kRepeats; ++i) {
      const auto prompt = std::span<const Token>(prompts_[i]).first(100);
      running.push_back(manager_->Admit({.tokens = prompt, .timeline = kTimeline}));
      if (!running.back().granted()) Die("decode");
    }
    counter.Measure("append_commit_one", kRepeats * kDecodeSteps, [&] {
      for (std::uint32_t step = 1; step <= kDecodeSteps; ++step) {
        for (Admission& a : running) {
          (void)a.sequence.Append(static_cast<Token>(step));
          (void)a.sequence.Commit(a.sequence.tokens(), Fence{kTimeline, step});
        }
        (void)manager_->CompleteStep(kTimeline, step);
      }
    });
  }

  std::unique_ptr<KvCacheManager> manager_;
  std::vector<std::vector<Token>> prompts_;
};

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  const long blocks = argc > 1 ? std::atol(argv[1]) : 0;
  if (blocks < 100'000 || blocks > 200'000'000) {
    std::fprintf(stderr, "usage: scale_tool BLOCKS   (100000 to 200000000)\n");
    return 2;
  }
  tidepool::bench::Counter counter;
  if (!counter.works() && !RUNNING_ON_VALGRIND) {
    std::fprintf(stderr, "scale_tool: no instruction counter here; run it under callgrind\n");
    return 3;
  }
  tidepool::bench::World(static_cast<std::uint32_t>(blocks)).Run(counter);
  return 0;
}
