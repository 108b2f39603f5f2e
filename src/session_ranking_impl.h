// session_ranking_impl.h - the policy behind MakeRankedPolicy: members, places and their heap.
// Private; see session_ranking.h.
//
// Words: a member is a claimant in the ranking; a place is a tail with its members.
//
// Invariants:
//   * marks_[b] names the one place that stands at block b; a member is listed at one place at
//   most;
//   * key of a place = log worth of its best member + log cost of its block; -infinity without a
//     member, or if all of them run or have ended;
//   * a place is in the heap of its branch exactly if its standing is kRanked and no query has set
//     it aside;
//   * every evictable tail of the tier has a place at it, or at a chosen block behind it.
//
// Thread contract: scheduler thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "src/zeroed_array.h"
#include "tidepool/session_ranking.h"

namespace tidepool::internal {

inline constexpr std::uint32_t kNone = 0xffffffffu;
inline constexpr double kFirst = -std::numeric_limits<double>::infinity();  // leaves first
inline constexpr std::size_t kBranches = 2;
inline constexpr std::uint32_t kClimb = 64;  // blocks looked at in one go

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
  [[nodiscard]] std::uint32_t At(BlockId block) const noexcept {
    return marks_[block.value()].place - 1;
  }
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
  [[nodiscard]] std::size_t MayLead(const VictimQuery& query) const noexcept;
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

  struct Mark {
    std::uint32_t place = 0;  // that stands at the block, + 1
    std::uint32_t named = 0;  // the last query that named the block
  };
  ZeroedArray<Mark> marks_;           // by block
  ZeroedArray<std::uint32_t> owner_;  // by block, below HBM: last claimant + 1
  std::uint32_t query_ = 0;
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
};

}  // namespace tidepool::internal
