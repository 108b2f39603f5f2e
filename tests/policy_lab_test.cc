// The policy lab against what needs no lab: a plain simulation of LRU, exact counts of real traces,
// and what must hold whatever the policy.
#ifdef TIDEPOOL_POLICY_LAB

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/policy_lab/experiment.h"
#include "bench/policy_lab/link_engine.h"
#include "bench/policy_lab/policies.h"
#include "bench/policy_lab/refs.h"
#include "bench/policy_lab/report.h"
#include "bench/policy_lab/run.h"
#include "bench/policy_lab/tierings.h"
#include "bench/policy_lab/training.h"
#include "examples/agent_replay/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/replay_files.h"

namespace policy_lab {
namespace {

using agent_replay::Random;
using agent_replay::Trace;

/// Sessions of a few scopes whose prompts grow, break and share; ids name whole prefixes.
Trace RandomTrace(std::uint64_t seed, std::uint32_t scopes = 3, std::uint32_t turns = 120) {
  Random random(seed);
  Trace trace;
  trace.name = "random";
  struct Session {
    std::vector<std::uint64_t> prompt;
    std::uint32_t turn = 0;
    std::int64_t last_ms = 0;
  };
  constexpr std::uint64_t kSessions = 4;
  std::vector<Session> sessions(scopes * kSessions);
  std::vector<std::uint64_t> next_id(scopes, 100);
  std::int64_t now_ms = 0;
  for (std::uint32_t i = 0; i < turns; ++i) {
    const std::uint64_t at = random.Below(sessions.size());
    const std::uint64_t scope = at / kSessions;
    Session& session = sessions[at];
    now_ms += static_cast<std::int64_t>(random.Exponential(2000));
    if (session.turn == 0) {
      for (std::uint64_t id = 0; id < 5; ++id) session.prompt.push_back(id);  // all share these
    } else if (random.Chance(.15)) {
      session.prompt.resize(random.Below(session.prompt.size()));
    }
    for (std::uint64_t n = 1 + random.Below(9); n > 0; --n) {
      session.prompt.push_back(next_id[scope]++);
    }
    trace.requests.push_back(
        {.time_ms = now_ms,
         .scope = 7 * scope,
         .session = at,
         .turn = session.turn,
         .input_tokens = static_cast<std::uint32_t>(64 * session.prompt.size()),
         .output_tokens = 100,
         .gap_ms = session.turn == 0 ? -1 : now_ms - session.last_ms,
         .busy_ms = 1000,
         .gap_kind = session.turn == 0   ? agent_replay::GapKind::kFirst
                     : random.Chance(.5) ? agent_replay::GapKind::kTool
                                         : agent_replay::GapKind::kUser,
         .first_range = static_cast<std::uint32_t>(trace.ranges.size())});
    for (const std::uint64_t id : session.prompt) trace.AppendBlock(id);
    ++session.turn;
    session.last_ms = now_ms;
  }
  return trace;
}

struct Lab {
  explicit Lab(const Trace& trace, Settings s = {}) : settings(std::move(s)) {
    workload = BuildWorkload(trace, settings.part).value();
    schedule = MakeSchedule(workload, settings.scope_start.value_or(ScopeStart{}), settings.seed);
    nominal = settings.mode == Mode::kNoHold ? NoHoldTimes(schedule)
                                             : ClosedLoopTimes(workload, schedule, settings);
  }
  /// `name`: a policy, or "policy@tiering".
  RunFigures Run(std::string_view name, std::uint32_t capacity) {
    const System system = FindSystem(name);
    const auto run = policy_lab::Run({.workload = &workload,
                                      .schedule = &schedule,
                                      .nominal = &nominal,
                                      .settings = &settings,
                                      .policy = system.policy,
                                      .lower_policy = system.policy,
                                      .tiering = system.tiering,
                                      .capacity_blocks = capacity});
    EXPECT_TRUE(run.ok()) << name << " at " << capacity << ": " << run.status();
    return run.ok() ? *run : RunFigures{};
  }

