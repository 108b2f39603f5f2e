// The input log: runs repeated from it decide the same, other runs are told apart at the record
// where they part, and a damaged log is an error that names its offset.
#include "tidepool/input_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "src/manager/input_record.h"
#include "tests/support/model_world.h"
#include "tests/support/scenario_fixture.h"
#include "tidepool/policy/spear.h"

namespace tidepool::testing {
namespace {

using internal::Record;
using internal::RecordKind;
using ::testing::HasSubstr;

constexpr FakeFaults kFaulty = ModelFaults(0.06);

std::unique_ptr<EvictionPolicy> Spear() { return MakeSpearPolicy(); }

ModelConfig World(std::string name, std::vector<std::uint32_t> slots, bool spear, bool tide) {
  ModelConfig config;
  config.name = std::move(name);
  config.slots = std::move(slots);
  config.faults = kFaulty;
  config.max_blocks = 6;
  config.policy = spear ? Spear : nullptr;
  config.tide = tide;
  config.queued_work = tide;  // both ways
  config.quotas = !tide;
  config.recompute = spear;
  return config;
}

std::vector<ModelConfig> Worlds() {
  return {World("OneTier", {14}, false, false),
          World("TwoTiers", {10, 16}, false, false),
          World("TwoTiersSpear", {10, 16}, true, false),
          World("TwoTiersSpearTide", {12, 10}, true, true),
          World("ThreeTiersTide", {8, 6, 20}, false, true),
          World("ThreeTiersSpearTide", {10, 8, 16}, true, true)};
}

ModelOp RandomOp(std::mt19937_64& random) {
  constexpr std::array kOften = {ModelOpKind::kAdmit,  ModelOpKind::kAdmit,  ModelOpKind::kEvict,
                                 ModelOpKind::kAdmit,  ModelOpKind::kStep,   ModelOpKind::kStep,
                                 ModelOpKind::kAppend, ModelOpKind::kPoll,   ModelOpKind::kFinish,
                                 ModelOpKind::kClock,  ModelOpKind::kResume, ModelOpKind::kOffload};
  ModelOp op;
  op.kind = random() % 3 != 0 ? kOften[random() % kOften.size()]
                              : static_cast<ModelOpKind>(random() % kModelOpKinds);
  if (op.kind == ModelOpKind::kClear || op.kind == ModelOpKind::kAdvanceEpoch) {
    if (random() % 8 != 0) op.kind = ModelOpKind::kCompleteStep;
  }
  for (std::uint32_t& arg : op.arg) arg = static_cast<std::uint32_t>(random());
  return op;
}

struct LoggedRun {
  InputLogBuffer log;
  std::uint64_t decision_hash = 0;
  ModelTally tally;
  std::string failure;
};

/// Random operations on the model world, logged.
void RunWorld(ModelConfig config, std::uint64_t seed, int steps, LoggedRun& run,
              bool logged = true) {
  config.input_log = logged ? &run.log : nullptr;
  std::mt19937_64 random(seed);
  ModelWorld world(config, seed);
  for (int i = 0; i < steps && world.failure().empty(); ++i) world.Apply(RandomOp(random));
  world.WindDown();
  run.failure = world.failure();
  run.tally = world.tally();
  run.decision_hash = world.manager().decision_hash();
}

ReplayReport Replayed(std::span<const std::byte> log, const ModelConfig& config) {
  const StatusOr<ReplayReport> report = ReplayInputLog(log, ModelOptions(config));
  EXPECT_TRUE(report.ok()) << report.status();
  return report.value_or(ReplayReport{});
}

class InputLogTest : public ::testing::TestWithParam<ModelConfig> {};

TEST_P(InputLogTest, ARunRepeatedFromItsLogDecidesTheSame) {
  std::uint64_t granted = 0, offloads = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    LoggedRun run;
    RunWorld(GetParam(), seed, 700, run);
    ASSERT_EQ(run.failure, "");
    const ReplayReport first = Replayed(run.log.bytes(), GetParam());
    EXPECT_TRUE(first.agrees) << first.divergence;
    EXPECT_TRUE(first.complete);
    EXPECT_EQ(first.decision_hash, run.decision_hash);
    EXPECT_GT(first.polls, 50u);
    EXPECT_GT(first.calls, 4 * first.polls);
    granted += run.tally.granted;
    offloads += run.tally.stats.offloads;
    // Two ranks that follow one log.
    const ReplayReport second = Replayed(run.log.bytes(), GetParam());
    EXPECT_EQ(second.decision_hash, first.decision_hash);
    EXPECT_EQ(second.calls, first.calls);
  }
  EXPECT_GT(granted, 60u);
  EXPECT_TRUE(offloads > 20u || GetParam().slots.size() == 1) << offloads;
}

TEST_P(InputLogTest, TheDecisionHashIsTheRunsOwn) {
  LoggedRun plain, logged, other;
  RunWorld(GetParam(), 4, 300, plain, false);
  RunWorld(GetParam(), 4, 300, logged);
  RunWorld(GetParam(), 5, 300, other, false);
  EXPECT_TRUE(plain.log.bytes().empty());
  EXPECT_EQ(plain.decision_hash, logged.decision_hash) << "a log must not change what is decided";
  EXPECT_NE(plain.decision_hash, other.decision_hash);
}

INSTANTIATE_TEST_SUITE_P(Worlds, InputLogTest, ::testing::ValuesIn(Worlds()),
                         [](const auto& world) { return world.param.name; });

// --- Where two runs part. ---

std::vector<Record> Records(const InputLogBuffer& log) {
  StatusOr<std::vector<Record>> records = internal::ReadRecords(log.bytes());
  EXPECT_TRUE(records.ok()) << records.status();
  return std::move(records).value_or(std::vector<Record>{});
}

TEST(InputLog, AChangedOptionOfAPolicyIsFoundWhereItFirstMatters) {
  ModelConfig config = World("", {12, 10}, true, true);
  LoggedRun run;
  RunWorld(config, 9, 700, run);
  ASSERT_EQ(run.failure, "");
  config.clean_pool = 0.1;
  const ReplayReport report = Replayed(run.log.bytes(), config);
  ASSERT_FALSE(report.agrees);
  EXPECT_FALSE(report.complete);
  EXPECT_THAT(report.divergence, HasSubstr("record " + std::to_string(report.record) +
                                           " at offset " + std::to_string(report.offset)));
  const std::vector<Record> records = Records(run.log);
  ASSERT_LT(report.record, records.size());
  EXPECT_EQ(records[report.record].offset, report.offset);
  // Up to there the two runs are one.
  const ReplayReport before = Replayed(run.log.bytes().first(report.offset), config);
  EXPECT_TRUE(before.agrees) << before.divergence;
  EXPECT_FALSE(before.complete);
}

TEST(InputLog, AChangedDecisionIsFoundAtItsCall) {
  const ModelConfig config = World("", {10, 16}, false, false);
  LoggedRun run;
  RunWorld(config, 3, 120, run);
  const std::vector<Record> records = Records(run.log);
  for (std::size_t changed = 0; changed < records.size(); changed += 7) {
    if (records[changed].kind != RecordKind::kDecisions) continue;
    InputLogBuffer forged;
    internal::RecordWriter writer(&forged);
    writer.Begin();
    for (std::size_t i = 0; i < records.size(); ++i) {
      std::vector<std::byte> body(records[i].body.begin(), records[i].body.end());
      if (i == changed) body[3] ^= std::byte{4};
      writer.WriteBody(records[i].kind, body);
    }
    const ReplayReport report = Replayed(forged.bytes(), config);
    EXPECT_FALSE(report.agrees);
    EXPECT_EQ(report.record, changed);
    EXPECT_THAT(report.divergence, HasSubstr("decided otherwise"));
  }
}

TEST(InputLog, OptionsThatAreNotAsTheyWereAreNamed) {
  ModelConfig config = World("", {10, 16}, false, false);
  LoggedRun run;
  RunWorld(config, 3, 20, run);
  config.slots[1] = 17;
  StatusOr<ReplayReport> report = ReplayInputLog(run.log.bytes(), ModelOptions(config));
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("tiers[1]: dram, 16 slots"));
  config.slots[1] = 16;
  config.policy = Spear;
  report = ReplayInputLog(run.log.bytes(), ModelOptions(config));
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("policy of tier 0"));
  config.slots.clear();
  report = ReplayInputLog(run.log.bytes(), ModelOptions(World("", {4}, false, false)));
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
}

