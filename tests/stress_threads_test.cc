// The real manager on the host engine, with real threads: copy threads, file threads, and threads
// that only destroy handles. Meant for the thread sanitizer; every reused byte is checked too.
// TIDEPOOL_SOAK_SECONDS lengthens the soak (tests/soak.sh).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/reference_model.h"
#include "tidepool/kv_cache_manager.h"
#include "tidepool/policy/spear.h"
#include "tidepool/tide/tide.h"
#include "tidepool/transfer/host_engine.h"

namespace tidepool {
namespace {

using testing::ModelText;
using testing::ReferenceModel;

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define TIDEPOOL_STRESS_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TIDEPOOL_STRESS_SANITIZED 1
#endif
#ifdef TIDEPOOL_STRESS_SANITIZED
constexpr int kTurns = 600;
constexpr int kShortLives = 10;
constexpr int kSoakTurns = 4000;
#else
constexpr int kTurns = 4000;
constexpr int kShortLives = 40;
constexpr int kSoakTurns = 20'000;
#endif

constexpr std::uint32_t kBlockTokens = 4;
constexpr std::uint32_t kLayers = 2;
constexpr std::uint64_t kTokenBytes = 1024;  // in one layer
constexpr std::size_t kSessions = 24;

enum class Migration : std::uint8_t { kOnDemand, kTide };

std::unique_ptr<KvCacheManager> MakeManager(const std::string& name,
                                            Migration migration = Migration::kOnDemand) {
  TierSpec nvme;
  nvme.kind = TierKind::kNvme;
  nvme.slots = 192;
  nvme.path = ::testing::TempDir() + "tidepool_stress_" + name;
  TierSpec hbm;
  hbm.kind = TierKind::kHbm;
  hbm.slots = 48;
  TierSpec dram;
  dram.slots = 64;
  HostEngineOptions engine;
  engine.copy_threads = 2;
  engine.file_io = MakeThreadFileIo(2);
  ManagerOptions options;
  if (migration == Migration::kTide) {
    engine.max_queued_copies = 4;  // so that some wait outside
    auto tide = std::make_shared<Tide>(
        TideOptions{.clean_pool = 0.4, .refresh = std::chrono::microseconds(200)});
    options.migrator = tide->MakePlanner();
    options.policy = [tide](TierIndex t) {
      return t == kHbmTier ? MakeSpearPolicy() : tide->MakePolicy(t);
    };
  }
  options.layout = KvLayout::Opaque(kBlockTokens * kTokenBytes * kLayers, kBlockTokens, kLayers);
  options.tiers = {hbm, dram, nvme};
  options.engine = MakeHostEngine(std::move(engine));
  auto manager = KvCacheManager::Create(std::move(options));
  EXPECT_TRUE(manager.ok()) << manager.status();
  return manager.ok() ? *std::move(manager) : nullptr;
}

/// Destroys what it is given, on a thread of its own.
class Reaper {
 public:
  Reaper() : thread_([this] { Run(); }) {}
  ~Reaper() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  void Take(Sequence sequence, LoadTicket ticket) {
    {
      const std::lock_guard lock(mutex_);
      handles_.emplace_back(std::move(sequence), std::move(ticket));
    }
    changed_.notify_one();
  }

 private:
  void Run() {
    for (;;) {
      std::pair<Sequence, LoadTicket> handles;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return done_ || !handles_.empty(); });
      if (handles_.empty()) return;
      handles = std::move(handles_.front());
      handles_.pop_front();
      lock.unlock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Sequence, LoadTicket>> handles_;
  bool done_ = false;
  std::thread thread_;
};

/// Sessions that come, work, wait, return and leave, on the scheduler's thread.
class Sessions {
 public:
  explicit Sessions(KvCacheManager* manager) : manager_(manager), reference_(kBlockTokens, 0) {
    reference_.Register({});
  }