  Settings settings;
  Workload workload;
  Schedule schedule;
  NominalTimes nominal;
};

/// LRU over prefixes in plain containers. A request needs its blocks and one more for the end of
/// its prompt; what it touches is newest afterwards, its deepest block the oldest of it. With
/// classes, blocks that no session's last prompt has leave before all others.
class PlainLru {
 public:
  PlainLru(std::size_t capacity, bool classes) : capacity_(capacity), classes_(classes) {}

  std::uint64_t Request(std::uint64_t session, std::vector<std::uint64_t> prompt) {
    prompt.resize(std::min(prompt.size(), capacity_ - 1));
    std::size_t hits = 0;
    while (hits < prompt.size() && cached_.count(prompt[hits]) != 0) ++hits;
    const std::set<std::uint64_t> held(prompt.begin(),
                                       prompt.begin() + static_cast<std::ptrdiff_t>(hits));
    while (cached_.size() + prompt.size() - hits + 1 > capacity_) EvictOne(held);
    for (const std::uint64_t id : prompt) cached_[id] = {1, 0};
    Claim(session, prompt);
    for (std::size_t i = prompt.size(); i-- > 0;) cached_[prompt[i]] = {1, ++clock_};
    return hits;
  }

 private:
  void EvictOne(const std::set<std::uint64_t>& held) {
    auto victim = cached_.end();
    for (auto it = cached_.begin(); it != cached_.end(); ++it) {
      if (held.count(it->first) != 0) continue;
      if (victim == cached_.end() || it->second < victim->second) victim = it;
    }
    for (auto& [session, claims] : claims_) std::erase(claims, victim->first);
    cached_.erase(victim);
  }
  void Claim(std::uint64_t session, const std::vector<std::uint64_t>& prompt) {
    const std::vector<std::uint64_t> before = std::exchange(claims_[session], prompt);
    for (std::size_t i = before.size(); i-- > 0 && classes_;) {
      const bool claimed = std::any_of(claims_.begin(), claims_.end(), [&](const auto& entry) {
        return std::count(entry.second.begin(), entry.second.end(), before[i]) != 0;
      });
      if (!claimed) cached_[before[i]] = {0, ++clock_};
    }
  }

  const std::size_t capacity_;
  const bool classes_;
  std::uint64_t clock_ = 0;
  std::map<std::uint64_t, std::pair<int, std::uint64_t>> cached_;  // (class, time of last use)
  std::map<std::uint64_t, std::vector<std::uint64_t>> claims_;     // by session
};

std::uint64_t PlainLruHits(const Lab& lab, std::uint32_t capacity, bool classes) {
  PlainLru cache(capacity, classes);
  std::uint64_t hits = 0;
  for (const std::uint32_t index : lab.schedule.order) {
    const LabRequest& request = lab.workload.requests[index];
    std::vector<std::uint64_t> prompt;
    ForEachRun(lab.workload, request, 0, request.blocks,
               [&](std::uint32_t first, std::uint32_t count) {
                 for (std::uint32_t i = 0; i < count; ++i) prompt.push_back(first + i);
               });
    hits += cache.Request(request.session, std::move(prompt));
  }
  return hits;
}

TEST(PolicyLab, LruIsLru) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    for (const auto priority : {tidepool::Priority::kNormal, tidepool::Priority::kBackground}) {
      Lab lab(RandomTrace(seed), {.priority = priority});
      const bool classes = priority == tidepool::Priority::kNormal;
      for (const std::uint32_t capacity : {2u, 9u, 40u, 90u, 200u, 2000u}) {
        EXPECT_EQ(lab.Run("lru", capacity).Hits(), PlainLruHits(lab, capacity, classes))
            << "seed " << seed << ", capacity " << capacity << ", classes " << classes;
      }
    }
  }
}

TEST(PolicyLab, NobodyBeatsBelady) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Lab lab(RandomTrace(seed));
    for (const std::uint32_t capacity : {9u, 40u, 90u, 200u}) {
      const std::uint64_t best = lab.Run("belady", capacity).Hits();
      for (const PolicyEntry& policy : Policies()) {
        EXPECT_LE(lab.Run(policy.name, capacity).Hits(), best)
            << policy.name << ", seed " << seed << ", capacity " << capacity;
      }
    }
  }
}