// --- Damage. ---

/// A few calls, about two kilobytes.
InputLogBuffer SmallLog() {
  InputLogBuffer log;
  ScenarioFixture f(
      {.hbm = 6, .dram = 4, .adjust = [&](ManagerOptions& o) { o.input_log = &log; }});
  f.Cache(Text(1, 8), {.session = 3});
  f.Store(Text(2, 8));
  EXPECT_EQ(f.Allocate("a", Text(2, 9)), Outcome::kOk);
  f.Settle();
  EXPECT_EQ(f.Free("a"), Outcome::kOk);
  return log;
}

ManagerOptions SmallOptions() {
  ManagerOptions options;
  ScenarioFixture f({.hbm = 6, .dram = 4, .adjust = [&](ManagerOptions& o) {
                       options.layout = o.layout;
                       options.tiers = o.tiers;
                       options.event_log_capacity = o.event_log_capacity;
                     }});
  return options;
}

TEST(InputLog, AFlippedBitIsAnErrorThatNamesItsRecord) {
  const InputLogBuffer log = SmallLog();
  ASSERT_TRUE(ReplayInputLog(log.bytes(), SmallOptions()).value().agrees);
  const std::vector<Record> records = Records(log);
  std::vector<std::byte> bytes(log.bytes().begin(), log.bytes().end());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    const auto bit = std::byte{static_cast<std::uint8_t>(1u << at % 8)};
    bytes[at] ^= bit;
    const auto damaged = internal::ReadRecords(bytes);
    bytes[at] ^= bit;
    ASSERT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss) << "byte " << at;
    const auto after = std::ranges::upper_bound(records, at, {}, &Record::offset);
    const std::uint64_t offset = after == records.begin() ? 0 : std::prev(after)->offset;
    EXPECT_THAT(std::string(damaged.status().message()),
                HasSubstr("offset " + std::to_string(offset) + ":"))
        << "byte " << at;
  }
}