  void Turn(Reaper& reaper) {
    Session& session = sessions_[Pick(kSessions)];
    if (!session.sequence.alive() ? !Begin(session) : !Return(session)) {
      manager_->Poll();
      return PreemptSomebody();
    }
    if (session.ticket.WaitReady() == Outcome::kLoadFailed) return End(session, reaper);
    Verify(session);
    Work(session);
    switch (Pick(8)) {
      case 0:
        break;  // goes on running
      case 1:
      case 2:
        EXPECT_EQ(session.sequence.Pause({}), Outcome::kOk);
        break;
      case 3:
      case 4:
        EXPECT_EQ(session.sequence.Preempt(PreemptMode::kOffload), Outcome::kOk);
        break;
      default:
        return End(session, reaper);
    }
  }
  /// The same with waits of a known class and length, arrivals before the request, loads that are
  /// given up, and copies that the engine asks for.
  void WaitingTurn(Reaper& reaper) {
    const std::uint32_t number = Pick(kSessions);
    Session& session = sessions_[number];
    switch (Pick(16)) {
      case 0:
        (void)manager_->Offload(session.text.tokens);
        return;
      case 1:
        (void)manager_->Onboard(session.text.tokens);
        return;
      case 2:
        (void)manager_->UpdateExpectedReturn(
            SessionId(number), Clock::Steady()->Now() + std::chrono::microseconds(Pick(5000)), 1);
        return manager_->Poll();
      case 3:
      case 4:
        (void)manager_->SessionArrived(SessionId(number));
        break;
      default:
        break;
    }
    if (!session.sequence.alive() ? !Begin(session) : !Return(session)) {
      manager_->Poll();
      return PreemptSomebody();
    }
    if (Pick(8) == 0) return End(session, reaper);  // its loads may be under way
    if (session.ticket.WaitReady() == Outcome::kLoadFailed) return End(session, reaper);
    Verify(session);
    Work(session);
    const PauseHint wait{.wait = WaitClass::kTool,
                         .expected_return = std::chrono::microseconds(Pick(5000))};
    switch (Pick(8)) {
      case 0:
        EXPECT_EQ(session.sequence.Pause(wait), Outcome::kOk);
        break;
      case 1:
        EXPECT_EQ(session.sequence.Preempt(PreemptMode::kOffload), Outcome::kOk);
        break;
      case 2:
        return End(session, reaper);
      default:
        EXPECT_EQ(session.sequence.Finish(Fence::Done(), wait), Outcome::kOk);
    }
    if (Pick(2) == 0) manager_->Poll();
  }
  [[nodiscard]] std::uint64_t verified() const { return verified_; }

 private:
  struct Session {
    ModelText text;
    Sequence sequence;
    LoadTicket ticket;
  };

  std::uint32_t Pick(std::size_t n) { return static_cast<std::uint32_t>(random_() % n); }

  bool Begin(Session& session) {
    if (session.text.tokens.empty() || session.text.tokens.size() > 60) {
      session.text.tokens.assign(9, static_cast<Token>(Pick(4)));
    }
    Grow(session);
    const auto number = static_cast<std::uint64_t>(&session - sessions_.data());
    Admission admission = manager_->Admit(
        {.session = SessionId(number), .tokens = session.text.tokens, .lookahead_tokens = 4});
    if (!admission.granted()) return false;
    session.sequence = std::move(admission.sequence);
    session.ticket = std::move(admission.ticket);
    return true;
  }

  bool Return(Session& session) {
    if (!session.sequence.paused()) return Extend(session);
    Admission admission = session.sequence.Resume();
    if (!admission.granted()) return false;
    session.ticket = std::move(admission.ticket);
    return true;
  }

  bool Extend(Session& session) {
    const std::size_t before = session.text.tokens.size();
    Grow(session);
    const auto fresh = std::span(session.text.tokens).subspan(before);
    if (session.sequence.Append(fresh) == Outcome::kOk) return true;
    session.text.tokens.resize(before);
    return false;
  }

  void Grow(Session& session) {
    for (std::uint32_t n = Pick(6) + 1; n > 0; --n) {
      session.text.tokens.push_back(static_cast<Token>(Pick(3)));
    }
  }

  void PreemptSomebody() {
    for (const ReclaimChoice& choice : manager_->PlanReclaim(4 * manager_->block_bytes())) {
      for (Session& session : sessions_) {
        if (session.sequence.alive() && session.sequence.id() == choice.sequence) {
          (void)session.sequence.Preempt(PreemptMode::kOffload);
        }
      }
    }
  }

  void Verify(Session& session) {
    ForEachToken(session, 0, session.sequence.committed(),
                 [](std::uint64_t* at, std::uint64_t want) {
                   for (std::size_t i = 0; i < kTokenBytes / 8; i += 16) ASSERT_EQ(at[i], want);
                 });
    verified_ += session.sequence.committed();
  }

  void Work(Session& session) {
    const auto length = static_cast<std::uint32_t>(session.text.tokens.size());
    if (session.sequence.tokens() != length) return;
    ForEachToken(
        session, session.sequence.committed(), length,
        [](std::uint64_t* at, std::uint64_t value) { std::fill_n(at, kTokenBytes / 8, value); });
    EXPECT_EQ(session.sequence.Commit(length, Fence::Done()), Outcome::kOk);
  }

  template <typename Function>
  void ForEachToken(Session& session, std::uint32_t first, std::uint32_t last, Function function) {
    const std::vector<std::uint64_t> kv = reference_.Kv(session.text);
    const BlockTable table = session.sequence.block_table();
    for (std::uint32_t i = first; i < last; ++i) {
      for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
        std::byte* at = manager_->arena(kHbmTier).At(SlotId(table.slots[i / kBlockTokens]), layer);
        function(reinterpret_cast<std::uint64_t*>(at + i % kBlockTokens * kTokenBytes),
                 reference_.Cell(0, kv[i], layer));
      }
    }
  }

