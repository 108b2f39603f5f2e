// What the model makes of session events: waits learned once however often they are reported,
// hints mixed in, hostile values survived, state saved, loaded and merged.
#include "tidepool/session_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace tidepool {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TimePoint At(double s) { return TimePoint(Duration(static_cast<Duration::rep>(s * 1e9))); }

SessionSignals Running(std::uint64_t id, std::uint32_t turn) {
  SessionSignals s;
  s.session = id;
  s.turn = turn;
  s.state = SessionState::kRunning;
  return s;
}

SessionSignals Waiting(std::uint64_t id, double since, WaitClass wait = WaitClass::kTool) {
  SessionSignals s;
  s.session = id;
  s.turn = 1;
  s.state = wait == WaitClass::kTool ? SessionState::kWaitingTool : SessionState::kWaitingUser;
  s.wait_class = wait;
  s.idle_since = At(since);
  return s;
}

/// One session of `turns` turns whose waits last `gap_s` each. Returns the time after it.
double Play(SessionModel& model, std::uint64_t id, double start, int turns, double gap_s,
            WaitClass wait = WaitClass::kTool) {
  for (int t = 1; t <= turns; ++t) {
    model.OnSession(Running(id, static_cast<std::uint32_t>(t)), At(start));
    model.OnSession(Waiting(id, start + 1, wait), At(start + 1));
    start += 1 + gap_s;
  }
  SessionSignals end = Running(id, static_cast<std::uint32_t>(turns + 1));
  model.OnSession(end, At(start));
  end.state = SessionState::kCompleted;
  model.OnSession(end, At(start));
  return start;
}

TEST(SessionModelTest, LearnsWhenSessionsReturn) {
  SessionModel model;
  EXPECT_FALSE(model.confident());
  double now = 0;
  for (std::uint64_t id = 0; id < 100; ++id) now = Play(model, id, now, 10, 40);
  EXPECT_TRUE(model.confident());
  EXPECT_EQ(model.returns(), 1000);
  EXPECT_EQ(model.ignored(), 0u);
  EXPECT_EQ(model.sessions(), 0u) << "completed sessions leave nothing behind";
  model.OnSession(Running(500, 1), At(now));
  model.OnSession(Waiting(500, now), At(now));
  const double soon = model.Within(500, seconds(20), At(now + 1)).value;
  const double later = model.Within(500, seconds(50), At(now + 1)).value;
  EXPECT_LT(soon, 0.1);
  EXPECT_GT(later, 0.9);
  EXPECT_GT(model.BestHorizon(500, At(now + 38)).value, model.BestHorizon(500, At(now + 1)).value);
  EXPECT_GT(model.BestHorizon(500, At(now + 1)).value, model.BestHorizon(500, At(now + 90)).value);
}

TEST(SessionModelTest, AnOutlookHoldsUntilItSays) {
  SessionModel model;
  model.OnSession(Running(1, 1), At(0));
  model.OnSession(Waiting(1, 10), At(10));
  TimePoint now = At(10);
  for (int i = 0; i < 40; ++i) {
    const Outlook outlook = model.BestHorizon(1, now);
    ASSERT_GT(outlook.until, now);
    const TimePoint before = outlook.until - milliseconds(1);
    if (before > now) {
      EXPECT_EQ(model.BestHorizon(1, before).value, outlook.value);
    }
    now = outlook.until;
    if (now == kNever) break;
  }
}

TEST(SessionModelTest, RepeatedReportsCountOnce) {
  SessionModel once;
  SessionModel thrice;
  for (SessionModel* model : {&once, &thrice}) {
    const int times = model == &once ? 1 : 3;
    double now = 0;
    for (std::uint64_t id = 0; id < 20; ++id) {
      for (std::uint32_t turn = 1; turn < 5; ++turn) {
        for (int i = 0; i < times; ++i) model->OnSession(Running(id, turn), At(now));
        now += 1;
        for (int i = 0; i < times; ++i) model->OnSession(Waiting(id, now), At(now));
        now += 7;
      }
      SessionSignals end = Waiting(id, now - 7);
      end.state = SessionState::kCompleted;
      for (int i = 0; i < times; ++i) model->OnSession(end, At(now));
    }
  }
  EXPECT_EQ(once.Save(), thrice.Save());
}

