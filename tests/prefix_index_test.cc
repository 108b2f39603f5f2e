// PrefixIndex: what each operation promises, one at a time. prefix_index_model_test.cc compares
// random sequences of them with a model.
#include "tidepool/prefix_index.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tidepool/block_pool.h"

namespace tidepool {
namespace {

using Blocks = std::vector<BlockId>;
using Tokens = std::vector<Token>;

struct Setup {
  GroupIndex groups = 1;
  std::uint32_t block_tokens = 4;
  std::vector<std::uint32_t> slots = {256, 256, 256};
  std::uint64_t (*child_hash)(NodeId, std::span<const Token>) = nullptr;
  PrefixHash (*block_digest)(const PrefixHash&, std::span<const Token>) = nullptr;
};

// A pool, an index and one root, and the steps a manager takes around them.
class Fixture {
 public:
  explicit Fixture(const Setup& setup = {})
      : pool({.block_tokens = setup.block_tokens, .slots = setup.slots}),
        index({.pool = &pool,
               .groups = setup.groups,
               .child_hash = setup.child_hash,
               .block_digest = setup.block_digest}),
        root(index.AddRoot({}, 0, NamespaceId(0))) {}

  ~Fixture() {
    const Status status = index.Audit();
    EXPECT_TRUE(status.ok()) << status;
    const Status pool_status = pool.Audit();
    EXPECT_TRUE(pool_status.ok()) << pool_status;
  }

  // A committed block; with `hold` a sequence keeps it.
  BlockId NewBlock(bool hold = false) {
    BlockId b;
    EXPECT_TRUE(pool.Allocate({&b, 1}));
    Move(b, {.to = Phase::kActive, .cause = Cause::kCommit});
    if (!hold) Unhold(b);
    return b;
  }
  void Move(BlockId b, const BlockPool::Move& move) {
    EXPECT_EQ(pool.Transition({&b, 1}, move), Outcome::kOk);
  }
  void Unhold(BlockId b) { Move(b, {.to = Phase::kIdle, .cause = Cause::kRelease, .hold = -1}); }
  void Hold(BlockId b) {
    Move(b, {.to = Phase::kActive,
             .cause = Cause::kReady,
             .via = Phase::kReuse,
             .via_cause = Cause::kMatch,
             .hold = 1});
  }

  // Publishes all full blocks of `tokens`, with fresh ids; returns what then stands there.
  Blocks Publish(const Tokens& tokens, PrefixIndex::PublishArgs args = {}, NodeId tree = {}) {
    PublishCursor cursor{.root = tree.valid() ? tree : root, .last = BlockId()};
    Blocks standing;
    for (std::size_t at = 0; at + pool.block_tokens() <= tokens.size(); at += pool.block_tokens()) {
      const BlockId b = NewBlock();
      args.blocks = {&b, 1};
      args.tokens = std::span(tokens).subspan(at, pool.block_tokens());
      last_result = index.Publish(cursor, args);
      if (last_result != PublishResult::kPublished) FreePrivate(b);
      standing.push_back(cursor.last);
    }
    return standing;
  }
  void FreePrivate(BlockId b) {
    TakeCopies(b);
    pool.FreeId(b);
  }
  void TakeCopies(BlockId b) {
    Move(b, {.to = Phase::kFree, .cause = Cause::kDrop});
    for (TierIndex tier = 0; tier < pool.tier_count(); ++tier) {
      if (pool.slot(b, tier).valid()) pool.DetachSlot(b, tier);
    }
  }
  // Loses every copy. Returns whether the block left the index (and frees it).
  bool Drop(BlockId b, Blocks* orphans = nullptr) {
    TakeCopies(b);
    const bool left = index.Remove(b, orphans);
    if (left) pool.FreeId(b);
    return left;
  }
  void CopyTo(BlockId b, TierIndex tier) {
    EXPECT_TRUE(pool.AttachSlot(b, tier));
    pool.CommitCopy(b, tier);
    index.OnCopyChanged(b);
  }
  void EvictFromHbm(BlockId b) {
    Move(b, {.to = Phase::kCandidate, .cause = Cause::kSelectVictim});
    Move(b, {.to = Phase::kOffloaded, .cause = Cause::kEvict});
    pool.DetachSlot(b, kHbmTier);
    index.OnCopyChanged(b);
  }

