// The ranking of tails: members, places and what happens to blocks.
#include "tidepool/session_ranking.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/session_ranking_impl.h"
#include "src/time_math.h"

namespace tidepool {
namespace internal {
namespace {

// More than anything that may or may not return: who has waited longest is served first.
double WorthInQueue(const Member& member) noexcept {
  const Priority priority = EffectivePriority(member.claimant);
  const double arrived = internal::ToSeconds(member.arrived);
  return 1e12 * (1 + static_cast<double>(priority)) - std::clamp(arrived, -1e11, 1e11);
}

}  // namespace

void RankedPolicy::Attach(const BlockView& blocks, TierIndex tier, std::uint32_t /*slots*/) {
  const bool first = marks_.size() == 0;
  view_ = blocks;
  tier_ = tier;
  if (!first) return;  // Resize: the ranking stands
  scorer_->Attach(tier);
  marks_ = ZeroedArray<Mark>(blocks.capacity());
  if (tier != kHbmTier) owner_ = ZeroedArray<std::uint32_t>(blocks.capacity());
}

// --- Members. ---

std::uint32_t RankedPolicy::Find(SessionId session) const noexcept {
  const auto it = by_session_.find(session.value());
  return it == by_session_.end() ? kNone : it->second;
}

void RankedPolicy::Describe(Member& member, const SessionSignals& session) const noexcept {
  member.claimant = {.session = session.session,
                     .state = session.state,
                     .wait = session.wait_class,
                     .tool = session.tool,
                     .since = session.idle_since,
                     .blocks = session.blocks,
                     .priority = session.priority,
                     .critical_path = session.critical_path};
}

std::uint32_t RankedPolicy::MemberOf(const SessionSignals& session) {
  const auto [it, fresh] = by_session_.try_emplace(session.session.value(), kNone);
  if (fresh) {
    it->second = members_.Take();
    members_[it->second].arrived = now_;
  }
  Describe(members_[it->second], session);
  return it->second;
}

// A session that runs has nothing in HBM to lose but what it no longer uses; below, its copies are
// worth what they were when it began to wait.
void RankedPolicy::Rate(std::uint32_t m) {
  Member& member = members_[m];
  Claimant claimant = member.claimant;
  const bool running = claimant.state == SessionState::kRunning;
  ++member.stamp;
  if (claimant.state == SessionState::kCompleted || (running && tier_ == kHbmTier)) {
    member.worth = kFirst;
    return;
  }
  if (claimant.state == SessionState::kWaitingCapacity) {
    member.worth = WorthInQueue(member);
    member.branch = 0;
    return;
  }
  if (running) claimant.since = now_;
  const Rating rating = scorer_->Rate(claimant, now_);
  member.worth = std::isnan(rating.log_worth) ? kFirst : rating.log_worth;
  member.branch = std::min<std::uint32_t>(rating.branch, kBranches - 1);
  if (rating.until == kNever || running) return;
  edges_.push_back({rating.until, m, member.stamp});
  std::push_heap(edges_.begin(), edges_.end());
}

void RankedPolicy::Join(std::uint32_t m, std::uint32_t p) {
  Member& member = members_[m];
  Place& place = places_[p];
  member.place = p;
  member.prev = kNone;
  member.next = place.first;
  if (place.first != kNone) members_[place.first].prev = m;
  place.first = m;
  ++place.count;
  if (place.best == kNone || WorthNow(member) > WorthNow(members_[place.best])) place.best = m;
  Touch(p);
}

void RankedPolicy::Leave(std::uint32_t m) {
  Member& member = members_[m];
  if (member.place == kNone) return;
  Place& place = places_[member.place];
  (member.prev != kNone ? members_[member.prev].next : place.first) = member.next;
  if (member.next != kNone) members_[member.next].prev = member.prev;
  --place.count;
  if (place.best == m) place.best = kNone;
  Touch(member.place);
  member.place = member.next = member.prev = kNone;
}

void RankedPolicy::MoveTo(std::uint32_t m, BlockId block) {
  const std::uint32_t old = members_[m].place;
  if (old != kNone && places_[old].block == block) {
    Touch(old);
    return;
  }
  Leave(m);
  if (old != kNone && places_[old].count == 0 && !view_.IsEnd(places_[old].block, tier_)) {
    Drop(old);
  }
  Join(m, PlaceAt(block));
}

void RankedPolicy::Forget(std::uint32_t m) {
  Leave(m);
  if (members_[m].claimant.session.valid()) {
    by_session_.erase(members_[m].claimant.session.value());
  }
  const std::uint32_t stamp = members_[m].stamp + 1;
  members_.Give(m);
  members_[m].stamp = stamp;  // what is left of it among the edges means nobody
}

// Somebody without a session has just used what ends here.
void RankedPolicy::AddUnclaimed(std::uint32_t p) {
  for (std::uint32_t m = places_[p].first; m != kNone; m = members_[m].next) {
    if (members_[m].claimant.session.valid()) continue;
    Judge(m, SessionScorer::Outcome::kUsedAgain);
    members_[m].judged = false;
    members_[m].claimant.since = now_;
    Rate(m);
    places_[p].best = kNone;
    Touch(p);
    return;
  }
  const std::uint32_t m = members_.Take();
  members_[m].claimant.since = now_;
  Rate(m);
  Join(m, p);
}

void RankedPolicy::OnSession(const SessionSignals& session, TimePoint now) noexcept {
  now_ = std::max(now_, now);
  scorer_->OnSession(session, now);
  const std::uint32_t m = Find(session.session);
  if (m == kNone) return;
  if (session.state == SessionState::kRunning) Judge(m, SessionScorer::Outcome::kUsedAgain);
  if (session.state == SessionState::kWaitingCapacity &&
      members_[m].claimant.state != SessionState::kWaitingCapacity) {
    members_[m].arrived = now;
  }
  if (session.idle_since != members_[m].claimant.since) members_[m].judged = false;
  Describe(members_[m], session);
  Rate(m);
  if (const std::uint32_t p = members_[m].place; p != kNone) {
    places_[p].best = kNone;
    Touch(p);
  }
}

void RankedPolicy::OnClaimed(const SessionSignals& session,
                             std::span<const BlockId> blocks) noexcept {
  const std::uint32_t m = MemberOf(session);
  Rate(m);
  if (tier_ != kHbmTier) {
    for (const BlockId b : blocks) owner_[b.value()] = m + 1;
    if (!session.deepest.valid() || !Resident(session.deepest)) {
      if (members_[m].place != kNone) Touch(members_[m].place);
      return;
    }
  }
  if (session.deepest.valid()) MoveTo(m, session.deepest);
}

// What nobody claims now is left behind: its tail stays as a place without a member.
void RankedPolicy::OnUnclaimed(const SessionSignals& session,
                               std::span<const BlockId> blocks) noexcept {
  const std::uint32_t m = Find(session.session);
  if (m != kNone && members_[m].place != kNone) {
    const BlockId at = places_[members_[m].place].block;
    if (std::find(blocks.begin(), blocks.end(), at) != blocks.end()) Leave(m);
  }
  for (std::size_t i = blocks.size(); i-- > 0;) {
    if (!Resident(blocks[i])) continue;
    if (At(blocks[i]) == kNone && view_.IsEnd(blocks[i], tier_)) PlaceAt(blocks[i]);
    break;
  }
  if (m != kNone && members_[m].place == kNone && session.state == SessionState::kCompleted) {
    Forget(m);
  }
}

// --- Places. ---

std::uint32_t RankedPolicy::PlaceAt(BlockId block) {
  if (const std::uint32_t p = At(block); p != kNone) return p;
  const std::uint32_t p = places_.Take();
  places_[p].block = block;
  places_[p].serial = ++serial_;
  marks_[block.value()].place = p + 1;
  SetStanding(p, Standing::kRanked);
  Touch(p);
  return p;
}

Tail RankedPolicy::TailOf(const Place& place) const noexcept {
  return {.position_tokens = view_.Position(place.block),
          .clean = view_.Clean(place.block, tier_),
          .tier = tier_,
          .claims = view_.Claims(place.block)};
}

void RankedPolicy::Judge(std::uint32_t m, SessionScorer::Outcome outcome) {
  Member& member = members_[m];
  if (member.judged || member.place == kNone) return;
  member.judged = true;
  scorer_->OnOutcome(member.claimant, TailOf(places_[member.place]), outcome);
}

// The nearest block before this one that the tier has; in HBM the very next.
BlockId RankedPolicy::ResidentAncestor(BlockId block) {
  for (block = view_.Parent(block); block.valid(); block = view_.Parent(chain_.back())) {
    chain_.clear();
    view_.AppendUpwards(block, kClimb, chain_);
    for (const BlockId b : chain_) {
      if (Resident(b)) return b;
    }
  }
  return {};
}

// The block leaves: what is before it is the tail now.
void RankedPolicy::MoveUp(std::uint32_t p) {
  if (places_[p].best != kNone) Judge(places_[p].best, SessionScorer::Outcome::kGivenUp);
  const BlockId parent = ResidentAncestor(places_[p].block);
  if (!parent.valid()) {
    Drop(p);
    return;
  }
  marks_[places_[p].block.value()].place = 0;
  if (const std::uint32_t other = At(parent); other != kNone) {
    Merge(p, other);
    return;
  }
  places_[p].block = parent;
  marks_[parent.value()].place = p + 1;
  SetStanding(p, Standing::kRanked);
  if (places_[p].count == 0) AttachClaimant(p);
  Touch(p);
}

// Of the members without a session the latest stands for all.
void RankedPolicy::Merge(std::uint32_t from, std::uint32_t into) {
  std::uint32_t unclaimed = kNone;
  for (std::uint32_t m = places_[into].first; m != kNone; m = members_[m].next) {
    if (!members_[m].claimant.session.valid()) unclaimed = m;
  }
  while (places_[from].first != kNone) {
    const std::uint32_t m = places_[from].first;
    const bool anonymous = !members_[m].claimant.session.valid();
    if (anonymous && unclaimed != kNone) {
      if (members_[m].claimant.since > members_[unclaimed].claimant.since) {
        members_[unclaimed].claimant.since = members_[m].claimant.since;
        Rate(unclaimed);
        places_[into].best = kNone;
      }
      Forget(m);
      continue;
    }
    if (anonymous) unclaimed = m;
    Leave(m);
    Join(m, into);
  }
  SetStanding(from, Standing::kFree);
  places_.Give(from);
  SetStanding(into, Standing::kRanked);
  Touch(into);
}

void RankedPolicy::Drop(std::uint32_t p) {
  while (places_[p].first != kNone) {
    const std::uint32_t m = places_[p].first;
    const bool keep = tier_ != kHbmTier && members_[m].claimant.session.valid();
    keep ? Leave(m) : Forget(m);
  }
  if (At(places_[p].block) == p) marks_[places_[p].block.value()].place = 0;
  SetStanding(p, Standing::kFree);
  places_.Give(p);
}

void RankedPolicy::SetStanding(std::uint32_t p, Standing standing) {
  Place& place = places_[p];
  held_ += (standing == Standing::kHeld) - (place.standing == Standing::kHeld);
  place.standing = standing;
  if (standing != Standing::kRanked) {
    Remove(p);
  } else if (place.heap_index == kNone && !place.aside) {
    Push(p);
  }
}

void RankedPolicy::Touch(std::uint32_t p) {
  if (places_[p].dirty) return;
  places_[p].dirty = true;
  dirty_.push_back(p);
}

void RankedPolicy::Update(std::uint32_t p) {
  Place& place = places_[p];
  place.dirty = false;
  if (place.standing == Standing::kFree) return;
  if (place.best == kNone) {
    for (std::uint32_t m = place.first; m != kNone; m = members_[m].next) {
      if (place.best == kNone || WorthNow(members_[m]) > WorthNow(members_[place.best])) {
        place.best = m;
      }
    }
  }
  double key = kFirst;
  std::uint32_t branch = 0;
  if (place.best != kNone && members_[place.best].worth != kFirst) {
    const Member& best = members_[place.best];
    key = best.worth + scorer_->LogCost(best.claimant, TailOf(place), signals_);
    branch = members_[place.best].branch;
  }
  const bool in_heap = place.heap_index != kNone;
  if (in_heap) Remove(p);
  place.key = std::isnan(key) ? kFirst : key;
  place.branch = branch;
  if (in_heap) Push(p);
}

// A block below HBM that is still claimed, though the claimant's place is elsewhere or nowhere.
void RankedPolicy::AttachClaimant(std::uint32_t p) {
  if (tier_ == kHbmTier) return;
  const std::uint32_t m = owner_[places_[p].block.value()] - 1;
  if (m == kNone || !members_[m].claimant.session.valid() || members_[m].place != kNone) return;
  if (view_.Claims(places_[p].block) != 0) Join(m, p);
}

// --- Blocks. ---

void RankedPolicy::OnInserted(std::span<const BlockId> blocks) noexcept {
  if (tier_ == kHbmTier) return;  // it is held; its release is what counts
  for (const BlockId b : blocks) {
    const std::uint32_t m = view_.Claims(b) != 0 ? owner_[b.value()] - 1 : kNone;
    if (m != kNone && members_[m].claimant.session.valid()) {
      const std::uint32_t p = members_[m].place;
      const bool deeper = p == kNone || view_.Position(b) > view_.Position(places_[p].block);
      if (deeper) {
        MoveTo(m, b);
        continue;
      }
    }
    if (At(b) == kNone && view_.IsEnd(b, tier_)) AddUnclaimed(PlaceAt(b));
  }
}

// Below HBM a use without a session makes what ends there recent.
void RankedPolicy::OnAccessed(std::span<const BlockId> blocks) noexcept {
  if (tier_ == kHbmTier || blocks.empty()) return;
  const std::uint32_t p = At(blocks.back());
  if (p != kNone && places_[p].count != 0) AddUnclaimed(p);
}

void RankedPolicy::OnEvictable(std::span<const BlockId> blocks) noexcept {
  if (tier_ != kHbmTier) return;
  if (held_ != 0) {
    for (const BlockId b : blocks) {
      const std::uint32_t p = At(b);
      if (p != kNone && places_[p].standing == Standing::kHeld) SetStanding(p, Standing::kRanked);
    }
  }
  const BlockId last = blocks.back();
  const std::uint32_t p = At(last);
  const bool unclaimed = view_.Claims(last) == 0;
  if (p != kNone && !(unclaimed && view_.IsEnd(last, tier_))) return;
  if (p == kNone && !view_.IsEnd(last, tier_)) return;
  AddUnclaimed(PlaceAt(last));
}

void RankedPolicy::OnCopyChanged(std::span<const BlockId> blocks, TierIndex tier,
                                 CopyState state) noexcept {
  if (tier > tier_ || state == CopyState::kWriting) return;
  for (const BlockId b : blocks) {
    Uncover(b);
    if (state == CopyState::kAbsent) Uncover(view_.Parent(b));
  }
}

// What stood in front of the block may be gone.
void RankedPolicy::Uncover(BlockId block) {
  if (!block.valid()) return;
  std::uint32_t p = At(block);
  if (p != kNone) {
    if (places_[p].standing == Standing::kCovered) SetStanding(p, Standing::kRanked);
    return;
  }
  if (!Resident(block) || (tier_ != kHbmTier && !view_.IsEnd(block, tier_))) return;
  p = PlaceAt(block);
  AttachClaimant(p);
  if (places_[p].count == 0 && view_.Claims(block) != 0) AddUnclaimed(p);
}

void RankedPolicy::OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept {
  for (const BlockId b : blocks) {
    if (const std::uint32_t p = At(b); p != kNone) {
      MoveUp(p);
      continue;
    }
    if (reason == EvictReason::kReleased) continue;
    Uncover(view_.Parent(b));
  }
}

std::uint64_t RankedPolicy::MemoryBytes() const noexcept {
  std::uint64_t bytes = marks_.bytes() + owner_.bytes() + members_.MemoryBytes() +
                        places_.MemoryBytes() + edges_.capacity() * sizeof(Edge) +
                        by_session_.capacity() * 17 + scorer_->MemoryBytes();
  for (const auto& heap : heaps_) bytes += heap.capacity() * sizeof(std::uint32_t);
  return bytes;
}

}  // namespace internal

double LogPriority(const Claimant& claimant) noexcept {
  return (static_cast<double>(EffectivePriority(claimant)) - 1) * 1.3862943611198906;  // ln 4
}

double LogSecondsToRestore(const Tail& tail, const SchedulingSignals& signals) noexcept {
  if (!signals.recompute.known()) return 0;
  double seconds = signals.recompute.BlockSeconds(tail.position_tokens);
  if (tail.clean) {
    for (const LinkSignals& link : signals.links) {
      if (link.to != kHbmTier || link.from != tail.tier + 1) continue;
      const double load = internal::ToSeconds(link.latency);
      if (load > 0) seconds = std::min(seconds, load);
    }
  }
  return seconds > 0 && std::isfinite(seconds) ? std::log(seconds) : 0;
}

std::unique_ptr<EvictionPolicy> MakeRankedPolicy(std::string_view name,
                                                 std::unique_ptr<SessionScorer> scorer) {
  return std::make_unique<internal::RankedPolicy>(name, std::move(scorer));
}

}  // namespace tidepool
