// RecencyLog against a naive list, and its cost counted in blocks looked at.
#include "src/recency_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace tidepool::internal {
namespace {

using Verdict = RecencyLog::Verdict;

std::vector<BlockId> Ids(std::uint32_t first, std::uint32_t count) {
  std::vector<BlockId> ids;
  for (std::uint32_t i = 0; i < count; ++i) ids.push_back(BlockId(first + i));
  return ids;
}

std::vector<std::uint32_t> Oldest(RecencyLog& log, std::uint32_t queue, std::size_t wanted) {
  std::vector<std::uint32_t> found;
  const auto visit = [&](BlockId b) {
    found.push_back(b.value());
    return found.size() == wanted ? Verdict::kStop : Verdict::kKeep;
  };
  if (wanted > 0) (void)log.Scan(queue, visit, [](BlockId) {});
  return found;
}

TEST(RecencyLogTest, ASpanLeavesFromItsEndAndSpansInTheOrderFiled) {
  RecencyLog log(100);
  log.Append(0, Ids(10, 3));
  const std::vector<BlockId> mixed = {BlockId(50), BlockId(51), BlockId(7), BlockId(60)};
  log.Append(0, mixed);
  log.Append(1, Ids(90, 1));
  EXPECT_EQ(Oldest(log, 0, 99), (std::vector<std::uint32_t>{12, 11, 10, 60, 7, 51, 50}));
  EXPECT_EQ(Oldest(log, 1, 99), (std::vector<std::uint32_t>{90}));
  log.Append(0, Ids(11, 1));  // used again: the youngest now
  EXPECT_EQ(Oldest(log, 0, 99), (std::vector<std::uint32_t>{12, 10, 60, 7, 51, 50, 11}));
  EXPECT_EQ(log.size(), 8u);
}

TEST(RecencyLogTest, MemoryIsFourBytesABlockPlusAFewASpan) {
  constexpr std::uint32_t kBlocks = 1 << 17;
  RecencyLog log(kBlocks);
  for (std::uint32_t first = 0; first < kBlocks; first += 512) log.Append(0, Ids(first, 512));
  EXPECT_LT(log.MemoryBytes(), kBlocks * 4.1);
  std::vector<BlockId> shuffled = Ids(0, kBlocks);
  std::mt19937 random(3);
  for (int round = 0; round < 3; ++round) {
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    for (BlockId b : shuffled) log.Append(0, {&b, 1});
    EXPECT_LT(log.MemoryBytes(), kBlocks * 10.0);
  }
}

// Naive counterpart: each queue a vector, oldest first.
class Model {
 public:
  void Append(std::uint32_t queue, const std::vector<BlockId>& blocks) {
    for (BlockId b : blocks) Erase(b);
    for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) queues_[queue].push_back(b->value());
  }
  void Erase(BlockId b) {
    for (auto& queue : queues_) std::erase(queue, b.value());
  }
  std::vector<std::uint32_t> Oldest(std::uint32_t queue, std::size_t wanted) const {
    const auto& all = queues_[queue];
    return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(wanted, all.size()))};
  }
  std::vector<std::uint32_t>& queue(std::uint32_t i) { return queues_[i]; }

 private:
  std::array<std::vector<std::uint32_t>, RecencyLog::kQueues> queues_;
};

// A span of a prefix whose blocks are mostly consecutive, as an allocator leaves them.
std::vector<BlockId> RandomSpan(std::mt19937& random, std::uint32_t capacity) {
  std::vector<BlockId> span;
  const std::size_t pieces = 1 + random() % 3;
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::uint32_t first = static_cast<std::uint32_t>(random() % capacity);
    const std::uint32_t count =
        std::min<std::uint32_t>(random() % 3 == 0 ? 1 : random() % 60, capacity - first);
    for (BlockId b : Ids(first, count)) {
      if (std::find(span.begin(), span.end(), b) == span.end()) span.push_back(b);
    }
  }
  return span;
}

