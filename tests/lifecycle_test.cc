// The phase table, its names, and docs/lifecycle.md, which is generated from it.
#include "tidepool/lifecycle.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "tests/support/lifecycle_doc.h"

namespace tidepool {
namespace {

constexpr char kBegin[] = "<!-- generated: begin -->\n";
constexpr char kEnd[] = "<!-- generated: end -->\n";
constexpr char kDoc[] = TIDEPOOL_SOURCE_DIR "/docs/lifecycle.md";

std::string ReadDoc() {
  std::ostringstream text;
  text << std::ifstream(kDoc).rdbuf();
  return text.str();
}

TEST(LifecycleTest, TheDocumentIsWhatTheTableSays) {
  std::string doc = ReadDoc();
  const std::size_t begin = doc.find(kBegin);
  const std::size_t end = doc.find(kEnd);
  ASSERT_NE(begin, std::string::npos) << kDoc;
  ASSERT_NE(end, std::string::npos) << kDoc;
  const std::size_t first = begin + sizeof(kBegin) - 1;
  const std::string generated = testing::LifecycleEdges();
  if (std::getenv("TIDEPOOL_UPDATE_DOCS") != nullptr) {
    doc.replace(first, end - first, generated);
    std::ofstream(kDoc) << doc;
    return;
  }
  EXPECT_EQ(doc.substr(first, end - first), generated)
      << "To regenerate: TIDEPOOL_UPDATE_DOCS=1 tidepool_tests "
         "--gtest_filter=LifecycleTest.TheDocumentIsWhatTheTableSays";
}

TEST(LifecycleTest, EachEdgeIsListedOnceAndIsLegal) {
  std::set<std::pair<Phase, Phase>> seen;
  for (const Edge& edge : kEdges) {
    EXPECT_TRUE(IsLegal(edge.from, edge.to));
    EXPECT_TRUE(seen.emplace(edge.from, edge.to).second) << edge.when;
    EXPECT_FALSE(edge.when.empty());
  }
}

TEST(LifecycleTest, NothingElseIsLegal) {
  std::size_t legal = 0;
  for (std::size_t from = 0; from < kPhaseCount; ++from) {
    for (std::size_t to = 0; to < kPhaseCount; ++to) {
      legal += IsLegal(static_cast<Phase>(from), static_cast<Phase>(to));
    }
    EXPECT_FALSE(IsLegal(static_cast<Phase>(from), static_cast<Phase>(from)));
  }
  EXPECT_EQ(legal, kEdges.size());
}

TEST(LifecycleTest, EveryPhaseCanBeReachedAndLeft) {
  std::set<Phase> reached;
  std::set<Phase> left;
  for (const Edge& edge : kEdges) {
    reached.insert(edge.to);
    left.insert(edge.from);
  }
  EXPECT_EQ(reached.size(), kPhaseCount);
  EXPECT_EQ(left.size(), kPhaseCount);
}

TEST(LifecycleTest, PhasesAndCausesHaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kPhaseCount; ++i) names.insert(ToString(static_cast<Phase>(i)));
  EXPECT_EQ(names.size(), kPhaseCount);
  names.clear();
  for (std::size_t i = 0; i < kCauseCount; ++i) names.insert(ToString(static_cast<Cause>(i)));
  EXPECT_EQ(names.size(), kCauseCount);
  EXPECT_EQ(ToString(static_cast<Phase>(99)), "unknown phase");
  EXPECT_EQ(ToString(static_cast<Cause>(99)), "unknown cause");
}

}  // namespace
}  // namespace tidepool
