// A process that stores blocks in a kept file is killed at any instant; the next one opens the
// file. No wrong byte is served, what was acknowledged as durable is there, and all slots are
// accounted for. CI runs some cycles; tests/kill.sh runs many (TIDEPOOL_KILL_CYCLES).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>

#include "tests/support/kept_world.h"
#include "tests/support/transfer_rig.h"
#ifdef TIDEPOOL_HAVE_URING
#include "tidepool/transfer/uring_file_io.h"
#endif

namespace tidepool::testing {
namespace {

constexpr int kTexts = 24;
constexpr std::uint32_t kBlocks = 8;
constexpr std::uint32_t kTextTokens = kBlocks * KeptWorld::kTokens;

/// What the writer has been told, seen by the process that survives it.
struct Acknowledged {
  std::atomic<std::uint32_t> blocks[kTexts];
  std::atomic<std::uint64_t> turns;
};

class SharedAcknowledged {
 public:
  SharedAcknowledged()
      : at_(::mmap(nullptr, sizeof(Acknowledged), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    new (at_) Acknowledged{};
  }
  ~SharedAcknowledged() { ::munmap(at_, sizeof(Acknowledged)); }
  SharedAcknowledged(const SharedAcknowledged&) = delete;
  SharedAcknowledged& operator=(const SharedAcknowledged&) = delete;
  Acknowledged* operator->() const { return static_cast<Acknowledged*>(at_); }

 private:
  void* at_;
};

KeptOptions Options(const std::string& path, std::uint32_t slots, bool durable) {
  KeptOptions options{.hbm = 64,
                      .slots = slots,
                      .layer_bytes = 4096,
                      .store = {.keep = true, .durable = durable},
                      .path = path};
#ifdef TIDEPOOL_HAVE_URING
  options.adjust = [](ManagerOptions& manager) {
    HostEngineOptions engine;
    engine.file_io = MakeUringFileIo();
    manager.engine = MakeHostEngine(std::move(engine));
  };
#endif
  return options;
}

/// Stores texts until it is killed. Does not return.
[[noreturn]] void Write(const KeptOptions& options, std::uint64_t seed,
                        const SharedAcknowledged& acknowledged) {
  std::mt19937_64 random(seed);
  KeptWorld world(options);
  if (!world.Open().ok()) ::_exit(2);
  for (;;) {
    if (random() % 16 == 0) {
      for (auto& blocks : acknowledged->blocks) blocks = 0;
      if (!world.manager().Clear().ok()) ::_exit(3);
    }
    const auto text = static_cast<int>(random() % kTexts);
    const auto blocks = 1 + static_cast<std::uint32_t>(random() % kBlocks);
    const auto tokens = KeptWorld::Text(text, blocks * KeptWorld::kTokens);
    if (world.Serve(tokens) < 0) ::_exit(4);
    world.Spill(tokens);
    if (random() % 2 == 0) world.manager().Evict(kHbmTier, 32);
    std::uint32_t durable = 0;
    for (const SlotId slot : world.Slots(tokens)) durable += slot.valid() ? 1 : 0;
    auto& told = acknowledged->blocks[text];
    if (durable == blocks && told < blocks) told = blocks;
    ++acknowledged->turns;
  }
}

void KillOnce(const KeptOptions& options, std::uint64_t seed,
              const SharedAcknowledged& acknowledged, Duration after) {
  const pid_t writer = ::fork();
  ASSERT_GE(writer, 0);
  if (writer == 0) Write(options, seed, acknowledged);
  std::this_thread::sleep_for(after);
  ::kill(writer, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(writer, &status, 0), writer);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself: " << WEXITSTATUS(status);
}

void Survive(const KeptOptions& options, const SharedAcknowledged& acknowledged, bool durable) {
  KeptWorld world(options);
  const Status status = world.Open();
  ASSERT_TRUE(status.ok()) << status;
  const RecoveryReport& report = world.manager().recovery();
  EXPECT_EQ(report.recovered + report.empty + report.torn + report.stale + report.superseded +
                report.misplaced + report.foreign,
            options.slots);
  EXPECT_EQ(report.misplaced + report.foreign, 0u);
  for (int text = 0; text < kTexts; ++text) {
    const std::uint32_t found = world.Found(KeptWorld::Text(text, kTextTokens + 1));
    const std::uint32_t owed = durable ? acknowledged->blocks[text] * KeptWorld::kTokens : 0;
    EXPECT_GE(found, owed) << "text " << text;
    // No more than was found, so that nothing else is written and takes their places.
    const int reused = world.Serve(KeptWorld::Text(text, found + 1));
    ASSERT_GE(reused, 0) << "text " << text;
    EXPECT_GE(reused, static_cast<int>(owed)) << "text " << text;
    world.manager().Evict(kHbmTier, options.hbm);
  }
}

int Cycles() {
  const char* const cycles = std::getenv("TIDEPOOL_KILL_CYCLES");
  return cycles != nullptr ? std::atoi(cycles) : 12;
}

void KillAndRecover(std::uint32_t slots, bool durable) {
  TempPath path;
  const SharedAcknowledged acknowledged;
  const KeptOptions options = Options(path.str(), slots, durable);
  std::mt19937_64 random(slots);
  for (int cycle = 0; cycle < Cycles(); ++cycle) {
    SCOPED_TRACE(cycle);
    const Duration after = std::chrono::microseconds(2'000 + random() % 60'000);
    KillOnce(options, random(), acknowledged, after);
    Survive(options, acknowledged, durable);
    if (::testing::Test::HasFatalFailure()) return;
  }
  std::printf("%d cycles, %lu turns\n", Cycles(),
              static_cast<unsigned long>(acknowledged->turns.load()));
  EXPECT_GT(acknowledged->turns, 0u);
}

// Room for all: what was acknowledged stays until it is cleared.
TEST(KillTest, WhatWasAcknowledgedAsDurableSurvives) { KillAndRecover(kTexts * kBlocks, true); }

// Slots are written over and over.
TEST(KillTest, NoWrongByteIsServedWhereSlotsAreOverwritten) { KillAndRecover(24, false); }

}  // namespace
}  // namespace tidepool::testing
