// Hit counts of the recorded traces with an infinite cache, exact to the block: what Probe finds
// for each request in file order, before the request is admitted, computed and published.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "examples/agent_replay/payload.h"
#include "examples/agent_replay/trace.h"
#include "gtest/gtest.h"
#include "tests/support/replay_files.h"
#include "tidepool/tidepool.h"

namespace agent_replay {
namespace {

using namespace tidepool;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif
#ifdef NDEBUG
constexpr bool kOptimised = true;
#else
constexpr bool kOptimised = false;
#endif

struct Case {
  const char* file;
  std::uint64_t requests;
  std::uint64_t prompt_blocks;
  std::uint64_t unique_blocks;
  std::uint64_t hit_blocks;
};

void PrintTo(const Case& c, std::ostream* os) { *os << c.file; }

class ReplayCounts : public testing::TestWithParam<Case> {};

StatusOr<std::unique_ptr<KvCacheManager>> UnlimitedManager(std::uint64_t blocks,
                                                           std::uint32_t longest) {
  ManagerOptions options;
  options.layout = KvLayout::Opaque(64, kMinBlockTokens);
  TierSpec hbm = Hbm(HostArena(0));
  hbm.slots = static_cast<std::uint32_t>(blocks);
  options.tiers.push_back(std::move(hbm));
  options.max_sequence_blocks = longest + 1;
  options.match_partial_tail = false;  // whole blocks are counted
  return KvCacheManager::Create(std::move(options));
}

void Prompt(const Trace& trace, const Request& request, std::vector<Token>& tokens) {
  // One token more than the full blocks: a hit never covers the whole prompt.
  tokens.resize(std::size_t{request.blocks} * kMinBlockTokens + 1);
  std::size_t at = 0;
  ForEachBlock(trace, request, request.blocks, [&](std::uint64_t id) {
    FillTokens({request.scope, id}, std::span(tokens).subspan(at, kMinBlockTokens));
    at += kMinBlockTokens;
  });
  FillTailTokens(request.session, std::span(tokens).subspan(at));
}

TEST_P(ReplayCounts, ProbeHitsAreExact) {
  const Case& c = GetParam();
  if (replay_files::TraceDirectory().empty()) {
    GTEST_SKIP() << "TIDEPOOL_TRACES names no directory with traces";
  }
  if (c.prompt_blocks > 10'000'000 && (!kOptimised || kSanitized)) {
    GTEST_SKIP() << c.prompt_blocks << " blocks: only in optimised builds without sanitizers";
  }
  const StatusOr<Trace> trace = replay_files::Load(c.file);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->requests.size(), c.requests);
  ASSERT_EQ(PromptBlocks(*trace), c.prompt_blocks);
  ASSERT_EQ(UniqueBlocks(*trace), c.unique_blocks);
  std::uint32_t longest = 0;
  for (const Request& request : trace->requests) longest = std::max(longest, request.blocks);
  const auto manager = UnlimitedManager(c.unique_blocks + 1, longest);
  ASSERT_TRUE(manager.ok()) << manager.status();

  std::vector<Token> tokens;
  std::uint64_t hits = 0;
  for (const Request& request : trace->requests) {
    Prompt(*trace, request, tokens);
    const AdmitRequest admit{.tokens = tokens};
    const ProbeResult probe = (*manager)->Probe(admit);
    ASSERT_EQ(probe.outcome, Outcome::kOk);
    ASSERT_EQ(probe.fit, Fit::kFits);
    ASSERT_EQ(probe.tokens % kMinBlockTokens, 0u);
    hits += probe.tokens / kMinBlockTokens;
    Admission admission = (*manager)->Admit(admit);
    ASSERT_TRUE(admission.granted());
    ASSERT_EQ(admission.ready_tokens, probe.tokens);
    ASSERT_EQ(admission.sequence.Commit(static_cast<std::uint32_t>(tokens.size()), Fence::Done()),
              Outcome::kOk);
    ASSERT_EQ(admission.sequence.Finish(), Outcome::kOk);
  }
  EXPECT_EQ(hits, c.hit_blocks);
  EXPECT_EQ((*manager)->index().blocks(), c.unique_blocks);
  EXPECT_EQ((*manager)->stats().evicted[kHbmTier], 0u);
  const Status audit = (*manager)->Audit();
  EXPECT_TRUE(audit.ok()) << audit;
}

constexpr Case kCases[] = {
    {"agentic_small.ttrace", 2'577, 5'157'617, 283'297, 4'874'320},
    {"agentic_dev.ttrace.zst", 33'318, 64'367'463, 2'329'579, 62'037'884},
    {"mooncake_conversation_dev.ttrace", 7'218, 180'012, 117'274, 62'738},
    {"mooncake_conversation_dev.jsonl.zst", 7'218, 180'012, 117'274, 62'738},
    {"mooncake_synthetic_dev.ttrace", 2'395, 60'671, 37'519, 23'152},
    {"mooncake_synthetic_dev.jsonl.zst", 2'395, 60'671, 37'519, 23'152},
    {"mooncake_arxiv1000_dev.ttrace", 600, 11'735, 7'807, 3'928},
    {"mooncake_arxiv1000_dev.jsonl.zst", 600, 11'735, 7'807, 3'928},
};

std::string FileName(const testing::TestParamInfo<Case>& trace) {
  std::string name = trace.param.file;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Traces, ReplayCounts, testing::ValuesIn(kCases), FileName);

}  // namespace
}  // namespace agent_replay
