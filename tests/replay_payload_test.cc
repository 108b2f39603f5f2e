// What agent_replay puts into blocks: payloads that show every wrong byte, tokens that name a
// block.
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "examples/agent_replay/payload.h"
#include "gtest/gtest.h"

namespace agent_replay {
namespace {

std::vector<std::byte> Payload(std::uint64_t seed, BlockIdentity block, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  FillPayload(seed, block, out);
  return out;
}

TEST(ReplayPayload, ChecksWhatItFilled) {
  for (const std::size_t bytes :
       {std::size_t{8}, std::size_t{64}, std::size_t{1000}, std::size_t{4096}, std::size_t{4100}}) {
    EXPECT_TRUE(CheckPayload(1, {2, 3}, Payload(1, {2, 3}, bytes))) << bytes;
  }
}

TEST(ReplayPayload, EveryFlippedByteShows) {
  std::vector<std::byte> bytes = Payload(1, {2, 3}, 1036);
  for (std::byte& b : bytes) {
    b ^= std::byte{0x10};
    EXPECT_FALSE(CheckPayload(1, {2, 3}, bytes));
    b ^= std::byte{0x10};
  }
}

TEST(ReplayPayload, EveryOtherBlockShows) {
  const std::vector<std::byte> bytes = Payload(1, {2, 3}, 4096);
  EXPECT_FALSE(CheckPayload(1, {2, 4}, bytes));
  EXPECT_FALSE(CheckPayload(1, {3, 2}, bytes));
  EXPECT_FALSE(CheckPayload(2, {2, 3}, bytes));
}

TEST(ReplayPayload, TornAndShiftedCopiesShow) {
  const std::vector<std::byte> a = Payload(1, {2, 3}, 4096);
  std::vector<std::byte> torn = a;
  FillPayload(1, {2, 4}, std::span(torn).first(512));
  EXPECT_FALSE(CheckPayload(1, {2, 3}, torn));
  std::vector<std::byte> shifted(a.begin() + 512, a.end());
  shifted.insert(shifted.end(), a.begin(), a.begin() + 512);
  EXPECT_FALSE(CheckPayload(1, {2, 3}, shifted));
}

TEST(ReplayPayload, TokensNameTheBlock) {
  std::set<std::vector<tidepool::Token>> seen;
  std::vector<tidepool::Token> tokens(kMinBlockTokens);
  constexpr std::uint64_t kLarge = (std::uint64_t{1} << 60) - 1;
  for (const std::uint64_t scope : {std::uint64_t{0}, std::uint64_t{1}, kLarge}) {
    for (const std::uint64_t id : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 30,
                                   std::uint64_t{1} << 31, kLarge - 1, kLarge}) {
      FillTokens({scope, id}, tokens);
      EXPECT_TRUE(seen.insert(tokens).second) << scope << " " << id;
      for (const tidepool::Token t : tokens) EXPECT_GE(t, 0);
    }
  }
  std::set<tidepool::Token> first;  // no partial hits: siblings part at once
  for (std::uint64_t i = 0; i < 1000; ++i) {
    for (const BlockIdentity& block : {BlockIdentity{0, i << 26}, BlockIdentity{i + 1, 7}}) {
      FillTokens(block, tokens);
      first.insert(tokens[0]);
    }
  }
  EXPECT_EQ(first.size(), 2000u);
  FillTailTokens(0, tokens);
  for (const tidepool::Token t : tokens) EXPECT_GE(t, 1 << 30);  // no block has such tokens
}

}  // namespace
}  // namespace agent_replay
