// One copy of one block, with every account that follows from it: slots, quotas, tenants, queued
// device work and events.
#include <algorithm>
#include <cstring>
#include <utility>

#include "src/manager/core.h"

namespace tidepool::internal {

namespace {
constexpr std::uint16_t kSeveralTenants = 0xffff;  // no tenant's own: is cleared for the next
}  // namespace

std::uint32_t ManagerCore::NamespaceOf(BlockId block) const noexcept {
  if (quotas_) return block_ns_[block.value()];
  const NodeId node = pool_->node(block);
  return node.valid() ? index_->root_namespace(node).value() : 0;
}

bool ManagerCore::AttachCopy(BlockId block, TierIndex tier, std::uint32_t ns) {
  if (quotas_) {
    NamespaceData& data = namespaces_[ns];
    if (data.quota[tier].hard != 0 && data.used[tier] >= data.quota[tier].hard) return false;
  }
  if (!pool_->AttachSlot(block, tier)) return false;
  ++admitted_slots_[tier];
  if (quotas_) {
    block_ns_[block.value()] = ns;
    ++namespaces_[ns].used[tier];
  }
  return true;
}

void ManagerCore::NotifyEvicted(std::span<const BlockId> blocks, TierIndex tier,
                                EvictReason reason) {
  decisions_.Begin(Decision::kGiveUp, std::uint64_t{tier} << 8 | static_cast<std::uint8_t>(reason));
  decisions_.Add({Numbers(blocks), blocks.size()});
  policies_[tier]->OnEvicted(blocks, reason);
}

void ManagerCore::NotifyCopies(std::span<const BlockId> blocks, TierIndex tier, CopyState state) {
  for (TierIndex t = 0; t < tiers_; ++t) {
    if (t != tier) policies_[t]->OnCopyChanged(blocks, tier, state);
  }
}

void ManagerCore::CommitCopy(BlockId block, TierIndex tier) {
  pool_->CommitCopy(block, tier);
  index_->OnCopyChanged(block);
  policies_[tier]->OnInserted({&block, 1});
  NotifyCopy(block, tier, CopyState::kValid);
  LogEvent(EventKind::kStored, block, tier, EvictReason::kCapacity, false);
}

SlotId ManagerCore::DetachCopy(BlockId block, TierIndex tier, bool quarantine) {
  if (tier == kHbmTier && !prefetched_.empty()) {
    stats_.prefetched_wasted += prefetched_.erase(KeeperKey(pool_->ref(block)));
  }
  const bool unfinished = pool_->copy(block, tier) == CopyState::kWriting;
  const SlotId slot = pool_->DetachSlot(block, tier, quarantine);
  if (tier == kHbmTier && unfinished) {
    // The last tenant's bytes may still be there, or a part of them.
    slot_tenant_[slot.value()] = kSeveralTenants;
  }
  if (tiers_ > 1) UncoverParent(block, TiersLeft(block, tier));
  if (quotas_) --namespaces_[block_ns_[block.value()]].used[tier];
  if (tier != kHbmTier) {
    if (!quarantine) engine_->OnSlotFreed(tier, slot);
  } else if (!device_zeros_.empty()) {  // the slot has a new life
    std::erase_if(device_zeros_, [slot](const QueuedZero& zero) { return zero.slot == slot; });
  }
  return slot;
}

// The engine has written behind the committed tokens of a private block: its copies below are out
// of date. One that is still being made is thrown away when it ends.
void ManagerCore::DropLowerCopies(BlockId block) {
  bool moving = false;
  for (Transfer& t : transfers_) {
    if (t.active && t.block.block == block && t.to != kHbmTier) t.superseded = moving = true;
  }
  if (moving) return;
  const std::uint32_t copies = pool_->valid_mask(block);
  for (TierIndex t = 1; t < tiers_; ++t) {
    if (((copies >> t) & 1u) == 0) continue;
    NotifyEvicted({&block, 1}, t, EvictReason::kReleased);
    DetachCopy(block, t);
    NotifyCopy(block, t, CopyState::kAbsent);
  }
}

// Slots that change tenant are cleared before their new owner can read them.
void ManagerCore::OwnSlots(std::span<const BlockId> blocks, std::uint32_t ns, bool overwritten) {
  const auto tenant = static_cast<std::uint16_t>(namespaces_[ns].tenant + 1);
  const bool always = options_.tiers[0].clear_on_reuse;
  for (const BlockId b : blocks) {
    const SlotId slot = pool_->slot(b, kHbmTier);
    std::uint16_t& last = slot_tenant_[slot.value()];
    const bool dirty = last != 0 && (always || last != tenant);
    last = tenant;
    if (!dirty || overwritten) continue;
    ++stats_.zeroed_slots;
    if (!inline_work_) {
      device_zeros_.push_back({b, slot});
      continue;
    }
    const Arena& arena = bindings_[0].arena;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      std::memset(arena.At(slot, l), 0, arena.layer_bytes);
    }
  }
}

// Queued copies pin their source, and pins are few.
bool ManagerCore::CanQueueCopy(BlockId source) const noexcept {
  return inline_work_ || pool_->pins(source) < (word::kPinMask >> word::kPinShift) / 2;
}