TEST(PolicyLab, EveryMissHasOneReason) {
  for (const Mode mode : {Mode::kNoHold, Mode::kEngine}) {
    Lab lab(RandomTrace(3), {.mode = mode});
    for (const std::uint32_t capacity : {30u, 90u, 5000u}) {
      const RunFigures run = lab.Run("lru", capacity);
      EXPECT_EQ(run.prompt_blocks, lab.workload.prompt_blocks);
      EXPECT_EQ(run.Misses(), run.missed_compulsory + run.missed_concurrent + run.missed_evicted +
                                  run.missed_oversize);
      EXPECT_EQ(run.missed_compulsory, lab.workload.distinct_blocks);
      EXPECT_EQ(run.requests, lab.workload.requests.size());
      EXPECT_EQ(run.ttft_s.size(), run.requests);
      if (capacity == 5000) {
        EXPECT_EQ(run.missed_evicted + run.missed_oversize, 0u);
        EXPECT_EQ(run.recompute_cost, 0);
      }
    }
  }
}

TEST(PolicyLab, OversizeRequestsAreRefusedInTheClosedLoop) {
  Lab lab(RandomTrace(3), {.mode = Mode::kEngine});
  const RunFigures run = lab.Run("lru", 30);
  EXPECT_GT(run.refused_requests, 0u);
  EXPECT_GT(run.missed_oversize + run.missed_compulsory, 0u);
}

TEST(PolicyLab, WhatHbmGivesUpTheTiersBelowHave) {
  for (const Mode mode : {Mode::kNoHold, Mode::kEngine}) {
    Lab lab(RandomTrace(4), {.mode = mode, .dram_blocks = 4000, .nvme_blocks = 100});
    const std::uint64_t all = Lab(RandomTrace(4), {.mode = mode}).Run("lru", 5000).Hits();
    const RunFigures run = lab.Run("lru", 90);
    if (mode == Mode::kNoHold) {
      EXPECT_EQ(run.Hits(), all);
    }
    EXPECT_GT(run.hits[1], 0u);
    EXPECT_GT(run.bytes_down[1], 0);
    // A block may be loaded for two requests at once, or for none that is left.
    EXPECT_GE(run.bytes_up[1] * 1.1, static_cast<double>(run.hits[1]) * 20e6);
    EXPECT_GT(run.transfer_s, 0);
  }
}

TEST(PolicyLab, EachTieringServesEveryRequest) {
  Settings settings{.mode = Mode::kEngine, .dram_times = 2, .link_gbs = {1, .3}};
  settings.scope_start = ScopeStart{StartKind::kTogether};
  for (const std::uint32_t nvme : {0u, 300u}) {
    settings.nvme_blocks = nvme;
    Lab lab(RandomTrace(11), settings);
    std::uint64_t returns = 0;
    for (const LabRequest& r : lab.workload.requests) returns += r.turn > 0 ? 1 : 0;
    for (const TieringEntry& entry : Tierings()) {
      const std::string hbm = entry.needs_future ? "belady" : "spear_paper";
      const std::string name = hbm + "@" + std::string(entry.name);
      const RunFigures run = lab.Run(name, lab.workload.largest_request + 30);
      EXPECT_EQ(run.requests, lab.workload.requests.size()) << name;
      EXPECT_EQ(run.windows, returns) << name;
      EXPECT_LE(run.windows_met, run.windows) << name;
      EXPECT_LE(run.windows_late, run.windows) << name;
      EXPECT_LE(run.room_s, run.queue_s) << name;
      EXPECT_LE(run.stall_p50_s, run.stall_p99_s) << name;
      EXPECT_LE(run.prefetches.used + run.prefetches.wasted, run.prefetches.arrived) << name;
    }
  }
}

