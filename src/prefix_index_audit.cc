// Audit of the prefix index: a full walk against every invariant of prefix_index.h and
// prefix_index_impl.h.
#include <string>

#include "prefix_index_impl.h"

namespace tidepool {

using internal::kNone;
namespace node_flags = internal::node_flags;

namespace {

Status Broken(std::string_view what, std::uint32_t node, std::uint32_t offset = 0) {
  return absl::InternalError("prefix index: " + std::string(what) + " (node " +
                             std::to_string(node) + ", offset " + std::to_string(offset) + ")");
}

// Counts what the walk sees, to be compared with what the index says.
struct Seen {
  std::uint32_t blocks = 0;
  std::uint32_t nodes = 0;
  std::uint32_t tombstones = 0;
  std::size_t contents = 0;
  std::uint64_t heap_bytes = 0;
  std::uint32_t families = 0;
};

}  // namespace

struct PrefixIndex::Impl::Auditor {
  const Impl& impl;
  Seen seen;
  absl::flat_hash_map<std::uint32_t, std::array<std::uint32_t, kPriorityCount>> coverage;

  // One block of a position that is below a lost block iff `orphan`.
  Status Block(std::uint32_t n, std::uint32_t offset, BlockId b, bool orphan) {
    const Node& node = impl.nodes[n];
    const BlockPool& block_pool = *impl.pool;
    ++seen.blocks;
    if (block_pool.node(b) != NodeId(n)) return Broken("block does not know its node", n, offset);
    if (block_pool.offset(b) != offset) return Broken("block does not know its offset", n, offset);
    if (impl.IsTombstone(node, b)) return absl::OkStatus();
    if (block_pool.Has(b, word::kOrphan) != orphan) return Broken("orphan flag", n, offset);
    if (block_pool.claim_priority(b) != internal::StrongestClaim(node)) {
      return Broken("block's claim priority", n, offset);
    }
    return absl::OkStatus();
  }

  // A run's positions; *orphan is kept up for what follows.
  Status Positions(std::uint32_t n, bool* orphan) {
    const Node& node = impl.nodes[n];
    std::uint32_t pending = 0;
    std::uint32_t lost = 0;
    for (std::uint32_t offset = 0; offset < node.length; ++offset) {
      const BlockId first = impl.Id(node, offset);
      if (!first.valid()) return Broken("position without a block of group 0", n, offset);
      const bool tombstone = impl.tombstones.contains(first.value());
      if (tombstone && impl.pool->valid_mask(first) != 0) {
        return Broken("tombstone with a copy", n, offset);
      }
      lost += tombstone ? 1 : 0;
      seen.contents += impl.contents.count(first.value());
      const bool above = *orphan;
      *orphan = *orphan || tombstone;
      for (std::uint32_t group = 0; group < impl.groups; ++group) {
        const BlockId b = impl.Id(node, offset, static_cast<GroupIndex>(group));
        if (!b.valid()) continue;
        pending += impl.pool->Has(b, word::kPending) ? 1 : 0;
        const Status status = Block(n, offset, b, group == 0 ? above : *orphan);
        if (!status.ok()) return status;
      }
    }
    if (pending != node.pending) return Broken("pending count", n);
    if (lost != node.tombstones) return Broken("tombstone count", n);
    seen.tombstones += lost;
    return absl::OkStatus();
  }

  Status Residency(std::uint32_t n) {
    const Node& node = impl.nodes[n];
    for (std::size_t tier = 0; tier < kMaxTiers; ++tier) {
      std::uint16_t end = 0;
      while (tier < impl.pool->tier_count() && end < node.length &&
             impl.TopTier(node, impl.Id(node, end)) <= tier) {
        ++end;
      }
      if (end != node.resident_end[tier]) {
        return Broken("resident_end of tier " + std::to_string(tier), n, end);
      }
    }
    return absl::OkStatus();
  }

  Status Links(std::uint32_t n) {
    const Node& node = impl.nodes[n];
    const Node& parent = impl.nodes[node.parent];
    const BlockId first = impl.Id(node, 0);
    if (node.root != parent.root) return Broken("root", n);
    if (node.position != parent.position + parent.length) return Broken("position", n);
    if (node.length > node.capacity) return Broken("run longer than its storage", n);
    if (node.tag != impl.Tag(node.parent, impl.TokensOf(first), impl.ContentOf(node, first))) {
      return Broken("tag", n);
    }
    if (impl.FindChild(node.parent, node.tag, impl.TokensOf(first), impl.ContentOf(node, first)) !=
        n) {
      return Broken("not found under its first block, or a sibling has the same", n);
    }
    if (node.zone != impl.TopTier(node, first) && node.zone != impl.PlannedTier(node, first)) {
      return Broken("zone", n);
    }
    if (node.family == kNone) {
      const std::uint32_t last = node.length - 1u;
      if (impl.IsTombstone(node, impl.Id(node, last)) && impl.OnlyGroup0(node, last)) {
        return Broken("tail without any copy", n, last);
      }
    }
    return absl::OkStatus();
  }