  void End(Session& session, Reaper& reaper) {
    reaper.Take(std::move(session.sequence), std::move(session.ticket));
  }

  KvCacheManager* manager_;
  ReferenceModel reference_;
  std::mt19937_64 random_{1};
  std::array<Session, kSessions> sessions_;
  std::uint64_t verified_ = 0;
};

TEST(ThreadsStressTest, HandlesDieOnOtherThreadsWhileBytesMove) {
  const std::unique_ptr<KvCacheManager> manager = MakeManager("load");
  ASSERT_NE(manager, nullptr);
  Sessions sessions(manager.get());
  {
    Reaper first;
    Reaper second;
    for (int i = 0; i < kTurns && !::testing::Test::HasFailure(); ++i) {
      sessions.Turn(i % 2 == 0 ? first : second);
      if (i % 100 == 0) {
        manager->Poll();
        const Status audit = manager->Audit();
        ASSERT_TRUE(audit.ok()) << audit;
      }
    }
  }
  ASSERT_TRUE(manager->WaitIdle(std::chrono::seconds(30)));
  const ManagerStats& stats = manager->stats();
  EXPECT_GT(sessions.verified(), 0u);
  EXPECT_GT(stats.bytes_in[1], 0u);
  EXPECT_GT(stats.bytes_in[2], 0u);
  EXPECT_GT(stats.bytes_out[2], 0u);
  EXPECT_EQ(stats.loads_failed + stats.offloads_failed, 0u);
}

/// True until the soak's time or, without one, its turns are over.
bool GoOn(int turn) {
  using SteadyClock = std::chrono::steady_clock;
  static const char* const seconds = std::getenv("TIDEPOOL_SOAK_SECONDS");
  if (seconds == nullptr) return turn < kSoakTurns;
  static const auto end = SteadyClock::now() + std::chrono::seconds(std::atoi(seconds));
  return SteadyClock::now() < end;
}

// TIDE over three tiers: copies ahead of need, early returns that withdraw them, write-back under
// pressure, an engine that refuses, preemption, and handles that die elsewhere.
TEST(ThreadsStressTest, SoakOfWaitsAndEarlyReturns) {
  const std::unique_ptr<KvCacheManager> manager = MakeManager("soak", Migration::kTide);
  ASSERT_NE(manager, nullptr);
  Sessions sessions(manager.get());
  int turns = 0;
  {
    Reaper first;
    Reaper second;
    for (; GoOn(turns) && !::testing::Test::HasFailure(); ++turns) {
      sessions.WaitingTurn(turns % 2 == 0 ? first : second);
      if (turns % 200 != 0) continue;
      manager->Poll();
      const Status audit = manager->Audit();
      ASSERT_TRUE(audit.ok()) << audit;
    }
  }
  ASSERT_TRUE(manager->WaitIdle(std::chrono::seconds(30)));
  manager->Poll();
  const ManagerStats& stats = manager->stats();
  std::cout << turns << " turns, " << sessions.verified() << " tokens verified, " << stats.loads
            << " loads, " << stats.offloads << " offloads, " << stats.withdrawn << " withdrawn, "
            << stats.rescued << " rescued, evicted " << stats.evicted[0] << '/' << stats.evicted[1]
            << '/' << stats.evicted[2] << '\n';
  EXPECT_GT(sessions.verified(), 0u);
  EXPECT_GT(stats.withdrawn, 0u);
  EXPECT_GT(stats.bytes_out[1], 0u);
  EXPECT_GT(stats.bytes_in[2], 0u);
  EXPECT_EQ(stats.loads_failed + stats.offloads_failed, 0u);
}

TEST(ThreadsStressTest, ManagersDieWithTransfersInFlight) {
  for (int i = 0; i < kShortLives; ++i) {
    Reaper reaper;
    std::unique_ptr<KvCacheManager> manager = MakeManager("short");
    ASSERT_NE(manager, nullptr);
    std::vector<Token> tokens(64);
    for (std::size_t t = 0; t < tokens.size(); ++t) tokens[t] = static_cast<Token>(t);
    Admission admission = manager->Admit({.session = 1, .tokens = tokens});
    ASSERT_TRUE(admission.granted());
    ASSERT_EQ(admission.sequence.Commit(63, Fence::Done()), Outcome::kOk);
    if (i % 2 == 0) {
      ASSERT_EQ(admission.sequence.Preempt(PreemptMode::kOffload), Outcome::kOk);
    }
    EXPECT_GT(manager->Offload(tokens).accepted, 0u);
    if (i % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
    reaper.Take(std::move(admission.sequence), std::move(admission.ticket));
    manager.reset();  // while the reaper may be releasing the handle
  }
}

}  // namespace
}  // namespace tidepool
