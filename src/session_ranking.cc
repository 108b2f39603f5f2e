// The ranking of tails; see session_ranking.h.
//
// Words: a member is a claimant in the ranking; a place is a tail with its members.
//
// Invariants:
//   * at_[b] names the one place that stands at block b; a member is listed at one place at most;
//   * key of a place = log worth of its best member + log cost of its block; -infinity without a
//     member, or if all of them run or have ended;
//   * a place is in the heap of its branch exactly if its standing is kRanked and no query has set
//     it aside;
//   * every evictable tail of the tier has a place at it, or at a chosen block behind it.
#include "tidepool/session_ranking.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "src/time_math.h"
#include "src/zeroed_array.h"

namespace tidepool {
namespace {

constexpr std::uint32_t kNone = 0xffffffffu;
constexpr double kFirst = -std::numeric_limits<double>::infinity();  // leaves first
constexpr std::size_t kBranches = 2;
constexpr std::uint32_t kClimb = 64;  // blocks looked at in one go

enum class Standing : std::uint8_t {
  kFree,
  kRanked,
  kHeld,     // a running sequence holds the block; its release ranks the place again
  kCovered,  // something behind the block is resident; its eviction ranks the place again
};

struct Member {
  Claimant claimant;
  double worth = kFirst;
  std::uint32_t branch = 0;
  std::uint32_t stamp = 0;  // of its latest entry among the edges
  std::uint32_t place = kNone;
  std::uint32_t next = kNone;
  std::uint32_t prev = kNone;
  TimePoint arrived{};  // in the engine's queue
  bool judged = false;  // the scorer knows how this wait ended
};

struct Place {
  BlockId block;
  std::uint32_t first = kNone;
  std::uint32_t count = 0;
  std::uint32_t best = kNone;
  std::uint32_t heap_index = kNone;
  std::uint32_t branch = 0;
  double key = kFirst;
  std::uint64_t serial = 0;  // decides between equal keys: the older place leaves first
  Standing standing = Standing::kFree;
  bool dirty = false;
  bool aside = false;  // of the query that runs
};

// Records named by numbers that are used again.
template <typename T>
class Records {
 public:
  std::uint32_t Take() {
    if (free_.empty()) {
      records_.emplace_back();
      return static_cast<std::uint32_t>(records_.size() - 1);
    }
    const std::uint32_t i = free_.back();
    free_.pop_back();
    return i;
  }
  void Give(std::uint32_t i) {
    records_[i] = T{};
    free_.push_back(i);
  }
  T& operator[](std::uint32_t i) noexcept { return records_[i]; }
  const T& operator[](std::uint32_t i) const noexcept { return records_[i]; }
  [[nodiscard]] std::size_t live() const noexcept { return records_.size() - free_.size(); }
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept {
    return records_.capacity() * sizeof(T) + free_.capacity() * sizeof(std::uint32_t);
  }

 private:
  std::vector<T> records_;
  std::vector<std::uint32_t> free_;
};

// More than anything that may or may not return: who has waited longest is served first.
double WorthInQueue(const Member& member) noexcept {
  const auto priority =
      member.claimant.critical_path ? Priority::kCritical : member.claimant.priority;
  const double arrived = internal::ToSeconds(member.arrived);
  return 1e12 * (1 + static_cast<double>(priority)) - std::clamp(arrived, -1e11, 1e11);
}

class RankedPolicy final : public EvictionPolicy {
 public:
  RankedPolicy(std::string_view name, std::unique_ptr<SessionScorer> scorer)
      : name_(name), scorer_(std::move(scorer)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] PolicyNeeds needs() const noexcept override {
    return {.repeat = true, .claims = true};
  }
  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) override;
  void OnInserted(std::span<const BlockId> blocks) noexcept override;
  void OnAccessed(std::span<const BlockId> blocks) noexcept override;
  void OnEvictable(std::span<const BlockId> blocks) noexcept override;
  void OnSession(const SessionSignals& session, TimePoint now) noexcept override;
  void OnClaimed(const SessionSignals& session, std::span<const BlockId> blocks) noexcept override;
  void OnUnclaimed(const SessionSignals& session,
                   std::span<const BlockId> blocks) noexcept override;
  void OnCopyChanged(std::span<const BlockId> blocks, TierIndex tier,
                     CopyState state) noexcept override;
  void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept override;
  void OnTimeAdvanced(const SchedulingSignals& signals) noexcept override;
  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override;
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override;

 private:
  struct Edge {
    TimePoint at;
    std::uint32_t member;
    std::uint32_t stamp;
    // For the standard heap, whose top is the largest.
    friend bool operator<(const Edge& a, const Edge& b) noexcept { return a.at > b.at; }
  };