/// One session of three turns: 40 blocks, 100 s, 50 blocks, 5 s, 60 blocks.
Trace OneSession() {
  Trace trace;
  trace.name = "one session";
  const std::int64_t gaps_ms[] = {-1, 100'000, 5'000};
  for (std::uint32_t turn = 0; turn < 3; ++turn) {
    const std::uint32_t blocks = 40 + 10 * turn;
    trace.requests.push_back(
        {.time_ms = 0,
         .turn = turn,
         .input_tokens = 64 * blocks,
         .output_tokens = 10,
         .gap_ms = gaps_ms[turn],
         .busy_ms = 1000,
         .gap_kind = turn == 0 ? agent_replay::GapKind::kFirst : agent_replay::GapKind::kTool,
         .first_range = static_cast<std::uint32_t>(trace.ranges.size())});
    for (std::uint64_t id = 0; id < blocks; ++id) trace.AppendBlock(id);
  }
  return trace;
}

TEST(PolicyLab, TheNaiveShadowCopiesWhatIsDirtyWhenAWaitBegins) {
  Settings settings{.mode = Mode::kEngine, .dram_blocks = 200};
  Lab lab(OneSession(), settings);
  EXPECT_EQ(lab.Run("lru@demand", 200).bytes_down[1], 0);
  EXPECT_EQ(lab.Run("lru@shadow", 200).bytes_down[1], 50 * settings.block_bytes);
}

TEST(PolicyLab, AReleasedWaitFreesItsBlocksAndBringsThemBack) {
  Settings settings{.mode = Mode::kEngine, .dram_blocks = 200, .release_after_s = 20};
  Lab lab(OneSession(), settings);
  const RunFigures run = lab.Run("lru@shadow", 200);
  EXPECT_NEAR(run.idle_block_s, 40 * 100 + 50 * 5, 1e-6);
  EXPECT_NEAR(run.freed_block_s, 40 * 80, 1e-6);
  EXPECT_EQ(run.return_blocks, 40u + 50u);
  EXPECT_EQ(run.hits[1], 40u);  // the second wait is over before it is released
  EXPECT_EQ(run.bytes_up[1], 40 * settings.block_bytes);
  EXPECT_EQ(run.windows, 2u);
  EXPECT_EQ(run.windows_met, 1u);

  settings.release_after_s = 0;  // a swap at each gap, as soon as the copies are made
  Lab always(OneSession(), settings);
  const RunFigures swapped = always.Run("lru@shadow", 200);
  EXPECT_EQ(swapped.hits[1], 40u + 50u);
  EXPECT_GT(swapped.freed_block_s, run.freed_block_s);
  EXPECT_LT(swapped.freed_block_s, run.idle_block_s);
}

// The goals are for all sessions of agentic_dev with their gaps as they are, which
// docs/policy_lab.md has a command for (93.5 % and 33.8 %). Here: every eighth session, from the
// first. Each of the eight eighths meets both goals: 90.5 to 95.1 % and 30.5 to 39.4 %.
TEST(PolicyLab, ReleasedWaitsFreeMostOfTheIdleMemoryForAFractionOfTheBytes) {
  if (agent_replay::replay_files::TraceDirectory().empty()) {
    GTEST_SKIP() << "TIDEPOOL_TRACES names no directory with traces";
  }
  const auto trace = agent_replay::replay_files::Load("agentic_dev.ttrace.zst");
  ASSERT_TRUE(trace.ok()) << trace.status();
  Settings settings{.part = {1, 8}, .mode = Mode::kEngine, .release_after_s = 20};
  settings.scope_start = ScopeStart{StartKind::kPoisson, 120};
  const std::uint32_t room =
      BuildWorkload(*trace, settings.part).value().distinct_blocks + 50'000;  // for all
  settings.dram_blocks = room;
  Lab lab(*trace, settings);
  const RunFigures run = lab.Run("lru@shadow", room);
  EXPECT_EQ(run.missed_evicted, 0u);
  EXPECT_GT(run.windows, 4000u);
  EXPECT_GE(run.freed_block_s, .9 * run.idle_block_s);
  EXPECT_LE(run.bytes_up[1], .4 * settings.block_bytes * static_cast<double>(run.return_blocks));
}

