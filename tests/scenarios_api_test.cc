// Failure scenarios S85, S87 and S88, and misuse of handles: errors, never aborts.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/scenario_fixture.h"

namespace tidepool::testing {
namespace {

using enum Outcome;

/// 16 blocks of 64 KiB in HBM, as many below it, moved by the real host engine.
ManagerOptions HostOptions(const std::string& file) {
  ManagerOptions options;
  options.layout = KvLayout::Opaque(64_KiB, kBlockTokens);
  options.tiers = {{.kind = TierKind::kHbm, .slots = 16},
                   {.kind = TierKind::kDram, .slots = 16},
                   {.kind = TierKind::kNvme, .slots = 16}};
  options.tiers[2].path = file;
  return options;
}

TEST(Scenario, S85DestroyedWithTransfersInFlightThreads) {
  const std::string file = ::testing::TempDir() + "tidepool_s85_" + std::to_string(getpid());
  for (int i = 0; i < 100; ++i) {
    StatusOr<std::unique_ptr<KvCacheManager>> manager = KvCacheManager::Create(HostOptions(file));
    ASSERT_TRUE(manager.ok()) << manager.status();
    const Tokens tokens = Text(1, 64);
    Admission admission = (*manager)->Admit({.tokens = tokens});
    ASSERT_TRUE(admission.granted());
    ASSERT_EQ(admission.sequence.Commit(64, Fence::Done()), kOk);
    ASSERT_EQ(admission.sequence.Finish(), kOk);
    EXPECT_EQ((*manager)->Offload(tokens).accepted, 16u);
    if (i % 2 == 0) {
      EXPECT_TRUE((*manager)->WaitIdle(std::chrono::seconds(10)));
    }
  }  // destroyed here, half of them with 16 copies in flight
  static_cast<void>(unlink(file.c_str()));
}

/// The message with which Create refuses HostOptions after `change`; empty if it does not.
std::string Refusal(const std::function<void(ManagerOptions&)>& change) {
  ManagerOptions options = HostOptions("unused");
  options.engine = std::make_unique<FakeTransferEngine>();
  change(options);
  const StatusOr<std::unique_ptr<KvCacheManager>> manager =
      KvCacheManager::Create(std::move(options));
  return manager.ok() ? "" : std::string(manager.status().message());
}

TEST(Scenario, S87SettingsTakeEffectOrAreRefused) {
  const auto names = [](const std::string& message, const std::string& field) {
    return message.find(field) != std::string::npos;
  };
  EXPECT_EQ(Refusal([](ManagerOptions&) {}), "");
  const auto check = [&](const std::string& field, const std::function<void(ManagerOptions&)>& f) {
    const std::string message = Refusal(f);
    EXPECT_TRUE(names(message, field)) << field << ": '" << message << "'";
  };
  check("block_tokens", [](ManagerOptions& o) { o.layout.block_tokens = 0; });
  check("tiers", [](ManagerOptions& o) { o.tiers.clear(); });
  check("slots", [](ManagerOptions& o) { o.tiers[1].slots = 0; });
  check("bytes", [](ManagerOptions& o) { o.tiers[1].bytes = 1_MiB; });  // both are given
  check("format", [](ManagerOptions& o) { o.tiers[1].format = static_cast<StorageFormat>(99); });
  check("kind", [](ManagerOptions& o) { o.tiers[1].kind = static_cast<TierKind>(99); });
  check("max_sequences", [](ManagerOptions& o) { o.max_sequences = 16'384; });
  check("max_sequences", [](ManagerOptions& o) { o.max_sequences = 0; });
  check("demand_ttl", [](ManagerOptions& o) { o.demand_ttl = Duration(-1); });
  check("load_ttl", [](ManagerOptions& o) { o.load_ttl = Duration(-1); });

  ScenarioFixture s({.hbm = 7, .dram = 3});
  EXPECT_EQ(s.manager().slots(kHbmTier), 7u);  // the effective settings
  EXPECT_EQ(s.manager().slots(kLowerTier), 3u);
  EXPECT_EQ(s.manager().block_tokens(), kBlockTokens);
  EXPECT_FALSE(s.manager().SetQuota(NamespaceId(99), kHbmTier, {.hard = 1}).ok());
  EXPECT_FALSE(s.manager().SetQuota(NamespaceId(0), 9, {.hard = 1}).ok());
  EXPECT_FALSE(s.manager().Resize(9, 1).ok());
  s.Check("refused settings");
}

TEST(Scenario, S87DirectIoIsReportedAsItIs) {
  for (const std::string& directory : {std::string("/dev/shm/"), ::testing::TempDir()}) {
    const std::string file = directory + "tidepool_s87_" + std::to_string(getpid());
    const int direct = open(file.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
    const bool supported = direct >= 0;
    if (supported) close(direct);
    ManagerOptions options = HostOptions(file);
    StatusOr<std::unique_ptr<KvCacheManager>> manager = KvCacheManager::Create(std::move(options));
    ASSERT_TRUE(manager.ok()) << manager.status();
    const std::string effective = (*manager)->DescribeTransfers();
    EXPECT_EQ(effective.find("buffered") == std::string::npos, supported) << effective;
    static_cast<void>(unlink(file.c_str()));
  }
}

TEST(Scenario, S88MisuseGivesErrorsNotAborts) {
  ScenarioFixture s({.hbm = 6, .dram = 2});
  const Tokens tokens = Text(1, 4);
  std::set<Outcome> distinct;
  const auto expect = [&](Outcome got, Outcome wanted) {
    EXPECT_EQ(got, wanted);
    distinct.insert(got);
  };
  expect(s.Free("nobody"), kUnknownHandle);
  EXPECT_EQ(s.Fork("nobody", "child"), kUnknownHandle);
  EXPECT_EQ(s.Allocate("S", Text(2, 6), {.session = 1}), kOk);
  StaleSequence stale(s.seq("S"));
  expect(s.Commit("S", 7), kBeyondLength);
  EXPECT_EQ(s.Truncate("S", 7), kBeyondLength);
  EXPECT_EQ(s.DropLeading("S", 3), kBeyondLength);
  EXPECT_EQ(s.Commit("S", 6), kOk);
  expect(s.Commit("S", 5), kNotMonotonic);
  expect(s.Resume("S"), kNotPaused);
  EXPECT_EQ(s.Idle("S"), kOk);
  expect(s.Idle("S"), kAlreadyPaused);
  expect(s.Append("S", {1}), kPaused);
  EXPECT_EQ(s.Commit("S", 6), kPaused);
  EXPECT_EQ(s.Free("S"), kOk);
  EXPECT_EQ(s.Append("S", {1}), kUnknownHandle);
  expect(stale->Append(1), kStaleHandle);
  s.Check("a stale Append");

  s.Cache(tokens);
  expect(s.Onboard(tokens).outcome, kAlreadyResident);
  expect(s.Offload(Text(9, 4)).outcome, kNotFound);
  expect(s.Allocate("Z", tokens, {.ns = NamespaceId(9)}), kUnknownNamespace);
  expect(s.manager().CompleteSession(77), kUnknownSession);
  EXPECT_EQ(s.manager().UpdateExpectedReturn(77, AtSecond(1), 0), kUnknownSession);
  EXPECT_EQ(s.CompleteStep(0, 5), kOk);
  EXPECT_EQ(s.CompleteStep(0, 4), kNotMonotonic);
  expect(s.Allocate("Z", {}), kInvalidArgument);

  EXPECT_EQ(s.Offload(tokens).accepted, 1u);  // a completion that nobody waits for
  const TransferId id = s.engine().InFlight().at(0).id;
  s.Settle();
  EXPECT_TRUE(s.engine().Repeat(id));
  s.Poll();
  EXPECT_EQ(s.manager().stats().late_completions, 1u);
  EXPECT_EQ(distinct.size(), 12u);
}

/// Every call through `handle` gives `wanted` and every figure is that of a dead sequence.
void ExpectAll(Sequence& handle, Outcome wanted) {
  EXPECT_FALSE(handle.alive());
  EXPECT_EQ(handle.tokens(), 0u);
  EXPECT_EQ(handle.committed(), 0u);
  EXPECT_FALSE(handle.paused());
  EXPECT_EQ(handle.block_table().size, 0u);
  EXPECT_EQ(handle.Append(1), wanted);
  EXPECT_EQ(handle.Commit(0, Fence::Done()), wanted);
  EXPECT_EQ(handle.Truncate(0), wanted);
  EXPECT_EQ(handle.Fork().outcome, wanted);
  EXPECT_EQ(handle.DropLeading(0), wanted);
  EXPECT_EQ(handle.Pause({}), wanted);
  EXPECT_EQ(handle.Resume().outcome, wanted);
  EXPECT_EQ(handle.Preempt(PreemptMode::kOffload), wanted);
}

TEST(HandleMisuse, EmptyMovedFromAndStale) {
  ScenarioFixture s({.hbm = 4});
  Sequence empty;
  ExpectAll(empty, kUnknownHandle);
  EXPECT_EQ(empty.Finish(), kUnknownHandle);
  EXPECT_EQ(LoadTicket().Ready(), kOk);  // nothing to wait for

  EXPECT_EQ(s.Allocate("S", Text(1, 4)), kOk);
  EXPECT_EQ(s.Commit("S", 4), kOk);
  const SequenceId id = s.seq("S").id();
  Sequence moved = std::move(s.seq("S"));
  ExpectAll(s.seq("S"), kUnknownHandle);
  EXPECT_EQ(moved.id(), id);
  EXPECT_EQ(moved.tokens(), 4u);
  Sequence& same = moved;
  moved = std::move(same);  // itself: nothing happens
  EXPECT_TRUE(moved.alive());
  EXPECT_EQ(s.Counts(), "free 3, held 1");

  StaleSequence stale(moved);
  EXPECT_EQ(moved.Finish(), kOk);
  ExpectAll(*stale, kStaleHandle);
  EXPECT_EQ(s.Allocate("T", Text(2, 4)), kOk);  // the next one gets the same place in the table
  ExpectAll(*stale, kStaleHandle);
  EXPECT_EQ(stale->Finish(), kStaleHandle);
  s.Check("misuse");
  EXPECT_EQ(s.seq("T").tokens(), 4u);
  EXPECT_EQ(s.Counts(), "free 2, held 1, cached 1");
}

TEST(HandleMisuse, AssigningOverALiveSequenceFinishesIt) {
  ScenarioFixture s({.hbm = 4});
  EXPECT_EQ(s.Allocate("S", Text(1, 4)), kOk);
  EXPECT_EQ(s.Allocate("T", Text(2, 4)), kOk);
  s.seq("S") = std::move(s.seq("T"));
  s.Poll();  // the release may wait until now
  EXPECT_EQ(s.Counts(), "free 3, held 1");
  EXPECT_EQ(s.seq("S").tokens(), 4u);
  EXPECT_FALSE(s.seq("T").alive());
}

TEST(HandleMisuse, ForeignHandlesAreNotOwned) {
  ScenarioFixture one({.hbm = 4});
  ScenarioFixture two({.hbm = 4});
  EXPECT_EQ(one.Allocate("S", Text(1, 4)), kOk);
  EXPECT_EQ(two.Allocate("S", Text(1, 4)), kOk);
  EXPECT_TRUE(one.manager().Owns(one.seq("S")));
  EXPECT_FALSE(one.manager().Owns(two.seq("S")));
  EXPECT_FALSE(one.manager().Owns(Sequence()));
  EXPECT_EQ(two.Free("S"), kOk);  // acts on its own manager, whatever the numbers say
  EXPECT_EQ(one.Counts(), "free 3, held 1");
  EXPECT_TRUE(one.seq("S").alive());
}

TEST(HandleMisuse, HandlesOutliveTheManager) {
  std::optional<ScenarioFixture> s(std::in_place, ScenarioOptions{.hbm = 4, .dram = 4});
  s->Store(Text(1, 4));
  EXPECT_EQ(s->Allocate("S", Join(Text(1, 4), {7})), kOk);
  EXPECT_EQ(s->ticket("S").Ready(), kPending);
  Sequence sequence = std::move(s->seq("S"));
  LoadTicket ticket = std::move(s->ticket("S"));
  s.reset();
  ExpectAll(sequence, kManagerGone);
  EXPECT_EQ(ticket.Ready(), kManagerGone);
  EXPECT_EQ(ticket.Ready(0), kManagerGone);
  EXPECT_EQ(ticket.WaitReady(), kManagerGone);
  EXPECT_EQ(sequence.Finish(), kManagerGone);
  Sequence moved = std::move(sequence);  // and all of them are destroyed after it
}

TEST(HandleMisuse, HandlesDestroyedOnAnotherThreadThreads) {
  ScenarioFixture s({.hbm = 64});
  for (int round = 0; round < 50; ++round) {
    std::vector<Sequence> doomed;
    for (int i = 0; i < 8; ++i) {
      const std::string name = "S" + std::to_string(i);
      ASSERT_EQ(s.Allocate(name, Text(8 * round + i, 4)), kOk);
      doomed.push_back(std::move(s.seq(name)));
    }
    std::thread reaper([handles = std::move(doomed)]() mutable { handles.clear(); });
    EXPECT_EQ(s.Allocate("running", Text(1'000 + round, 8)), kOk);  // at the same time
    EXPECT_EQ(s.Commit("running", 8), kOk);
    s.Poll();
    EXPECT_EQ(s.Free("running"), kOk);
    reaper.join();
    s.Poll();
    EXPECT_EQ(s.manager().counts().held, 0u);
    EXPECT_EQ(s.manager().table_sizes().sequences, 0u);
  }
}

TEST(HandleMisuse, ManagerGoneBeforeHandlesOnAnotherThreadThreads) {
  for (int round = 0; round < 50; ++round) {
    std::optional<ScenarioFixture> s(std::in_place, ScenarioOptions{.hbm = 8});
    std::vector<Sequence> doomed;
    for (int i = 0; i < 8; ++i) {
      const std::string name = "S" + std::to_string(i);
      ASSERT_EQ(s->Allocate(name, Text(i, 4)), kOk);
      doomed.push_back(std::move(s->seq(name)));
    }
    std::thread reaper([handles = std::move(doomed)]() mutable { handles.clear(); });
    s.reset();  // races with the destruction of its handles
    reaper.join();
  }
}

}  // namespace
}  // namespace tidepool::testing