TEST(InputLog, ACutLogIsRepeatedUpToItsEndOrRefused) {
  const InputLogBuffer log = SmallLog();
  const std::vector<Record> records = Records(log);
  std::size_t whole = 0;
  for (std::size_t size = 0; size < log.bytes().size(); ++size) {
    const auto report = ReplayInputLog(log.bytes().first(size), SmallOptions());
    const bool between = std::ranges::any_of(records, [&](const Record& r) {
      return r.offset == size && r.kind != RecordKind::kHeader;
    });
    ASSERT_EQ(report.ok(), between) << size;
    if (!between) {
      EXPECT_EQ(report.status().code(), absl::StatusCode::kDataLoss) << report.status();
      continue;
    }
    ++whole;
    EXPECT_TRUE(report->agrees) << report->divergence;
    EXPECT_FALSE(report->complete);
  }
  EXPECT_EQ(whole, records.size() - 1);
}

TEST(InputLog, ForgedRecordsNeverCrash) {
  const InputLogBuffer log = SmallLog();
  const std::vector<Record> records = Records(log);
  std::mt19937_64 random(1);
  std::size_t refused = 0, differ = 0;
  for (int run = 0; run < 3000; ++run) {
    InputLogBuffer forged;
    internal::RecordWriter writer(&forged);
    writer.Begin();
    const std::size_t target = 1 + random() % (records.size() - 1);
    for (std::size_t i = 0; i < records.size(); ++i) {
      std::vector<std::byte> body(records[i].body.begin(), records[i].body.end());
      RecordKind kind = records[i].kind;
      if (i == target) {
        const auto what = random() % 8;
        if (what == 0) kind = static_cast<RecordKind>(random() % 14);
        if (what == 1) body.resize(random() % (body.size() + 8));
        if (what == 2) continue;  // left out
        if (what > 2 && !body.empty()) {
          body[random() % std::min<std::size_t>(body.size(), 64)] = std::byte(random() % 256);
        }
      }
      writer.WriteBody(kind, body);
    }
    const auto report = ReplayInputLog(forged.bytes(), SmallOptions());
    refused += !report.ok();
    differ += report.ok() && !report->agrees;
  }
  EXPECT_GT(refused, 50u);
  EXPECT_GT(differ, 500u);
}

// --- What is an input. ---