/// Seconds until both of two copies of one second each, one way and back, have arrived.
double SecondsForAWayAndBack(bool shared) {
  tidepool::testing::ManualClock clock;
  LinkModel model{.block_bytes = 1e9, .latency = tidepool::Duration(0)};
  model.bytes_per_second.fill(1e9);
  model.shared[1] = shared;
  LinkEngine engine(model, &clock);
  const std::vector<tidepool::TierBinding> tiers(3);
  EXPECT_TRUE(engine.Attach(tiers, nullptr).ok());
  tidepool::CopyRequest down, up;
  down.id = tidepool::TransferId(1), down.from = 1, down.to = 2;
  up.id = tidepool::TransferId(2), up.from = 2, up.to = 0;
  const tidepool::TimePoint start = clock.Now();
  engine.Submit(std::vector<tidepool::CopyRequest>{down, up});
  std::vector<tidepool::Completion> done;
  while (done.size() < 2) {
    clock.Set(engine.NextDone());
    engine.Poll(done);
  }
  EXPECT_EQ(engine.QueuedBytes(1, 2), 0u);
  EXPECT_EQ(engine.MovedBytes(2, 0), 1e9);
  return ToSeconds(clock.Now() - start);
}

TEST(PolicyLab, ASharedLinkMovesOneCopyAtATimeInBothDirectionsTogether) {
  EXPECT_DOUBLE_EQ(SecondsForAWayAndBack(false), 1);
  EXPECT_DOUBLE_EQ(SecondsForAWayAndBack(true), 2);
}

TEST(PolicyLab, OnlyACopyThatHasNotStartedIsWithdrawn) {
  tidepool::testing::ManualClock clock;
  LinkModel model{.block_bytes = 1e9, .latency = tidepool::Duration(0)};
  model.bytes_per_second.fill(1e9);
  LinkEngine engine(model, &clock);
  const std::vector<tidepool::TierBinding> tiers(2);
  EXPECT_TRUE(engine.Attach(tiers, nullptr).ok());
  std::vector<tidepool::CopyRequest> copies(2);
  for (std::uint64_t i = 0; i < 2; ++i)
    copies[i].id = tidepool::TransferId(i + 1), copies[i].to = 1;
  engine.Submit(copies);
  engine.Withdraw(tidepool::TransferId(1));  // moving
  engine.Withdraw(tidepool::TransferId(2));
  engine.Withdraw(tidepool::TransferId(2));  // gone
  std::vector<tidepool::Completion> done;
  engine.Poll(done);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].id, tidepool::TransferId(2));
  EXPECT_EQ(done[0].result, tidepool::TransferResult::kCancelled);
  clock.Set(engine.NextDone());
  engine.Poll(done);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[1].id, tidepool::TransferId(1));
  EXPECT_EQ(done[1].result, tidepool::TransferResult::kOk);
  EXPECT_EQ(engine.MovedBytes(0, 1), 1e9);
  EXPECT_EQ(engine.NextDone(), tidepool::kNever);
}

TEST(PolicyLab, PartsAreDisjointAndComplete) {
  for (const std::uint32_t scopes : {1u, 5u}) {
    const Trace trace = RandomTrace(5, scopes);
    const Workload all = BuildWorkload(trace, {}).value();
    const Workload first = BuildWorkload(trace, {1, 2}).value();
    const Workload second = BuildWorkload(trace, {2, 2}).value();
    EXPECT_EQ(first.sessions + second.sessions, all.sessions);
    EXPECT_EQ(first.prompt_blocks + second.prompt_blocks, all.prompt_blocks);
    if (scopes > 1) {
      EXPECT_EQ(first.scopes() + second.scopes(), all.scopes());
    }
  }
}

