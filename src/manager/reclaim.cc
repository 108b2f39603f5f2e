// What to preempt, and how: PlanReclaim and the mode that Preempt(kAuto) takes. Costs are read from
// the signals only (links, cost model, occupancy); the formula stands above ReclaimChoice.
//
// Forward progress. Sequences rank by priority and serial (RanksBefore). Serials never change, and
// a request that waits draws its own when it is first refused, so this is one total order, for
// life. On behalf of a sequence only those behind it are listed:
//   * no two sequences preempt each other, nor any ring of them: along "was preempted for", rank
//     strictly rises;
//   * the first in rank is preempted for nobody. All others are behind it, so whatever it lacks is
//     held by sequences it may preempt or is cached, and it fits into the tier alone (else
//     kNeverFits): it always gets its slots, commits, and ends. Then the next one is first.
//   * what is freed for it is not lost to newcomers: its demand stands before theirs in the ledger
//     (room.cc) and reserves its whole need. One that is preempted while it lacks room to append
//     keeps that demand, so write-back goes on for it. (A request that was never admitted may be
//     overtaken a few times; it holds nothing that others wait for.)
// Within a priority those that have committed nothing since they were admitted or resumed come
// last, so that nobody is preempted in front of its first step while another would do.
#include <algorithm>
#include <limits>
#include <tuple>

#include "src/manager/core.h"
#include "src/time_math.h"

namespace tidepool::internal {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

}  // namespace

/// What a running sequence would give up.
struct ManagerCore::Reclaimable {
  SequenceData* seq = nullptr;
  std::uint32_t free = 0;         // slots that are free as soon as it lets go, or clean
  std::uint32_t later = 0;        // published, dirty or still loading
  std::uint32_t tail = 0;         // committed, private, without a copy below
  std::uint32_t clean_tail = 0;   // the same, loaded back and not written since
  std::uint32_t lost = 0;         // committed tokens that go with the tail
  std::uint32_t lost_anyway = 0;  // of those, what Resume would not find behind the prefix
  bool tail_useful = true;        // Resume would reach it
  double tail_seconds = 0;        // to recompute what is lost
  double published_seconds = 0;
  std::vector<std::pair<std::uint32_t, BlockId>> shared;  // held by others too: position, block

  std::uint32_t blocks() const noexcept { return free + later + tail + clean_tail; }
  std::uint32_t now(PreemptMode mode) const noexcept {
    return free + clean_tail + (mode == PreemptMode::kRecompute ? tail : 0);
  }
};

// Leading blocks that Resume would find in the index, exactly.
std::uint32_t ManagerCore::FindableBlocks(const SequenceData& seq) {
  if (!seq.publish || FindNamespace(seq.ns) == nullptr) return 0;
  const auto full = static_cast<std::uint32_t>(seq.tokens.size() / block_tokens_);
  if (full == 0) return 0;
  if (full == seq.publish_blocks && seq.dropped == 0 && InCurrentTree(seq)) {
    // Where all are its own in the index, they are what it finds. Another's twin may yet be hidden.
    const auto own = std::span(seq.blocks).first(full);
    const bool found = pool_->Has(own.back(), word::kPublished) &&
                       !pool_->Has(own.back(), word::kOrphan) &&
                       pool_->AlikeTail(own, word::kPublished | word::kOrphan) == full;
    if (found) return full;
  }
  Match({.tokens = seq.tokens, .timeline = seq.timeline, .content = seq.content}, seq.ns.value(),
        full, false, match_);
  return static_cast<std::uint32_t>(match_.blocks.size());
}

// Where the private blocks end that follow `found` ones without a gap. A block that was truncated
// after it had been published is not among them.
std::uint32_t ManagerCore::KeptEnd(const SequenceData& seq, std::uint32_t found) const {
  if (seq.epoch != epoch_ || found < std::max(seq.publish_blocks, seq.dropped)) return found;
  std::uint32_t end = found;
  while (end < BlocksFor(seq.committed) && !pool_->Has(seq.blocks[end], word::kPublished)) ++end;
  return end;
}

// Mirrors what ReleaseFrom does with each block.
void ManagerCore::CountBlock(Reclaimable& r, std::uint32_t position, BlockId block) const {
  const SequenceData& seq = *r.seq;
  const bool clean = pool_->Clean(block, kHbmTier);
  if (pool_->Has(block, word::kPublished)) {
    ++(clean || tiers_ == 1 ? r.free : r.later);
    r.published_seconds += PublishedSeconds(std::uint64_t{position} * block_tokens_, clean);
  } else if (position < seq.publish_blocks || position >= BlocksFor(seq.committed) || tiers_ == 1) {
    ++r.free;
  } else {
    ++(clean || pool_->phase(block) == Phase::kReuse ? r.clean_tail : r.tail);
  }
}

