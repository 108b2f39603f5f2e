// Two-ended loads (Cake, arXiv 2410.03065): the engine computes missing blocks from the front while
// the others come in from the back.
//
// A block that the engine computes keeps its transfer, which is never submitted and ends when the
// step that computes it has passed: pins, joiners and accounts are those of a load.
#include <algorithm>

#include "src/manager/core.h"

namespace tidepool::internal {

namespace {

constexpr std::uint64_t kHeldPolls = 8;  // a withdrawn load that nobody takes is loaded then

}  // namespace

// Loads that the transfer engine has not begun come back from it, now or some polls later, so that
// they can be taken.
void ManagerCore::Withdraw(SequenceData& seq, std::uint32_t blocks) {
  const std::size_t end = std::min<std::size_t>(seq.loads.size(), seq.load_cursor + blocks);
  bool asked = false;
  for (std::size_t i = seq.load_cursor; i < end; ++i) {
    const auto it = load_of_block_.find(seq.loads[i].block.value());
    if (it == load_of_block_.end()) break;
    Transfer& t = transfers_[it->second];
    if (t.computed || t.layers_done != 0) break;
    if (!t.submitted || t.taker != kNone) continue;
    t.taker = seq.index;
    engine_->Cancel(IdOf(it->second, t.generation));
    asked = true;
  }
  if (asked) Harvest();
}

// A withdrawn load, kept from the transfer engine for a while.
void ManagerCore::HoldBack(std::uint32_t index, std::uint32_t taker) {
  Transfer& t = transfers_[index];
  t.taker = taker;
  unsubmitted_.Erase({t.from, t.to}, SubmitEntry(t, index));
  held_.push_back({IdOf(index, t.generation), polls_ + kHeldPolls});
}

void ManagerCore::ReleaseHeld() {
  std::erase_if(held_, [&](const Held& held) {
    const auto index = static_cast<std::uint32_t>(held.id.value());
    Transfer& t = transfers_[index];
    const bool waits = t.active && IdOf(index, t.generation) == held.id && !t.computed;
    if (waits && polls_ < held.until) return false;
    if (waits) {
      t.taker = kNone;
      unsubmitted_.Push({t.from, t.to}, SubmitEntry(t, index));
    }
    return true;
  });
}

TakenLoads ManagerCore::TakeLoads(SequenceData& seq, std::uint32_t blocks) {
  BindThread();
  TakenLoads result{.outcome = Outcome::kOk};
  if (seq.state != SequenceState::kRunning) return {.outcome = Outcome::kPaused};
  if (active_transfers_ != 0) Harvest();
  if (seq.cut_unseen) return {.outcome = TellLoadFailed(seq)};
  if (seq.taken != 0 || !StillLoading(seq)) return result;
  Withdraw(seq, blocks);
  if (seq.cut_unseen) return {.outcome = TellLoadFailed(seq)};
  if (!StillLoading(seq)) return result;
  for (std::size_t i = seq.load_cursor; i < seq.loads.size() && seq.taken < blocks; ++i) {
    const BlockId b = seq.loads[i].block;
    const auto it = load_of_block_.find(b.value());
    if (it == load_of_block_.end() || !pool_->Has(b, word::kPublished)) break;
    Transfer& t = transfers_[it->second];
    const auto position = static_cast<std::uint32_t>(index_->Position(b));
    const bool next = seq.taken == 0 || position == seq.taken_first + seq.taken;
    const bool whole =
        (position + 1) * block_tokens_ <= seq.committed;  // others may find all of it
    const bool free = !t.submitted && !t.computed && (t.taker == kNone || t.taker == seq.index);
    if (!free || !next || !whole) break;
    if (seq.taken == 0) seq.taken_first = position;
    unsubmitted_.Erase({t.from, t.to}, SubmitEntry(t, it->second));
    t.computed = true;
    t.taker = seq.index;
    t.expiry = kNever;
    ++computed_;
    ++seq.taken;
    CountTaken(seq, t.from);
  }
  Pump();
  result.first_token = seq.taken_first * block_tokens_;
  result.tokens = seq.taken * block_tokens_;
  return result;
}

// What was counted as a hit of that tier is computed after all.
void ManagerCore::CountTaken(const SequenceData& seq, TierIndex tier) noexcept {
  ++stats_.taken_loads;
  std::uint64_t& hits = seq.resumed ? stats_.readmit_hit_tokens : stats_.hit_tokens[tier];
  hits -= std::min<std::uint64_t>(hits, block_tokens_);
  if (!seq.resumed) stats_.recomputed_tokens += block_tokens_;
}

Outcome ManagerCore::CommitTaken(SequenceData& seq, Fence fence) {
  BindThread();
  if (seq.state != SequenceState::kRunning) return Outcome::kPaused;
  if (seq.taken == 0) return Outcome::kInvalidArgument;
  if (!fence.done()) {
    if (fence.timeline != seq.timeline) return Outcome::kInvalidArgument;
    if (!seq.last_fence.done() && fence.step < seq.last_fence.step) return Outcome::kNotMonotonic;
    seq.last_fence = fence;
  }
  const std::uint32_t end = seq.taken_first + std::exchange(seq.taken, 0);
  for (std::uint32_t i = seq.taken_first; i < end; ++i) {
    const BlockId b = seq.blocks[i];
    FenceComputed(load_of_block_.find(b.value())->second, fence);
  }
  AdvanceLoads();
  return Outcome::kOk;
}

void ManagerCore::FenceComputed(std::uint32_t index, Fence fence) {
  Transfer& t = transfers_[index];
  t.fence = fence;
  t.committed = true;
  const TransferId id = IdOf(index, t.generation);
  if (Passed(fence)) return EndComputed(id);
  auto& computed = TimelineOf(fence.timeline).computed;
  auto at = computed.end();
  while (at != computed.begin() && std::prev(at)->first > fence.step) --at;
  computed.insert(at, {fence.step, id});
}

void ManagerCore::EndComputed(TransferId id) {
  const auto index = static_cast<std::uint32_t>(id.value());
  Transfer& t = transfers_[index];
  if (!t.active || IdOf(index, t.generation) != id) return;
  Complete(t, t.abandoned ? TransferResult::kCancelled : TransferResult::kOk);
}

// The sequence lets go of blocks that it took and did not commit: once its steps have passed, who
// else waits for them gets them loaded.
void ManagerCore::AbandonComputed(SequenceData& seq, std::span<const BlockId> blocks) {
  if (computed_ == 0) return;
  for (const BlockId b : blocks) {
    const auto it = load_of_block_.find(b.value());
    if (it == load_of_block_.end()) continue;
    Transfer& t = transfers_[it->second];
    if (!t.computed || t.committed || t.taker != seq.index) continue;
    t.abandoned = true;
    seq.taken = 0;
    FenceComputed(it->second, seq.last_fence);
  }
}

// In HBM, or will be before any later step of the sequence's timeline.
bool ManagerCore::ReadyFor(const SequenceData& seq, BlockId block) const noexcept {
  if (pool_->copy(block, kHbmTier) == CopyState::kValid) return true;
  if (computed_ == 0) return false;
  const auto it = load_of_block_.find(block.value());
  if (it == load_of_block_.end()) return false;
  const Transfer& t = transfers_[it->second];
  return t.computed && t.committed && !t.abandoned && t.fence.timeline == seq.timeline;
}

}  // namespace tidepool::internal