TEST(PolicyLab, LastTurnsDoNotGiveThemselvesAway) {
  const Workload workload = BuildWorkload(RandomTrace(6), {}).value();
  const Settings settings{.hint_log_sd = 0.25};
  const Hints hints(workload, settings, 1);
  int last_tool = 0, last = 0;
  for (std::uint32_t i = 0; i < workload.requests.size(); ++i) {
    const tidepool::PauseHint hint = hints.AtEnd(i, std::chrono::seconds(10));
    EXPECT_NE(hint.wait, tidepool::WaitClass::kUnknown);
    EXPECT_NE(hint.expected_return, Duration::max());
    if (workload.requests[i].next != kNoRequest) continue;
    ++last;
    last_tool += hint.wait == tidepool::WaitClass::kTool;
  }
  EXPECT_GT(last_tool, 0);
  EXPECT_LT(last_tool, last);
}

TEST(PolicyLab, TrainingTellsEachTurnInOrder) {
  const Workload workload = BuildWorkload(RandomTrace(7), {}).value();
  for (const Mode mode : {Mode::kNoHold, Mode::kEngine}) {
    const Settings settings{.mode = mode, .completion = Completion::kSignalled};
    const Training training(workload, settings, {}, 1);
    std::map<std::uint64_t, tidepool::SessionState> states;
    std::size_t runs = 0, waits = 0, ends = 0;
    TimePoint last{};
    training.Replay([&](const tidepool::SessionSignals& session, TimePoint now) {
      EXPECT_GE(now, last);
      last = now;
      const bool running = session.state == tidepool::SessionState::kRunning;
      const bool ended = session.state == tidepool::SessionState::kCompleted;
      ++(running ? runs : ended ? ends : waits);
      if (!running && !ended) {
        EXPECT_EQ(states[session.session.value()], tidepool::SessionState::kRunning);
      }
      states[session.session.value()] = session.state;
    });
    EXPECT_EQ(runs, workload.requests.size());
    EXPECT_EQ(waits, workload.requests.size());
    EXPECT_EQ(ends, workload.sessions);
  }
}

Settings GeneratedSettings() {
  Settings settings{.source = {.preset = "autonomous", .sessions = 5},
                    .seeds = 2,
                    .capacities = {{.blocks = 800}, {.blocks = 2000}}};
  for (const PolicyEntry& policy : Policies()) settings.policies.emplace_back(policy.name);
  return settings;
}

/// Without what depends on the machine.
std::string StableText(const Results& results) {
  std::string text;
  for (const ResultRow& row : results.rows) {
    text += row.policy + ' ' + Number(row.capacity_blocks);
    for (std::size_t i = 0; i < row.figures.size(); ++i) {
      if (Figures()[i].wall_time) continue;
      text += ' ' + Number(row.figures[i].mean) + '/' + Number(row.figures[i].half_width);
    }
    text += '\n';
  }
  return text;
}

TEST(PolicyLab, SameSeedSameResultsOnAnyNumberOfThreads) {
  Settings settings = GeneratedSettings();
  const auto once = RunExperiment(settings, {});
  ASSERT_TRUE(once.ok()) << once.status();
  settings.jobs = 3;
  const auto again = RunExperiment(settings, {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(StableText(*once), StableText(*again));
  settings.seed = 2;
  EXPECT_NE(StableText(*once), StableText(*RunExperiment(settings, {})));
}

/// Checks that a text is one JSON value, and counts objects.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}
  bool Valid() { return Value() && (Space(), at_ == text_.size()); }
  [[nodiscard]] int objects() const { return objects_; }

 private:
  void Space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool Take(char c) {
    Space();
    return at_ < text_.size() && text_[at_] == c && (++at_, true);
  }
  bool String() {
    if (!Take('"')) return false;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    return at_++ < text_.size();
  }
  bool Items(char close, bool named) {
    if (Take(close)) return true;
    do {
      if (named && !(String() && Take(':'))) return false;
      if (!Value()) return false;
    } while (Take(','));
    return Take(close);
  }
  bool Value() {
    Space();
    if (at_ >= text_.size()) return false;
    if (text_[at_] == '"') return String();
    if (Take('{')) return ++objects_, Items('}', true);
    if (Take('[')) return Items(']', false);
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(at_).starts_with(word)) return at_ += word.size(), true;
    }
    const std::size_t end = text_.find_first_not_of("+-.0123456789eE", at_);
    const std::size_t start = std::exchange(at_, std::min(end, text_.size()));
    return at_ > start;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int objects_ = 0;
};

