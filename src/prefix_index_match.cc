// Matching; see prefix_index_impl.h. The fast path of a prompt whose blocks are all in HBM touches
// no state of single blocks: it compares tokens, copies ids and reads one resident_end a node.
#include <algorithm>
#include <cstring>

#include "prefix_index_impl.h"

namespace tidepool {

using internal::kAbsentZone;
using internal::kNone;
namespace node_flags = internal::node_flags;

namespace {

// Blocks compared at a time, when their ids (and so their tokens) are contiguous.
constexpr std::uint32_t kSpanBlocks = 64;

// Children looked at for a partial match, most recently touched first.
constexpr std::uint32_t kPartialCandidates = 64;

const PrefixHash* ContentAt(std::span<const BlockContent> content, std::uint32_t block) {
  const auto it =
      std::lower_bound(content.begin(), content.end(), block,
                       [](const BlockContent& entry, std::uint32_t b) { return entry.block < b; });
  return it != content.end() && it->block == block ? &it->key : nullptr;
}

std::uint32_t CommonTokens(const Token* a, const Token* b, std::uint32_t limit) {
  return static_cast<std::uint32_t>(std::mismatch(a, a + limit, b).first - a);
}

// Whether ids[0..count) follow each other. Branch-free, for the vector units.
bool Contiguous(const BlockId* ids, std::uint32_t count) {
  const std::uint32_t first = ids[0].value();
  std::uint32_t differ = 0;
  for (std::uint32_t i = 0; i < count; ++i) differ |= ids[i].value() - i - first;
  return differ == 0;
}

void AddSegment(MatchResult& result, std::uint32_t first, std::uint32_t count, TierIndex tier) {
  if (!result.segments.empty()) {
    Segment& last = result.segments.back();
    if (last.tier == tier && last.first + last.count == first) {
      last.count += count;
      return;
    }
  }
  result.segments.push_back({.first = first, .count = count, .tier = tier});
}

}  // namespace

// How many of the run's first `limit` positions have the tokens that start at `tokens`.
std::uint32_t PrefixIndex::Impl::EqualPositions(const Node& node, std::uint32_t limit,
                                                const Token* tokens) const noexcept {
  const std::size_t block_bytes = block_tokens * sizeof(Token);
  std::uint32_t at = 0;
  while (at < limit) {
    std::uint32_t span = std::min(limit - at, kSpanBlocks);
    if (groups != 1 || !Contiguous(node.ids() + at, span)) span = 1;
    const Token* const own = pool->tokens(Id(node, at));
    const Token* const other = tokens + std::size_t{at} * block_tokens;
    if (std::memcmp(own, other, span * block_bytes) != 0) {
      return at + CommonTokens(own, other, span * block_tokens) / block_tokens;
    }
    at += span;
  }
  return limit;
}

// The same for content keys; `first_block` is the prompt's block at position 0.
std::uint32_t PrefixIndex::Impl::EqualContents(const Node& node, std::uint32_t limit,
                                               std::uint32_t first_block,
                                               const MatchQuery& query) const noexcept {
  if (query.content.empty() && !node.Is(node_flags::kHasContent)) return limit;
  for (std::uint32_t i = 0; i < limit; ++i) {
    const PrefixHash* const own = ContentOf(node, Id(node, i));
    const PrefixHash* const wanted = ContentAt(query.content, first_block + i);
    const bool equal = own == nullptr || wanted == nullptr ? own == wanted : *own == *wanted;
    if (!equal) return i;
  }
  return limit;
}

// The topmost tier that the query finds the block in, kAbsentZone if it must not see it.
std::uint8_t PrefixIndex::Impl::VisibleTier(const Node& node, std::uint32_t offset,
                                            const MatchQuery& query) const noexcept {
  const BlockId b = Id(node, offset, query.group);
  if (!b.valid()) return kAbsentZone;
  if (pool->Has(b, word::kPending) &&
      (!query.timeline.valid() || node.timeline != query.timeline.value())) {
    return kAbsentZone;
  }
  return TopTier(node, b);
}

// Appends the run's first `count` positions to the result, as far as they are there; with
// report_holes all of them. Returns how many it took, trailing absent ones excluded.
std::uint32_t PrefixIndex::Impl::TakePositions(const Node& node, std::uint32_t count,
                                               const MatchQuery& query, MatchResult& result) const {
  const auto first = static_cast<std::uint32_t>(result.blocks.size());
  std::uint32_t at = 0;
  if (query.group == 0 && node.pending == 0) {
    at = std::min<std::uint32_t>(count, node.resident_end[kHbmTier]);
    AppendIds(node, at, result.blocks);
    if (at > 0) AddSegment(result, first, at, kHbmTier);
  }
  std::uint32_t taken = at;
  for (; at < count; ++at) {
    const std::uint8_t tier = VisibleTier(node, at, query);
    if (tier == kAbsentZone && !query.report_holes) break;
    const BlockId b = Id(node, at, query.group);
    result.blocks.push_back(tier == kAbsentZone ? BlockId() : b);
    if (tier == kAbsentZone) continue;
    AddSegment(result, first + at, 1, tier);
    result.pending += pool->Has(b, word::kPending) ? 1 : 0;
    taken = at + 1;
  }
  return taken;
}

void PrefixIndex::Impl::AppendIds(const Node& node, std::uint32_t count,
                                  std::vector<BlockId>& out) const {
  const BlockId* const ids = node.ids();
  const std::size_t begin = out.size();
  out.resize(begin + count);
  if (groups == 1) {
    std::memcpy(static_cast<void*>(out.data() + begin), ids, count * sizeof(BlockId));
    return;
  }
  for (std::uint32_t i = 0; i < count; ++i) out[begin + i] = ids[std::size_t{i} * groups];
}

void PrefixIndex::Impl::Match(const MatchQuery& query, MatchResult& result) const {
  result.clear();
  result.node = query.root;
  if (!LiveRoot(query.root) || query.group >= groups) return;
  const auto blocks_in_prompt = static_cast<std::uint32_t>(
      std::min<std::size_t>(query.tokens.size() / block_tokens, query.max_blocks));
  result.blocks.reserve(blocks_in_prompt);
  const auto block_at = [&](std::uint32_t block) {
    return query.tokens.subspan(std::size_t{block} * block_tokens, block_tokens);
  };
  std::uint32_t end = 0;    // behind the last present block
  std::uint32_t first = 0;  // of the node at hand
  std::uint32_t n = query.root.value();
  std::uint32_t tag = 0;  // under which the next child is found
  if (blocks_in_prompt > 0) tag = Tag(n, block_at(0), ContentAt(query.content, 0));
  while (first < blocks_in_prompt) {
    n = FindChild(n, tag, block_at(first), ContentAt(query.content, first));
    if (n == kNone) break;
    const Node& node = nodes[n];
    const std::uint32_t limit = std::min<std::uint32_t>(node.length, blocks_in_prompt - first);
    const std::uint32_t next = first + node.length;
    if (node.family != kNone && next < blocks_in_prompt) {
      // The lookup that follows a run has its cache misses while the run is compared.
      tag = Tag(n, block_at(next), ContentAt(query.content, next));
      table.Prefetch(tag);
    }
    std::uint32_t equal = EqualPositions(node, limit, block_at(first).data());
    equal = EqualContents(node, equal, first, query);
    const std::uint32_t taken = TakePositions(node, equal, query, result);
    if (taken > 0) {
      end = first + taken;
      result.node = NodeId(n);
      result.node_blocks = taken;
    }
    if (equal < node.length || (taken < equal && !query.report_holes)) break;
    first = next;
  }
  result.blocks.resize(end);
  if (query.partial_tail) MatchPartial(query, result);
}

// Offers `b`, which follows the match, as the block that shares the most leading tokens.
void PrefixIndex::Impl::OfferPartial(const MatchQuery& query, Place at, MatchResult& result) const {
  const Node& node = nodes[at.node];
  const BlockId b = Id(node, at.offset);
  if (ContentOf(node, b) != nullptr || VisibleTier(node, at.offset, query) == kAbsentZone) return;
  if (query.partial_ready && (!pool->Has(b, word::kHbmValid) || pool->Has(b, word::kPending))) {
    return;
  }
  const std::size_t begin = result.blocks.size() * std::size_t{block_tokens};
  const auto limit =
      static_cast<std::uint32_t>(std::min<std::size_t>(query.tokens.size() - begin, block_tokens));
  const std::uint32_t common = CommonTokens(pool->tokens(b), query.tokens.data() + begin, limit);
  const BlockId partial = Id(node, at.offset, query.group);
  // Of equals the same one every time: the order of siblings is not part of the answer.
  if (common < result.partial_tokens || common == 0) return;
  if (common == result.partial_tokens && partial > result.partial) return;
  result.partial = partial;
  result.partial_tokens = common;
}

void PrefixIndex::Impl::MatchPartial(const MatchQuery& query, MatchResult& result) const {
  const auto next = static_cast<std::uint32_t>(result.blocks.size());
  const std::span<const Token> rest = query.tokens.subspan(std::size_t{next} * block_tokens);
  if (rest.empty() || ContentAt(query.content, next) != nullptr) return;
  const std::uint32_t n = result.node.value();
  if (result.node_blocks < nodes[n].length) {
    return OfferPartial(query, {n, result.node_blocks}, result);
  }
  if (rest.size() >= block_tokens) {
    const std::span<const Token> block = rest.first(block_tokens);
    const std::uint32_t whole = FindChild(n, Tag(n, block, nullptr), block, nullptr);
    if (whole != kNone) OfferPartial(query, {whole, 0}, result);
  }
  std::uint32_t child = FirstChild(n);
  for (std::uint32_t i = 0; i < kPartialCandidates && child != kNone; ++i) {
    OfferPartial(query, {child, 0}, result);
    child = NextSibling(child);
  }
}

}  // namespace tidepool
