// What a link gives: the meter against rates put together by hand, and its numbers in the signals.
#include "src/manager/link_meter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/scenario_fixture.h"

namespace tidepool::testing {
namespace {

using internal::LinkMeter;
using std::chrono::milliseconds;

// Feeds samples each 10 ms for `seconds`; rates in bytes per second.
struct Feed {
  LinkMeter meter;
  TimePoint now = AtSecond(100);
  void Run(double seconds, double rate, double foreground, bool busy, bool opposite) {
    for (int i = 0; i < static_cast<int>(seconds * 100); ++i) {
      now += milliseconds(10);
      meter.Observe({.now = now,
                     .moved_bytes = static_cast<std::uint64_t>(rate / 100),
                     .foreground_bytes = static_cast<std::uint64_t>(foreground / 100),
                     .busy = busy,
                     .opposite_busy = opposite});
    }
  }
};

TEST(LinkMeter, KnowsNothingAtFirst) {
  const LinkMeter meter;
  EXPECT_EQ(meter.foreground_bytes_per_second(), 0);
  EXPECT_EQ(meter.shared_ratio(), 1);
}

TEST(LinkMeter, ForegroundIsAnAverageOverAllTime) {
  Feed f;
  f.Run(10, 8e9, 4e9, true, false);
  EXPECT_NEAR(f.meter.foreground_bytes_per_second(), 4e9, 4e7);
  f.Run(1, 0, 0, false, false);  // a second later, 1/e is left
  EXPECT_NEAR(f.meter.foreground_bytes_per_second(), 4e9 * std::exp(-1), 4e7);
}

TEST(LinkMeter, SharedRatioComparesTheRateWithAndWithoutTheOtherDirection) {
  Feed f;
  f.Run(5, 10e9, 0, true, false);
  EXPECT_EQ(f.meter.shared_ratio(), 1);  // the other has not been seen
  f.Run(5, 4e9, 0, true, true);
  EXPECT_NEAR(f.meter.shared_ratio(), 0.4, 0.01);
  f.Run(20, 8e9, 0, true, true);  // it follows
  EXPECT_NEAR(f.meter.shared_ratio(), 0.8, 0.01);
}

TEST(LinkMeter, IdleTimeAndMixedIntervalsAreNoRates) {
  Feed f;
  f.Run(5, 10e9, 0, true, false);
  f.Run(5, 4e9, 0, true, true);
  const double before = f.meter.shared_ratio();
  for (int i = 0; i < 100; ++i) {  // busy at one end only, or the other direction is
    f.Run(0.01, 1e9, 0, i % 2 == 0, false);
  }
  EXPECT_NEAR(f.meter.shared_ratio(), before, 0.01);
}

TEST(LinkMeter, ATimeThatStandsStillChangesNothing) {
  Feed f;
  f.Run(2, 10e9, 5e9, true, false);
  const double before = f.meter.foreground_bytes_per_second();
  f.meter.Observe({.now = f.now, .moved_bytes = 1u << 30, .foreground_bytes = 1u << 30});
  f.meter.Observe({.now = f.now - milliseconds(5), .foreground_bytes = 1u << 30});
  EXPECT_EQ(f.meter.foreground_bytes_per_second(), before);
}

struct LinkFixture {
  LinkFixture() {
    s.engine().SetLink(kLowerTier, kHbmTier, 1e6, Duration(0));
    s.engine().SetLink(kHbmTier, kLowerTier, 2e6, Duration(0));
    s.SetTime(AtSecond(1));
    s.Poll();
  }
  [[nodiscard]] const LinkSignals& Link(TierIndex from, TierIndex to) {
    for (const LinkSignals& link : s.manager().signals().links) {
      if (link.from == from && link.to == to) return link;
    }
    ADD_FAILURE() << "no link";
    static const LinkSignals kNothing;
    return kNothing;
  }
  ScenarioFixture s{{.hbm = 8, .dram = 8}};
};

TEST(LinkSignals, LimitsHoldForEveryEstimate) {
  LinkFixture f;
  EXPECT_NEAR(f.Link(kHbmTier, kLowerTier).bytes_per_second, 2e6, 1024);
  EXPECT_TRUE(f.s.manager().SetLinkLimit(kHbmTier, kLowerTier, {.bytes_per_second = 5e5}).ok());
  EXPECT_TRUE(
      f.s.manager().SetLinkLimit(kLowerTier, kHbmTier, {.background_bytes_per_second = 1e5}).ok());
  f.s.Poll();
  EXPECT_EQ(f.Link(kHbmTier, kLowerTier).bytes_per_second, 5e5);
  EXPECT_EQ(f.Link(kHbmTier, kLowerTier).background_bytes_per_second, 5e5);
  EXPECT_NEAR(f.Link(kLowerTier, kHbmTier).bytes_per_second, 1e6, 1024);
  EXPECT_EQ(f.Link(kLowerTier, kHbmTier).background_bytes_per_second, 1e5);
}

TEST(LinkSignals, BadLimitsChangeNothing) {
  LinkFixture f;
  KvCacheManager& m = f.s.manager();
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_FALSE(m.SetLinkLimit(0, 1, {.bytes_per_second = bad}).ok());
    EXPECT_FALSE(m.SetLinkLimit(0, 1, {.background_bytes_per_second = bad}).ok());
  }
  EXPECT_FALSE(m.SetLinkLimit(0, 2, {}).ok());
  EXPECT_FALSE(m.SetLinkLimit(1, 1, {}).ok());
  EXPECT_FALSE(m.SetLinkLimit(7, 0, {}).ok());
  f.s.Poll();
  EXPECT_NEAR(f.Link(0, 1).bytes_per_second, 2e6, 1024);
}

TEST(LinkSignals, LoadsLeaveLessForTheBackground) {
  LinkFixture f;
  const Tokens text = Text(1, 16);
  f.s.Store(text);
  f.s.SetTime(AtSecond(2));
  f.s.Poll();
  EXPECT_EQ(f.s.Allocate("A", Join(text, Text(2, 4))), Outcome::kOk);
  f.s.engine().FinishAll();
  f.s.SetTime(AtSecond(3));
  f.s.Poll();
  const LinkSignals& up = f.Link(kLowerTier, kHbmTier);
  const double moved = 4.0 * static_cast<double>(f.s.manager().block_bytes());
  EXPECT_NEAR(up.foreground_bytes_per_second, moved * (1 - std::exp(-1)), 1);
  EXPECT_NEAR(up.background_bytes_per_second, up.bytes_per_second - up.foreground_bytes_per_second,
              1);
  EXPECT_EQ(f.Link(kHbmTier, kLowerTier).foreground_bytes_per_second, 0);
}

TEST(LinkSignals, TimeOfSeveralBlocksCountsTheQueueOnce) {
  const LinkSignals link{.bytes_per_second = 100, .latency = std::chrono::seconds(3)};
  EXPECT_EQ(link.SecondsFor(0, 50), 0);
  EXPECT_EQ(link.SecondsFor(1, 50), 3);
  EXPECT_EQ(link.SecondsFor(5, 50), 5);
  EXPECT_TRUE(std::isinf(LinkSignals{}.SecondsFor(1, 50)));
}

}  // namespace
}  // namespace tidepool::testing
