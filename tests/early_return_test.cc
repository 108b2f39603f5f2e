// A session that comes back before its copies are done, at every point of a small plan and with
// every way in which what is under way can end: nothing is lost, nothing leaks, and only what has
// not started is given up. Larger plans at random.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/chunk_engine.h"
#include "tests/support/scenario_fixture.h"
#include "tidepool/policy/lru.h"
#include "tidepool/tide/tide.h"

namespace tidepool::testing {
namespace {

using enum Outcome;
using std::chrono::milliseconds;
using std::chrono::seconds;
using What = ChunkEngine::What;

std::function<void(ManagerOptions&)> UsingTide(const TideOptions& options) {
  return [options](ManagerOptions& o) {
    auto tide = std::make_shared<Tide>(options);
    o.migrator = tide->MakePlanner();
    o.policy = [tide](TierIndex tier) {
      return tier == kHbmTier ? MakeLruPolicy() : tide->MakePolicy(tier);
    };
  };
}

/// How a copy ends that was under way when its session came back.
enum class End : std::uint8_t { kOk, kFailed, kCancelled, kTimedOut, kOkMuchLater };
constexpr std::uint32_t kEnds = 5;

TransferResult ResultOf(End end) {
  switch (end) {
    case End::kFailed:
      return TransferResult::kFailed;
    case End::kCancelled:
      return TransferResult::kCancelled;
    case End::kTimedOut:
      return TransferResult::kTimedOut;
    default:
      return TransferResult::kOk;
  }
}

enum class Return : std::uint8_t { kAdmit, kArrivesFirst };

/// One run: which copies the engine took, how far the plan had come, and what then happens.
struct Case {
  std::uint32_t accepted = 0;  ///< copies that the engine takes
  std::uint32_t steps = 0;     ///< of the plan, done before the return
  std::uint32_t ends = 0;      ///< base kEnds, one digit for each copy under way
  Return how = Return::kAdmit;
};

std::string Describe(const Case& c) {
  return "accepted " + std::to_string(c.accepted) + ", steps " + std::to_string(c.steps) +
         ", ends " + std::to_string(c.ends) +
         (c.how == Return::kAdmit ? ", admitted" : ", arrives first");
}

/// What each copy goes through: some layers, a Poll, the end, a Poll.
constexpr std::uint32_t kStepsACopy = 4;

void DoStep(ScenarioFixture& s, const std::vector<CopyRequest>& copies, std::uint32_t step) {
  const CopyRequest& copy = copies[step / kStepsACopy];
  switch (step % kStepsACopy) {
    case 0:
      (void)s.engine().Progress(copy.id, 1);
      break;
    case 2:
      (void)s.engine().Finish(copy.id);
      break;
    default:
      s.Poll();
  }
}

/// Two tiers, blocks of two layers, an engine that takes `c.accepted` copies.
ScenarioOptions Options(const Case& c, std::uint32_t hbm, const TideOptions& tide) {
  return {.hbm = hbm,
          .dram = 8,
          .layers = 2,
          .engine = {.accept_limit = c.accepted},
          .adjust = UsingTide(tide)};
}

/// Carries the plan out as far as the case says; nothing more is taken. Returns what is under way.
std::vector<CopyRequest> CarryOut(ScenarioFixture& s, const Case& c) {
  const std::vector<CopyRequest> copies = s.engine().InFlight();
  EXPECT_EQ(copies.size(), c.accepted);
  s.engine().set_accept_limit(0);
  if (copies.size() == c.accepted) {
    for (std::uint32_t i = 0; i < c.steps; ++i) DoStep(s, copies, i);
  }
  s.engine().ClearRecords();
  return s.engine().InFlight();
}

struct Ended {
  std::uint64_t cancelled = 0;
  std::vector<TransferId> later;  ///< still with the engine
};

/// Each copy under way ends as the case says.
Ended EndEach(ScenarioFixture& s, const std::vector<CopyRequest>& under_way, const Case& c) {
  Ended ended;
  std::uint32_t ends = c.ends;
  for (const CopyRequest& copy : under_way) {
    const auto end = static_cast<End>(ends % kEnds);
    ends /= kEnds;
    ended.cancelled += end == End::kCancelled ? 1 : 0;
    if (end == End::kOkMuchLater) {
      ended.later.push_back(copy.id);
    } else {
      EXPECT_TRUE(s.engine().Finish(copy.id, ResultOf(end)));
    }
    s.Poll();
  }
  return ended;
}

/// Valid copies below HBM have the right bytes.
void ExpectCopiesIntact(ScenarioFixture& s, const Tokens& tokens) {
  const std::vector<BlockId> blocks = s.Blocks(tokens);
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    for (TierIndex t = 1; t < s.manager().signals().tiers.size(); ++t) {
      if (s.manager().pool().copy(blocks[i], t) != CopyState::kValid) continue;
      EXPECT_TRUE(s.Stored(t, tokens, i)) << "block " << i << " of tier " << int{t};
    }
  }
}

/// Everything given up, nothing is left.
void ExpectNothingLeft(ScenarioFixture& s) {
  s.Settle();
  for (std::uint64_t session = 1; session < 32; ++session) {
    (void)s.manager().CompleteSession(SessionId(session));
  }
  s.SetTime(s.clock().Now() + std::chrono::hours(1));
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(s.manager().Clear().ok());
    s.Settle();
  }
  const TableSizes sizes = s.manager().table_sizes();
  EXPECT_EQ(sizes.sequences + sizes.sessions + sizes.transfers + sizes.demands +
                sizes.pending_commits + sizes.pending_releases + sizes.device_work,
            0u);
  EXPECT_EQ(s.Counts(), "free " + std::to_string(s.manager().slots(kHbmTier)));
  for (TierIndex t = 0; t < s.manager().signals().tiers.size(); ++t) {
    EXPECT_EQ(s.manager().used_slots(t), 0u);
    EXPECT_EQ(s.manager().pool().quarantined(t), 0u);
  }
  EXPECT_TRUE(s.engine().violations().empty());
}

