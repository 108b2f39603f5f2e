// The prefix index: matching and publishing, beside a plain comparison of the same bytes.
//
// Inputs: 2,000 prompts of 8,192 tokens in 20 groups; the prompts of a group share their first
// 4,096 tokens; 16-token blocks. The tree then holds 517,120 blocks, 33 MB of tokens, and the
// prompts another 66 MB; they are visited in a shuffled order, so that neither is in a cache.
//
//   match_full_hit/512   items = blocks matched, tokens in, ids out
//   ref_memcmp/32768     the same prompts against plain copies of their tokens (shared halves
//                        shared), plus copying 512 ids out: what a match cannot do without
//   publish/256          items = new blocks: tokens copied, digests, nodes; fresh trees
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include "tidepool/block_pool.h"
#include "tidepool/prefix_index.h"

namespace tidepool {
namespace {

constexpr std::uint32_t kBlockTokens = 16;
constexpr std::uint32_t kPrompts = 2000;
constexpr std::uint32_t kGroups = 20;
constexpr std::uint32_t kPromptTokens = 8192;
constexpr std::uint32_t kSharedTokens = 4096;
constexpr std::uint32_t kPromptBlocks = kPromptTokens / kBlockTokens;
constexpr std::uint32_t kSharedBlocks = kSharedTokens / kBlockTokens;
constexpr std::uint32_t kOwnBlocks = kPromptBlocks - kSharedBlocks;
constexpr std::uint32_t kTreeBlocks = kGroups * kSharedBlocks + kPrompts * kOwnBlocks;

class Inputs {
 public:
  static const Inputs& Get() {
    static const Inputs inputs;
    return inputs;
  }
  [[nodiscard]] std::span<const Token> prompt(std::uint32_t i) const {
    return std::span(tokens_).subspan(std::size_t{i} * kPromptTokens, kPromptTokens);
  }
  [[nodiscard]] const std::vector<std::uint32_t>& order() const { return order_; }

 private:
  Inputs() : tokens_(std::size_t{kPrompts} * kPromptTokens), order_(kPrompts) {
    std::mt19937 random(20240607);
    std::uniform_int_distribution<Token> token(0, 127'999);
    for (Token& t : tokens_) t = token(random);
    for (std::uint32_t i = kGroups; i < kPrompts; ++i) {  // prompt g is the model of its group
      std::copy_n(prompt(i % kGroups).begin(), kSharedTokens,
                  tokens_.begin() + std::ptrdiff_t{i} * kPromptTokens);
    }
    std::iota(order_.begin(), order_.end(), 0u);
    std::shuffle(order_.begin(), order_.end(), random);
  }

  std::vector<Token> tokens_;
  std::vector<std::uint32_t> order_;
};

class Tree {
 public:
  explicit Tree(std::uint32_t blocks)
      : pool_({.block_tokens = kBlockTokens, .slots = {blocks}}),
        index_({.pool = &pool_, .digest_seed = 1}) {}

  [[nodiscard]] NodeId NewRoot() { return index_.AddRoot({}, ++epoch_, NamespaceId(0)); }

  // Blocks as a sequence has them when it publishes: committed and held.
  void Allocate(std::span<BlockId> blocks) {
    if (!pool_.Allocate(blocks)) std::abort();
    (void)pool_.Transition(blocks, {.to = Phase::kActive, .cause = Cause::kCommit});
  }

  // Publishes new blocks behind the cursor, as a prefill's commit does.
  void Publish(PublishCursor& cursor, std::span<const Token> tokens,
               std::span<const BlockId> blocks) {
    while (!blocks.empty()) {
      const auto more = static_cast<std::uint32_t>(blocks.size() - 1);
      std::size_t done = index_.Extend(cursor, {.blocks = blocks, .tokens = tokens});
      if (done == 0) {
        (void)index_.Publish(
            cursor,
            {.blocks = blocks.first(1), .tokens = tokens.first(kBlockTokens), .more = more});
        done = 1;
      }
      blocks = blocks.subspan(done);
      tokens = tokens.subspan(done * kBlockTokens);
    }
  }

  [[nodiscard]] PrefixIndex& index() { return index_; }
  [[nodiscard]] BlockPool& pool() { return pool_; }

 private:
  BlockPool pool_;
  PrefixIndex index_;
  std::uint64_t epoch_ = 0;
};

// All prompts published under one root.
class FullTree {
 public:
  static FullTree& Get() {
    static FullTree full;
    return full;
  }
  [[nodiscard]] NodeId root() const { return root_; }
  [[nodiscard]] const PrefixIndex& index() { return tree_.index(); }

 private:
  FullTree() : tree_(kTreeBlocks), root_(tree_.NewRoot()) {
    MatchResult found;
    std::vector<BlockId> blocks;
    for (std::uint32_t i = 0; i < kPrompts; ++i) {
      const std::span<const Token> prompt = Inputs::Get().prompt(i);
      tree_.index().Match({.root = root_, .tokens = prompt}, found);
      const std::size_t known = found.blocks.size();
      PublishCursor cursor{.root = root_, .last = known > 0 ? found.blocks.back() : BlockId()};
      blocks.resize(kPromptBlocks - known);
      tree_.Allocate(blocks);
      tree_.Publish(cursor, prompt.subspan(known * kBlockTokens), blocks);
    }
  }

