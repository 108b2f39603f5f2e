// Blocks that an earlier process has left in a kept tier: taken over when a request asks for them,
// given up when their slots are needed, and never found again once they are invalid.
#include <algorithm>
#include <utility>

#include "src/manager/core.h"
#include "src/str_cat.h"

namespace tidepool::internal {

Status ManagerCore::TakeStored() {
  for (TierIndex t = 1; t < tiers_; ++t) {
    if (!options_.tiers[t].store.keep) continue;
    StoredBlocks stored;
    engine_->TakeStored(t, stored);
    recovery_ = stored.report;
    epoch_ = std::max(epoch_, stored.epoch);
    for (const StoredBlock& block : stored.blocks) {
      if (block.slot.value() < bindings_[t].slots && pool_->SetAside(t, block.slot)) continue;
      return absl::InternalError(
          StrCat("tiers[", t, "]: slot ", block.slot.value(), " holds two stored blocks or none"));
    }
    std::vector<SlotId> superseded;
    stored_tier_ = t;
    stored_ = StoredTable(std::move(stored), block_tokens_, superseded);
    recovery_.superseded += static_cast<std::uint32_t>(superseded.size());
    recovery_.recovered = stored_.size();
    ReturnStored(superseded);
  }
  return absl::OkStatus();
}

// The content key of a block of a prompt, or null.
const PrefixHash* ManagerCore::ContentOf(std::span<const BlockContent> content,
                                         std::uint32_t block) noexcept {
  const auto at = std::ranges::lower_bound(content, block, {}, &BlockContent::block);
  return at != content.end() && at->block == block ? &at->key : nullptr;
}

// What the digest of the block behind the match is chained to.
PrefixHash ManagerCore::EndDigest(const MatchResult& match, NodeId root) const noexcept {
  return match.blocks.empty() ? index_->RootDigest(root) : pool_->digest(match.blocks.back());
}

// How many stored blocks continue the match, up to `limit` in all; calls `each` for one after the
// other, until it says false.
template <typename Each>
std::uint32_t ManagerCore::WalkStored(const AdmitRequest& request, NodeId root,
                                      const MatchResult& match, std::uint32_t limit, Each each) {
  auto i = static_cast<std::uint32_t>(match.blocks.size());
  if (stored_.size() == 0 || match.pending != 0) return 0;
  const std::uint32_t first = i;
  PrefixHash parent = EndDigest(match, root);
  for (; i < limit; ++i) {
    const auto tokens = request.tokens.subspan(std::size_t{i} * block_tokens_, block_tokens_);
    const PrefixHash* const content = ContentOf(request.content, i);
    parent = index_->BlockDigest(parent, tokens, content);
    const StoredBlock* const found = stored_.Find(parent, tokens, content);
    if (found == nullptr || !each(*found, tokens, content)) break;
  }
  return i - first;
}

std::uint32_t ManagerCore::CountStored(const AdmitRequest& request, std::uint32_t ns,
                                       const MatchResult& match) {
  const auto limit = static_cast<std::uint32_t>(request.tokens.size() / block_tokens_);
  return WalkStored(
      request, Root(ns), match, limit,
      [](const StoredBlock&, std::span<const Token>, const PrefixHash*) { return true; });
}

// Makes blocks of what continues the request's hits.
void ManagerCore::AdoptStored(const AdmitRequest& request, std::uint32_t ns) {
  if (stored_.size() == 0) return;
  const auto limit = static_cast<std::uint32_t>(request.tokens.size() / block_tokens_);
  Match(request, ns, limit, false, match_);
  PublishCursor cursor{.root = Root(ns),
                       .last = match_.blocks.empty() ? BlockId() : match_.blocks.back()};
  const auto adopt = [&](const StoredBlock& found, std::span<const Token> tokens,
                         const PrefixHash* content) {
    return Adopt(found, ns, cursor, {.tokens = tokens, .content = content});
  };
  (void)WalkStored(request, cursor.root, match_, limit, adopt);
}

bool ManagerCore::Adopt(const StoredBlock& found, std::uint32_t ns, PublishCursor& cursor,
                        PrefixIndex::PublishArgs args) {
  const TierIndex tier = stored_tier_;
  const NamespaceData& data = namespaces_[ns];
  if (quotas_ && data.quota[tier].hard != 0 && data.used[tier] >= data.quota[tier].hard) {
    return false;
  }
  BlockId b;
  if (!pool_->AllocateIds({&b, 1})) return false;
  pool_->AttachSetAside(b, tier, found.slot);
  pool_->Transition({&b, 1}, {.to = Phase::kOffloaded, .cause = Cause::kFound});
  revived_.clear();
  args.blocks = {&b, 1};
  args.revived = &revived_;
  if (index_->Publish(cursor, args) != PublishResult::kPublished) {  // stands there, unseen
    pool_->Transition({&b, 1}, {.to = Phase::kFree, .cause = Cause::kAbandon});
    pool_->DetachSlot(b, tier, true);
    pool_->FreeId(b);
    return false;
  }
  if (quotas_) {
    block_ns_[b.value()] = ns;
    ++namespaces_[ns].used[tier];
  }
  stored_.Erase(found);
  ++stats_.stored_used;
  policies_[tier]->OnInserted({&b, 1});
  NotifyCopy(b, tier, CopyState::kValid);
  LogEvent(EventKind::kStored, b, tier, EvictReason::kCapacity, true);
  return true;
}

// --- Giving up. ---

void ManagerCore::ReturnStored(std::span<const SlotId> slots) {
  pool_->ReturnQuarantined(stored_tier_, slots);
  for (const SlotId slot : slots) engine_->OnSlotFreed(stored_tier_, slot);
}

// Slots for others, the longest unasked-for first. Returns how many.
std::uint32_t ManagerCore::GiveUpStored(TierIndex tier, std::uint32_t count) {
  if (stored_.size() == 0 || tier != stored_tier_) return 0;
  std::vector<SlotId> slots;
  stored_.TakeOldest(count, slots);
  ReturnStored(slots);
  return static_cast<std::uint32_t>(slots.size());
}

// --- What is invalid must stay so. ---

Status ManagerCore::InvalidateStored(std::span<const PrefixHash> roots, bool all) {
  if (stored_tier_ == kHbmTier) return absl::OkStatus();
  std::vector<SlotId> slots;
  if (all) stored_.TakeOldest(stored_.size(), slots);
  for (const PrefixHash& root : roots) stored_.TakeRoot(root, slots);
  ReturnStored(slots);
  return engine_->Invalidate(
      {.epoch = epoch_, .order = next_transfer_, .roots = roots, .all = all});
}

// Who the block is, for a kept tier; null if it is not to be found again.
std::shared_ptr<const BlockIdentity> ManagerCore::IdentityOf(BlockId block) const {
  if (!pool_->Has(block, word::kPublished) || index_->IsStale(block)) return nullptr;
  const NodeId root = index_->root_of(pool_->node(block));
  const NamespaceData& data = namespaces_[index_->root_namespace(root).value()];
  if (data.root != root || data.root_epoch != epoch_) return nullptr;
  const PrefixHash* const content = index_->Content(block);
  return KeepIdentity({.root = index_->RootDigest(root),
                       .parent = index_->ParentDigest(block),
                       .digest = pool_->digest(block),
                       .content = content != nullptr ? *content : PrefixHash{},
                       .epoch = epoch_,
                       .position = static_cast<std::uint32_t>(index_->Position(block)),
                       .tokens = {pool_->tokens(block), block_tokens_}});
}

// --- A device without room, and one that is to be spared. ---

// The device was full: once more, after something of the tier has been given up.
bool ManagerCore::RetryCopyDown(const Transfer& t) {
  if (t.retried || t.superseded || pool_->Has(t.block.block, word::kAbandoned)) return false;
  ++stats_.offloads_retried;
  ++no_space_[t.to];
  Transfer& again = NewTransfer(t.block.block, t.from, t.to, t.transfer_class, t.deadline);
  again.release = t.release;
  again.retried = true;
  return true;
}

// Gives up what such copies need: behind the completions, since nothing is evicted from within one.
void ManagerCore::MakeSpace() {
  for (TierIndex t = 1; t < tiers_; ++t) {
    const std::uint32_t wanted = std::exchange(no_space_[t], 0u);
    if (wanted == 0) continue;
    const std::uint32_t given_up = GiveUpStored(t, wanted);
    std::vector<BlockId> victims;
    if (given_up < wanted) EvictClean(t, wanted - given_up, victims);
  }
}

// What the tier may be written, with a budget of bytes a day: an eighth of it saved up, the rest in
// proportion to time, so that no day takes more.
void ManagerCore::RefreshWriteBudgets() {
  constexpr double kDay = 86'400;
  const double seconds = std::chrono::duration<double>(signals_.now - write_budget_at_).count();
  write_budget_at_ = signals_.now;
  for (TierIndex t = 1; t < tiers_; ++t) {
    const auto budget = static_cast<double>(options_.tiers[t].store.write_bytes_per_day);
    if (budget == 0) continue;
    const double earned = std::max(seconds, 0.0) * budget * 7 / 8 / kDay;
    write_budget_[t] = std::min(budget / 8, write_budget_[t] + earned);
  }
}

std::uint32_t ManagerCore::WriteBudgetBlocks(TierIndex tier) const noexcept {
  if (options_.tiers[tier].store.write_bytes_per_day == 0) return kNone;
  const double blocks = write_budget_[tier] / static_cast<double>(block_bytes_);
  return static_cast<std::uint32_t>(std::clamp(blocks, 0.0, static_cast<double>(kNone - 1)));
}

}  // namespace tidepool::internal
