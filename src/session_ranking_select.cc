// The ranking of tails: heaps, time and the choice of victims.
#include <algorithm>

#include "src/session_ranking_impl.h"

namespace tidepool::internal {

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

// How many of the first blocks in chain_ may leave.
std::size_t RankedPolicy::MayLead(const VictimQuery& query) const noexcept {
  if (query.filter == nullptr) return view_.EvictableLead(chain_, tier_);
  const auto end = std::ranges::find_if_not(chain_, [&](BlockId b) { return May(b, query); });
  return static_cast<std::size_t>(end - chain_.begin());
}

void RankedPolicy::Drain(std::uint32_t p, BlockId start, const VictimQuery& query,
                         std::size_t wanted, std::vector<BlockId>& victims) {
  const double key = places_[p].key;
  const BlockId first = start;
  while (start.valid()) {
    chain_.clear();
    view_.AppendUpwards(start, static_cast<std::uint32_t>(wanted - victims.size()), chain_);
    const std::size_t may = MayLead(query);
    for (const BlockId b : std::span(chain_).first(may)) {
      Mark& mark = marks_[b.value()];
      const std::uint32_t other = mark.place - 1;
      if (mark.named == query_) return;  // another way led to it
      if (other != p && other != kNone && b != first) {
        if (places_[other].aside || places_[other].key > key) return;
        SetAside(other);  // weaker: what it stands for leaves with this one
      }
      mark.named = query_;
      victims.push_back(b);
    }
    if (may < chain_.size() || victims.size() == wanted) return;
    if (!view_.IsOnlyChild(chain_.back(), tier_)) return;
    start = view_.Parent(chain_.back());
  }
}

void RankedPolicy::SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                                 std::vector<BlockId>& victims) noexcept {
  Advance(signals);
  ++query_;
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

}  // namespace tidepool::internal
