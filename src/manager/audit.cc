// Accounts and the audit: what everything should add up to.
#include <algorithm>

#include "src/manager/core.h"
#include "src/str_cat.h"

namespace tidepool::internal {

void ManagerCore::Lookup(std::span<const Token> tokens, NamespaceId id,
                         std::vector<BlockId>& blocks) {
  blocks.clear();
  const std::uint32_t ns = Mapped(id);
  if (ns == kNone) return;
  index_->Match({.root = Root(ns), .tokens = tokens}, match_);
  blocks = match_.blocks;
}

TableSizes ManagerCore::table_sizes() const noexcept {
  TableSizes sizes;
  sizes.sequences = static_cast<std::uint32_t>(sequences_.size() - free_sequences_.size());
  sizes.sessions = static_cast<std::uint32_t>(session_index_.size());
  sizes.transfers = active_transfers_;
  sizes.demands = static_cast<std::uint32_t>(demands_.size());
  for (const Timeline& t : timelines_) {
    sizes.pending_commits += static_cast<std::uint32_t>(t.commits.size());
    sizes.pending_releases += static_cast<std::uint32_t>(t.releases.size() + t.pins.size());
  }
  sizes.device_work = static_cast<std::uint32_t>(device_copies_.size() + device_zeros_.size());
  return sizes;
}

std::uint64_t ManagerCore::metadata_bytes() const noexcept {
  std::uint64_t bytes =
      pool_->MemoryBytes() + index_->MemoryBytes() + slot_tenant_.size() * 2 + block_ns_.size() * 4;
  for (const auto& policy : policies_) bytes += policy->MemoryBytes();
  return bytes;
}

Status ManagerCore::Audit() const {
  if (Status s = pool_->Audit(); !s.ok()) return s;
  if (Status s = index_->Audit(); !s.ok()) return s;
  std::vector<std::uint32_t> holds(pool_->capacity(), 0);
  std::vector<std::uint32_t> pins(pool_->capacity(), 0);
  for (const auto& seq : sequences_) {
    if (seq->state == SequenceState::kFree && !seq->blocks.empty()) {
      return absl::InternalError(StrCat("free sequence ", seq->index, " lists blocks"));
    }
    for (std::size_t i = 0; i < seq->blocks.size(); ++i) {
      const BlockId b = seq->blocks[i];
      if (!b.valid()) continue;
      ++holds[b.value()];
      if (seq->table[i] != pool_->slot(b, kHbmTier).value()) {
        return absl::InternalError(StrCat("sequence ", seq->index, " position ", i,
                                          ": table says slot ", seq->table[i], ", block ",
                                          b.value(), " has ", pool_->slot(b, 0).value()));
      }
    }
  }
  for (const Timeline& timeline : timelines_) {
    for (const Timeline::Release& release : timeline.releases) {
      for (const BlockId b : release.blocks) ++holds[b.value()];
    }
    for (const auto& pin : timeline.pins) ++pins[pin.second.value()];
  }
  for (const QueuedCopy& copy : device_copies_) {
    ++pins[copy.source.value()];
    ++pins[copy.destination.value()];
  }
  std::uint32_t active = 0;
  std::size_t withdrawable = 0;
  std::array<std::uint32_t, kMaxTiers> leaving{};
  for (const Transfer& t : transfers_) {
    if (!t.active) continue;
    ++active;
    if (t.detached) continue;  // from its block, which may be gone
    ++pins[t.block.block.value()];
    if (t.release) ++leaving[t.from];
    if (t.withdrawable) {
      ++withdrawable;
      const auto it = withdrawable_.find(t.block.block.value());
      if (it == withdrawable_.end() || &transfers_[it->second] != &t) {
        return absl::InternalError(
            StrCat("block ", t.block.block.value(), " is not listed with its withdrawable copy"));
      }
    }
    if (pool_->generation(t.block.block) != t.block.generation) {
      return absl::InternalError(StrCat("transfer of recycled block ", t.block.block.value()));
    }
  }
  if (active != active_transfers_ || leaving != leaving_ || withdrawable != withdrawable_.size()) {
    return absl::InternalError("transfer counters disagree with the transfers");
  }
  for (std::uint32_t i = 0; i < pool_->capacity(); ++i) {
    const BlockId b(i);
    if (pool_->holds(b) != holds[i] || pool_->pins(b) != pins[i]) {
      return absl::InternalError(StrCat("block ", i, ": ", pool_->holds(b), " holds and ",
                                        pool_->pins(b), " pins, its users add up to ", holds[i],
                                        " and ", pins[i]));
    }
    if (pool_->Has(b, word::kExcluded)) {
      return absl::InternalError(StrCat("block ", i, " kept a plan's mark"));
    }
    if (pool_->Has(b, word::kChosen) && pins[i] == 0) {
      return absl::InternalError(StrCat("block ", i, " is chosen but nothing moves it"));
    }
  }
  for (const StoredBlock& block : stored_.blocks()) {
    if (block.slot.valid() && block.slot.value() >= bindings_[stored_tier_].slots) {
      return absl::InternalError(StrCat("stored block in slot ", block.slot.value()));
    }
  }
  if (stored_.size() > pool_->quarantined(stored_tier_)) {
    return absl::InternalError(StrCat(stored_.size(), " stored blocks, ",
                                      pool_->quarantined(stored_tier_), " slots set aside"));
  }
  std::uint64_t granted = 0;
  for (const Demand& d : demands_) granted += d.granted;
  if (granted > pool_->free_slots(kHbmTier)) {
    return absl::InternalError(
        StrCat(granted, " slots set aside, ", pool_->free_slots(kHbmTier), " free"));
  }
  return absl::OkStatus();
}

}  // namespace tidepool::internal