// Scans that also drop the blocks of `dropped`, like those that a policy finds held.
void ScanAndDrop(RecencyLog& log, Model& model, std::uint32_t queue, std::mt19937& random) {
  const std::uint32_t modulus = 2 + static_cast<std::uint32_t>(random() % 5);
  const std::size_t wanted = 1 + random() % 40;
  std::vector<std::uint32_t> kept;
  const auto visit = [&](BlockId b) {
    if (b.value() % modulus == 0) return Verdict::kDrop;
    kept.push_back(b.value());
    return kept.size() == wanted ? Verdict::kStop : Verdict::kKeep;
  };
  (void)log.Scan(queue, visit, [](BlockId) {});
  std::vector<std::uint32_t> expected;
  auto& all = model.queue(queue);
  auto at = all.begin();
  while (at != all.end() && expected.size() < wanted) {
    if (*at % modulus == 0) {
      at = all.erase(at);
    } else {
      expected.push_back(*at++);
    }
  }
  ASSERT_EQ(kept, expected);
}

TEST(RecencyLogTest, RandomOperationsMatchANaiveList) {
  constexpr std::uint32_t kCapacity = 700;
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    RecencyLog log(kCapacity);
    Model model;
    for (int step = 0; step < 1500; ++step) {
      const std::uint32_t queue = random() % 4 == 0 ? 1 + random() % 3 : 0;
      const std::vector<BlockId> span = RandomSpan(random, kCapacity);
      switch (random() % 6) {
        case 0:
          log.Erase(span);
          for (BlockId b : span) model.Erase(b);
          break;
        case 1: {
          std::vector<BlockId> oldest;
          for (std::uint32_t b : model.Oldest(queue, 30)) oldest.push_back(BlockId(b));
          log.Erase(oldest);
          for (BlockId b : oldest) model.Erase(b);
          break;
        }
        case 2:
          ScanAndDrop(log, model, queue, random);
          break;
        default:
          log.Append(queue, span);
          model.Append(queue, span);
      }
      const std::size_t wanted = random() % 10 == 0 ? kCapacity : random() % 50;
      ASSERT_EQ(Oldest(log, queue, wanted), model.Oldest(queue, wanted)) << "step " << step;
    }
  }
}

// A policy drops held blocks as it meets them; the cost of a scan must not depend on their number.
std::uint64_t WorkOfScans(std::uint32_t held_spans, std::uint32_t scans) {
  RecencyLog log(held_spans * 64 + 64 * scans);
  log.Append(0, Ids(0, 1));  // stays at the head, unavailable: only pinned
  for (std::uint32_t i = 0; i < held_spans; ++i) log.Append(0, Ids(64 * (i + 1), 63));
  const std::uint32_t first_free = 64 * held_spans + 64;
  for (std::uint32_t b = first_free; b < first_free + 32 * scans; b += 2) log.Append(0, Ids(b, 1));
  const auto scan = [&] {
    std::uint32_t found = 0;
    const auto visit = [&](BlockId b) {
      if (b.value() >= 64 && b.value() < first_free) return Verdict::kDrop;
      return ++found == 17 ? Verdict::kStop : Verdict::kKeep;
    };
    (void)log.Scan(0, visit, [](BlockId) {});
  };
  scan();  // pays for the held blocks, once
  const std::uint64_t before = log.work();
  for (std::uint32_t i = 0; i < scans; ++i) scan();
  return log.work() - before;
}

TEST(RecencyLogTest, TheCostOfAScanDoesNotDependOnHeldBlocks) {
  EXPECT_EQ(WorkOfScans(10, 100), 1700u);
  EXPECT_EQ(WorkOfScans(10'000, 100), 1700u);
}

TEST(RecencyLogTest, SweepsKeepTheOrderAndBoundTheMemory) {
  constexpr std::uint32_t kBlocks = 50'000;
  RecencyLog log(kBlocks);
  std::vector<BlockId> order = Ids(0, kBlocks);
  std::mt19937 random(5);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::uint32_t> expected;
  for (int round = 0; round < 10; ++round) {
    for (BlockId b : order) log.Append(2, {&b, 1});
  }
  for (BlockId b : order) expected.push_back(b.value());
  EXPECT_EQ(Oldest(log, 2, kBlocks), expected);
  EXPECT_LT(log.MemoryBytes(), kBlocks * 10 + 8192u);
}

}  // namespace
}  // namespace tidepool::internal
