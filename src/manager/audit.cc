// Accounts and the audit: what everything should add up to.
#include <algorithm>
#include <tuple>

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

std::vector<ReclaimChoice> ManagerCore::PlanReclaim(std::uint64_t bytes, Priority below) const {
  struct Ranked {
    ReclaimChoice choice;
    std::uint32_t preemptions;
    std::uint64_t serial;
  };
  std::vector<Ranked> ranked;
  const double down = tiers_ > 1 ? link_signals_[LinkOf(kHbmTier, 1)].bytes_per_second : 0;
  const double up = tiers_ > 1 ? link_signals_[LinkOf(1, kHbmTier)].bytes_per_second : 0;
  for (const auto& seq : sequences_) {
    if (seq->state != SequenceState::kRunning || seq->priority > below) continue;
    ReclaimChoice choice{
        .sequence = SequenceId(seq->serial), .session = seq->session_id, .priority = seq->priority};
    double recompute = 0;
    for (std::size_t i = seq->dropped; i < seq->blocks.size(); ++i) {
      if (pool_->holds(seq->blocks[i]) != 1) continue;  // shared: others keep it
      ++choice.blocks;
      recompute += options_.recompute.BlockSeconds(std::uint64_t{i} * block_tokens_);
    }
    if (choice.blocks == 0) continue;
    const std::uint32_t sealed = seq->publish ? seq->publish_blocks * block_tokens_ : 0;
    choice.recompute_tokens = seq->committed - std::min(seq->committed, sealed);
    const double moved = static_cast<double>(choice.blocks) * static_cast<double>(block_bytes_);
    const bool can_move = down > 0 && up > 0;
    const double offload = can_move ? moved / down + moved / up : 0;
    const bool move = can_move && (!options_.recompute.known() || offload < recompute);
    choice.action = move ? ReclaimAction::kOffload : ReclaimAction::kRecompute;
    choice.cost = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(std::min(move ? offload : recompute, 9e9)));
    ranked.push_back({choice, seq->preemptions, seq->serial});
  }
  // Lower priority first; then who lost least so far; then cost a block; then who came last.
  std::sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    const auto per_block = [](const Ranked& r) {
      return static_cast<double>(r.choice.cost.count()) / r.choice.blocks;
    };
    return std::tuple(a.choice.priority, a.preemptions, per_block(a), b.serial) <
           std::tuple(b.choice.priority, b.preemptions, per_block(b), a.serial);
  });
  std::vector<ReclaimChoice> plan;
  std::uint64_t have = 0;
  for (const Ranked& r : ranked) {
    if (have >= bytes) break;
    plan.push_back(r.choice);
    have += r.choice.blocks * block_bytes_;
  }
  return plan;
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
  std::uint64_t granted = 0;
  for (const Demand& d : demands_) granted += d.granted;
  if (granted > pool_->free_slots(kHbmTier)) {
    return absl::InternalError(
        StrCat(granted, " slots set aside, ", pool_->free_slots(kHbmTier), " free"));
  }
  return absl::OkStatus();
}

}  // namespace tidepool::internal