ManagerCore::Reclaimable ManagerCore::Inspect(SequenceData& seq) {
  Reclaimable r{.seq = &seq};
  for (std::uint32_t i = seq.dropped; i < seq.blocks.size(); ++i) {
    if (pool_->holds(seq.blocks[i]) == 1) {
      CountBlock(r, i, seq.blocks[i]);
    } else {
      r.shared.emplace_back(i, seq.blocks[i]);
    }
  }
  const std::uint32_t found = FindableBlocks(seq);
  r.tail_useful = seq.epoch == epoch_ && found >= std::max(seq.publish_blocks, seq.dropped);
  r.lost = seq.committed - std::min(seq.committed, found * block_tokens_);
  r.lost_anyway = seq.committed - std::min(seq.committed, KeptEnd(seq, found) * block_tokens_);
  for (std::uint32_t i = found; i < BlocksFor(seq.committed); ++i) {
    const std::uint32_t tokens = std::min(block_tokens_, seq.committed - i * block_tokens_);
    r.tail_seconds +=
        options_.recompute.BlockSeconds(std::uint64_t{i} * block_tokens_) * tokens / block_tokens_;
  }
  return r;
}

// --- Costs. ---

double ManagerCore::LinkSeconds(TierIndex from, TierIndex to, double ahead,
                                double blocks) const noexcept {
  if (blocks == 0) return 0;
  if (tiers_ == 1) return kUnbounded;
  const LinkSignals& link = link_signals_[LinkOf(from, to)];
  if (!(link.bytes_per_second > 0)) return kUnbounded;
  const double bytes =
      static_cast<double>(link.queued_bytes) + (ahead + blocks) * static_cast<double>(block_bytes_);
  return std::max(std::chrono::duration<double>(link.latency).count(),
                  bytes / link.bytes_per_second);
}

// As room is made: a dirty block is copied down and up, or dropped where that costs less. What is
// queued now does not count, for it leaves when its turn comes.
double ManagerCore::PublishedSeconds(std::uint64_t position, bool clean) const noexcept {
  const double recompute = signals_.recompute.BlockSeconds(position);  // 0 = unknown
  if (tiers_ == 1) return recompute;
  const double copies = clean ? CopySeconds(1, kHbmTier) : RoundTripSeconds();
  if (clean || !signals_.recompute.known()) return copies == kUnbounded ? 0 : copies;
  return std::min(copies, recompute);
}

bool ManagerCore::LowerTierTakes(double blocks) const noexcept {
  const TierSignals& below = signals_.tiers[1];
  const std::uint32_t clean = last_tier() == 1 ? below.evictable : below.clean;
  return SlotsGrantable(1) && below.slots - std::min(below.slots, below.used) + clean >= blocks;
}

// `ahead`: blocks that go down first and are not in the signals yet.
PreemptMode ManagerCore::CheapestMode(const Reclaimable& r, bool waited_for,
                                      double ahead) const noexcept {
  if (!r.tail_useful) return PreemptMode::kRecompute;
  if (!waited_for || r.tail == 0) return PreemptMode::kKeep;
  const double recompute = signals_.recompute.known() ? r.tail_seconds : kUnbounded;
  const double offload =
      LowerTierTakes(ahead + r.tail)
          ? LinkSeconds(0, 1, ahead, r.tail) + LinkSeconds(1, 0, 0, r.tail + r.clean_tail)
          : kUnbounded;
  if (recompute < offload) return PreemptMode::kRecompute;
  return offload < kUnbounded ? PreemptMode::kOffload : PreemptMode::kKeep;
}

double ManagerCore::ModeSeconds(const Reclaimable& r, PreemptMode mode,
                                double ahead) const noexcept {
  double tail = 0;
  if (mode == PreemptMode::kRecompute || tiers_ == 1) {
    tail = r.tail_seconds;
  } else if (mode == PreemptMode::kOffload) {
    tail = LinkSeconds(0, 1, ahead, r.tail) + LinkSeconds(1, 0, 0, r.tail + r.clean_tail);
  }
  return tail + r.published_seconds;
}

// --- The plan. ---

ReclaimChoice ManagerCore::Choose(const Reclaimable& r, std::uint32_t missing,
                                  double ahead) const noexcept {
  const bool waited_for = r.now(PreemptMode::kKeep) < missing;
  const PreemptMode mode = CheapestMode(r, waited_for, ahead);
  ReclaimChoice choice{.sequence = SequenceId(r.seq->serial),
                       .session = r.seq->session_id,
                       .priority = r.seq->priority,
                       .mode = mode,
                       .blocks = r.blocks(),
                       .blocks_now = r.now(mode)};
  choice.recompute_tokens = mode == PreemptMode::kRecompute ? r.lost : r.lost_anyway;
  choice.cost = ToDuration(ModeSeconds(r, mode, ahead));
  const double wait = LinkSeconds(0, 1, ahead, choice.blocks - choice.blocks_now);
  choice.ready_in = wait < kUnbounded ? ToDuration(wait) : Duration::max();
  return choice;
}

