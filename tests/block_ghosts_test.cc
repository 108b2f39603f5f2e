// The ghost lists against plain containers, with digests that share tags and homes.
#include "src/block_ghosts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

namespace tidepool::internal {
namespace {

PrefixHash Digest(std::uint64_t id) { return {id, id * 7}; }

TEST(BlockGhostsTest, KeepsTwoOrders) {
  BlockGhosts ghosts;
  for (std::uint64_t id = 1; id <= 4; ++id) ghosts.Add(id % 2, Digest(id));
  EXPECT_EQ(ghosts.size(0), 2u);
  EXPECT_EQ(ghosts.size(1), 2u);
  ghosts.Add(1, Digest(1));  // the newest now
  ghosts.RemoveOldest(1);
  EXPECT_EQ(ghosts.Find(Digest(3)), BlockGhosts::kNone);
  ASSERT_NE(ghosts.Find(Digest(1)), BlockGhosts::kNone);
  EXPECT_EQ(ghosts.list(ghosts.Find(Digest(1))), 1u);
  ghosts.Add(0, Digest(1));  // into the other list
  EXPECT_EQ(ghosts.size(0), 3u);
  EXPECT_EQ(ghosts.size(1), 0u);
}

TEST(BlockGhostsTest, AMarkLastsForOneStay) {
  BlockGhosts ghosts;
  ghosts.Add(0, Digest(1));
  EXPECT_FALSE(ghosts.marked(ghosts.Find(Digest(1))));
  ghosts.SetMark(ghosts.Find(Digest(1)));
  EXPECT_TRUE(ghosts.marked(ghosts.Find(Digest(1))));
  EXPECT_EQ(ghosts.list(ghosts.Find(Digest(1))), 0u);
  ghosts.Add(0, Digest(1));
  EXPECT_FALSE(ghosts.marked(ghosts.Find(Digest(1))));
}

class NaiveGhosts {
 public:
  [[nodiscard]] int Find(std::uint64_t id) const {
    for (int list = 0; list < 2; ++list) {
      if (std::count(order_[list].begin(), order_[list].end(), id) != 0) return list;
    }
    return -1;
  }
  void Add(std::uint32_t list, std::uint64_t id) {
    Remove(id);
    order_[list].push_back(id);
  }
  void Remove(std::uint64_t id) {
    for (auto& order : order_) std::erase(order, id);
  }
  [[nodiscard]] std::vector<std::uint64_t>& order(std::uint32_t list) { return order_[list]; }

 private:
  std::array<std::vector<std::uint64_t>, 2> order_;
};

void RandomSteps(std::uint32_t seed, std::uint32_t ids, int steps) {
  std::mt19937 random(seed);
  BlockGhosts ghosts;
  NaiveGhosts naive;
  for (int step = 0; step < steps; ++step) {
    const std::uint64_t id = random() % ids;
    const std::uint32_t list = random() % 2;
    const BlockGhosts::Place place = ghosts.Find(Digest(id));
    ASSERT_EQ(place == BlockGhosts::kNone ? -1 : static_cast<int>(ghosts.list(place)),
              naive.Find(id));
    const std::uint32_t what = random() % 8;
    if (what < 5) {
      ghosts.Add(list, Digest(id));
      naive.Add(list, id);
    } else if (what < 7 && place != BlockGhosts::kNone) {
      ghosts.Remove(place);
      naive.Remove(id);
    } else if (ghosts.size(list) != 0) {
      ghosts.RemoveOldest(list);
      naive.order(list).erase(naive.order(list).begin());
    }
    for (std::uint32_t l = 0; l < 2; ++l) ASSERT_EQ(ghosts.size(l), naive.order(l).size());
  }
}

TEST(BlockGhostsTest, RandomStepsMatchPlainLists) {
  for (std::uint32_t seed = 1; seed <= 4; ++seed) {
    RandomSteps(seed, 50, 20'000);  // logs fill with the dead and are compacted
    RandomSteps(seed, 3'000, 20'000);
  }
}

TEST(BlockGhostsTest, MemoryFollowsWhatIsAlive) {
  BlockGhosts ghosts;
  for (std::uint64_t id = 0; id < 1'000'000; ++id) {
    ghosts.Add(0, Digest(id));
    if (id >= 1'000 && id % 2 == 0) ghosts.Remove(ghosts.Find(Digest(id)));
    while (ghosts.size(0) > 1'000) ghosts.RemoveOldest(0);
  }
  EXPECT_LE(ghosts.MemoryBytes(), 100'000u);
}

}  // namespace
}  // namespace tidepool::internal
