// tidepool/testing/policy_conformance.h - what every eviction policy must keep, as checks that any
// policy, ours or a user's, is put through. One line makes a GoogleTest suite of them:
//
//   #include <gtest/gtest.h>
//   #include <tidepool/testing/policy_conformance.h>
//   TIDEPOOL_POLICY_CONFORMANCE(Mine, [](tidepool::TierIndex) { return MakeMyPolicy(); });
//
// The checks drive a KvCacheManager on a manual clock with a wrapper around the policy, or the
// policy alone (FlatCache). Each takes well under a second. They need no test framework: a check
// returns what is wrong, or nothing.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>

#include "tidepool/eviction_policy.h"
#include "tidepool/export.h"
#include "tidepool/types.h"

namespace tidepool::testing {

/// Makes the policy of a tier; called several times in one check.
using PolicyMaker = std::function<std::unique_ptr<EvictionPolicy>(TierIndex)>;

struct PolicyCheck {
  const char* name;  ///< letters only: part of a test's name
  /// The first violation in words, or an empty string.
  std::string (*run)(const PolicyMaker& make);
};
/// For test frameworks that print parameters.
TIDEPOOL_EXPORT void PrintTo(const PolicyCheck& check, std::ostream* out);

/// The checks, always the same ones in the same order:
///   HasAName               and keeps it;
///   SelectsWithinTheQuery  at most what is asked, resident blocks, none twice, none the filter
///                          bars, the same answer twice - under random requests, pauses, forks,
///                          completions, resizes, epochs and priorities, with Audit at each step;
///   ServesTwoTiers         the same over HBM and DRAM with copies that are late or fail;
///   ToleratesHostileSignals, ToleratesAnyClock: NaN, past and infinite return times; a clock that
///                          stands still or steps back;
///   GivesEveryBlockInTheEnd, KeepsWhatIsHeld, TakesTailsBeforeHeads;
///   TreatsRetentionAsABias all sessions critical and due soon: room can still be made at once;
///   CriticalOutlivesBackground, all else equal;
///   ProbesChangeNothing    the same victims after many probes as before;
///   BoundsItsMemory        over many sessions that come and go;
///   NeedsNoIndex           works for blocks that no prefix index knows.
[[nodiscard]] TIDEPOOL_EXPORT std::span<const PolicyCheck> PolicyChecks() noexcept;

}  // namespace tidepool::testing

/// A suite named <suite>PolicyConformance with one test per check; the other argument converts to a
/// PolicyMaker. Include <gtest/gtest.h> first.
#define TIDEPOOL_POLICY_CONFORMANCE(suite, ...)                                             \
  class suite##PolicyConformance                                                            \
      : public ::testing::TestWithParam<::tidepool::testing::PolicyCheck> {};               \
  TEST_P(suite##PolicyConformance, Check) { EXPECT_EQ(GetParam().run(__VA_ARGS__), ""); }   \
  INSTANTIATE_TEST_SUITE_P(Policy, suite##PolicyConformance,                                \
                           ::testing::ValuesIn(::tidepool::testing::PolicyChecks().begin(), \
                                               ::tidepool::testing::PolicyChecks().end()),  \
                           [](const auto& check) { return std::string(check.param.name); })