void ManagerCore::QueueCopy(BlockId source, BlockId destination, std::uint32_t tokens) {
  ++stats_.cow_copies;
  const SlotId from = pool_->slot(source, kHbmTier);
  const SlotId to = pool_->slot(destination, kHbmTier);
  if (inline_work_) {
    const Arena& arena = bindings_[0].arena;
    for (std::uint32_t l = 0; l < layers_; ++l) {
      std::memcpy(arena.At(to, l), arena.At(from, l), arena.layer_bytes);
    }
    return;
  }
  pool_->Pin(source);  // both until the step that executes the copy has passed
  pool_->Pin(destination);
  device_copies_.push_back({source, destination, from, to, tokens});
}

// Nobody wants the block any more: a copy into it that has not been handed over is not made.
void ManagerCore::ForgetCopies(BlockId destination) {
  for (std::size_t i = 0; i < device_copies_.size();) {
    if (device_copies_[i].destination != destination) {
      ++i;
      continue;
    }
    const BlockId source = device_copies_[i].source;
    device_copies_.erase(device_copies_.begin() + static_cast<std::ptrdiff_t>(i));
    pool_->Unpin(destination);
    pool_->Unpin(source);
    AfterUnpin(source);
  }
}

// What is handed over still reads and writes these slots until its step has passed.
void ManagerCore::DrainStepWork(Fence fence, StepWork& work) {
  BindThread();
  work.zero.clear();
  work.copies.clear();
  const bool passed = Passed(fence);
  const auto until_passed = [&](BlockId block) {
    if (passed) {
      pool_->Unpin(block);
      AfterUnpin(block);
    } else {
      TimelineOf(fence.timeline).pins.emplace_back(fence.step, block);
    }
  };
  for (const QueuedZero& zero : std::exchange(device_zeros_, {})) {
    work.zero.push_back(zero.slot);
    if (pool_->Pin(zero.block)) until_passed(zero.block);
  }
  for (const QueuedCopy& copy : std::exchange(device_copies_, {})) {
    work.copies.push_back({copy.from, copy.to, copy.tokens});
    until_passed(copy.destination);
    until_passed(copy.source);
  }
}

// A tree that stops matching has left the mirrors at once; its blocks go later and silently.
void ManagerCore::LogRetired(NodeId root, EvictReason reason) {
  if (events_.empty()) return;
  struct Context {
    ManagerCore* core;
    NodeId root;
    EvictReason reason;
  } context{this, root, reason};
  index_->ForEach(
      [](void* opaque, BlockId block) {
        const auto& c = *static_cast<Context*>(opaque);
        if (c.core->index_->root_of(c.core->pool_->node(block)) != c.root) return;
        std::uint32_t copies = c.core->pool_->valid_mask(block);
        for (TierIndex t = 0; copies != 0; ++t, copies >>= 1) {
          if ((copies & 1u) == 0) continue;
          c.core->LogEvent(EventKind::kRemoved, block, t, c.reason, copies == 1u);
        }
      },
      &context);
}

void ManagerCore::LogEvent(EventKind kind, BlockId block, TierIndex tier, EvictReason reason,
                           bool edge) {
  if (events_.empty() || !pool_->Has(block, word::kPublished) ||
      pool_->Has(block, word::kPending) || index_->IsStale(block))
    return;
  ++event_number_;
  Event& event = events_[event_number_ % events_.size()];
  event = {.number = event_number_,
           .kind = kind,
           .tier = tier,
           .reason = reason,
           .first_or_last = edge,
           .ns = index_->root_namespace(pool_->node(block)),
           .digest = pool_->digest(block),
           .parent = index_->ParentDigest(block)};
}

void ManagerCore::DrainEvents(EventBatch& batch) {
  batch.events.clear();
  batch.lost = 0;
  const std::uint64_t kept = std::min<std::uint64_t>(event_number_, events_.size());
  const std::uint64_t oldest = event_number_ - kept;  // events after this number are kept
  if (event_drained_ < oldest) batch.lost = oldest - event_drained_;
  for (std::uint64_t n = std::max(event_drained_, oldest) + 1; n <= event_number_; ++n) {
    batch.events.push_back(events_[n % events_.size()]);
  }
  event_drained_ = event_number_;
}

EventSnapshot ManagerCore::Snapshot() const {
  struct Context {
    const ManagerCore* core;
    EventSnapshot snapshot;
  } context{this, {.number = event_number_, .stored = {}}};
  index_->ForEach(
      [](void* opaque, BlockId block) {
        auto& c = *static_cast<Context*>(opaque);
        const BlockPool& pool = *c.core->pool_;
        if (pool.Has(block, word::kPending) || c.core->index_->IsStale(block)) return;
        bool first = true;
        for (TierIndex t = 0; t < c.core->tiers_; ++t) {
          if (pool.copy(block, t) != CopyState::kValid) continue;
          c.snapshot.stored.push_back({.number = c.snapshot.number,
                                       .kind = EventKind::kStored,
                                       .tier = t,
                                       .first_or_last = first,
                                       .ns = c.core->index_->root_namespace(pool.node(block)),
                                       .digest = pool.digest(block),
                                       .parent = c.core->index_->ParentDigest(block)});
          first = false;
        }
      },
      &context);
  return std::move(context.snapshot);
}

}  // namespace tidepool::internal
