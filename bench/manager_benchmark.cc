// The manager's block path: hits, admissions, decode steps and evictions, as an engine calls them.
// items_per_second counts what each comment names. Prompts are distinct and visited in turn; each
// comment states the working set. docs/benchmarks.md says how to read the results.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "manager_world.h"
#include "tidepool/policy/lru.h"

namespace tidepool::bench {
namespace {

constexpr std::uint32_t kPrompts = 2000;
constexpr std::uint32_t kGroups = 20;
constexpr std::uint32_t kGroupTokens = 4096;

std::vector<std::vector<Token>> Prompts(std::uint32_t count, std::uint32_t tokens) {
  std::vector<std::vector<Token>> prompts(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    Write({.tokens = tokens, .shared = kGroupTokens, .group = i % kGroups, .own = i}, prompts[i]);
  }
  return prompts;
}

std::uint32_t BlocksOf(std::uint32_t count, std::uint32_t tokens) {
  return (kGroups * kGroupTokens + count * (tokens - kGroupTokens)) / kBlockTokens;
}

// --- hold_release/512: what a hit costs below the match, and its end. Items: blocks. ---
//
// The calls that Admit and Finish make for a matched prefix, on pool, index and LRU policy. Working
// set: 517,120 blocks with 4 bytes of word and 4 of stamp each, 4 MB; 8 MB of ids.
void HoldRelease(benchmark::State& state) {
  const auto blocks = static_cast<std::uint32_t>(state.range(0));
  const std::uint32_t capacity = BlocksOf(kPrompts, blocks * kBlockTokens);
  BlockPool pool({.block_tokens = kBlockTokens, .slots = {capacity}});
  PrefixIndex index({.pool = &pool});
  const std::unique_ptr<EvictionPolicy> lru = MakeLruPolicy();
  lru->Attach(BlockView(&pool, &index), kHbmTier, capacity);
  const NodeId root = index.AddRoot({}, 0, NamespaceId(0));
  std::vector<std::vector<BlockId>> prefixes(kPrompts);
  std::vector<Token> tokens;
  std::vector<BlockId> changed;
  std::uint64_t tick = 0;
  const auto release = [&](std::span<const BlockId> held) {
    (void)pool.Transition(held, {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1},
                          &changed);
    index.Touch(changed.back(), ++tick);
    lru->OnEvictable(changed);
  };
  MatchResult match;
  for (std::uint32_t i = 0; i < kPrompts; ++i) {
    Write({.tokens = blocks * kBlockTokens, .shared = kGroupTokens, .group = i % kGroups, .own = i},
          tokens);
    index.Match({.root = root, .tokens = tokens}, match);
    std::vector<BlockId> fresh(blocks - match.blocks.size());
    if (!pool.Allocate(fresh)) Die("the pool is full");
    (void)pool.Transition(fresh, {.to = Phase::kActive, .cause = Cause::kCommit});
    PublishCursor cursor{.root = root,
                         .last = match.blocks.empty() ? BlockId() : match.blocks.back()};
    for (std::size_t b = 0; b < fresh.size(); ++b) {
      (void)index.Publish(cursor, {.blocks = {&fresh[b], 1},
                                   .tokens = std::span<const Token>(tokens).subspan(
                                       (match.blocks.size() + b) * kBlockTokens, kBlockTokens)});
    }
    lru->OnInserted(fresh);
    release(fresh);
    prefixes[i] = match.blocks;
    prefixes[i].insert(prefixes[i].end(), fresh.begin(), fresh.end());
  }
  std::size_t next = 0;
  for (auto _ : state) {
    const std::vector<BlockId>& prefix = prefixes[next];
    next = next + 1 < prefixes.size() ? next + 1 : 0;
    (void)pool.Transition(prefix,
                          {.to = Phase::kActive,
                           .cause = Cause::kReady,
                           .via = Phase::kReuse,
                           .via_cause = Cause::kMatch,
                           .hold = 1},
                          &changed);
    lru->OnProtected(changed);
    lru->OnAccessed(prefix);
    release(prefix);
  }
  state.SetItemsProcessed(state.iterations() * blocks);
}
BENCHMARK(HoldRelease)->Name("hold_release")->Arg(512);

// --- admit_finish/8192/7168: a prompt of which so much is cached, from tokens. Items: prompts. ---
//
// Free slots, no observer, no session. Working set: 2,000 prompts, 65 MB, against 25 MB of cached
// tokens. With `commit` the tokens behind the hit are also committed and published, and as many
// blocks of the last lap are dropped for them: the pool has room for one lap.
template <bool commit>
void AdmitFinish(benchmark::State& state) {
  const auto length = static_cast<std::uint32_t>(state.range(0));
  const auto cached = static_cast<std::uint32_t>(state.range(1));
  const std::uint32_t fresh = (length - cached) / kBlockTokens;
  const std::uint32_t slots[] = {BlocksOf(kPrompts, cached) + (commit ? kPrompts : 1) * fresh};
  const auto manager = MakeManager(slots, length / kBlockTokens);
  std::vector<std::vector<Token>> prompts = Prompts(kPrompts, length);
  for (const std::vector<Token>& p : prompts) Cache(*manager, std::span(p).first(cached));
  std::size_t next = 0;
  std::uint64_t laps = 0;
  const auto renew = [&] {  // new tokens behind the hits, so that nothing is a duplicate
    ++laps;
    for (std::vector<Token>& p : prompts) {
      for (std::uint32_t i = cached; i < length; i += kBlockTokens) p[i] = static_cast<Token>(laps);
    }
  };
  if (commit) {
    for (const std::vector<Token>& p : prompts) Cache(*manager, p);
    renew();
  }
  for (auto _ : state) {
    Admission a = manager->Admit({.tokens = prompts[next]});
    if (a.ready_tokens != cached) state.SkipWithError("the hit is not what it should be");
    if (commit) (void)a.sequence.Commit(length, Fence::Done());
    (void)a.sequence.Finish();
    if (++next < prompts.size()) continue;
    next = 0;
    if (!commit) continue;
    state.PauseTiming();
    renew();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(AdmitFinish<false>)->Name("admit_finish")->Args({8192, 7168});
BENCHMARK(AdmitFinish<true>)->Name("admit_commit_finish")->Args({8192, 7168});

// --- admit_finish_full_clean: the same when HBM is full of clean blocks. Items: prompts. ---
//
// Each admission gives up as many clean blocks as it takes fresh ones; `ns_per_evicted_block` is
// what that adds to the same admissions with free slots, measured in the same run. Working set: 200
// prompts (6.5 MB) against 43,520 cached blocks, and 64,000 clean blocks that leave in turn.
class FullCleanPool {
 public:
  FullCleanPool(std::uint32_t length, std::uint32_t cached)
      : fresh_((length - cached) / kBlockTokens), prompts_(Prompts(kPromptCount, length)) {
    const std::uint32_t blocks = BlocksOf(kPromptCount, cached) + kFillers * fresh_;
    const std::uint32_t slots[] = {blocks + 1, blocks};  // one for the token that is never a hit
    manager_ = MakeManager(slots, length / kBlockTokens);
    fillers_.resize(kFillers);
    for (std::uint32_t i = 0; i < kFillers; ++i) {
      Write({.tokens = fresh_ * kBlockTokens + 1, .own = kPromptCount + i}, fillers_[i]);
      CacheClean(fillers_[i]);
    }
    for (const std::vector<Token>& p : prompts_) CacheClean(std::span(p).first(cached));
  }

  /// Admits and finishes kBatch prompts; returns seconds.
  double Run() {
    std::vector<Admission> running(kBatch);
    const auto start = std::chrono::steady_clock::now();
    for (Admission& a : running) {
      a = manager_->Admit({.tokens = prompts_[next_]});
      next_ = next_ + 1 < prompts_.size() ? next_ + 1 : 0;
      if (!a.granted()) Die("not admitted");
    }
    for (Admission& a : running) (void)a.sequence.Finish();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  /// Brings back up what Run has made leave.
  void Refill() {
    while (manager_->counts().free > 1) {
      Cache(*manager_, fillers_[back_]);
      back_ = back_ + 1 < fillers_.size() ? back_ + 1 : 0;
    }
  }

  [[nodiscard]] std::uint64_t evicted() const { return manager_->stats().evicted[kHbmTier]; }
  static constexpr std::uint32_t kBatch = 100;

 private:
  static constexpr std::uint32_t kPromptCount = 200;
  static constexpr std::uint32_t kFillers = 1000;

  void CacheClean(std::span<const Token> tokens) {
    Cache(*manager_, tokens);
    (void)manager_->Offload(tokens);
    if (!manager_->WaitIdle(std::chrono::seconds(10))) Die("copies do not end");
  }

  std::uint32_t fresh_;
  std::vector<std::vector<Token>> prompts_;
  std::vector<std::vector<Token>> fillers_;
  std::unique_ptr<KvCacheManager> manager_;
  std::size_t next_ = 0;
  std::size_t back_ = 0;
};

void AdmitFinishFullClean(benchmark::State& state) {
  FullCleanPool pool(static_cast<std::uint32_t>(state.range(0)),
                     static_cast<std::uint32_t>(state.range(1)));
  double full_s = 0;
  double free_s = 0;
  std::uint64_t evicted = 0;
  while (state.KeepRunningBatch(FullCleanPool::kBatch)) {
    const std::uint64_t before = pool.evicted();
    full_s += pool.Run();
    evicted += pool.evicted() - before;
    state.PauseTiming();
    free_s += pool.Run();
    pool.Refill();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["evicted_per_prompt"] =
      static_cast<double>(evicted) / static_cast<double>(state.iterations());
  state.counters["ns_per_evicted_block"] =
      1e9 * (full_s - free_s) / static_cast<double>(std::max<std::uint64_t>(evicted, 1));
}
BENCHMARK(AdmitFinishFullClean)->Name("admit_finish_full_clean")->Args({8192, 7168});

// --- append_one, append_commit_one: a decode step of 256 sequences. Items: tokens. ---
//
// Block boundaries included. Working set: 256 sequences of 1,024 to 4,096 tokens.
constexpr std::uint32_t kSequences = 256;
constexpr std::uint32_t kShortest = 1024;
constexpr std::uint32_t kLongest = 4096;

class DecodeBatch {
 public:
  DecodeBatch() {
    const std::uint32_t slots[] = {kSequences * kLongest / kBlockTokens};
    manager_ = MakeManager(slots, kLongest / kBlockTokens);
  }
  void Begin() {
    std::vector<Token> tokens;
    for (Sequence& seq : sequences_) {
      Write({.tokens = kShortest, .own = next_++}, tokens);
      Admission a = manager_->Admit({.tokens = tokens, .timeline = kTimeline});
      if (!a.granted()) Die("not admitted");
      seq = std::move(a.sequence);
      (void)seq.Commit(kShortest, Fence::Done());
    }
    length_ = kShortest;
  }
  void End() {
    for (Sequence& seq : sequences_) (void)seq.Finish();
    (void)manager_->CompleteStep(kTimeline, step_);
    (void)manager_->Clear();
  }
  void Append() {
    for (Sequence& seq : sequences_) (void)seq.Append(static_cast<Token>(length_));
    ++length_;
  }
  void AppendCommit() {
    (void)manager_->CompleteStep(kTimeline, step_);
    const Fence fence{kTimeline, ++step_};
    ++length_;
    for (Sequence& seq : sequences_) {
      (void)seq.Append(static_cast<Token>(step_));
      if (seq.Commit(length_, fence) != Outcome::kOk) Die("commit");
    }
  }
  [[nodiscard]] bool over() const { return length_ == kLongest; }

 private:
  static constexpr TimelineId kTimeline = 0;
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<Sequence> sequences_{kSequences};
  std::uint64_t next_ = 0;
  std::uint64_t step_ = 0;
  std::uint32_t length_ = 0;
};

template <bool commit>
void Decode(benchmark::State& state) {
  DecodeBatch batch;
  batch.Begin();
  while (state.KeepRunningBatch(kSequences)) {
    if (commit) {
      batch.AppendCommit();
    } else {
      batch.Append();
    }
    if (!batch.over()) continue;
    state.PauseTiming();
    batch.End();
    batch.Begin();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(Decode<false>)->Name("append_one");
BENCHMARK(Decode<true>)->Name("append_commit_one");

// --- evict/leaves:N: Evict(0, 256) among N leaves of one block. Items: blocks. ---
//
// One tier, so each block is dropped: out of pool, policy and tree. The leaves were released in
// random order, so neither ids nor nodes are neighbours. At most half of them leave before as many
// new ones are cached, untimed. Working set: about 190 bytes a leaf without its tokens (id state
// 44, node 128, child table 8 to 16).
class Leaves {
 public:
  static constexpr std::uint32_t kBatch = 256;

  explicit Leaves(std::uint32_t count) : count_(count) {
    const std::uint32_t slots[] = {count + 2};
    manager_ = MakeManager(slots, 2);
    Add(count);
  }
  /// Evicts one batch; adds what is missing once half of the leaves have left.
  void EvictBatch() { left_ += manager_->Evict(kHbmTier, kBatch); }
  [[nodiscard]] bool low() const { return left_ + kBatch > std::max(count_ / 2, kBatch); }
  void Refill() { Add(std::exchange(left_, 0)); }
  [[nodiscard]] std::uint32_t count() const { return count_; }
  [[nodiscard]] const KvCacheManager& manager() const { return *manager_; }

 private:
  void Add(std::uint32_t n) {
    std::vector<std::uint64_t> names(n);
    for (std::uint64_t& name : names) Cache(*manager_, Prompt(name = next_++));
    std::shuffle(names.begin(), names.end(), random_);
    for (const std::uint64_t name : names) {  // used once more: the order in which they leave
      Admission a = manager_->Admit({.tokens = Prompt(name)});
      if (a.ready_tokens != kBlockTokens) Die("a leaf is not there");
    }
  }
  std::span<const Token> Prompt(std::uint64_t name) {
    Write({.tokens = kBlockTokens + 1, .own = name}, tokens_);
    return tokens_;
  }

  std::uint32_t count_;
  std::uint32_t left_ = 0;
  std::uint64_t next_ = 0;
  std::mt19937_64 random_{1};
  std::vector<Token> tokens_;
  std::unique_ptr<KvCacheManager> manager_;
};

void Evict(benchmark::State& state) {
  static std::unique_ptr<Leaves> leaves;  // kept between runs of one size: making it takes long
  const auto count = static_cast<std::uint32_t>(state.range(0));
  if (leaves == nullptr || leaves->count() != count) {
    leaves.reset();
    leaves = std::make_unique<Leaves>(count);
  }
  for (auto _ : state) {
    leaves->EvictBatch();
    if (!leaves->low()) continue;
    state.PauseTiming();
    leaves->Refill();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * Leaves::kBatch);
}
BENCHMARK(Evict)->Name("evict")->ArgName("leaves")->Arg(1000)->Arg(20'000)->Arg(100'000)->Arg(
    1'000'000);

// --- metadata: no time, only bytes. ---
//
// 2,000 prompts of 8,192 tokens in 20 groups that share 4,096, all of them cached in HBM, which
// they fill; three tiers with an LRU policy each, one cache group, digests. The lower tiers have
// `range(0)` percent of HBM's slots each. A slot of any tier may become a block of its own, so
// bytes are given per slot and per block that exists.
void Metadata(benchmark::State& state) {
  const std::uint32_t hbm = BlocksOf(kPrompts, 8192);
  const auto lower = static_cast<std::uint32_t>(hbm * std::uint64_t(state.range(0)) / 100 + 1);
  const std::uint32_t slots[] = {hbm, lower, lower};
  for (auto _ : state) {
    const auto manager = MakeManager(slots, 8192 / kBlockTokens);
    std::vector<Token> tokens;
    for (std::uint32_t i = 0; i < kPrompts; ++i) {
      Write({.tokens = 8192, .shared = kGroupTokens, .group = i % kGroups, .own = i}, tokens);
      Cache(*manager, tokens);
    }
    const auto bytes = static_cast<double>(manager->metadata_bytes());
    state.counters["bytes_per_block"] = bytes / manager->index().blocks();
    state.counters["bytes_per_slot"] =
        bytes / (static_cast<double>(hbm) + 2 * static_cast<double>(lower));
    state.counters["index_bytes_per_block"] =
        static_cast<double>(manager->index().MemoryBytes()) / manager->index().blocks();
    state.counters["pool_bytes_per_slot"] =
        static_cast<double>(manager->pool().MemoryBytes()) /
        (static_cast<double>(hbm) + 2 * static_cast<double>(lower));
  }
}
BENCHMARK(Metadata)->Name("metadata")->ArgName("lower_percent")->Arg(0)->Arg(100)->Iterations(1);

}  // namespace
}  // namespace tidepool::bench