  Tree tree_;
  NodeId root_;
};

void MatchFullHit(benchmark::State& state) {
  const Inputs& inputs = Inputs::Get();
  const PrefixIndex& index = FullTree::Get().index();
  MatchResult result;
  std::size_t next = 0;
  for (auto _ : state) {
    const std::uint32_t i = inputs.order()[next];
    next = next + 1 == kPrompts ? 0 : next + 1;
    index.Match({.root = FullTree::Get().root(), .tokens = inputs.prompt(i)}, result);
    if (result.blocks.size() != kPromptBlocks) state.SkipWithError("not a full hit");
    benchmark::DoNotOptimize(result.blocks.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

// Plain copies of what the tree holds: shared halves first, then each prompt's own half.
class PlainCopies {
 public:
  PlainCopies() : tokens_(std::size_t{kTreeBlocks} * kBlockTokens), ids_(kTreeBlocks) {
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      std::copy_n(Inputs::Get().prompt(g).begin(), kSharedTokens, Shared(g));
    }
    for (std::uint32_t i = 0; i < kPrompts; ++i) {
      std::copy_n(Inputs::Get().prompt(i).begin() + kSharedTokens, kPromptTokens - kSharedTokens,
                  Own(i));
    }
    std::iota(ids_.begin(), ids_.end(), 0u);
  }
  [[nodiscard]] bool Equal(std::uint32_t i, std::vector<std::uint32_t>& ids) {
    const Token* const prompt = Inputs::Get().prompt(i).data();
    const std::size_t half = kSharedTokens * sizeof(Token);
    const bool equal = std::memcmp(prompt, Shared(i % kGroups), half) == 0 &&
                       std::memcmp(prompt + kSharedTokens, Own(i), half) == 0;
    std::memcpy(ids.data(), &ids_[(Shared(i % kGroups) - tokens_.data()) / kBlockTokens],
                kSharedBlocks * sizeof(std::uint32_t));
    std::memcpy(ids.data() + kSharedBlocks, &ids_[(Own(i) - tokens_.data()) / kBlockTokens],
                kOwnBlocks * sizeof(std::uint32_t));
    return equal;
  }

 private:
  [[nodiscard]] Token* Shared(std::uint32_t g) {
    return tokens_.data() + std::size_t{g} * kSharedTokens;
  }
  [[nodiscard]] Token* Own(std::uint32_t i) {
    return Shared(kGroups) + std::size_t{i} * (kPromptTokens - kSharedTokens);
  }

  std::vector<Token> tokens_;
  std::vector<std::uint32_t> ids_;
};

void RefMemcmp(benchmark::State& state) {
  PlainCopies copies;
  const Inputs& inputs = Inputs::Get();
  std::vector<std::uint32_t> ids(kPromptBlocks);
  std::size_t next = 0;
  for (auto _ : state) {
    const std::uint32_t i = inputs.order()[next];
    next = next + 1 == kPrompts ? 0 : next + 1;
    if (!copies.Equal(i, ids)) state.SkipWithError("copies differ");
    benchmark::DoNotOptimize(ids.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kPromptBlocks);
}

// Each iteration publishes the first blocks of a prompt in a tree of its own. When the pool is
// full, untimed, all trees are dropped and their blocks freed: the memory stays in use, so that no
// page is touched for the first time while the clock runs.
class PublishRounds {
 public:
  static constexpr std::uint32_t kRounds = 1000;

  explicit PublishRounds(std::uint32_t count)
      : tree_(kRounds * count), blocks_(std::size_t{kRounds} * count), roots_(kRounds) {
    Refill();
    for (std::uint32_t round = 0; round < kRounds; ++round) Run(round, count);
  }

  void Refill() {
    PrefixIndex& index = tree_.index();
    if (index.blocks() > 0) {
      (void)tree_.pool().Transition(blocks_,
                                    {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1});
      for (NodeId root : roots_) index.Retire(root);
      for (BlockId b = index.NextStale(); b.valid(); b = index.NextStale()) {
        (void)index.Remove(b, nullptr);
      }
      (void)tree_.pool().Transition(blocks_, {.to = Phase::kFree, .cause = Cause::kDrop});
      tree_.pool().FreeBlocks(blocks_);
    }
    tree_.Allocate(blocks_);
    for (NodeId& root : roots_) root = tree_.NewRoot();
  }

  void Run(std::uint32_t round, std::uint32_t count) {
    const std::span<const Token> prompt = Inputs::Get().prompt(Inputs::Get().order()[round]);
    PublishCursor cursor{.root = roots_[round], .last = BlockId()};
    tree_.Publish(cursor, prompt.first(std::size_t{count} * kBlockTokens),
                  std::span(blocks_).subspan(std::size_t{round} * count, count));
  }

 private:
  Tree tree_;
  std::vector<BlockId> blocks_;
  std::vector<NodeId> roots_;
};

void Publish(benchmark::State& state) {
  const auto count = static_cast<std::uint32_t>(state.range(0));
  PublishRounds rounds(count);
  std::uint32_t round = PublishRounds::kRounds;
  for (auto _ : state) {
    if (round == PublishRounds::kRounds) {
      state.PauseTiming();
      rounds.Refill();
      round = 0;
      state.ResumeTiming();
    }
    rounds.Run(round++, count);
  }
  state.SetItemsProcessed(state.iterations() * count);
}

BENCHMARK(MatchFullHit)->Name("match_full_hit")->Arg(kPromptBlocks);
BENCHMARK(RefMemcmp)->Name("ref_memcmp")->Arg(kPromptTokens * sizeof(Token));
BENCHMARK(Publish)->Name("publish")->Arg(256);

}  // namespace
}  // namespace tidepool