constexpr std::uint32_t kBlocks = 3;  // of the session, all of them planned

void RunCleanPoolCase(const Case& c) {
  SCOPED_TRACE(Describe(c));
  ScenarioFixture s(Options(c, 8, {.clean_pool = 0.5}));
  const Tokens text = Text(1, 4 * kBlocks);
  s.Cache(text, {.session = 1});
  s.SetTime(s.clock().Now() + seconds(2));
  s.Poll();

  // It is back: what was not with the engine is forgotten, what is there is asked back.
  const std::vector<CopyRequest> under_way = CarryOut(s, c);
  // Done, but the manager has not heard of it; an admission listens first.
  const std::size_t unseen = c.how == Return::kArrivesFirst && c.steps % kStepsACopy == 3 ? 1 : 0;
  if (c.how == Return::kArrivesFirst) {
    EXPECT_EQ(s.manager().SessionArrived(1), kOk);
    EXPECT_EQ(s.manager().table_sizes().transfers, under_way.size() + unseen);
    s.Poll();
  }
  EXPECT_EQ(s.Allocate("A", Text(1, 4 * kBlocks + 1), {.session = 1}), kOk);
  EXPECT_EQ(s.Hit("A"), 4 * kBlocks);
  EXPECT_EQ(s.engine().cancelled().size(), under_way.size() + unseen);
  EXPECT_EQ(s.manager().table_sizes().transfers, under_way.size());
  EXPECT_EQ(s.manager().stats().withdrawn, kBlocks - c.accepted);
  s.engine().set_accept_limit(kBlocks);

  const Ended ended = EndEach(s, under_way, c);
  EXPECT_EQ(s.manager().stats().withdrawn, kBlocks - c.accepted + ended.cancelled);
  ExpectCopiesIntact(s, text);
  EXPECT_EQ(s.Commit("A", 4 * kBlocks + 1), kOk);
  EXPECT_EQ(s.Free("A"), kOk);
  // Idle again, and planned for again, with the late ones still under way.
  s.SetTime(s.clock().Now() + seconds(2));
  s.Poll();
  for (const TransferId id : ended.later) EXPECT_TRUE(s.engine().Finish(id));
  s.Settle();
  EXPECT_EQ(s.Found(text), 4 * kBlocks);
  ExpectCopiesIntact(s, text);
  EXPECT_EQ(s.manager().stats().late_completions, 0u);
  ExpectNothingLeft(s);
}

template <typename Run>
int ForEachCase(Run run) {
  int cases = 0;
  for (std::uint32_t accepted = 0; accepted <= kBlocks; ++accepted) {
    for (std::uint32_t steps = 0; steps <= kStepsACopy * accepted; ++steps) {
      std::uint32_t ends = 1;
      for (std::uint32_t left = accepted - (steps + 1) / kStepsACopy; left > 0; --left) {
        ends *= kEnds;
      }
      for (std::uint32_t e = 0; e < ends; ++e) {
        for (const Return how : {Return::kAdmit, Return::kArrivesFirst}) {
          run(Case{accepted, steps, e, how});
          ++cases;
          if (::testing::Test::HasFailure()) return cases;
        }
      }
    }
  }
  return cases;
}

