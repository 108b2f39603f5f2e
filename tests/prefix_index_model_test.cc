// PrefixIndex against a brute-force model: a map from each published prefix to its blocks. Random
// operations, Audit after each.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tidepool/block_pool.h"
#include "tidepool/prefix_index.h"

namespace tidepool {
namespace {

constexpr std::uint32_t kBlockTokens = 4;
constexpr TierIndex kTiers = 3;

// A prefix: the root's number, then two characters a block (symbol, content).
using Key = std::string;

Key ParentOf(const Key& key) { return key.substr(0, key.size() - 2); }
bool IsPrefixOf(const Key& a, const Key& b) { return b.compare(0, a.size(), a) == 0; }

struct Entry {
  std::vector<BlockId> blocks;  // one a group; invalid = absent
  bool tombstone = false;
  std::optional<TimelineId> pending;  // of those blocks that are pending
};

struct Setup {
  std::uint32_t seed = 1;
  GroupIndex groups = 1;
  bool constant_hash = false;
  int symbols = 3;
};

std::uint64_t ConstantHash(NodeId, std::span<const Token>) { return 42; }

class World {
 public:
  explicit World(const Setup& setup)
      : setup_(setup),
        random_(setup.seed),
        pool_({.block_tokens = kBlockTokens, .slots = {400, 300, 300}}),
        index_({.pool = &pool_,
                .digest_seed = setup.seed,
                .groups = setup.groups,
                .child_hash = setup.constant_hash ? &ConstantHash : nullptr}) {
    for (int i = 0; i < 2; ++i) AddRoot();
  }

