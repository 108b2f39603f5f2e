// An eviction policy of one's own: least recently used, but what a session leaves behind when it
// waits for a tool counts as used kToolBonus blocks later than it was. Tools answer in seconds,
// people in minutes. A lower priority class goes first, as in the built-in LRU.
#pragma once

#include <tidepool/tidepool.h>

#include <set>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <vector>

namespace example {

using namespace tidepool;

class ToolAwareLru final : public EvictionPolicy {
  using Blocks = std::span<const BlockId>;

 public:
  static constexpr std::uint64_t kToolBonus = 10'000;

  std::string_view name() const noexcept override { return "tool_aware_lru"; }
  PolicyNeeds needs() const noexcept override { return {.claims = true}; }

  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t /*slots*/) override {
    view_ = blocks;
    tier_ = tier;
    entries_.resize(blocks.capacity());
  }

  // In HBM a block is ordered when its last hold leaves, below when it arrives or is used.
  void OnInserted(Blocks blocks) noexcept override {
    if (tier_ != 0) File(blocks);
  }
  void OnAccessed(Blocks blocks) noexcept override {
    if (tier_ != 0) File(blocks);
  }
  void OnEvictable(Blocks blocks) noexcept override {
    if (tier_ == 0) File(blocks);
  }
  void OnProtected(Blocks blocks) noexcept override {
    for (BlockId b : blocks) Unfile(b);
  }
  void OnEvicted(Blocks blocks, EvictReason /*reason*/) noexcept override {
    for (BlockId b : blocks) Unfile(b), Of(b) = {};
  }

  // Told before the claims and the releases that follow.
  void OnSession(const SessionSignals& session, TimePoint) noexcept override {
    if (session.state == SessionState::kWaitingTool) {
      waiting_.insert(session.session);
    } else {
      waiting_.erase(session.session);
    }
  }
  void OnClaimed(const SessionSignals& session, Blocks blocks) noexcept override {
    for (BlockId b : blocks) Of(b).owner = session.session;
  }
  void OnPriorityChanged(Blocks blocks, Priority) noexcept override {
    for (BlockId b : blocks) {
      if (Of(b).filed) Insert(b, Of(b).rank);
    }
  }

  void SelectVictims(const VictimQuery& query, const SchedulingSignals&,
                     std::vector<BlockId>& victims) noexcept override {
    std::uint32_t missing = query.blocks;
    for (auto at = order_.begin(); at != order_.end() && missing != 0; ++at) {
      const BlockId b = std::get<BlockId>(*at);
      if (!view_.Evictable(b, tier_) || (query.filter && !query.filter->Allows(b))) continue;
      victims.push_back(b);
      --missing;
    }
  }
  std::uint64_t MemoryBytes() const noexcept override {
    return sizeof(*this) + entries_.size() * sizeof(Entry) + (order_.size() + waiting_.size()) * 64;
  }

 private:
  struct Entry {
    bool filed = false;
    Priority priority = Priority::kBackground;
    std::uint64_t rank = 0;
    SessionId owner;
  };

  Entry& Of(BlockId b) { return entries_[b.value()]; }
  void File(Blocks blocks) {
    for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) {  // tails leave first
      Insert(*b, ++uses_ + (waiting_.contains(Of(*b).owner) ? kToolBonus : 0));
    }
  }
  void Insert(BlockId b, std::uint64_t rank) {
    Unfile(b);
    Of(b) = {true, view_.ClaimPriority(b), rank, Of(b).owner};
    order_.emplace(Of(b).priority, rank, b);
  }
  void Unfile(BlockId b) {
    if (Of(b).filed) order_.erase({Of(b).priority, Of(b).rank, b});
    Of(b).filed = false;
  }

  BlockView view_{nullptr, nullptr};
  TierIndex tier_ = 0;
  std::uint64_t uses_ = 0;
  std::vector<Entry> entries_;                                    // by block
  std::set<std::tuple<Priority, std::uint64_t, BlockId>> order_;  // first to leave first
  std::unordered_set<SessionId> waiting_;                         // for a tool
};

}  // namespace example