  // --- Members. ---
  std::uint32_t Find(SessionId session) const noexcept;
  std::uint32_t MemberOf(const SessionSignals& session);
  void Describe(Member& member, const SessionSignals& session) const noexcept;
  void Rate(std::uint32_t m);
  void Join(std::uint32_t m, std::uint32_t p);
  void Leave(std::uint32_t m);
  void MoveTo(std::uint32_t m, BlockId block);
  void Forget(std::uint32_t m);
  void AddUnclaimed(std::uint32_t p);
  [[nodiscard]] double WorthNow(const Member& member) const noexcept {
    return member.worth + (member.worth == kFirst ? 0 : scorer_->LogDrift(member.branch, now_));
  }

  // --- Places. ---
  [[nodiscard]] std::uint32_t At(BlockId block) const noexcept { return at_[block.value()] - 1; }
  std::uint32_t PlaceAt(BlockId block);
  [[nodiscard]] Tail TailOf(const Place& place) const noexcept;
  void Judge(std::uint32_t m, SessionScorer::Outcome outcome);
  void MoveUp(std::uint32_t p);
  [[nodiscard]] BlockId ResidentAncestor(BlockId block);
  void Merge(std::uint32_t from, std::uint32_t into);
  void Drop(std::uint32_t p);
  void SetStanding(std::uint32_t p, Standing standing);
  void Touch(std::uint32_t p);
  void Update(std::uint32_t p);
  void AttachClaimant(std::uint32_t p);
  void Uncover(BlockId block);

  // --- Heaps. ---
  void Push(std::uint32_t p);
  void Remove(std::uint32_t p);
  void SiftUp(std::vector<std::uint32_t>& heap, std::size_t i);
  void SiftDown(std::vector<std::uint32_t>& heap, std::size_t i);
  void Put(std::vector<std::uint32_t>& heap, std::size_t i, std::uint32_t p) noexcept {
    heap[i] = p;
    places_[p].heap_index = static_cast<std::uint32_t>(i);
  }
  [[nodiscard]] bool Before(std::uint32_t a, std::uint32_t b) const noexcept {
    return places_[a].key < places_[b].key ||
           (places_[a].key == places_[b].key && places_[a].serial < places_[b].serial);
  }
  [[nodiscard]] std::uint32_t Top() const noexcept;
  void SetAside(std::uint32_t p);

  // --- Time and victims. ---
  void Advance(const SchedulingSignals& signals);
  void PassEdges();
  [[nodiscard]] BlockId ClimbChosen(BlockId block);
  bool Settle(std::uint32_t p, const VictimQuery& query, BlockId& start);
  void Drain(std::uint32_t p, BlockId start, const VictimQuery& query, std::size_t wanted,
             std::vector<BlockId>& victims);
  [[nodiscard]] bool May(BlockId block, const VictimQuery& query) const noexcept {
    return view_.Evictable(block, tier_) &&
           (query.filter == nullptr || query.filter->Allows(block));
  }
  [[nodiscard]] bool Resident(BlockId block) const noexcept {
    return view_.Copy(block, tier_) == CopyState::kValid;
  }

  std::string name_;
  std::unique_ptr<SessionScorer> scorer_;
  BlockView view_{nullptr, nullptr};
  TierIndex tier_ = kHbmTier;
  TimePoint now_{};
  SchedulingSignals signals_;  // as last heard; its spans may be gone: see Advance