std::vector<ManagerCore::Reclaimable> ManagerCore::RankVictims(Priority below,
                                                               const SequenceData* beneficiary) {
  std::vector<Reclaimable> ranked;
  for (const auto& seq : sequences_) {
    if (seq->state != SequenceState::kRunning || seq->priority > below) continue;
    if (beneficiary != nullptr && !RanksBefore(beneficiary->rank(), seq->rank())) continue;
    ranked.push_back(Inspect(*seq));
  }
  using Key = std::tuple<bool, Priority, bool, double, std::uint32_t, std::uint64_t>;
  std::vector<std::pair<Key, std::size_t>> order;
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    const Reclaimable& r = ranked[i];
    const double cost =
        std::min(ModeSeconds(r, CheapestMode(r, true, offloaded_), offloaded_), 9e9);
    const double weight = 1.0 + r.seq->preemptions;
    order.emplace_back(
        Key{r.blocks() == 0, r.seq->priority, !r.seq->advanced,
            r.blocks() == 0 ? 0 : cost * weight / r.blocks(), r.seq->preemptions, ~r.seq->serial},
        i);
  }
  std::sort(order.begin(), order.end());
  std::vector<Reclaimable> sorted;
  sorted.reserve(ranked.size());
  for (const auto& [key, i] : order) sorted.push_back(std::move(ranked[i]));
  return sorted;
}

// A block that several victims share counts with the last of them.
std::vector<ReclaimChoice> ManagerCore::PlanChoices(std::uint64_t bytes,
                                                    std::vector<Reclaimable> ranked) {
  absl::flat_hash_map<std::uint32_t, std::uint32_t> left;  // holders not in the plan, by block
  std::vector<std::pair<ReclaimChoice, const Reclaimable*>> chosen;
  std::uint64_t missing = bytes / block_bytes_ + (bytes % block_bytes_ != 0 ? 1 : 0);
  double ahead = offloaded_;
  for (Reclaimable& r : ranked) {
    if (missing == 0) break;
    for (const auto& [position, block] : r.shared) {
      const auto it = left.try_emplace(block.value(), pool_->holds(block)).first;
      if (--it->second == 0) CountBlock(r, position, block);
    }
    ReclaimChoice choice =
        Choose(r, static_cast<std::uint32_t>(std::min<std::uint64_t>(missing, kNone)), ahead);
    if (!Passed(r.seq->last_fence)) choice.fence = r.seq->last_fence;
    missing -= std::min<std::uint64_t>(missing, choice.blocks);
    ahead += choice.blocks - choice.blocks_now;
    chosen.emplace_back(choice, &r);
  }
  std::vector<ReclaimChoice> plan;
  for (const auto& [choice, r] : chosen) {  // without those that free nothing, not even for others
    const bool helps = std::any_of(r->shared.begin(), r->shared.end(),
                                   [&](const auto& s) { return left[s.second.value()] == 0; });
    if (choice.blocks != 0 || helps) plan.push_back(choice);
  }
  return plan;
}

std::vector<ReclaimChoice> ManagerCore::PlanReclaim(std::uint64_t bytes, Priority below) {
  return PlanChoices(bytes, RankVictims(below, nullptr));
}

std::vector<ReclaimChoice> ManagerCore::PlanReclaimFor(SequenceData& seq, std::uint64_t bytes) {
  return PlanChoices(bytes, RankVictims(seq.priority, &seq));
}

// --- Preempting. ---

PreemptMode ManagerCore::ResolveMode(SequenceData& seq, PreemptMode mode) {
  if (mode != PreemptMode::kAuto && mode != PreemptMode::kOffload) return mode;
  const Reclaimable r = Inspect(seq);
  if (mode == PreemptMode::kAuto) {
    mode = CheapestMode(r, ShortfallOf(kHbmTier) != 0, offloaded_);
  }
  if (mode == PreemptMode::kOffload && tiers_ == 1) mode = PreemptMode::kKeep;
  if (mode == PreemptMode::kOffload) offloaded_ += r.tail;
  return mode;
}

Outcome ManagerCore::Preempt(SequenceData& seq, PreemptMode mode) {
  BindThread();
  if (seq.state != SequenceState::kRunning) return Outcome::kAlreadyPaused;
  mode = ResolveMode(seq, mode);
  EndTurn(seq, {.wait = WaitClass::kCapacity});
  ProtectDemand(seq);
  ++seq.preemptions;
  switch (mode) {
    case PreemptMode::kRecompute:
      ++stats_.preempted_recompute;
      ReleaseFrom(seq, 0, TailAction::kFree);
      break;
    case PreemptMode::kOffload:
      ++stats_.preempted_offload;
      ReleaseFrom(seq, 0, TailAction::kOffload);
      break;
    default:
      ++stats_.preempted_keep;
      ReleaseFrom(seq, 0, TailAction::kKeep);
  }
  seq.state = SequenceState::kPaused;
  if (!unsubmitted_.empty()) Pump();
  return Outcome::kOk;
}

}  // namespace tidepool::internal