TEST(SessionModelTest, SlowSessionsAreKnownAsSuch) {
  SessionModel model;
  double now = 0;
  for (std::uint64_t id = 0; id < 200; ++id) now = Play(model, id, now, 5, id % 2 == 0 ? 5 : 80);
  for (std::uint32_t turn = 1; turn < 9; ++turn) {
    model.OnSession(Running(1000, turn), At(now));
    model.OnSession(Waiting(1000, now), At(now));
    now += 80;
  }
  EXPECT_GT(model.Theta(1000), 1.5);
  EXPECT_NEAR(model.AverageGapSeconds(1000), 80, 1);
  SessionModel alike({.time_scales = false});
  alike.OnSession(Running(1, 1), At(0));
  EXPECT_EQ(alike.Theta(1), 1);
}

TEST(SessionModelTest, AHintIsWorthItsConfidence) {
  SessionModel model;
  double now = 0;
  for (std::uint64_t id = 0; id < 100; ++id) now = Play(model, id, now, 5, 10);
  const auto hinted = [&](std::uint64_t id, double in, float sd) {
    model.OnSession(Running(id, 1), At(now));
    SessionSignals s = Waiting(id, now);
    s.expected_return = At(now + in);
    s.expected_return_log_sd = sd;
    model.OnSession(s, At(now));
    return model.BestHorizon(id, At(now)).value;
  };
  const double none = hinted(900, 10, 8);
  const double late_sure = hinted(901, 600, 0.1f);
  const double late_vague = hinted(902, 600, 2);
  EXPECT_LT(late_sure, late_vague);
  EXPECT_LT(late_vague, none * 1.5);
  // A sure hint is almost the truth: 1 / time left.
  EXPECT_NEAR(hinted(903, 50, 0.05f), 1.0 / 50, 0.02);
  EXPECT_GT(hinted(904, 2, 0.1f), 0.2);
  // Long past the hinted time the hint has lost its weight.
  EXPECT_LT(model.BestHorizon(904, At(now + 500)).value, 0.05);
}

TEST(SessionModelTest, HostileSignalsGiveFiniteOutlooks) {
  SessionModel model;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TimePoint times[] = {TimePoint::min(), At(-5), At(0), At(100), kNever - seconds(1), kNever};
  std::uint64_t id = 0;
  for (const TimePoint when : times) {
    for (const TimePoint since : times) {
      for (const float sd : {nan, -1.0f, 0.0f, std::numeric_limits<float>::infinity()}) {
        SessionSignals s = Waiting(++id, 0);
        s.idle_since = since;
        s.expected_return = when;
        s.expected_return_log_sd = sd;
        s.wait_class = static_cast<WaitClass>(id % 11);
        model.OnSession(Running(id, 1), At(50));
        model.OnSession(s, At(50));
        for (const TimePoint now : times) {
          const double index = model.BestHorizon(id, now).value;
          EXPECT_TRUE(std::isfinite(index) && index >= 0) << id;
          const double p = model.Within(id, seconds(30), now).value;
          EXPECT_TRUE(p >= 0 && p <= 1) << id << " " << p;
        }
      }
    }
  }
  model.OnSession(Running(1'000'000, 1), At(60));
  model.OnSession(Running(1'000'000, 2), At(50));
  EXPECT_GT(model.ignored(), 0u) << "an event before the last one";
}