  void Step() {
    switch (Pick(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return PublishSome();
      case 4:
      case 5:
      case 6:
        return CheckMatch();
      case 7:
      case 8:
        return ChangeCopies();
      case 9:
      case 10:
        return RemoveSome();
      case 11:
        return Claim();
      case 12:
        return CheckOrder();
      case 13:
        return ConfirmSome();
      case 14:
        return UnholdSome();
      default:
        return Pick(20) == 0 ? RetireSome() : DrainStale();
    }
  }

  void Check() {
    const Status audit = index_.Audit();
    ASSERT_TRUE(audit.ok()) << audit;
    std::uint32_t blocks = 0;
    std::uint32_t tombstones = 0;
    for (const auto& [key, entry] : model_) {
      for (BlockId b : entry.blocks) blocks += b.valid() ? 1 : 0;
      tombstones += entry.tombstone ? 1 : 0;
    }
    ASSERT_EQ(index_.blocks(), blocks);
    ASSERT_EQ(index_.tombstones(), tombstones);
  }

  void CheckAll() {
    const Status pool = pool_.Audit();
    ASSERT_TRUE(pool.ok()) << pool;
    for (const auto& [key, entry] : model_) {
      const BlockId b = entry.blocks[0];
      ASSERT_EQ(index_.Position(b), key.size() / 2 - 1);
      const auto parent = model_.find(ParentOf(key));
      ASSERT_EQ(index_.Parent(b), parent == model_.end() ? BlockId() : parent->second.blocks[0]);
      ASSERT_EQ(index_.IsStale(b), !LiveRoot(key));
      if (entry.tombstone) continue;
      ASSERT_EQ(pool_.claim_priority(b), ModelPriority(key)) << "claims";
      ASSERT_EQ(pool_.Has(b, word::kOrphan), IsOrphan(key));
    }
  }

 private:
  struct ModelClaim {
    Key deepest;  // empty: none
    Priority priority = Priority::kBackground;
  };

  std::uint32_t Pick(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }

  // --- Prompts. ---

  char ContentChar() { return Pick(12) == 0 ? static_cast<char>('1' + Pick(2)) : '0'; }
  static PrefixHash ContentKey(char c) { return {7, static_cast<std::uint64_t>(c)}; }

  // Blocks of one symbol differ from those of another only in their last token, so that partial
  // matches happen.
  static std::vector<Token> BlockTokensOf(char symbol) { return {5, 5, symbol / 2, symbol}; }

  Key RandomKey(std::uint32_t max_blocks) {
    Key key(1, live_roots_[Pick(static_cast<std::uint32_t>(live_roots_.size()))]);
    for (std::uint32_t n = Pick(max_blocks) + 1; n > 0; --n) {
      // Mostly one symbol: long runs.
      key += static_cast<char>(
          'a' + (Pick(4) != 0 ? 0 : Pick(static_cast<std::uint32_t>(setup_.symbols))));
      key += ContentChar();
    }
    return key;
  }

  struct Prompt {
    std::vector<Token> tokens;
    std::vector<BlockContent> content;
  };
  static Prompt PromptOf(const Key& key) {
    Prompt prompt;
    for (std::size_t i = 1; i < key.size(); i += 2) {
      const std::vector<Token> tokens = BlockTokensOf(key[i]);
      if (key[i + 1] != '0') {
        prompt.content.push_back(
            {.block = static_cast<std::uint32_t>(i / 2), .key = ContentKey(key[i + 1])});
      }
      prompt.tokens.insert(prompt.tokens.end(), tokens.begin(), tokens.end());
    }
    return prompt;
  }

  // --- The pool's side. ---

  BlockId NewBlock() {
    BlockId b;
    if (!pool_.Allocate({&b, 1})) return {};
    Move(b, Phase::kActive, Cause::kCommit);
    return b;
  }
  void Move(BlockId b, Phase to, Cause cause, int hold = 0) {
    ASSERT_EQ(pool_.Transition({&b, 1}, {.to = to, .cause = cause, .hold = hold}), Outcome::kOk);
  }
  void Unhold(BlockId b) { Move(b, Phase::kIdle, Cause::kRelease, -1); }
  // Takes every copy of an unheld block away.
  void Drop(BlockId b) {
    Move(b, Phase::kFree, Cause::kDrop);
    for (TierIndex tier = 0; tier < kTiers; ++tier) {
      if (pool_.slot(b, tier).valid()) pool_.DetachSlot(b, tier);
    }
  }
  void FreePrivate(BlockId b) {
    Unhold(b);
    Drop(b);
    pool_.FreeId(b);
  }

  // --- The model's rules. ---

  bool LiveRoot(const Key& key) const { return live_roots_.find(key[0]) != std::string::npos; }
  std::uint8_t TopTier(const Key& key) const {
    const auto it = model_.find(key);
    if (it == model_.end() || it->second.tombstone) return kMaxTiers;
    const TierIndex tier = pool_.best_tier(it->second.blocks[0]);
    return tier == kTiers ? kMaxTiers : tier;
  }
  std::uint8_t PlannedTier(const Key& key) const {
    const std::uint8_t top = TopTier(key);
    if (top == kMaxTiers || !pool_.Has(model_.at(key).blocks[0], word::kChosen)) return top;
    return top + 1 == kTiers ? kMaxTiers : static_cast<std::uint8_t>(top + 1);
  }
  std::vector<Key> ChildrenOf(const Key& key) const {
    std::vector<Key> children;
    for (auto it = model_.upper_bound(key); it != model_.end() && IsPrefixOf(key, it->first);
         ++it) {
      if (it->first.size() == key.size() + 2) children.push_back(it->first);
    }
    return children;
  }
  bool IsOrphan(const Key& key) const {
    for (Key k = ParentOf(key); k.size() > 1; k = ParentOf(k)) {
      if (model_.at(k).tombstone) return true;
    }
    return false;
  }
  Priority ModelPriority(const Key& key) const {
    Priority strongest = Priority::kBackground;
    for (const ModelClaim& claim : claims_) {
      if (IsPrefixOf(key, claim.deepest)) strongest = std::max(strongest, claim.priority);
    }
    return strongest;
  }
  std::vector<std::size_t> ClaimsOn(const Key& key) const {
    std::vector<std::size_t> on;
    for (std::size_t c = 0; c < claims_.size(); ++c) {
      if (IsPrefixOf(key, claims_[c].deepest)) on.push_back(c);
    }
    return on;
  }
  // Tombstones that nothing lives below go away; claims move up.
  void Clean(Key key) {
    while (key.size() > 1) {
      const auto it = model_.find(key);
      if (it != model_.end()) {
        const bool empty = std::none_of(it->second.blocks.begin() + 1, it->second.blocks.end(),
                                        [](BlockId b) { return b.valid(); });
        if (!it->second.tombstone || !empty || !ChildrenOf(key).empty()) return;
        model_.erase(it);
      }
      for (ModelClaim& claim : claims_) {
        if (claim.deepest == key) claim.deepest = key.size() > 3 ? ParentOf(key) : Key();
      }
      key = ParentOf(key);
    }
  }
  Key RandomEntry() {
    auto it = model_.begin();
    std::advance(it, Pick(static_cast<std::uint32_t>(model_.size())));
    return it->first;
  }

  // --- Operations. ---

  void AddRoot() {
    const char name = static_cast<char>('A' + roots_.size() % 26);
    const NodeId root = index_.AddRoot({.tenant = std::string(1, name)}, roots_.size(),
                                       NamespaceId(static_cast<std::uint32_t>(roots_.size())));
    ASSERT_TRUE(root.valid());
    ASSERT_EQ(index_.root_of(root), root);
    // A name is used again only long after its tree was drained.
    roots_.push_back(root);
    root_of_[name] = root;
    live_roots_ += name;
  }

  void PublishSome() {
    const Key key = RandomKey(14);
    const Prompt prompt = PromptOf(key);
    const bool pending = Pick(4) == 0;
    const TimelineId timeline(Pick(2));
    const bool may_extend = Pick(2) == 0;
    PublishCursor cursor{.root = root_of_[key[0]], .last = BlockId()};
    for (std::size_t end = 3; end <= key.size(); end += 2) {
      if (!PublishOne(cursor, key.substr(0, end), prompt, pending, timeline, may_extend)) return;
    }
  }

  bool PublishOne(PublishCursor& cursor, const Key& key, const Prompt& prompt, bool pending,
                  TimelineId timeline, bool may_extend) {
    std::vector<BlockId> blocks;
    for (GroupIndex group = 0; group < setup_.groups; ++group) {
      const bool skip = group > 0 && Pick(5) == 0;
      blocks.push_back(skip ? BlockId() : NewBlock());
      if (!skip && !blocks.back().valid()) {
        for (BlockId b : blocks)
          if (b.valid()) FreePrivate(b);
        return false;
      }
    }
    const std::size_t at = key.size() / 2 - 1;
    const PrefixHash content = ContentKey(key.back());
    const Key parent = ParentOf(key);
    const std::size_t siblings = ChildrenOf(parent).size();
    const std::vector<std::size_t> on_parent = ClaimsOn(parent);
    std::set<BlockId> expected_revived;
    const auto known = model_.find(key);
    const bool was_known = known != model_.end();
    std::vector<BlockId> before = was_known ? known->second.blocks : std::vector<BlockId>();
    const bool fills = was_known && known->second.tombstone;
    std::vector<BlockId> revived;
    const PublishResult result = index_.Publish(
        cursor, {.blocks = blocks,
                 .tokens = std::span(prompt.tokens).subspan(at * kBlockTokens, kBlockTokens),
                 .content = key.back() == '0' ? nullptr : &content,
                 .pending = pending,
                 .timeline = timeline,
                 .may_extend_claimed = may_extend,
                 .revived = &revived,
                 .more = Pick(3)});
    Entry& entry = model_[key];
    if (entry.blocks.empty()) entry.blocks.resize(setup_.groups);
    bool placed = false;
    const bool fits = !pending || !AnyPending(entry) || entry.pending == timeline;
    for (GroupIndex group = 0; group < setup_.groups; ++group) {
      const bool empty = fits && (!entry.blocks[group].valid() || (group == 0 && fills));
      if (!blocks[group].valid()) continue;
      if (empty) {
        entry.blocks[group] = blocks[group];
        placed = true;
        if (pending) entry.pending = timeline;
      }
      EXPECT_EQ(pool_.Has(blocks[group], word::kPublished), empty);
    }
    if (fills && !fits) {
      EXPECT_EQ(result, PublishResult::kDetached);
      for (BlockId b : blocks)
        if (b.valid()) FreePrivate(b);
      return false;
    }
    if (fills) entry.tombstone = false;
    EXPECT_EQ(result, placed ? PublishResult::kPublished : PublishResult::kDuplicate);
    EXPECT_EQ(cursor.last, entry.blocks[0]);
    if (fills && !IsOrphan(key)) {
      for (const auto& [below, other] : model_) {
        if (!IsPrefixOf(key, below)) continue;
        for (std::size_t group = 0; group < other.blocks.size(); ++group) {
          const BlockId b = other.blocks[group];
          if (!b.valid() || other.tombstone || IsOrphan(below)) continue;
          const bool there_before = below != key || (group < before.size() && b == before[group]);
          if (there_before) expected_revived.insert(b);
        }
      }
    }
    EXPECT_EQ(std::set<BlockId>(revived.begin(), revived.end()), expected_revived);
    // A run that one session claims may have been extended in place, and its claim with it.
    if (!was_known) {
      for (std::size_t c = 0; c < claims_.size(); ++c) {
        if (claims_[c].deepest != parent || claims_[c].deepest.empty()) continue;
        if (index_.ClaimedTail(static_cast<std::uint32_t>(c)) != blocks[0]) continue;
        EXPECT_TRUE(may_extend && siblings == 0 && on_parent.size() == 1);
        claims_[c].deepest = key;
      }
    }
    for (BlockId b : blocks) {
      if (!b.valid()) continue;
      if (!pool_.Has(b, word::kPublished)) {
        FreePrivate(b);
      } else if (Pick(8) == 0) {
        held_.push_back(b);
      } else {
        Unhold(b);
      }
    }
    return true;
  }

  // Of what was there before: a block just published is flagged too, but not yet in the model.
  bool AnyPending(const Entry& entry) const {
    return std::any_of(entry.blocks.begin(), entry.blocks.end(),
                       [this](BlockId b) { return b.valid() && pool_.Has(b, word::kPending); });
  }
  bool Visible(const Entry& entry, GroupIndex group, TimelineId timeline) const {
    const BlockId b = entry.blocks[group];
    if (!b.valid() || (group == 0 && entry.tombstone) || pool_.valid_mask(b) == 0) return false;
    return !pool_.Has(b, word::kPending) || entry.pending == timeline;
  }

  void CheckMatch() {
    const Key key = RandomKey(14);
    const Prompt prompt = PromptOf(key);
    const auto tokens = static_cast<std::uint32_t>(prompt.tokens.size()) - Pick(kBlockTokens);
    const MatchQuery query{.root = root_of_[key[0]],
                           .tokens = std::span(prompt.tokens).first(tokens),
                           .content = prompt.content,
                           .timeline = Pick(2) == 0 ? TimelineId() : TimelineId(Pick(2)),
                           .group = static_cast<GroupIndex>(Pick(setup_.groups)),
                           .partial_tail = true,
                           .report_holes = Pick(3) == 0,
                           .max_blocks = Pick(3) == 0 ? Pick(10) : 0xffffffff};
    MatchResult& result = result_;
    index_.Match(query, result);

    std::vector<BlockId> blocks;
    std::uint32_t pending = 0;
    std::size_t end = 0;
    const std::size_t most = std::min<std::size_t>(tokens / kBlockTokens, query.max_blocks);
    for (std::size_t i = 0; i < most; ++i) {
      const auto it = model_.find(key.substr(0, 2 * i + 3));
      if (it == model_.end()) break;
      const bool visible = Visible(it->second, query.group, query.timeline);
      if (!visible && !query.report_holes) break;
      blocks.push_back(visible ? it->second.blocks[query.group] : BlockId());
      if (!visible) continue;
      end = i + 1;
      pending += pool_.Has(blocks.back(), word::kPending) ? 1 : 0;
    }
    blocks.resize(end);
    ASSERT_EQ(result.blocks, blocks);
    ASSERT_EQ(result.pending, pending);
    std::size_t present = 0;
    std::uint32_t behind = 0;
    for (const Segment& segment : result.segments) {
      ASSERT_GE(segment.first, behind);
      ASSERT_GT(segment.count, 0u);
      for (std::uint32_t i = 0; i < segment.count; ++i, ++present) {
        ASSERT_EQ(pool_.best_tier(blocks[segment.first + i]), segment.tier);
      }
      behind = segment.first + segment.count;
    }
    ASSERT_EQ(present, blocks.size() - static_cast<std::size_t>(
                                           std::count(blocks.begin(), blocks.end(), BlockId())));
    CheckPartial(key, query, end);
  }

  void CheckPartial(const Key& key, const MatchQuery& query, std::size_t end) {
    const std::span<const Token> rest = query.tokens.subspan(end * kBlockTokens);
    std::uint32_t best = 0;
    const bool has_content = !rest.empty() && key[2 * end + 2] != '0';
    for (const Key& child : ChildrenOf(key.substr(0, 2 * end + 1))) {
      const Entry& entry = model_.at(child);
      if (has_content || child.back() != '0') continue;
      if (!Visible(entry, query.group, query.timeline)) continue;
      const std::vector<Token> tokens = BlockTokensOf(child[child.size() - 2]);
      std::uint32_t common = 0;
      while (common < std::min<std::size_t>(rest.size(), kBlockTokens) &&
             rest[common] == tokens[common]) {
        ++common;
      }
      best = std::max(best, common);
    }
    ASSERT_EQ(result_.partial_tokens, best);
    ASSERT_EQ(result_.partial.valid(), best > 0);
  }

  void ChangeCopies() {
    if (model_.empty()) return;
    const Entry& entry = model_.at(RandomEntry());
    const BlockId b = entry.blocks[Pick(setup_.groups)];
    if (!b.valid() || (entry.tombstone && b == entry.blocks[0]) || pool_.holds(b) != 0) return;
    const auto tier = static_cast<TierIndex>(Pick(kTiers));
    const bool has = pool_.slot(b, tier).valid();
    if (has && pool_.valid_mask(b) == (1u << tier)) return;  // the last copy stays
    if (!has) {
      if (!pool_.AttachSlot(b, tier)) return;
      index_.OnCopyChanged(b);
      pool_.CommitCopy(b, tier);
      if (tier == kHbmTier) {
        Move(b, Phase::kReuse, Cause::kMatch);
        Move(b, Phase::kIdle, Cause::kCancel);
      }
    } else {
      if (tier == kHbmTier) {
        Move(b, Phase::kCandidate, Cause::kSelectVictim);
        Move(b, Phase::kOffloaded, Cause::kEvict);
      }
      pool_.DetachSlot(b, tier);
    }
    index_.OnCopyChanged(b);
  }

  void RemoveSome() {
    if (model_.empty()) return;
    const Key key = RandomEntry();
    Entry& entry = model_.at(key);
    const auto group = static_cast<GroupIndex>(Pick(setup_.groups));
    const BlockId b = entry.blocks[group];
    if (!b.valid() || (group == 0 && entry.tombstone) || pool_.holds(b) != 0) return;
    Drop(b);
    RemoveDropped(key, group);
  }

  void RemoveDropped(const Key& key, GroupIndex group) {
    Entry& entry = model_.at(key);
    const BlockId b = entry.blocks[group];
    std::set<BlockId> expected;
    std::vector<BlockId> orphans;
    bool leaves = group != 0;
    if (group == 0) {
      const bool alone = std::none_of(entry.blocks.begin() + 1, entry.blocks.end(),
                                      [](BlockId other) { return other.valid(); });
      leaves = alone && ChildrenOf(key).empty();
      for (const auto& [below, other] : model_) {
        if (!IsPrefixOf(key, below)) continue;
        for (std::size_t g = below == key ? 1 : 0; g < other.blocks.size(); ++g) {
          const BlockId o = other.blocks[g];
          if (o.valid() && !(g == 0 && other.tombstone) && !pool_.Has(o, word::kOrphan)) {
            expected.insert(o);
          }
        }
      }
    }
    ASSERT_EQ(index_.Remove(b, &orphans), leaves);
    if (group != 0) {
      entry.blocks[group] = BlockId();
    } else {
      entry.tombstone = true;
    }
    ASSERT_EQ(std::set<BlockId>(orphans.begin(), orphans.end()), expected);
    if (leaves) {
      ASSERT_FALSE(pool_.Has(b, word::kPublished));
      pool_.FreeId(b);
    }
    Clean(key);
  }

  void Claim() {
    if (model_.empty()) return;
    const std::uint32_t c = Pick(6);
    if (c >= claims_.size()) claims_.resize(c + 1);
    std::map<BlockId, Priority> before;
    for (const auto& [key, entry] : model_) {
      for (BlockId b : entry.blocks) {
        if (b.valid() && !(entry.tombstone && b == entry.blocks[0])) {
          before[b] = pool_.claim_priority(b);
        }
      }
    }
    std::vector<BlockId> changed;
    if (Pick(4) == 0) {
      index_.ClearClaim(c, &changed);
      claims_[c].deepest.clear();
    } else {
      const Key key = RandomEntry();
      claims_[c] = {.deepest = key, .priority = static_cast<Priority>(Pick(4))};
      index_.SetClaim(c, model_.at(key).blocks[0], claims_[c].priority, &changed);
    }
    std::set<BlockId> expected;
    for (const auto& [b, priority] : before) {
      if (pool_.claim_priority(b) != priority) expected.insert(b);
    }
    ASSERT_EQ(changed.size(), expected.size());
    ASSERT_EQ(std::set<BlockId>(changed.begin(), changed.end()), expected);
    Key tail = claims_[c].deepest;
    while (tail.size() > 1 && model_.at(tail).tombstone) tail = ParentOf(tail);
    ASSERT_EQ(index_.ClaimedTail(c), tail.size() > 1 ? model_.at(tail).blocks[0] : BlockId());
    CheckPath(RandomEntry());
  }

  void CheckPath(const Key& key) {
    std::vector<BlockId> path;
    index_.AppendPath(model_.at(key).blocks[0], path);
    std::vector<BlockId> expected;
    for (Key k = key; k.size() > 1; k = ParentOf(k)) {
      if (!model_.at(k).tombstone) expected.push_back(model_.at(k).blocks[0]);
    }
    std::reverse(expected.begin(), expected.end());
    ASSERT_EQ(path, expected);
  }

  // Tails of one tier, some of them chosen, and what the index makes of them.
  void CheckOrder() {
    if (model_.empty()) return;
    const auto tier = static_cast<TierIndex>(Pick(kTiers));
    std::vector<BlockId> chosen;
    for (int i = 0; i < 12; ++i) {
      const Key key = RandomEntry();
      const BlockId b = model_.at(key).blocks[0];
      index_.Touch(b, ++tick_);
      if (TopTier(key) == tier && ModelTail(key, tier) && Pick(2) == 0 &&
          !pool_.Has(b, word::kChosen)) {
        index_.MarkChosen(b, tier);
        chosen.push_back(b);
      }
      CheckTail(RandomEntry(), tier);
    }
    for (BlockId b : chosen) index_.UnmarkChosen(b, tier);
  }
  bool ModelTail(const Key& key, TierIndex tier) const {
    const std::vector<Key> children = ChildrenOf(key);
    return std::all_of(children.begin(), children.end(),
                       [&](const Key& child) { return PlannedTier(child) > tier; });
  }
  void CheckTail(const Key& key, TierIndex tier) {
    const BlockId b = model_.at(key).blocks[0];
    ASSERT_EQ(index_.IsResidentTail(b, tier), ModelTail(key, tier));
    const BlockId tail = index_.ResidentTail(b, tier);
    if (!tail.valid()) return;
    ASSERT_TRUE(pool_.Evictable(tail, tier));
    for (const auto& [below, entry] : model_) {
      if (entry.blocks[0] != tail) continue;
      ASSERT_TRUE(IsPrefixOf(key, below));
      ASSERT_TRUE(ModelTail(below, tier));
    }
  }

  void ConfirmSome() {
    std::vector<BlockId> confirmed;
    for (auto& [key, entry] : model_) {
      if (!entry.pending || Pick(2) == 0) continue;
      for (BlockId b : entry.blocks)
        if (b.valid()) confirmed.push_back(b);
    }
    index_.ConfirmPublished(confirmed);
  }

  void UnholdSome() {
    while (!held_.empty() && Pick(4) != 0) {
      Unhold(held_.back());
      held_.pop_back();
    }
  }

  void RetireSome() {
    const char name = live_roots_[0];
    index_.Retire(root_of_[name]);
    live_roots_.erase(0, 1);
    AddRoot();
    MatchResult result;
    index_.Match({.root = root_of_[live_roots_.back()]}, result);
    ASSERT_TRUE(result.blocks.empty());
  }

  void DrainStale() {
    std::set<BlockId> seen;
    for (std::uint32_t n = Pick(40); n > 0; --n) {
      const BlockId b = index_.NextStale();
      if (!b.valid()) return;
      ASSERT_TRUE(index_.IsStale(b));
      ASSERT_EQ(pool_.holds(b), 0u);
      ASSERT_TRUE(seen.insert(b).second);
      if (Pick(10) == 0) continue;  // the caller could not take it now
      for (const auto& [key, entry] : model_) {
        const auto it = std::find(entry.blocks.begin(), entry.blocks.end(), b);
        if (it == entry.blocks.end()) continue;
        ASSERT_TRUE(ChildrenOf(key).empty());
        ASSERT_FALSE(LiveRoot(key));
        Drop(b);
        index_.OnCopyChanged(b);
        RemoveDropped(key, static_cast<GroupIndex>(it - entry.blocks.begin()));
        break;
      }
    }
  }

  const Setup setup_;
  std::mt19937 random_;
  BlockPool pool_;
  PrefixIndex index_;
  MatchResult result_;
  std::map<Key, Entry> model_;
  std::vector<NodeId> roots_;
  std::map<char, NodeId> root_of_;
  std::string live_roots_;
  std::vector<ModelClaim> claims_;
  std::vector<BlockId> held_;
  std::uint64_t tick_ = 0;
};

class PrefixIndexModel : public testing::TestWithParam<Setup> {};

TEST_P(PrefixIndexModel, RandomOperations) {
  World world(GetParam());
  for (int step = 0; step < 5'000; ++step) {
    SCOPED_TRACE(step);
    world.Step();
    world.Check();
    if (step % 16 == 0) world.CheckAll();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Setups, PrefixIndexModel,
    testing::Values(Setup{.seed = 1}, Setup{.seed = 2, .symbols = 2}, Setup{.seed = 3, .groups = 2},
                    Setup{.seed = 4, .groups = 4, .symbols = 2},
                    Setup{.seed = 5, .constant_hash = true},
                    Setup{.seed = 6, .groups = 2, .constant_hash = true, .symbols = 5}));

}  // namespace
}  // namespace tidepool