TEST(EarlyReturn, AtEveryPointOfACleanPoolsPlan) { EXPECT_GT(ForEachCase(RunCleanPoolCase), 1000); }

// The same where another request waits for the session's slots: its copies down are to free them.
void RunDemandCase(const Case& c) {
  SCOPED_TRACE(Describe(c));
  ScenarioFixture s(Options(c, 4, {.clean_pool = 0}));
  const Tokens text = Text(1, 4 * kBlocks);
  const Tokens other = Text(2, 16);
  s.Cache(text, {.session = 1});
  EXPECT_EQ(s.Allocate("N", other, {.session = 2}), kBusy);
  s.Poll();
  const std::vector<CopyRequest> under_way = CarryOut(s, c);
  if (c.how == Return::kArrivesFirst) {
    EXPECT_EQ(s.manager().SessionArrived(1), kOk);
    // Somebody waits for these slots, and nobody has taken the blocks back.
    EXPECT_TRUE(s.engine().cancelled().empty());
    EXPECT_EQ(s.manager().stats().withdrawn, 0u);
  }
  // It wants no slot but for what has left meanwhile.
  const Outcome back = s.Allocate("A", Text(1, 4 * kBlocks), {.session = 1});
  if (back == kOk) {
    EXPECT_GE(s.Hit("A"), 4 * (kBlocks - 1));
    EXPECT_LE(s.engine().cancelled().size(), under_way.size());
  }
  s.engine().set_accept_limit(64);
  const Ended ended = EndEach(s, under_way, c);
  ExpectCopiesIntact(s, text);
  if (back == kOk) {
    while (s.ticket("A").Ready() == kPending) {
      s.engine().FinishAll();
      s.Poll();
    }
    EXPECT_EQ(s.Commit("A", 4 * kBlocks), kOk);
    EXPECT_EQ(s.Free("A"), kOk);
  }
  for (const TransferId id : ended.later) (void)s.engine().Finish(id);
  EXPECT_EQ(s.AllocatePatiently("N", other, {.session = 2}, 20), kOk);
  EXPECT_EQ(s.Found(text), 4 * kBlocks);
  ExpectCopiesIntact(s, text);
  EXPECT_EQ(s.Commit("N", 16), kOk);
  EXPECT_EQ(s.Free("N"), kOk);
  ExpectNothingLeft(s);
}

TEST(EarlyReturn, AtEveryPointOfAWriteBackThatARequestWaitsFor) {
  EXPECT_GT(ForEachCase(RunDemandCase), 1000);
}

// --- Switches, and who may withdraw what. ---

TEST(EarlyReturn, NothingIsWithdrawnWithTheSwitchOff) {
  for (const bool on : {true, false}) {
    ScenarioFixture s(
        {.hbm = 8, .dram = 8, .adjust = UsingTide({.clean_pool = 0.5, .withdraw_on_return = on})});
    s.Cache(Text(1, 12), {.session = 1});
    s.SetTime(s.clock().Now() + seconds(2));
    s.Poll();
    EXPECT_EQ(s.Allocate("A", Text(1, 13), {.session = 1}), kOk);
    EXPECT_EQ(s.engine().cancelled().size(), on ? 3u : 0u);
  }
}

TEST(EarlyReturn, WhatTheEngineAskedForStays) {
  ScenarioFixture s(
      {.hbm = 8, .dram = 8, .engine = {.accept_limit = 1}, .adjust = UsingTide({.clean_pool = 0})});
  s.Cache(Text(1, 12), {.session = 1});
  EXPECT_EQ(s.Offload(Text(1, 12)).accepted, 3u);
  EXPECT_EQ(s.Allocate("A", Text(1, 13), {.session = 1}), kOk);
  EXPECT_TRUE(s.engine().cancelled().empty());
  EXPECT_EQ(s.manager().table_sizes().transfers, 3u);
  EXPECT_EQ(s.manager().stats().withdrawn, 0u);
}

