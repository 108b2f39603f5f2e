#include "tests/support/session_ranked_policy.h"

#include <algorithm>
#include <tuple>

namespace tidepool::testing {

using std::chrono::seconds;

Duration SessionRankedPolicy::Retention(Priority priority) noexcept {
  switch (priority) {
    case Priority::kBackground:
      return seconds(0);
    case Priority::kNormal:
      return seconds(60);
    case Priority::kInteractive:
      return seconds(60);
    case Priority::kCritical:
      return seconds(100);
  }
  return seconds(0);
}

void SessionRankedPolicy::Attach(const BlockView& blocks, TierIndex tier, std::uint32_t /*slots*/) {
  view_ = blocks;
  tier_ = tier;
}

// The last block of a span counts as used first, so that it leaves first.
void SessionRankedPolicy::Use(std::span<const BlockId> blocks) noexcept {
  for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) entries_[*b].last_use = ++uses_;
}

void SessionRankedPolicy::OnClaimed(const SessionSignals& session,
                                    std::span<const BlockId> blocks) noexcept {
  sessions_[session.session] = session;
  for (BlockId b : blocks) {
    std::vector<SessionId>& claimants = entries_[b].claimants;
    std::erase(claimants, session.session);
    claimants.push_back(session.session);
  }
}

void SessionRankedPolicy::OnUnclaimed(const SessionSignals& session,
                                      std::span<const BlockId> blocks) noexcept {
  for (BlockId b : blocks) {
    const auto found = entries_.find(b);
    if (found != entries_.end()) std::erase(found->second.claimants, session.session);
  }
}

void SessionRankedPolicy::OnEvicted(std::span<const BlockId> blocks,
                                    EvictReason /*reason*/) noexcept {
  for (BlockId b : blocks) entries_.erase(b);
}

void SessionRankedPolicy::OnTimeAdvanced(const SchedulingSignals& signals) noexcept {
  now_ = signals.now;
  for (const SessionSignals& session : signals.sessions) sessions_[session.session] = session;
}

Duration SessionRankedPolicy::RetainedFor(const Entry& entry) const {
  Duration soonest{-1};
  for (SessionId id : entry.claimants) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) continue;
    const SessionSignals& session = found->second;
    // A clock that stepped back gives an age of zero.
    const Duration age = std::max(now_ - session.idle_since, Duration{0});
    if (age >= Retention(session.priority)) continue;
    const Duration due = session.expected_return == kNever
                             ? Duration::max()
                             : session.expected_return - std::min(now_, session.expected_return);
    if (soonest < Duration{0} || due < soonest) soonest = due;
  }
  return soonest;
}

void SessionRankedPolicy::SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                                        std::vector<BlockId>& victims) noexcept {
  OnTimeAdvanced(signals);
  std::vector<std::tuple<bool, Duration, std::uint64_t, BlockId>> ranked;
  for (const auto& [b, entry] : entries_) {
    if (!view_.Evictable(b, tier_)) continue;
    if (query.filter != nullptr && !query.filter->Allows(b)) continue;
    const Duration due = RetainedFor(entry);
    const bool retained = due >= Duration{0};
    ranked.emplace_back(retained, retained ? -due : Duration{0}, entry.last_use, b);
  }
  std::sort(ranked.begin(), ranked.end());
  const std::size_t count = std::min<std::size_t>(ranked.size(), query.blocks);
  for (std::size_t i = 0; i < count; ++i) victims.push_back(std::get<BlockId>(ranked[i]));
}

std::uint64_t SessionRankedPolicy::MemoryBytes() const noexcept {
  return entries_.size() * sizeof(Entry) + sessions_.size() * sizeof(SessionSignals);
}

std::unique_ptr<EvictionPolicy> MakeSessionRankedPolicy() {
  return std::make_unique<SessionRankedPolicy>();
}

}  // namespace tidepool::testing