  const MatchResult& Match(const Tokens& tokens, MatchQuery query = {}) {
    if (!query.root.valid()) query.root = root;
    query.tokens = tokens;
    index.Match(query, result);
    return result;
  }
  // Blocks that a plain query finds.
  std::size_t Hit(const Tokens& tokens, NodeId tree = {}) {
    return Match(tokens, {.root = tree}).blocks.size();
  }

  BlockPool pool;
  PrefixIndex index;
  NodeId root;
  MatchResult result;
  PublishResult last_result{};
};

// Tokens of blocks named by the letters: "ab" is two blocks of four tokens.
Tokens Text(const std::string& letters) {
  Tokens tokens;
  for (char c : letters) tokens.insert(tokens.end(), {c, c + 1000, c + 2000, c + 3000});
  return tokens;
}

// --- Scenarios by name. ---

std::uint64_t ConstantHash(NodeId, std::span<const Token>) { return ~std::uint64_t{0}; }
PrefixHash ConstantDigest(const PrefixHash&, std::span<const Token>) { return {1, 1}; }

TEST(PrefixIndexScenarios, S50HashCollision) {
  Fixture f({.child_hash = &ConstantHash, .block_digest = &ConstantDigest});
  const Blocks a = f.Publish({1, 2, 3, 4});
  EXPECT_EQ(f.Hit({9, 9, 9, 9}), 0u);
  const Blocks c = f.Publish({9, 9, 9, 9});
  EXPECT_EQ(f.Match({1, 2, 3, 4}).blocks, a);
  EXPECT_EQ(f.Match({9, 9, 9, 9}).blocks, c);
  EXPECT_NE(a, c);
}

TEST(PrefixIndexScenarios, S50ManyCollidingChildrenComeAndGo) {
  Fixture f({.child_hash = &ConstantHash});
  Blocks blocks;
  for (Token t = 0; t < 200; ++t) blocks.push_back(f.Publish({t, t, t, t})[0]);
  for (Token t = 0; t < 200; t += 2) EXPECT_TRUE(f.Drop(blocks[static_cast<std::size_t>(t)]));
  for (Token t = 0; t < 200; ++t) EXPECT_EQ(f.Hit({t, t, t, t}), static_cast<std::size_t>(t % 2));
}

TEST(PrefixIndexScenarios, S51FieldsOfAKeyHaveTypes) {
  Fixture f;
  const NodeId adapter = f.index.AddRoot({.adapter = "X"}, 0, NamespaceId(1));
  const NodeId salt = f.index.AddRoot({.tenant = "X"}, 0, NamespaceId(2));
  const Blocks under_adapter = f.Publish(Text("ab"), {}, adapter);
  EXPECT_EQ(f.Hit(Text("ab"), salt), 0u);
  EXPECT_EQ(f.Hit(Text("ab"), adapter), 2u);
  const Blocks under_salt = f.Publish(Text("ab"), {}, salt);
  EXPECT_NE(f.pool.digest(under_adapter[0]), f.pool.digest(under_salt[0]));
  EXPECT_EQ(f.index.root_namespace(f.pool.node(under_adapter[1])), NamespaceId(1));
  EXPECT_EQ(f.index.root_namespace(salt), NamespaceId(2));
  EXPECT_EQ(f.index.root_of(f.pool.node(under_salt[1])), salt);
}

TEST(PrefixIndexScenarios, S53BlockDigestsAreTheScheme) {
  Fixture f;
  const Blocks blocks = f.Publish(Text("ab"));
  const DigestScheme scheme(0);
  const PrefixHash root = scheme.Root({}, 0);
  const PrefixHash a = scheme.Block(root, Text("a"), nullptr);
  EXPECT_EQ(f.pool.digest(blocks[0]), a);
  EXPECT_EQ(f.pool.digest(blocks[1]), scheme.Block(a, Text("b"), nullptr));
  EXPECT_EQ(f.index.ParentDigest(blocks[0]), root);
  EXPECT_EQ(f.index.ParentDigest(blocks[1]), a);
}

TEST(PrefixIndexScenarios, S55SameTokensOtherContent) {
  Fixture f;
  const PrefixHash d1 = {1, 1};
  const PrefixHash d2 = {1, 2};
  const Tokens tokens = {7, 7, 7, 7};
  const std::vector<BlockContent> c1 = {{.block = 0, .key = d1}};
  const std::vector<BlockContent> c2 = {{.block = 0, .key = d2}};
  const Blocks with = f.Publish(tokens, {.content = &d1});
  EXPECT_EQ(f.Match(tokens, {.content = c1}).blocks, with);
  EXPECT_TRUE(f.Match(tokens, {.content = c2}).blocks.empty());
  EXPECT_TRUE(f.Match(tokens, {.partial_tail = true}).blocks.empty());
  EXPECT_FALSE(f.result.partial.valid());  // not offered either: its content is another
  const Blocks without = f.Publish(tokens);
  EXPECT_EQ(f.last_result, PublishResult::kPublished);
  EXPECT_EQ(f.Match(tokens).blocks, without);
  EXPECT_NE(f.pool.digest(with[0]), f.pool.digest(without[0]));
}

// --- Matching. ---

TEST(PrefixIndexMatch, LongestPrefixAndPartialTail) {
  Fixture f;
  const Blocks abc = f.Publish(Text("abc"));
  EXPECT_EQ(f.index.nodes(), 1u);
  f.Match(Text("abx"), {.partial_tail = true});
  EXPECT_EQ(f.result.blocks, Blocks(abc.begin(), abc.begin() + 2));
  EXPECT_EQ(f.result.node, f.pool.node(abc[0]));
  EXPECT_EQ(f.result.node_blocks, 2u);
  EXPECT_FALSE(f.result.partial.valid());
  EXPECT_EQ(f.result.segments, (std::vector<Segment>{{.first = 0, .count = 2, .tier = 0}}));

  Tokens tokens = Text("ab");
  tokens.insert(tokens.end(), {'c', 'c' + 1000});
  f.Match(tokens, {.partial_tail = true});
  EXPECT_EQ(f.result.partial, abc[2]);
  EXPECT_EQ(f.result.partial_tokens, 2u);

  // A limit below what is there: the next block is offered as a tail.
  f.Match(Text("abc"), {.partial_tail = true, .max_blocks = 2});
  EXPECT_EQ(f.result.blocks.size(), 2u);
  EXPECT_EQ(f.result.partial, abc[2]);
  EXPECT_EQ(f.result.partial_tokens, 4u);
}

TEST(PrefixIndexMatch, PartialTailTakesTheChildThatSharesMost) {
  Fixture f;
  const Tokens base = Text("a");
  Tokens one = base, three = base, query = base;
  one.insert(one.end(), {1, 9, 9, 9});
  three.insert(three.end(), {1, 2, 3, 9});
  query.insert(query.end(), {1, 2, 3, 4, 5});
  f.Publish(one);
  const Blocks best = f.Publish(three);
  f.Match(query, {.partial_tail = true});
  EXPECT_EQ(f.result.partial, best[1]);
  EXPECT_EQ(f.result.partial_tokens, 3u);
  f.Match(query);
  EXPECT_FALSE(f.result.partial.valid());
}

TEST(PrefixIndexMatch, UnknownOrRetiredRootMatchesNothing) {
  Fixture f;
  f.Publish(Text("ab"));
  EXPECT_TRUE(f.Match(Text("ab"), {.root = NodeId(12345)}).blocks.empty());
  f.index.Retire(f.root);
  EXPECT_EQ(f.Hit(Text("ab")), 0u);
}

TEST(PrefixIndexMatch, SegmentsTellTiers) {
  Fixture f;
  const Blocks blocks = f.Publish(Text("abcde"));
  for (std::size_t i : {1u, 2u}) f.CopyTo(blocks[i], 1);
  f.CopyTo(blocks[3], 2);
  for (std::size_t i : {1u, 2u, 3u}) f.EvictFromHbm(blocks[i]);
  f.Match(Text("abcde"));
  EXPECT_EQ(f.result.blocks, blocks);
  EXPECT_EQ(f.result.segments, (std::vector<Segment>{{.first = 0, .count = 1, .tier = 0},
                                                     {.first = 1, .count = 2, .tier = 1},
                                                     {.first = 3, .count = 1, .tier = 2},
                                                     {.first = 4, .count = 1, .tier = 0}}));
}

TEST(PrefixIndexMatch, PendingBlocksOnTheirTimelineOnly) {
  Fixture f;
  const Blocks blocks = f.Publish(Text("ab"), {.pending = true, .timeline = TimelineId(3)});
  EXPECT_EQ(f.Hit(Text("ab")), 0u);
  EXPECT_TRUE(f.Match(Text("ab"), {.timeline = TimelineId(4)}).blocks.empty());
  EXPECT_EQ(f.Match(Text("ab"), {.timeline = TimelineId(3)}).blocks, blocks);
  EXPECT_EQ(f.result.pending, 2u);
  f.index.ConfirmPublished(std::span(blocks).first(1));
  EXPECT_EQ(f.Hit(Text("ab")), 1u);
  f.index.ConfirmPublished(blocks);
  f.index.ConfirmPublished(blocks);  // again: nothing happens
  EXPECT_EQ(f.Hit(Text("ab")), 2u);
}

// --- Publishing. ---

TEST(PrefixIndexPublish, DuplicateStaysPrivate) {
  Fixture f;
  const Blocks first = f.Publish(Text("ab"), {.pending = true, .timeline = TimelineId(1)});
  const Blocks again = f.Publish(Text("ab"), {.pending = true, .timeline = TimelineId(2)});
  EXPECT_EQ(f.last_result, PublishResult::kDuplicate);
  EXPECT_EQ(again, first);
  EXPECT_EQ(f.index.blocks(), 2u);
  // What follows the duplicate on another timeline gets a node of its own.
  const Blocks longer = f.Publish(Text("abc"), {.pending = true, .timeline = TimelineId(2)});
  EXPECT_NE(f.pool.node(longer[2]), f.pool.node(longer[1]));
  EXPECT_EQ(f.Match(Text("abc"), {.timeline = TimelineId(1)}).blocks.size(), 2u);
}

TEST(PrefixIndexPublish, SplitKeepsTheLowerIdsNode) {
  Fixture f;
  const Blocks abcd = f.Publish(Text("abcd"));
  const NodeId lower = f.pool.node(abcd[3]);
  f.Publish(Text("abx"));
  EXPECT_EQ(f.index.nodes(), 3u);
  EXPECT_EQ(f.pool.node(abcd[3]), lower);
  EXPECT_EQ(f.pool.offset(abcd[3]), 1u);
  EXPECT_NE(f.pool.node(abcd[1]), lower);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(f.index.Position(abcd[i]), i);
  EXPECT_EQ(f.index.Parent(abcd[2]), abcd[1]);
  EXPECT_EQ(f.index.Parent(abcd[0]), BlockId());
  EXPECT_EQ(f.Match(Text("abcd")).blocks, abcd);
}

TEST(PrefixIndexPublish, ExtendDoesWhatPublishDoes) {
  Fixture f({.slots = {2048}});
  Tokens tokens;
  for (Token t = 0; t < 4 * 600; ++t) tokens.push_back(t);
  const NodeId other = f.index.AddRoot({}, 0, NamespaceId(1));  // same digests
  const Blocks one_by_one = f.Publish(tokens);

  Blocks blocks;
  for (int i = 0; i < 600; ++i) blocks.push_back(f.NewBlock());
  PublishCursor cursor{.root = other, .last = BlockId()};
  EXPECT_EQ(f.index.Extend(cursor, {.blocks = blocks, .tokens = tokens}), 0u);  // begins a node
  EXPECT_EQ(f.index.Publish(cursor, {.blocks = std::span(blocks).first(1),
                                     .tokens = std::span(tokens).first(4),
                                     .more = 599}),
            PublishResult::kPublished);
  EXPECT_EQ(f.index.Extend(cursor, {.blocks = std::span(blocks).subspan(1),
                                    .tokens = std::span(tokens).subspan(4)}),
            599u);
  EXPECT_EQ(cursor.last, blocks.back());
  EXPECT_EQ(f.Match(tokens, {.root = other}).blocks, blocks);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_EQ(f.pool.digest(blocks[i]), f.pool.digest(one_by_one[i]));
  }
  // Not in place: a child is there, or the run is claimed by somebody.
  PublishCursor inside{.root = other, .last = blocks[300]};
  const BlockId b = f.NewBlock();
  EXPECT_EQ(f.index.Extend(inside, {.blocks = {&b, 1}, .tokens = std::span(tokens).first(4)}), 0u);
  f.index.SetClaim(0, blocks.back(), Priority::kNormal, nullptr);
  EXPECT_EQ(f.index.Extend(cursor, {.blocks = {&b, 1}, .tokens = std::span(tokens).first(4)}), 0u);
  EXPECT_EQ(f.index.Extend(cursor, {.blocks = {&b, 1},
                                    .tokens = std::span(tokens).first(4),
                                    .may_extend_claimed = true}),
            1u);
  EXPECT_EQ(f.index.ClaimedTail(0), b);
  EXPECT_EQ(f.pool.claim_priority(b), Priority::kNormal);
}

TEST(PrefixIndexPublish, RunsLongerThanAnOffsetBecomeChains) {
  constexpr std::uint32_t kBlocks = 70'000;
  Fixture f({.block_tokens = 1, .slots = {kBlocks + 8}});
  Blocks blocks(kBlocks);
  ASSERT_TRUE(f.pool.Allocate(blocks));
  ASSERT_EQ(f.pool.Transition(blocks, {.to = Phase::kActive, .cause = Cause::kCommit}),
            Outcome::kOk);
  Tokens tokens(kBlocks);
  for (std::uint32_t i = 0; i < kBlocks; ++i) tokens[i] = static_cast<Token>(i * 7 % 1000);
  PublishCursor cursor{.root = f.root, .last = BlockId()};
  for (std::uint32_t i = 0; i < kBlocks;) {
    const std::span<const BlockId> rest = std::span(blocks).subspan(i);
    i += f.index.Extend(cursor, {.blocks = rest, .tokens = std::span(tokens).subspan(i)});
    if (i == kBlocks) break;
    ASSERT_EQ(f.index.Publish(cursor, {.blocks = std::span(blocks).subspan(i, 1),
                                       .tokens = std::span(tokens).subspan(i, 1)}),
              PublishResult::kPublished);
    ++i;
  }
  EXPECT_EQ(f.index.nodes(), 2u);
  EXPECT_EQ(f.index.Position(blocks.back()), kBlocks - 1);
  EXPECT_EQ(f.Match(tokens).blocks, blocks);
  EXPECT_EQ(f.result.segments.size(), 1u);
  tokens[65'600] += 1;
  EXPECT_EQ(f.Match(tokens).blocks.size(), 65'600u);
}

TEST(PrefixIndexPublish, CursorNoticesThatItsBlockIsGone) {
  Fixture f;
  const BlockId a = f.NewBlock();
  PublishCursor cursor{.root = f.root, .last = BlockId()};
  const Tokens text = Text("ab");
  f.index.Publish(cursor, {.blocks = {&a, 1}, .tokens = std::span(text).first(4)});
  PublishCursor stale = cursor;
  EXPECT_TRUE(f.Drop(a));
  const BlockId b = f.NewBlock(true);  // recycles the id
  EXPECT_EQ(b, a);
  PublishCursor fresh{.root = f.root, .last = BlockId()};
  f.index.Publish(fresh, {.blocks = {&b, 1}, .tokens = std::span(text).first(4)});
  const BlockId c = f.NewBlock(true);
  const PrefixIndex::PublishArgs args{.blocks = {&c, 1}, .tokens = std::span(text).subspan(4)};
  EXPECT_EQ(f.index.Publish(stale, args), PublishResult::kDetached);
  EXPECT_FALSE(f.pool.Has(c, word::kPublished));
  EXPECT_EQ(f.index.Publish(fresh, args), PublishResult::kPublished);
}

// --- Removing. ---

TEST(PrefixIndexRemove, InteriorBlockBecomesATombstone) {
  Fixture f;
  const Blocks abcd = f.Publish(Text("abcd"));
  const Blocks abx = f.Publish(Text("abx"));
  const std::uint32_t free_before = f.pool.free_blocks();
  Blocks orphans;
  EXPECT_FALSE(f.Drop(abcd[1], &orphans));
  EXPECT_EQ(f.index.tombstones(), 1u);
  std::sort(orphans.begin(), orphans.end());
  EXPECT_EQ(orphans, (Blocks{abcd[2], abcd[3], abx[2]}));
  EXPECT_TRUE(f.pool.Has(abcd[3], word::kOrphan));
  EXPECT_EQ(f.Hit(Text("abcd")), 1u);

  f.Match(Text("abcd"), {.report_holes = true});
  EXPECT_EQ(f.result.blocks, (Blocks{abcd[0], BlockId(), abcd[2], abcd[3]}));
  EXPECT_EQ(f.result.segments, (std::vector<Segment>{{.first = 0, .count = 1, .tier = 0},
                                                     {.first = 2, .count = 2, .tier = 0}}));
  Blocks path;
  f.index.AppendPath(abcd[3], path);
  EXPECT_EQ(path, (Blocks{abcd[0], abcd[2], abcd[3]}));

  // Once nothing lives below it, the tombstone goes, and its id with it.
  EXPECT_TRUE(f.Drop(abcd[3]));
  EXPECT_TRUE(f.Drop(abcd[2]));
  EXPECT_EQ(f.index.tombstones(), 1u);
  EXPECT_TRUE(f.Drop(abx[2]));
  EXPECT_EQ(f.index.tombstones(), 0u);
  EXPECT_EQ(f.index.blocks(), 1u);
  EXPECT_EQ(f.pool.free_blocks(), free_before + 4);
}

TEST(PrefixIndexRemove, PublishingAgainFillsATombstone) {
  Fixture f;
  const Blocks abcd = f.Publish(Text("abcd"));
  f.Drop(abcd[1]);
  f.Drop(abcd[2]);
  EXPECT_EQ(f.index.tombstones(), 2u);
  Blocks revived;
  const Blocks ab = f.Publish(Text("ab"), {.revived = &revived});
  EXPECT_EQ(f.last_result, PublishResult::kPublished);
  EXPECT_TRUE(revived.empty());  // the next tombstone still hides the rest
  EXPECT_EQ(f.Hit(Text("abcd")), 2u);
  const Blocks abc = f.Publish(Text("abc"), {.revived = &revived});
  EXPECT_EQ(revived, Blocks{abcd[3]});
  EXPECT_FALSE(f.pool.Has(abcd[3], word::kOrphan));
  EXPECT_EQ(f.Match(Text("abcd")).blocks, (Blocks{abcd[0], ab[1], abc[2], abcd[3]}));
  EXPECT_EQ(f.index.tombstones(), 0u);
}

TEST(PrefixIndexRemove, FillingWithAnotherTimelineSplits) {
  Fixture f;
  const PrefixIndex::PublishArgs on1 = {.pending = true, .timeline = TimelineId(1)};
  const Blocks abc = f.Publish(Text("abc"), on1);
  f.Drop(abc[1]);
  const Blocks filled = f.Publish(Text("ab"), {.pending = true, .timeline = TimelineId(2)});
  EXPECT_NE(filled[1], abc[1]);
  EXPECT_EQ(f.Match(Text("abc"), {.timeline = TimelineId(1)}).blocks, Blocks{abc[0]});
  f.index.ConfirmPublished(std::span(filled).subspan(1));
  EXPECT_EQ(f.Match(Text("abc"), {.timeline = TimelineId(1)}).blocks,
            (Blocks{abc[0], filled[1], abc[2]}));
}

// --- Order of eviction. ---

TEST(PrefixIndexOrder, TailsOfRunsAndFamilies) {
  Fixture f;
  const Blocks abc = f.Publish(Text("abc"));
  EXPECT_TRUE(f.index.IsResidentTail(abc[2], 0));
  EXPECT_FALSE(f.index.IsResidentTail(abc[1], 0));
  EXPECT_EQ(f.index.ResidentTail(abc[0], 0), abc[2]);
  const Blocks abcx = f.Publish(Text("abcx"));
  const Blocks abcy = f.Publish(Text("abcy"));
  const Blocks abcz = f.Publish(Text("abcz"));
  f.index.Touch(abcy[3], 1);
  f.index.Touch(abcx[3], 2);
  f.index.Touch(abcz[3], 3);
  EXPECT_FALSE(f.index.IsResidentTail(abc[2], 0));
  EXPECT_EQ(f.index.ResidentTail(abc[0], 0), abcy[3]);
  f.index.Touch(abcy[3], 4);
  EXPECT_EQ(f.index.ResidentTail(abc[0], 0), abcx[3]);

  // Out of HBM, x still counts in the tier below.
  f.CopyTo(abcx[3], 1);
  f.EvictFromHbm(abcx[3]);
  EXPECT_EQ(f.index.ResidentTail(abc[0], 0), abcz[3]);
  EXPECT_EQ(f.index.ResidentTail(abcx[3], 1), abcx[3]);
  EXPECT_EQ(f.index.ResidentTail(abcx[3], 0), BlockId());

  // Held blocks stand in the way.
  f.Hold(abcz[3]);
  EXPECT_EQ(f.index.ResidentTail(abc[0], 0), BlockId());
  f.Unhold(abcz[3]);
}

TEST(PrefixIndexOrder, ChosenVictimsCountAsGone) {
  Fixture f;
  const Blocks abc = f.Publish(Text("abc"));
  const Blocks abcx = f.Publish(Text("abcx"));
  const Blocks abcy = f.Publish(Text("abcy"));
  for (BlockId b : {abcx[3], abcy[3]}) f.CopyTo(b, 1);
  f.index.MarkChosen(abcx[3], 0);
  EXPECT_EQ(f.index.ResidentTail(abc[0], 0), abcy[3]);
  f.index.MarkChosen(abcy[3], 0);
  EXPECT_TRUE(f.index.IsResidentTail(abc[2], 0));
  EXPECT_FALSE(f.index.IsResidentTail(abc[2], 1));
  f.index.MarkChosen(abc[2], 0);
  EXPECT_EQ(f.index.ResidentTail(abc[0], 0), abc[1]);
  EXPECT_EQ(f.Hit(Text("abcx")), 4u);  // matching does not care
  for (BlockId b : {abcx[3], abc[2]}) f.index.UnmarkChosen(b, 0);
  f.EvictFromHbm(abcy[3]);
  f.index.UnmarkChosen(abcy[3], 0);
  EXPECT_EQ(f.index.ResidentTail(abc[0], 0), abcx[3]);
}

// --- Claims. ---

TEST(PrefixIndexClaims, CoverPathsAndFollowEvictions) {
  Fixture f;
  const Blocks abcd = f.Publish(Text("abcd"));
  Blocks changed;
  f.index.SetClaim(0, abcd[1], Priority::kInteractive, &changed);
  EXPECT_EQ(f.index.nodes(), 2u);  // split where the claim ends
  EXPECT_EQ(changed, (Blocks{abcd[0], abcd[1]}));
  changed.clear();
  f.index.SetClaim(1, abcd[3], Priority::kNormal, &changed);
  EXPECT_EQ(changed, (Blocks{abcd[2], abcd[3]}));  // the others have a stronger claim
  changed.clear();
  f.index.SetClaim(0, abcd[1], Priority::kBackground, &changed);
  EXPECT_EQ(changed, (Blocks{abcd[0], abcd[1]}));
  EXPECT_EQ(f.pool.claim_priority(abcd[0]), Priority::kNormal);

  EXPECT_TRUE(f.Drop(abcd[3]));
  EXPECT_EQ(f.index.ClaimedTail(1), abcd[2]);
  EXPECT_TRUE(f.Drop(abcd[2]));
  EXPECT_EQ(f.index.ClaimedTail(1), abcd[1]);  // the node is gone, the claim moved up
  changed.clear();
  f.index.ClearClaim(1, &changed);
  EXPECT_EQ(changed, (Blocks{abcd[0], abcd[1]}));
  EXPECT_EQ(f.index.ClaimedTail(1), BlockId());
  EXPECT_TRUE(f.Drop(abcd[1]));
  EXPECT_TRUE(f.Drop(abcd[0]));
  EXPECT_EQ(f.index.ClaimedTail(0), BlockId());
  EXPECT_EQ(f.index.nodes(), 0u);
}

TEST(PrefixIndexClaims, ChangesAreToldInPrefixOrderAcrossNodes) {
  Fixture f;
  const Blocks path = f.Publish(Text("abcde"));
  f.Publish(Text("abx"));    // splits behind the second block
  f.Publish(Text("abcdx"));  // and behind the fourth
  Blocks changed;
  f.index.SetClaim(0, path.back(), Priority::kNormal, &changed);
  EXPECT_EQ(changed, path);
  changed.clear();
  f.index.ClearClaim(0, &changed);
  EXPECT_EQ(changed, path);
}

TEST(PrefixIndexClaims, MovingAlongAPathChangesOnlyWhatDiffers) {
  Fixture f;
  const Blocks abc = f.Publish(Text("abc"));
  const Blocks abx = f.Publish(Text("abx"));
  Blocks changed;
  f.index.SetClaim(7, abc[2], Priority::kCritical, &changed);
  EXPECT_EQ(changed.size(), 3u);
  changed.clear();
  f.index.SetClaim(7, abx[2], Priority::kCritical, &changed);
  std::sort(changed.begin(), changed.end());
  EXPECT_EQ(changed, (Blocks{abc[2], abx[2]}));
  // Somebody else's claim keeps a run from growing; the publisher's own does not.
  f.Publish(Text("abxy"), {.may_extend_claimed = false});
  EXPECT_EQ(f.index.ClaimedTail(7), abx[2]);
}

// --- Whole trees. ---

TEST(PrefixIndexRetire, StaleBlocksComeLeafFirst) {
  Fixture f;
  const Blocks abc = f.Publish(Text("abc"));
  const Blocks abx = f.Publish(Text("abx"));
  f.Hold(abx[2]);
  f.index.Retire(f.root);
  f.root = f.index.AddRoot({}, 1, NamespaceId(0));
  EXPECT_TRUE(f.index.IsStale(abc[0]));
  EXPECT_EQ(f.Hit(Text("abc")), 0u);
  const Blocks fresh = f.Publish(Text("abc"));
  EXPECT_FALSE(f.index.IsStale(fresh[0]));

  EXPECT_EQ(f.index.NextStale(), abc[2]);
  EXPECT_TRUE(f.Drop(abc[2]));
  EXPECT_EQ(f.index.NextStale(), BlockId());  // the rest is held, or above what is held
  EXPECT_EQ(f.index.NextStale(), BlockId());
  f.Unhold(abx[2]);
  Blocks gone;
  for (BlockId b = f.index.NextStale(); b.valid(); b = f.index.NextStale()) {
    gone.push_back(b);
    EXPECT_TRUE(f.Drop(b));
  }
  EXPECT_EQ(gone, (Blocks{abx[2], abc[1], abc[0]}));
  EXPECT_EQ(f.index.blocks(), 3u);

  // A sequence of the old tree cannot publish any more.
  const BlockId b = f.NewBlock();
  PublishCursor old{.root = NodeId(0), .last = BlockId()};
  const Tokens text = Text("a");
  EXPECT_EQ(f.index.Publish(old, {.blocks = {&b, 1}, .tokens = text}), PublishResult::kDetached);
}

// --- Groups. ---

TEST(PrefixIndexGroups, EachGroupHasItsOwnBlocks) {
  Fixture f({.groups = 2});
  const Tokens text = Text("abc");
  PublishCursor cursor{.root = f.root, .last = BlockId()};
  Blocks full, window;
  for (std::size_t i = 0; i < 3; ++i) {
    const Blocks position = {f.NewBlock(), f.NewBlock()};
    EXPECT_EQ(
        f.index.Publish(cursor, {.blocks = position, .tokens = std::span(text).subspan(4 * i, 4)}),
        PublishResult::kPublished);
    full.push_back(position[0]);
    window.push_back(position[1]);
  }
  EXPECT_EQ(f.index.blocks(), 6u);
  EXPECT_EQ(f.Match(text).blocks, full);
  EXPECT_EQ(f.Match(text, {.group = 1}).blocks, window);
  EXPECT_EQ(f.index.Parent(window[2]), window[1]);

  // What is behind a window may leave in any order.
  EXPECT_TRUE(f.index.IsResidentTail(window[0], 0));
  EXPECT_TRUE(f.Drop(window[0]));
  EXPECT_EQ(f.Match(text).blocks, full);
  EXPECT_TRUE(f.Match(text, {.group = 1}).blocks.empty());
  EXPECT_EQ(f.Match(text, {.group = 1, .report_holes = true}).blocks,
            (Blocks{BlockId(), window[1], window[2]}));

  // Published again, the empty place is filled and the rest is a duplicate.
  const Blocks again = {f.NewBlock(), f.NewBlock()};
  cursor = {.root = f.root, .last = BlockId()};
  EXPECT_EQ(f.index.Publish(cursor, {.blocks = again, .tokens = std::span(text).first(4)}),
            PublishResult::kPublished);
  EXPECT_EQ(cursor.last, full[0]);
  EXPECT_FALSE(f.pool.Has(again[0], word::kPublished));
  EXPECT_TRUE(f.pool.Has(again[1], word::kPublished));
  f.FreePrivate(again[0]);

  // The last position lost its first group: what is left of it is an orphan.
  Blocks orphans;
  EXPECT_FALSE(f.Drop(full[2], &orphans));
  EXPECT_EQ(orphans, Blocks{window[2]});
  EXPECT_TRUE(f.Drop(window[2]));
  EXPECT_EQ(f.index.tombstones(), 0u);
}

// --- Accounts. ---

TEST(PrefixIndexFacts, ForEachVisitsParentsFirst) {
  Fixture f;
  const Blocks abc = f.Publish(Text("abc"));
  const Blocks abx = f.Publish(Text("abx"));
  f.Drop(abc[1]);
  Blocks seen;
  f.index.ForEach([](void* context, BlockId b) { static_cast<Blocks*>(context)->push_back(b); },
                  &seen);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0], abc[0]);
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, (Blocks{abc[0], abc[2], abx[2]}));
}

TEST(PrefixIndexFacts, LongRunsCostAFewBytesABlock) {
  Fixture f({.slots = {20'000}});
  for (Token p = 0; p < 30; ++p) {
    Tokens tokens(512 * 4, p);
    f.Publish(tokens);
  }
  EXPECT_EQ(f.index.nodes(), 30u);
  EXPECT_LT(f.index.MemoryBytes(), f.index.blocks() * 6 + 8192);
}

}  // namespace
}  // namespace tidepool