// Four copies in a row that fail make a tier refuse; copies that nobody wants any more do not.
TEST(EarlyReturn, WithdrawingIsNoFailureOfTheTier) {
  ScenarioFixture s({.hbm = 16, .dram = 16, .adjust = UsingTide({.clean_pool = 0.5})});
  s.Cache(Text(1, 32), {.session = 1});
  s.SetTime(s.clock().Now() + seconds(2));
  s.Poll();
  ASSERT_EQ(s.engine().InFlight().size(), 8u);
  EXPECT_EQ(s.Allocate("A", Text(1, 33), {.session = 1}), kOk);
  s.engine().FinishAll(TransferResult::kCancelled);
  s.Poll();
  EXPECT_EQ(s.manager().stats().withdrawn, 8u);
  EXPECT_EQ(s.manager().stats().offloads_failed, 0u);
  EXPECT_EQ(s.Free("A"), kOk);
  EXPECT_EQ(s.Offload(Text(1, 32)).accepted, 8u);
}

// A session's return takes back its own path only, shared blocks with it.
TEST(EarlyReturn, OtherSessionsCopiesGoOn) {
  ScenarioFixture s({.hbm = 16,
                     .dram = 16,
                     .engine = {.accept_limit = 0},
                     .adjust = UsingTide({.clean_pool = 1})});
  const Tokens shared = Text(9, 8);
  s.Cache(Join(shared, Text(1, 8)), {.session = 1});
  s.Cache(Join(shared, Text(2, 8)), {.session = 2});
  s.SetTime(s.clock().Now() + seconds(2));
  s.Poll();
  EXPECT_EQ(s.manager().table_sizes().transfers, 6u);
  EXPECT_EQ(s.manager().SessionArrived(2), kOk);
  EXPECT_EQ(s.manager().stats().withdrawn, 4u);
  EXPECT_EQ(s.manager().SessionArrived(2), kOk);  // it knows
  EXPECT_EQ(s.manager().SessionArrived(77), kOk);
  EXPECT_EQ(s.manager().table_sizes().transfers, 2u);
  s.engine().set_accept_limit(64);
  s.Settle();
  const std::vector<BlockId> first = s.Blocks(Join(shared, Text(1, 8)));
  EXPECT_TRUE(s.manager().pool().Clean(first[3], kHbmTier));
}

// --- Chunk by chunk, on the host engine's queue. ---

constexpr std::uint32_t kLayers = 4;
constexpr std::uint64_t kLayerBytes = 4096;

class ChunkWorld {
 public:
  explicit ChunkWorld(std::size_t depth) {
    ManagerOptions options;
    options.layout = KvLayout::Opaque(kLayers * kLayerBytes, 4, kLayers);
    options.tiers = {{.kind = TierKind::kHbm, .slots = 8}, {.kind = TierKind::kDram, .slots = 8}};
    options.tiers.push_back({.kind = TierKind::kNvme, .slots = 8});
    options.tiers.back().path = "kept in memory";
    options.clock = &clock_;
    UsingTide({.clean_pool = 0.5})(options);
    auto engine = std::make_unique<ChunkEngine>(ChunkEngineOptions{
        .clock = &clock_, .bytes_per_second = 1e9, .max_chunk_bytes = kLayerBytes, .depth = depth});
    engine_ = engine.get();
    options.engine = std::move(engine);
    manager_ = *KvCacheManager::Create(std::move(options));
  }
  ChunkEngine& engine() { return *engine_; }
  KvCacheManager* operator->() { return manager_.get(); }
  void Advance(Duration by) {
    clock_.Advance(by);
    Poll();
  }
  void Poll() {
    manager_->Poll();
    Audit();
  }
  void Audit() {
    const Status audit = manager_->Audit();
    ASSERT_TRUE(audit.ok()) << audit;
  }
  void Settle() {
    Poll();
    while (engine_->FinishNext()) Poll();
  }

  static std::uint64_t Word(std::uint32_t block, std::uint32_t layer, std::uint64_t at) {
    return (std::uint64_t{block + 1} << 40 | std::uint64_t{layer} << 32 | at) * 0x9E3779B97F4A7C15u;
  }
  /// Writes the blocks of a sequence from `first` on.
  void Write(Sequence& sequence, std::uint32_t first) {
    const BlockTable table = sequence.block_table();
    for (std::uint32_t i = first; i < table.size; ++i) {
      Each(manager_->arena(kHbmTier), SlotId(table.slots[i]), i,
           [](std::uint64_t* at, std::uint64_t want) {
             *at = want;
             return true;
           });
    }
  }
  [[nodiscard]] static bool Holds(const Arena& arena, SlotId slot, std::uint32_t block) {
    return Each(arena, slot, block,
                [](const std::uint64_t* at, std::uint64_t want) { return *at == want; });
  }
  /// Every valid copy of the prefix has its bytes. Returns how many are below HBM.
  std::uint32_t ExpectIntact(const std::vector<Token>& tokens) {
    std::vector<BlockId> blocks;
    manager_->Lookup(tokens, NamespaceId(0), blocks);
    std::uint32_t below = 0;
    for (std::uint32_t i = 0; i < blocks.size(); ++i) {
      for (TierIndex t = 0; t < 3; ++t) {
        if (manager_->pool().copy(blocks[i], t) != CopyState::kValid) continue;
        below += t != kHbmTier ? 1 : 0;
        const Arena& arena = t == kHbmTier ? manager_->arena(t) : engine_->arena(t);
        EXPECT_TRUE(Holds(arena, manager_->pool().slot(blocks[i], t), i)) << "block " << i;
      }
    }
    return below;
  }