TEST(SessionModelTest, SavedTablesLoadMergeAndRefuse) {
  SessionModel a;
  double now = 0;
  for (std::uint64_t id = 0; id < 50; ++id) now = Play(a, id, now, 6, 12);
  for (std::uint64_t id = 50; id < 60; ++id) now = Play(a, id, now, 6, 300, WaitClass::kUser);
  SessionModel b;
  ASSERT_TRUE(b.Load(a.Save()).ok());
  EXPECT_EQ(b.Save(), a.Save());
  EXPECT_EQ(b.returns(), a.returns());
  EXPECT_EQ(b.WithinFromStart(WaitClass::kTool, 0, seconds(20)),
            a.WithinFromStart(WaitClass::kTool, 0, seconds(20)));
  ASSERT_TRUE(b.Merge(a.Save()).ok());
  EXPECT_EQ(b.returns(), 2 * a.returns());

  const std::string good = a.Save();
  const std::string before = b.Save();
  std::string text = good;
  text.replace(0, 5, "other");
  EXPECT_NE(std::string(b.Load(text).message()).find("line 1"), std::string::npos);
  text = good + "gaps.nobody 1 1\n";
  EXPECT_NE(std::string(b.Load(text).message()).find("gaps.nobody"), std::string::npos);
  text = good + "turns 1 x\n";
  EXPECT_FALSE(b.Load(text).ok());
  text = good + "turns 1 1\n";
  EXPECT_NE(std::string(b.Merge(text).message()).find("implausible"), std::string::npos);
  EXPECT_FALSE(b.Load("").ok());
  for (std::size_t cut = 20; cut < good.size(); cut += 97) {
    if (b.Load(good.substr(0, cut)).ok()) {
      ASSERT_TRUE(b.Load(before).ok());
    }
  }
  EXPECT_EQ(b.Save(), before) << "a refused file changes nothing";
}

TEST(SessionModelTest, ToolsWithEnoughWaitsHaveTheirOwnTable) {
  SessionModel model;
  double now = 0;
  const auto play = [&](std::uint64_t id, std::uint32_t tool, double gap) {
    model.OnSession(Running(id, 1), At(now));
    SessionSignals s = Waiting(id, now);
    s.tool = tool;
    model.OnSession(s, At(now));
    now += gap;
    model.OnSession(Running(id, 2), At(now));
  };
  for (std::uint64_t id = 0; id < 300; ++id) play(id, 7, 3), play(1000 + id, 8, 120);
  EXPECT_GT(model.WithinFromStart(WaitClass::kTool, 7, seconds(6)), 0.9);
  EXPECT_LT(model.WithinFromStart(WaitClass::kTool, 8, seconds(6)), 0.1);
  SessionModel loaded;
  ASSERT_TRUE(loaded.Load(model.Save()).ok());
  EXPECT_GT(loaded.WithinFromStart(WaitClass::kTool, 7, seconds(6)), 0.9);
}

TEST(SessionModelTest, SessionsThatNeverReturnAreGivenUp) {
  SessionModel model;
  for (std::uint64_t id = 0; id < 300; ++id) {
    model.OnSession(Running(id, 1), At(0));
    model.OnSession(Waiting(id, 1), At(1));
  }
  EXPECT_EQ(model.sessions(), 300u);
  double now = 10;
  for (std::uint64_t id = 1000; id < 1100; ++id) now = Play(model, id, now, 3, 5);
  EXPECT_EQ(model.sessions(), 300u);
  // As long as they wait they are censored observations of waits that are longer.
  model.OnSession(Running(5000, 1), At(now));
  model.OnSession(Waiting(5000, now), At(now));
  EXPECT_LT(model.Within(5000, seconds(60), At(now)).value, 0.6);
  model.OnSession(Running(5000, 2), At(now + 5));
  now = 200'000;
  for (std::uint64_t id = 2000; id < 2040; ++id) now = Play(model, id, now, 3, 5);
  EXPECT_EQ(model.sessions(), 0u) << "nor does one that has run for a day";
  EXPECT_GT(model.turn_hazard().Hazard(1), 0.3);
}

}  // namespace
}  // namespace tidepool