TEST(InputLog, HandlesDroppedByOtherThreadsAreReplayedAtTheSameCall) {
  InputLogBuffer log;
  std::uint64_t hash = 0;
  {
    ScenarioFixture f(
        {.hbm = 8, .dram = 4, .adjust = [&](ManagerOptions& o) { o.input_log = &log; }});
    for (const char* name : {"a", "b", "c"}) {
      EXPECT_EQ(f.Allocate(name, Text(name[0], 8)), Outcome::kOk);
    }
    EXPECT_EQ(f.Commit("a", 8), Outcome::kOk);
    std::thread([&] {
      f.seq("b") = Sequence();
      f.seq("a") = Sequence();
    }).join();
    EXPECT_EQ(f.Append("c", Text(7, 5)), Outcome::kOk);  // a new block: handles are looked at
    std::thread([&] { f.seq("c") = Sequence(); }).join();
    f.Poll();
    EXPECT_EQ(f.Counts(), "free 6, cached 2");
    hash = f.manager().decision_hash();
  }
  const std::vector<Record> records = Records(log);
  EXPECT_EQ(std::ranges::count(records, RecordKind::kReleased, &Record::kind), 2);
  ManagerOptions options = SmallOptions();
  options.tiers[0].slots = 8;
  const StatusOr<ReplayReport> report = ReplayInputLog(log.bytes(), std::move(options));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->agrees) << report->divergence;
  EXPECT_EQ(report->decision_hash, hash);
}

TEST(InputLog, TheNamespaceMapIsAnInput) {
  InputLogBuffer log;
  std::uint32_t calls = 0;  // maps now this way, now that
  const auto map = [&calls](NamespaceId ns) { return ++calls % 2 == 0 ? NamespaceId(0) : ns; };
  {
    ScenarioFixture f({.hbm = 8, .adjust = [&](ManagerOptions& o) {
                         o.input_log = &log;
                         o.namespace_map = map;
                       }});
    const NamespaceId other = f.manager().RegisterNamespace({.tenant = "t"}).value();
    for (int i = 0; i < 6; ++i) {
      Admission a = f.manager().Admit({.tokens = Text(1, 9), .ns = other});
      ASSERT_TRUE(a.granted());
      EXPECT_EQ(a.sequence.Commit(9, Fence::Done()), Outcome::kOk);
    }
  }
  ManagerOptions options = SmallOptions();
  options.tiers.resize(1);
  options.tiers[0].slots = 8;
  const StatusOr<ReplayReport> report = ReplayInputLog(log.bytes(), std::move(options));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->agrees) << report->divergence;
  EXPECT_TRUE(report->complete);
}

/// Time that never stands still.
class RunningClock final : public Clock {
 public:
  TimePoint Now() const noexcept override { return TimePoint(Duration(++reads_ * 1'000'000)); }
  std::int64_t reads() const { return reads_; }

 private:
  mutable std::atomic<std::int64_t> reads_{0};
};

TEST(InputLog, ACallReadsTheClockOnce) {
  RunningClock clock;
  InputLogBuffer log;
  {
    ScenarioFixture f({.hbm = 6, .dram = 4, .adjust = [&](ManagerOptions& o) {
                         o.clock = &clock;
                         o.input_log = &log;
                       }});
    f.Store(Text(2, 8), {.session = 1});
    const std::int64_t before = clock.reads();
    const std::size_t calls = Records(log).size();
    Admission a = f.manager().Admit({.session = 1, .tokens = Text(2, 9)});  // with loads
    EXPECT_EQ(clock.reads(), before + 1);
    EXPECT_EQ(a.loading_tokens, 8u);
    f.engine().FinishAll();
    f.manager().Poll();
    EXPECT_EQ(clock.reads(), before + 2);
    EXPECT_GT(Records(log).size(), calls);
  }
  const StatusOr<ReplayReport> report = ReplayInputLog(log.bytes(), SmallOptions());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->agrees) << report->divergence;
}

TEST(InputLog, AnObserverHearsTheRepeatedRun) {
  class Counter final : public Observer {
   public:
    void OnTransition(const TransitionEvent& event) noexcept override {
      transitions += event.blocks.size();
    }
    void OnTransferEnd(const TransferEvent&) noexcept override { ++transfers; }
    std::uint64_t transitions = 0, transfers = 0;
  } live, repeated;
  InputLogBuffer log;
  {
    ScenarioFixture f({.hbm = 6, .dram = 4, .adjust = [&](ManagerOptions& o) {
                         o.input_log = &log;
                         o.observer = &live;
                       }});
    f.Store(Text(2, 8));
    EXPECT_EQ(f.Allocate("a", Text(2, 9)), Outcome::kOk);
    f.Settle();
  }
  ManagerOptions options = SmallOptions();
  options.observer = &repeated;
  ASSERT_TRUE(ReplayInputLog(log.bytes(), std::move(options)).value().agrees);
  EXPECT_GT(live.transfers, 3u);
  EXPECT_EQ(repeated.transfers, live.transfers);
  EXPECT_EQ(repeated.transitions, live.transitions);
}

}  // namespace
}  // namespace tidepool::testing