 private:
  template <typename Visit>
  static bool Each(const Arena& arena, SlotId slot, std::uint32_t block, Visit visit) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      auto* words = reinterpret_cast<std::uint64_t*>(arena.At(slot, layer));
      for (std::uint64_t i = 0; i < kLayerBytes / 8; i += 64) {
        if (!visit(words + i, Word(block, layer, i))) return false;
      }
    }
    return true;
  }

  ManualClock clock_{TimePoint(std::chrono::hours(1))};
  ChunkEngine* engine_ = nullptr;
  std::unique_ptr<KvCacheManager> manager_;
};

/// The session returns after `chunks` chunks of its plan; then chunk number `failing` fails.
void RunChunkCase(std::size_t depth, std::uint32_t chunks, std::uint32_t failing) {
  SCOPED_TRACE("depth " + std::to_string(depth) + ", after " + std::to_string(chunks) +
               " chunks, then number " + std::to_string(failing) + " fails");
  ChunkWorld w(depth);
  const std::vector<Token> text = Text(1, 4 * kBlocks);
  Admission first = w->Admit({.session = 1, .tokens = text});
  ASSERT_TRUE(first.granted());
  w.Write(first.sequence, 0);
  ASSERT_EQ(first.sequence.Commit(4 * kBlocks, Fence::Done()), kOk);
  ASSERT_EQ(first.sequence.Finish(), kOk);
  w.Advance(seconds(2));
  for (std::uint32_t i = 0; i < chunks; ++i) {
    ASSERT_TRUE(w.engine().FinishNext());
    if (i % 3 == 0) w.Poll();  // others are noticed only at the return
  }
  std::set<std::uint64_t> started;
  for (const ChunkEngine::Event& e : w.engine().events()) {
    if (e.what == What::kTaken) started.insert(e.request.id.value());
  }

  Admission back = w->Admit({.session = 1, .tokens = Text(1, 4 * kBlocks + 1)});
  ASSERT_TRUE(back.granted());
  EXPECT_EQ(back.ready_tokens, 4 * kBlocks);
  w.Audit();
  std::uint32_t after = 0;
  bool failed = false;
  while (w.engine().in_flight() > 0) {
    const bool ok = after++ != failing;
    failed |= !ok;
    w.engine().FinishNext(ok);
    w.Poll();
  }
  // Every copy of which a chunk had started went to its end; the others never started.
  const auto n = static_cast<std::uint32_t>(started.size());
  EXPECT_EQ(w->stats().withdrawn, kBlocks - n);
  EXPECT_EQ(w->stats().offloads_failed, failed ? 1u : 0u);
  EXPECT_EQ(w.ExpectIntact(text), n - (failed ? 1 : 0));
  EXPECT_EQ(w->stats().bytes_in[1], (n - (failed ? 1 : 0)) * w->block_bytes());
  EXPECT_EQ(w.engine().QueuedBytes(kHbmTier, 1), 0u);
  EXPECT_EQ(w->table_sizes().transfers, 0u);

  w.Write(back.sequence, kBlocks);
  ASSERT_EQ(back.sequence.Finish(), kOk);
  w.Advance(seconds(2));  // what is still dirty is copied after all
  w.Settle();
  EXPECT_EQ(w.ExpectIntact(text), kBlocks);
  EXPECT_EQ(w->CompleteSession(1), kOk);
  EXPECT_TRUE(w->Clear().ok());
  EXPECT_EQ(w->used_slots(0) + w->used_slots(1) + w->used_slots(2), 0u);
}

