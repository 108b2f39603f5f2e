// DigestScheme: the vectors of docs/digest.md, in this process and in another, and what must
// differ.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tidepool/prefix_index.h"

namespace tidepool {
namespace {

constexpr std::uint64_t kSeed = 0x0123456789abcdefu;
constexpr PrefixHash kContent = {0x1111222233334444u, 0x5555666677778888u};

std::string Hex(const PrefixHash& hash) {
  std::array<char, 33> text;
  std::snprintf(text.data(), text.size(), "%016llx%016llx",
                static_cast<unsigned long long>(hash.high),
                static_cast<unsigned long long>(hash.low));
  return text.data();
}

std::vector<Token> Iota(std::size_t count, Token first) {
  std::vector<Token> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// The five prompts of docs/digest.md, in its order.
std::vector<PrefixHash> FivePrompts(std::uint64_t seed) {
  const DigestScheme scheme(seed);
  const PrefixHash root = scheme.Root({}, 0);
  const PrefixHash named =
      scheme.Root({.tenant = "acme", .adapter = "lora-7", .model = "m", .layout = "bf16/16"}, 3);
  const PrefixHash first = scheme.Block(root, Iota(16, 0), nullptr);
  return {
      first,                                              // absent content
      scheme.Block(first, Iota(16, 16), nullptr),         // its continuation
      scheme.Block(root, Iota(16, 0), &kContent),         // the first with content
      scheme.Block(named, Iota(4, -2), nullptr),          // negative tokens, short block
      scheme.Block(named, Iota(300, 1'000'000), nullptr)  // long block
  };
}

const std::vector<std::string> kGolden = {
    "f3576833cffbd35ee6dedeb5b66847e0", "7090c6c6b3133ee97a5a0e5978645080",
    "374a75df0e2317f7fe806d35e1307848", "0d8b11bc30f4081089892075f7e8ac3c",
    "d387b29a45b63fdba63b7ebd4722314d",
};

std::vector<std::string> HexOf(const std::vector<PrefixHash>& hashes) {
  std::vector<std::string> text;
  for (const PrefixHash& hash : hashes) text.push_back(Hex(hash));
  return text;
}

// Runs in the child process of S53; prints the five digests.
TEST(DigestChild, DISABLED_PrintFivePrompts) {
  for (const PrefixHash& hash : FivePrompts(kSeed)) std::printf("digest %s\n", Hex(hash).c_str());
}

std::vector<std::string> FivePromptsOfAnotherProcess() {
  std::array<char, 4096> self{};
  if (readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0) return {};
  const std::string command = "'" + std::string(self.data()) +
                              "' --gtest_also_run_disabled_tests"
                              " --gtest_filter=DigestChild.DISABLED_PrintFivePrompts 2>/dev/null";
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::vector<std::string> digests;
  std::array<char, 256> line;
  while (std::fgets(line.data(), static_cast<int>(line.size()), pipe) != nullptr) {
    std::istringstream words(line.data());
    std::string word, digest;
    if (words >> word >> digest && word == "digest") digests.push_back(digest);
  }
  return pclose(pipe) == 0 ? digests : std::vector<std::string>();
}

TEST(Digest, S53KeysAreTheSameInEveryProcess) {
  EXPECT_EQ(HexOf(FivePrompts(kSeed)), kGolden);
  EXPECT_EQ(HexOf(FivePrompts(kSeed)), HexOf(FivePrompts(kSeed)));  // two instances
  EXPECT_EQ(FivePromptsOfAnotherProcess(), kGolden);
  const std::vector<PrefixHash> here = FivePrompts(kSeed);
  const std::vector<PrefixHash> elsewhere = FivePrompts(kSeed + 1);
  for (std::size_t i = 0; i < here.size(); ++i) {
    EXPECT_NE(here[i].high, elsewhere[i].high);
    EXPECT_NE(here[i].low, elsewhere[i].low);
  }
}

TEST(Digest, TheDocumentHasTheVectors) {
#ifdef TIDEPOOL_SOURCE_DIR
  std::ifstream file(std::string(TIDEPOOL_SOURCE_DIR) + "/docs/digest.md");
  ASSERT_TRUE(file.is_open());
  std::stringstream text;
  text << file.rdbuf();
  for (const std::string& golden : kGolden) {
    EXPECT_NE(text.str().find(golden), std::string::npos) << golden;
  }
#else
  GTEST_SKIP() << "built without the source directory";
#endif
}

TEST(Digest, S51FieldsOfAKeyHaveTypes) {
  const DigestScheme scheme(kSeed);
  std::set<PrefixHash> roots;
  const std::vector<NamespaceKey> keys = {
      {},
      {.tenant = "X"},
      {.adapter = "X"},
      {.model = "X"},
      {.layout = "X"},
      {.tenant = "X", .adapter = "X"},
      {.tenant = "XX"},
      {.tenant = "X", .model = "X"},
      {.tenant = std::string("X\0", 2)},
  };
  for (const NamespaceKey& key : keys) roots.insert(scheme.Root(key, 0));
  EXPECT_EQ(roots.size(), keys.size());
  EXPECT_NE(scheme.Root({}, 0), scheme.Root({}, 1));  // epoch
}

TEST(Digest, EveryInputOfABlockCounts) {
  const DigestScheme scheme(kSeed);
  const PrefixHash root = scheme.Root({}, 0);
  const std::vector<Token> tokens = Iota(16, 0);
  const PrefixHash other_content = {kContent.high, kContent.low + 1};
  const PrefixHash none = {};
  std::vector<Token> as_tokens = tokens;  // content key spelled as four more tokens
  for (std::uint64_t word : {kContent.high, kContent.low}) {
    as_tokens.push_back(static_cast<Token>(word & 0xffffffffu));
    as_tokens.push_back(static_cast<Token>(word >> 32));
  }
  std::set<PrefixHash> seen = {
      root,
      scheme.Block(root, tokens, nullptr),
      scheme.Block(root, tokens, &kContent),
      scheme.Block(root, tokens, &other_content),
      scheme.Block(root, tokens, &none),
      scheme.Block(root, as_tokens, nullptr),
      scheme.Block({root.low, root.high}, tokens, nullptr),
      scheme.Block(root, std::span(tokens).first(15), nullptr),
  };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::vector<Token> changed = tokens;
    changed[i] ^= 1 << 16;
    seen.insert(scheme.Block(root, changed, nullptr));
  }
  EXPECT_EQ(seen.size(), 8 + tokens.size());
}

// Short messages are hashed in one call, long ones in pieces: no length may be special.
TEST(Digest, LengthsAroundTheOneShotLimit) {
  const DigestScheme scheme(kSeed);
  std::set<PrefixHash> seen;
  for (std::size_t count = 0; count <= 600; ++count) {
    const std::vector<Token> tokens = Iota(count, 0);
    seen.insert(scheme.Block({1, 2}, tokens, nullptr));
    seen.insert(scheme.Block({1, 2}, tokens, &kContent));
  }
  EXPECT_EQ(seen.size(), 2u * 601);
}

}  // namespace
}  // namespace tidepool
