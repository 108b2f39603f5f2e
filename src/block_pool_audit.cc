// block_pool_audit.cc - the pool's invariants, recounted from nothing but the arrays.
#include <array>
#include <string>
#include <vector>

#include "src/block_pool_internal.h"
#include "tidepool/lifecycle.h"

namespace tidepool {
namespace {

using internal::TierSlots;

bool HoldsFitPhase(std::uint32_t holds, Phase phase) {
  switch (phase) {
    case Phase::kAllocated:
    case Phase::kActive:
      return holds > 0;
    case Phase::kReuse:
      return true;
    default:
      return holds == 0;
  }
}

bool CopyFitsPhase(CopyState hbm, Phase phase) {
  switch (phase) {
    case Phase::kFree:
      return hbm == CopyState::kAbsent;
    case Phase::kAllocated:
      return hbm == CopyState::kWriting;
    case Phase::kActive:
    case Phase::kIdle:
    case Phase::kCandidate:
      return hbm == CopyState::kValid;
    case Phase::kReuse:
      return hbm != CopyState::kAbsent;
    case Phase::kOffloaded:
      return true;
  }
  return false;
}

Status Violation(const std::string& what, const std::string& where) {
  return absl::InternalError(where + ": " + what);
}

struct Recount {
  PoolCounts hbm;
  std::uint32_t evictable = 0;
  std::uint32_t clean = 0;

  void Add(const BlockPool& pool, BlockId b) {
    if (!pool.slot(b, kHbmTier).valid()) return;
    if (pool.holds(b) != 0) {
      ++hbm.held;
    } else if (pool.pins(b) != 0 || pool.copy(b, kHbmTier) == CopyState::kWriting) {
      ++hbm.moving;
    } else {
      ++(pool.Has(b, word::kPublished) ? hbm.cached : hbm.claimed);
      if (pool.phase(b) != Phase::kIdle) return;
      ++evictable;
      if ((pool.valid_mask(b) & 2u) != 0) ++clean;
    }
  }
};

// Each slot of one tier is free, withdrawn, in quarantine or some block's, and only one of them.
class SlotRecount {
 public:
  explicit SlotRecount(const TierSlots& slots)
      : slots_(slots), taken_(slots.allocator.capacity()) {}

  bool Take(std::uint32_t slot) {
    if (slot >= taken_.size() || slot < slots_.first || taken_[slot]) return false;
    if (slots_.allocator.IsFree(slot) || slots_.IsWithdrawn(slot)) return false;
    taken_[slot] = true;
    ++used_;
    return true;
  }

  [[nodiscard]] std::string Mismatch() const {
    std::uint32_t free = 0;
    std::uint32_t withdrawn = 0;
    for (std::uint32_t slot = slots_.first; slot < taken_.size(); ++slot) {
      free += slots_.allocator.IsFree(slot);
      withdrawn += slots_.IsWithdrawn(slot);
      if (slots_.allocator.IsFree(slot) && (slots_.IsWithdrawn(slot) || slot >= slots_.limit)) {
        return "slot " + std::to_string(slot) + " is free beyond the limit";
      }
    }
    if (free != slots_.allocator.free()) return "free slots miscounted";
    if (used_ != slots_.used()) return "used slots miscounted";
    const std::size_t circulating = taken_.size() - slots_.first - withdrawn;
    return circulating == slots_.usable ? "" : "usable slots miscounted";
  }

 private:
  const TierSlots& slots_;
  std::vector<bool> taken_;
  std::uint32_t used_ = 0;
};

// What is wrong with one block by itself, or an empty string.
std::string BlockMismatch(const BlockPool& pool, BlockId b, bool id_is_free) {
  const Phase phase = pool.phase(b);
  if (id_is_free && (pool.word(b) != 0 || pool.valid_mask(b) != 0 || pool.writing_mask(b) != 0)) {
    return "the id is free but the block has state";
  }
  if (!HoldsFitPhase(pool.holds(b), phase)) return "holds do not fit the phase";
  if (!CopyFitsPhase(pool.copy(b, kHbmTier), phase)) return "the HBM copy does not fit the phase";
  const std::uint32_t present = pool.valid_mask(b) | pool.writing_mask(b);
  if (phase == Phase::kAllocated && present != 1u) return "nothing is committed, yet copied below";
  const bool clean = (pool.valid_mask(b) & 3u) == 3u;
  if (clean != pool.Has(b, word::kClean)) return "kClean does not match the copies";
  if ((pool.valid_mask(b) & pool.writing_mask(b)) != 0) return "a copy is both valid and written";
  for (TierIndex tier = 0; tier < pool.tier_count(); ++tier) {
    if (pool.slot(b, tier).valid() != (((present >> tier) & 1u) != 0)) {
      return "slot and copy state of tier " + std::to_string(tier) + " disagree";
    }
  }
  return present >> pool.tier_count() == 0 ? "" : "a copy in a tier that does not exist";
}

}  // namespace

Status BlockPool::Audit() const {
  Recount recount;
  std::array<std::uint32_t, kMaxTiers> clean_copies{};
  std::vector<SlotRecount> slots(impl_->tiers.begin(), impl_->tiers.end());
  for (std::uint32_t i = 0; i < capacity_; ++i) {
    const BlockId b(i);
    std::string mismatch = BlockMismatch(*this, b, impl_->ids.IsFree(i));
    for (TierIndex tier = 0; tier < tier_count_ && mismatch.empty(); ++tier) {
      const SlotId at = slot(b, tier);
      if (!at.valid() || slots[tier].Take(at.value())) continue;
      mismatch = "slot " + std::to_string(at.value()) + " of tier " + std::to_string(tier) +
                 " is not this block's alone";
    }
    if (!mismatch.empty()) {
      return Violation(mismatch,
                       "block " + std::to_string(i) + " (" + std::string(ToString(phase(b))) + ")");
    }
    recount.Add(*this, b);
    for (TierIndex tier = 1; tier < tier_count_; ++tier) {
      clean_copies[tier] += copy(b, tier) == CopyState::kValid && Clean(b, tier) ? 1 : 0;
    }
  }
  for (TierIndex tier = 0; tier < tier_count_; ++tier) {
    const std::string mismatch = slots[tier].Mismatch();
    if (!mismatch.empty()) return Violation(mismatch, "tier " + std::to_string(tier));
  }
  recount.hbm.free = free_slots(kHbmTier);
  recount.hbm.quarantined = quarantined(kHbmTier);
  if (recount.hbm != Counts()) return Violation("the classes do not match a recount", "counts");
  if (recount.evictable != evictable_ || recount.clean != evictable_clean_) {
    return Violation("evictable blocks miscounted", "counts");
  }
  if (clean_copies != clean_copies_) return Violation("clean copies miscounted", "counts");
  return absl::OkStatus();
}

}  // namespace tidepool