TEST(EarlyReturn, AtEveryChunkOfAPlan) {
  for (const std::size_t depth : {1u, 3u, 16u}) {
    for (std::uint32_t chunks = 0; chunks <= kBlocks * kLayers; ++chunks) {
      for (std::uint32_t failing = 0; failing <= kBlocks * kLayers - chunks; ++failing) {
        RunChunkCase(depth, chunks, failing);
        if (HasFailure()) return;
      }
    }
  }
}

// --- Large plans, at random. ---

class ManySessions {
 public:
  ManySessions(std::uint64_t seed, const FakeFaults& faults)
      : random_(seed),
        s_({.hbm = 64,
            .dram = 48,
            .nvme = 96,
            .engine = {.automatic = true, .faults = faults, .seed = seed, .accept_limit = 6},
            .adjust = UsingTide({.clean_pool = 0.6, .refresh = milliseconds(50)}),
            .check_every_step = false}) {}

  void Step() {
    const auto id = static_cast<std::uint32_t>(Pick(kSessions)) + 1;
    Session& session = sessions_[id - 1];
    s_.SetTime(s_.clock().Now() + milliseconds(Pick(40)));
    if (Pick(3) == 0) s_.Poll();
    if (Pick(4) == 0) (void)s_.manager().SessionArrived(SessionId(id));
    const std::string name = "S" + std::to_string(id);
    if (!s_.seq(name).alive()) {
      if (session.length == 0 || session.length > 44) session.length = 4;
      session.length += static_cast<std::uint32_t>(Pick(9));
      if (s_.Allocate(name, Text(static_cast<int>(id), session.length), {.session = id}) != kOk) {
        return s_.Poll();
      }
      ++returns_;
      Work(name, session.length);
    } else if (s_.seq(name).paused()) {
      if (s_.Resume(name) != kOk) return s_.Poll();
      ++returns_;
      Work(name, session.length);
    } else if (Pick(2) == 0) {
      EXPECT_EQ(s_.Idle(name, Pick(2) == 0 ? Duration::max() : milliseconds(Pick(500))), kOk);
    } else {
      EXPECT_EQ(s_.Free(name), kOk);
    }
  }
  void WindDown() {
    s_.engine().set_faults({});
    s_.engine().set_accept_limit(1000);
    for (std::uint32_t id = 1; id <= kSessions; ++id) (void)s_.Free("S" + std::to_string(id));
    s_.engine().set_automatic(false);
    ExpectNothingLeft(s_);
  }
  ScenarioFixture& scenario() { return s_; }
  [[nodiscard]] std::uint64_t returns() const { return returns_; }

 private:
  static constexpr std::uint32_t kSessions = 16;
  struct Session {
    std::uint32_t length = 0;
  };
  std::uint64_t Pick(std::uint64_t n) { return random_() % n; }

  // Waits for what is loaded, computes the rest; a failed load ends the turn.
  void Work(const std::string& name, std::uint32_t length) {
    for (int i = 0; i < 100 && s_.ticket(name).Ready() == kPending; ++i) s_.Poll();
    s_.Check("the loads of " + name);
    const bool whole = s_.ticket(name).Ready() == kOk && s_.seq(name).tokens() == length;
    if (whole) {
      EXPECT_EQ(s_.Commit(name, length), kOk);
    }
    if (!whole || Pick(3) == 0) {
      EXPECT_EQ(s_.Free(name), kOk);
    }
  }

  std::mt19937_64 random_;
  ScenarioFixture s_;
  std::array<Session, kSessions> sessions_;
  std::uint64_t returns_ = 0;
};

TEST(EarlyReturn, AtRandomPointsOfLargePlans) {
  const FakeFaults faulty{.fail = 0.05,
                          .time_out = 0.01,
                          .delay = 0.6,
                          .reorder = 0.3,
                          .duplicate = 0.05,
                          .progress = 0.3,
                          .refuse = 0.2,
                          .finish_anyway = 0.4,
                          .max_delay_polls = 12};
  std::uint64_t withdrawn = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ManySessions many(seed, seed % 2 == 0 ? FakeFaults{.delay = 0.8} : faulty);
    for (int i = 0; i < 1200 && !HasFailure(); ++i) {
      many.Step();
      if (i % 8 == 0) many.scenario().Check("step " + std::to_string(i));
    }
    if (HasFailure()) return;
    EXPECT_GT(many.returns(), 100u);
    withdrawn += many.scenario().manager().stats().withdrawn;
    many.WindDown();
  }
  EXPECT_GT(withdrawn, 50u);
}

}  // namespace
}  // namespace tidepool::testing