TEST(PolicyLab, WritesEachFormat) {
  Settings settings = GeneratedSettings();
  settings.hint_log_sd = 0.5;
  const auto results = RunExperiment(settings, {});
  ASSERT_TRUE(results.ok()) << results.status();
  const std::size_t rows = 2 * settings.policies.size();
  ASSERT_EQ(results->rows.size(), rows);
  const std::string json = Json(settings, *results);
  JsonReader reader(json);
  EXPECT_TRUE(reader.Valid()) << json;
  EXPECT_EQ(reader.objects(), static_cast<int>(rows) + 2);
  for (const char* key : {"\"rows\": [", "\"policy\": \"lru\"", "\"capacity_blocks\": 800",
                          "\"hit_ratio\": ", "\"hit_ratio_ci\": ", "\"misses\": ",
                          "\"recompute_cost\": ", "\"cost_ratio_vs_lru_ci\": "}) {
    EXPECT_THAT(json, ::testing::HasSubstr(key));
  }
  const std::string csv = Csv(*results);
  EXPECT_EQ(static_cast<std::size_t>(std::count(csv.begin(), csv.end(), '\n')), rows + 1);
  const std::string table = Table(settings, *results);
  EXPECT_THAT(table, ::testing::HasSubstr("mode no_hold"));
  EXPECT_THAT(table, ::testing::HasSubstr("prefill 8 ms"));
  const std::string html = Html(settings, *results);
  EXPECT_THAT(html, ::testing::HasSubstr("<svg"));
  EXPECT_THAT(html, ::testing::Not(::testing::HasSubstr("http")));
  EXPECT_THAT(html, ::testing::Not(::testing::HasSubstr("nan")));
}

TEST(PolicyLab, CountsFlatReferences) {
  Settings settings{.capacities = {{.blocks = 3}}, .policies = {"lru", "belady"}};
  // The textbook's stream: LRU and the optimum in three frames.
  const auto results =
      RunRefs("7\n0\n1\n2\n0\n3\n0\n4\n2\n3\n0\n3\n2\n1\n2\n0\n1\n7\n0\n1\n", "textbook", settings);
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(results->references, 20u);
  EXPECT_EQ(results->distinct, 6u);
  EXPECT_EQ(results->rows[0].misses, 12u);
  EXPECT_EQ(results->rows[1].misses, 9u);
  JsonReader reader(RefsJson(*results));
  EXPECT_FALSE(RunRefs("\n\n", "empty", settings).ok());
}

TEST(PolicyLab, IntervalsAreStudents) {
  const double values[] = {1, 2, 3, 4, 5};
  const Estimate estimate = MeanOf(values);
  EXPECT_DOUBLE_EQ(estimate.mean, 3);
  EXPECT_NEAR(estimate.half_width, 1.9634, 1e-3);  // 2.776 * sqrt(2.5 / 5)
  EXPECT_NEAR(StudentT95(60), 2.000, 1e-3);
  EXPECT_EQ(MeanOf(std::vector<double>{7}).half_width, 0);
}

TEST(PolicyLab, HitsOfAnInfiniteCacheAreExact) {
  if (agent_replay::replay_files::TraceDirectory().empty()) {
    GTEST_SKIP() << "TIDEPOOL_TRACES names no directory with traces";
  }
  for (const auto& [file, hits] : {std::pair{"agentic_small.ttrace", 4'874'320u},
                                   std::pair{"mooncake_conversation_dev.ttrace", 62'738u},
                                   std::pair{"mooncake_synthetic_dev.ttrace", 23'152u},
                                   std::pair{"mooncake_arxiv1000_dev.ttrace", 3'928u}}) {
    const auto trace = agent_replay::replay_files::Load(file);
    ASSERT_TRUE(trace.ok()) << trace.status();
    Lab lab(*trace);
    EXPECT_EQ(lab.Run("lru", lab.workload.distinct_blocks + 5000).Hits(), hits) << file;
  }
}

}  // namespace
}  // namespace policy_lab

#endif  // TIDEPOOL_POLICY_LAB