  Status Children(std::uint32_t n) {
    const Node& node = impl.nodes[n];
    if (node.family == kNone) return absl::OkStatus();
    const Family& family = impl.families[node.family];
    ++seen.families;
    std::uint32_t children = 0;
    for (std::size_t zone = 0; zone < family.zones.size(); ++zone) {
      std::uint32_t prev = kNone;
      for (std::uint32_t c = family.zones[zone].head; c != kNone; c = impl.nodes[c].next) {
        const Node& child = impl.nodes[c];
        if (child.parent != n || child.kin != node.family || child.zone != zone ||
            child.prev != prev) {
          return Broken("sibling links", c);
        }
        prev = c;
        ++children;
      }
      if (family.zones[zone].tail != prev) return Broken("last of a zone", n);
    }
    return children == family.children && children > 0 ? absl::OkStatus()
                                                       : Broken("number of children", n);
  }

  Status Claims() {
    for (std::uint32_t c = 0; c < impl.claims.size(); ++c) {
      const internal::Claim& claim = impl.claims[c];
      if (claim.node == kNone) continue;
      if (claim.prev == kNone ? impl.nodes[claim.node].first_claim != c
                              : impl.claims[claim.prev].next != c) {
        return Broken("claim " + std::to_string(c) + " is not listed", claim.node);
      }
      for (std::uint32_t n = claim.node; !impl.IsRoot(n); n = impl.nodes[n].parent) {
        ++coverage[n][static_cast<std::size_t>(claim.priority)];
      }
    }
    return absl::OkStatus();
  }

  Status NodeAndBlocks(std::uint32_t n, bool* orphan) {
    const Node& node = impl.nodes[n];
    if (node.length == 0) return Broken("node without blocks", n);
    ++seen.nodes;
    if (node.Is(node_flags::kHeapRun)) {
      seen.heap_bytes += std::uint64_t{node.capacity} * impl.groups * sizeof(BlockId);
    }
    const auto covered = coverage.find(n);
    if (node.coverage !=
        (covered == coverage.end() ? decltype(node.coverage){} : covered->second)) {
      return Broken("claim coverage", n);
    }
    Status status = Links(n);
    if (status.ok()) status = Residency(n);
    if (status.ok()) status = Positions(n, orphan);
    return status;
  }

  Status Tree(std::uint32_t root) {
    if (!impl.IsRoot(root)) return Broken("root without its flag", root);
    std::vector<std::pair<std::uint32_t, bool>> stack = {{root, false}};
    while (!stack.empty()) {
      auto [n, orphan] = stack.back();
      stack.pop_back();
      Status status = Children(n);
      if (status.ok() && n != root) status = NodeAndBlocks(n, &orphan);
      if (!status.ok()) return status;
      for (std::uint32_t c = impl.FirstChild(n); c != kNone; c = impl.NextSibling(c)) {
        stack.emplace_back(c, orphan);
      }
    }
    return absl::OkStatus();
  }

  Status Totals() const {
    if (seen.blocks != impl.blocks) return Broken("number of blocks", seen.blocks);
    if (seen.nodes != impl.table.size()) return Broken("size of the child table", seen.nodes);
    if (seen.nodes + impl.roots.size() != impl.nodes.live()) {
      return Broken("number of nodes", seen.nodes);
    }
    if (seen.families != impl.families.live()) return Broken("number of families", seen.families);
    if (seen.tombstones != impl.tombstones.size()) {
      return Broken("number of tombstones", seen.tombstones);
    }
    if (seen.contents != impl.contents.size()) return Broken("number of content keys", 0);
    if (seen.heap_bytes != impl.heap_bytes) return Broken("bytes of runs", 0);
    return absl::OkStatus();
  }
};

Status PrefixIndex::Impl::Audit() const {
  Auditor auditor{.impl = *this, .seen = {}, .coverage = {}};
  Status status = auditor.Claims();
  for (std::size_t i = 0; status.ok() && i < roots.size(); ++i) {
    if (nodes[roots[i].node].tag != i) return Broken("root's number", roots[i].node);
    status = auditor.Tree(roots[i].node);
  }
  return status.ok() ? auditor.Totals() : status;
}

}  // namespace tidepool