  internal::ZeroedArray<std::uint32_t> at_;     // by block: place + 1
  internal::ZeroedArray<std::uint32_t> owner_;  // by block, below HBM: last claimant + 1
  Records<Member> members_;
  Records<Place> places_;
  absl::flat_hash_map<std::uint64_t, std::uint32_t> by_session_;
  std::array<std::vector<std::uint32_t>, kBranches> heaps_;
  std::vector<Edge> edges_;
  std::vector<std::uint32_t> dirty_;
  std::vector<std::uint32_t> aside_;  // of the query that runs
  std::vector<BlockId> chain_;
  std::uint64_t serial_ = 0;
  std::uint32_t held_ = 0;
  std::uint32_t covered_ = 0;
};

void RankedPolicy::Attach(const BlockView& blocks, TierIndex tier, std::uint32_t /*slots*/) {
  const bool first = at_.size() == 0;
  view_ = blocks;
  tier_ = tier;
  if (!first) return;  // Resize: the ranking stands
  scorer_->Attach(tier);
  at_ = internal::ZeroedArray<std::uint32_t>(blocks.capacity());
  if (tier != kHbmTier) owner_ = internal::ZeroedArray<std::uint32_t>(blocks.capacity());
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
  if (old != kNone && places_[old].count == 0 && !view_.IsTail(places_[old].block, tier_)) {
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
    if (At(blocks[i]) == kNone && view_.IsTail(blocks[i], tier_)) PlaceAt(blocks[i]);
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
  at_[block.value()] = p + 1;
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
  at_[places_[p].block.value()] = 0;
  if (const std::uint32_t other = At(parent); other != kNone) {
    Merge(p, other);
    return;
  }
  places_[p].block = parent;
  at_[parent.value()] = p + 1;
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
  if (At(places_[p].block) == p) at_[places_[p].block.value()] = 0;
  SetStanding(p, Standing::kFree);
  places_.Give(p);
}

void RankedPolicy::SetStanding(std::uint32_t p, Standing standing) {
  Place& place = places_[p];
  held_ += (standing == Standing::kHeld) - (place.standing == Standing::kHeld);
  covered_ += (standing == Standing::kCovered) - (place.standing == Standing::kCovered);
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
      } else if (view_.IsTail(b, tier_) && At(b) == kNone) {
        AddUnclaimed(PlaceAt(b));
      }
    } else if (At(b) == kNone) {
      AddUnclaimed(PlaceAt(b));
    }
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
  if (p != kNone && !(unclaimed && view_.IsTail(last, tier_))) return;
  if (p == kNone && !view_.IsTail(last, tier_)) return;
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
  if (!Resident(block)) return;
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

// --- Heaps: 4-ary, least key on top. ---

void RankedPolicy::SiftUp(std::vector<std::uint32_t>& heap, std::size_t i) {
  const std::uint32_t p = heap[i];
  for (; i != 0; i = (i - 1) / 4) {
    const std::uint32_t above = heap[(i - 1) / 4];
    if (Before(above, p)) break;
    Put(heap, i, above);
  }
  Put(heap, i, p);
}

void RankedPolicy::SiftDown(std::vector<std::uint32_t>& heap, std::size_t i) {
  const std::uint32_t p = heap[i];
  while (4 * i + 1 < heap.size()) {
    std::size_t least = 4 * i + 1;
    for (std::size_t c = least + 1; c < std::min(4 * i + 5, heap.size()); ++c) {
      if (Before(heap[c], heap[least])) least = c;
    }
    if (Before(p, heap[least])) break;
    Put(heap, i, heap[least]);
    i = least;
  }
  Put(heap, i, p);
}

void RankedPolicy::Push(std::uint32_t p) {
  std::vector<std::uint32_t>& heap = heaps_[places_[p].branch];
  heap.push_back(p);
  SiftUp(heap, heap.size() - 1);
}

void RankedPolicy::Remove(std::uint32_t p) {
  const std::size_t i = places_[p].heap_index;
  if (places_[p].heap_index == kNone) return;
  places_[p].heap_index = kNone;
  std::vector<std::uint32_t>& heap = heaps_[places_[p].branch];
  const std::uint32_t last = heap.back();
  heap.pop_back();
  if (last == p) return;
  Put(heap, i, last);
  SiftUp(heap, i);
  SiftDown(heap, places_[last].heap_index);
}

// Out of the heap until the query ends.
void RankedPolicy::SetAside(std::uint32_t p) {
  Remove(p);
  places_[p].aside = true;
  aside_.push_back(p);
}

std::uint32_t RankedPolicy::Top() const noexcept {
  std::uint32_t top = kNone;
  double least = 0;
  for (std::size_t branch = 0; branch < kBranches; ++branch) {
    if (heaps_[branch].empty()) continue;
    const std::uint32_t p = heaps_[branch].front();
    const double drift = scorer_->LogDrift(static_cast<std::uint32_t>(branch), now_);
    const double key = places_[p].key == kFirst ? kFirst : places_[p].key + drift;
    if (top == kNone || key < least) top = p, least = key;
  }
  return top;
}

// --- Time. ---

void RankedPolicy::Advance(const SchedulingSignals& signals) {
  now_ = std::max(now_, signals.now);
  signals_ = signals;
  PassEdges();
  while (!dirty_.empty()) {
    const std::uint32_t p = dirty_.back();
    dirty_.pop_back();
    if (places_[p].dirty) Update(p);
  }
}

void RankedPolicy::PassEdges() {
  if (edges_.size() > 4 * members_.live() + 64) {
    std::erase_if(edges_, [this](const Edge& e) { return members_[e.member].stamp != e.stamp; });
    std::make_heap(edges_.begin(), edges_.end());
  }
  while (!edges_.empty() && edges_.front().at <= now_) {
    std::pop_heap(edges_.begin(), edges_.end());
    const Edge edge = edges_.back();
    edges_.pop_back();
    Member& member = members_[edge.member];
    if (member.stamp != edge.stamp) continue;
    Rate(edge.member);
    if (member.place == kNone) continue;
    Place& place = places_[member.place];
    const bool better = place.best != kNone && WorthNow(member) > WorthNow(members_[place.best]);
    if (place.best == edge.member) place.best = kNone;
    if (better) place.best = edge.member;
    if (better || place.best == kNone) Touch(member.place);
  }
}

void RankedPolicy::OnTimeAdvanced(const SchedulingSignals& signals) noexcept { Advance(signals); }

// --- Victims. ---

// The first block from `block` upwards that no plan has taken.
BlockId RankedPolicy::ClimbChosen(BlockId block) {
  while (block.valid() && view_.Chosen(block)) {
    chain_.clear();
    view_.AppendUpwards(block, kClimb, chain_);
    std::size_t i = 0;
    while (i < chain_.size() && view_.Chosen(chain_[i])) ++i;
    block = i < chain_.size() ? chain_[i] : view_.Parent(chain_.back());
  }
  return block;
}

// True if the place can give up blocks from `start` on; else it has been put where it belongs.
bool RankedPolicy::Settle(std::uint32_t p, const VictimQuery& query, BlockId& start) {
  Remove(p);
  const BlockId block = places_[p].block;
  if (!Resident(block)) {
    MoveUp(p);
    return false;
  }
  if (tier_ == kHbmTier && view_.Held(block)) {
    SetStanding(p, Standing::kHeld);
    return false;
  }
  start = ClimbChosen(block);
  if (start == block && !view_.IsTail(block, tier_)) {
    places_[p].count == 0 ? Drop(p) : SetStanding(p, Standing::kCovered);
    return false;
  }
  SetAside(p);
  if (!start.valid() || !May(start, query) || !view_.IsTail(start, tier_)) return false;
  const std::uint32_t other = At(start);
  if (other == p || other == kNone) return true;
  if (places_[other].aside) return false;  // it gave what is there, or could not
  if (places_[other].key <= places_[p].key) {
    SetAside(other);
    return true;
  }
  if (places_[other].standing == Standing::kCovered) SetStanding(other, Standing::kRanked);
  return false;
}

void RankedPolicy::Drain(std::uint32_t p, BlockId start, const VictimQuery& query,
                         std::size_t wanted, std::vector<BlockId>& victims) {
  const double key = places_[p].key;
  const BlockId first = start;
  while (start.valid()) {
    chain_.clear();
    view_.AppendUpwards(start, static_cast<std::uint32_t>(wanted - victims.size()), chain_);
    for (const BlockId b : chain_) {
      const std::uint32_t other = At(b);
      if (!May(b, query)) return;
      if (other != p && other != kNone && b != first) {
        if (places_[other].aside || places_[other].key > key) return;
        SetAside(other);  // weaker: what it stands for leaves with this one
      }
      victims.push_back(b);
    }
    if (victims.size() == wanted || !view_.IsOnlyChild(chain_.back(), tier_)) return;
    start = view_.Parent(chain_.back());
  }
}

void RankedPolicy::SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                                 std::vector<BlockId>& victims) noexcept {
  Advance(signals);
  const std::size_t wanted = victims.size() + query.blocks;
  while (victims.size() < wanted) {
    const std::uint32_t p = Top();
    if (p == kNone) break;
    BlockId start;
    if (Settle(p, query, start)) Drain(p, start, query, wanted, victims);
    Advance(signals);
  }
  for (const std::uint32_t p : aside_) {
    places_[p].aside = false;
    if (places_[p].standing == Standing::kRanked && places_[p].heap_index == kNone) Push(p);
  }
  aside_.clear();
}

std::uint64_t RankedPolicy::MemoryBytes() const noexcept {
  std::uint64_t bytes = at_.bytes() + owner_.bytes() + members_.MemoryBytes() +
                        places_.MemoryBytes() + edges_.capacity() * sizeof(Edge) +
                        by_session_.capacity() * 17 + scorer_->MemoryBytes();
  for (const auto& heap : heaps_) bytes += heap.capacity() * sizeof(std::uint32_t);
  return bytes;
}

}  // namespace

double LogPriority(const Claimant& claimant) noexcept {
  const Priority priority = claimant.critical_path ? Priority::kCritical : claimant.priority;
  return (static_cast<double>(priority) - 1) * 1.3862943611198906;  // ln 4
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
  return std::make_unique<RankedPolicy>(name, std::move(scorer));
}

}  // namespace tidepool
