#include "baselines.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace policy_lab {
namespace {

using tidepool::BlockId;
using tidepool::BlockView;
using tidepool::CopyState;
using tidepool::kHbmTier;
using tidepool::MigrationContext;
using tidepool::Migrator;
using tidepool::PlannedCopy;
using tidepool::SchedulingSignals;
using tidepool::SessionId;
using tidepool::SessionSignals;
using tidepool::SessionState;
using tidepool::TierIndex;
using tidepool::TransferClass;

bool Waits(const SessionSignals& session) {
  return session.state != SessionState::kRunning && session.state != SessionState::kCompleted &&
         session.state != SessionState::kWaitingCapacity;
}

const SessionSignals* FindSession(const SchedulingSignals& signals, SessionId session) {
  const auto at = std::find_if(signals.sessions.begin(), signals.sessions.end(),
                               [&](const SessionSignals& s) { return s.session == session; });
  return at == signals.sessions.end() ? nullptr : &*at;
}

/// The session's blocks, deepest first; none if its deepest block has left.
void PathOf(const SessionSignals& session, const BlockView& view, std::vector<BlockId>& path) {
  path.clear();
  if (!session.deepest.valid() || !(view.Digest(session.deepest) == session.prefix_hash)) return;
  for (BlockId b = session.deepest; b.valid(); b = view.Parent(path.back())) {
    view.AppendUpwards(b, view.capacity(), path);
  }
}

PlannedCopy CopyDown(BlockId block, TransferClass transfer_class, bool release) {
  return {.block = block,
          .from = kHbmTier,
          .to = 1,
          .transfer_class = transfer_class,
          .release = release};
}

/// Writes back on demand, and looks at each session whose wait has begun since the last plan.
class GapPlanner : public Migrator {
 public:
  void OnSession(const SessionSignals& session, tidepool::TimePoint /*now*/) noexcept override {
    if (Waits(session)) begun_.push_back(session.session);
  }
  void Plan(TierIndex tier, MigrationContext& context, const SchedulingSignals& signals,
            std::vector<PlannedCopy>& plan) noexcept override {
    demands_->Plan(tier, context, signals, plan);
    if (tier != kHbmTier) return;
    planned_.clear();
    for (const SessionId id : std::exchange(begun_, {})) {
      const SessionSignals* session = FindSession(signals, id);
      if (session != nullptr && Waits(*session)) OnWait(*session, context, signals, plan);
    }
  }

 protected:
  virtual void OnWait(const SessionSignals& session, MigrationContext& context,
                      const SchedulingSignals& signals, std::vector<PlannedCopy>& plan) = 0;

  /// True if a copy of the block should be planned: it needs one, and this plan has not named it.
  bool Take(BlockId block, const MigrationContext& context) {
    return context.NeedsCopy(block, kHbmTier) && planned_.insert(block.value()).second;
  }
  [[nodiscard]] bool Planned(BlockId block) const { return planned_.count(block.value()) != 0; }

  std::vector<BlockId> path_;

 private:
  std::unordered_set<std::uint32_t> planned_;  // blocks
  std::unique_ptr<Migrator> demands_ = tidepool::MakeDemandWriteBack();
  std::vector<SessionId> begun_;
};

class NaiveShadow final : public GapPlanner {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "naive shadow"; }

 private:
  void OnWait(const SessionSignals& session, MigrationContext& context,
              const SchedulingSignals& /*signals*/, std::vector<PlannedCopy>& plan) override {
    PathOf(session, context.blocks(), path_);
    for (auto b = path_.rbegin(); b != path_.rend(); ++b) {
      if (Take(*b, context)) plan.push_back(CopyDown(*b, TransferClass::kShadowCopy, false));
    }
  }
};

class UnisonSwap final : public GapPlanner {
 public:
  UnisonSwap(UnisonOptions options, std::shared_ptr<PromotionQueue> promotions)
      : options_(std::move(options)), promotions_(std::move(promotions)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "UNISON swap"; }
  void OnSession(const SessionSignals& session, tidepool::TimePoint now) noexcept override {
    options_.model->OnSession(session, now);
    GapPlanner::OnSession(session, now);
  }

 private:
  struct Ranked {
    double score;
    const SessionSignals* session;
  };

  [[nodiscard]] double GapSeconds(const SessionSignals& session) const {
    const double gap = options_.model->AverageGapSeconds(session.session);
    return gap != 0 ? gap : options_.model->MedianWaitSeconds(session.wait_class);
  }
  [[nodiscard]] double Score(const SessionSignals& session) const {
    const tidepool::SessionModel& model = *options_.model;
    const double hazard = model.turn_hazard().Hazard(model.Turn(session.session));
    const double survival = std::max(options_.least_survival, 1 - hazard);
    return GapSeconds(session) / survival + (1 - survival) * options_.completion_penalty_s;
  }

  // Blocks of the session in the order of `path_` that are in DRAM and not in HBM.
  std::uint32_t CountBelow(const SessionSignals& session, const BlockView& view) {
    const BlockId end = session.deepest;
    if (!end.valid() || view.Copy(end, kHbmTier) != CopyState::kAbsent) return 0;  // all in HBM
    PathOf(session, view, path_);
    return static_cast<std::uint32_t>(std::count_if(path_.begin(), path_.end(), [&](BlockId b) {
      return view.Copy(b, kHbmTier) == CopyState::kAbsent && view.Copy(b, 1) == CopyState::kValid;
    }));
  }

  // Plans the release of up to `n` of the session's deepest blocks. What of them is clean leaves
  // when the promotion wants its slots: HBM's policy has the same ranking.
  std::uint32_t Demote(const SessionSignals& session, std::uint32_t n, MigrationContext& context,
                       std::vector<PlannedCopy>& plan) {
    PathOf(session, context.blocks(), path_);
    std::uint32_t left = n;
    for (const BlockId b : path_) {
      if (left == 0) break;
      if (!context.blocks().Evictable(b, kHbmTier) || Planned(b)) continue;
      --left;
      if (Take(b, context)) plan.push_back(CopyDown(b, TransferClass::kShadowCopy, true));
    }
    return n - left;
  }

  void OnWait(const SessionSignals& session, MigrationContext& context,
              const SchedulingSignals& signals, std::vector<PlannedCopy>& plan) override {
    std::vector<Ranked> ranked;
    for (const SessionSignals& s : signals.sessions) {
      if (s.session.valid() && Waits(s)) ranked.push_back({Score(s), &s});
    }
    std::sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
      return std::pair(a.score, a.session->session.value()) <
             std::pair(b.score, b.session->session.value());
    });
    double budget = GapSeconds(session) * BlocksPerSecond(signals);
    std::size_t last = ranked.size();
    for (std::size_t first = 0; first < last && budget >= 1; ++first) {
      if (promotions_->Contains(ranked[first].session->session)) continue;
      std::uint32_t below = CountBelow(*ranked[first].session, context.blocks());
      if (below == 0 || below > budget) continue;
      const std::uint32_t wanted = below;
      while (below != 0 && last > first + 1 && ranked[last - 1].score > ranked[first].score) {
        below -= Demote(*ranked[last - 1].session, below, context, plan);
        if (below != 0) --last;
      }
      budget -= wanted;
      promotions_->Push(ranked[first].session->session);
    }
  }

  [[nodiscard]] static double BlocksPerSecond(const SchedulingSignals& signals) {
    for (const tidepool::LinkSignals& link : signals.links) {
      if (link.from != kHbmTier || link.to != 1 || !(link.bytes_per_second > 0)) continue;
      return link.bytes_per_second / static_cast<double>(signals.block_bytes);
    }
    return 0;
  }

  UnisonOptions options_;
  std::shared_ptr<PromotionQueue> promotions_;
};

/// Passes everything on and writes down what UpcomingVictims has answered.
class ListeningContext final : public MigrationContext {
 public:
  ListeningContext(MigrationContext& context, ListedBlocks& listed)
      : context_(context), listed_(listed) {}
  [[nodiscard]] const BlockView& blocks() const noexcept override { return context_.blocks(); }
  [[nodiscard]] std::uint32_t Shortfall(TierIndex tier) const noexcept override {
    return context_.Shortfall(tier);
  }
  void NextDirtyVictims(TierIndex tier, std::uint32_t n, std::vector<BlockId>& out) override {
    context_.NextDirtyVictims(tier, n, out);
  }
  void UpcomingVictims(TierIndex tier, std::uint32_t n, std::vector<BlockId>& out) override {
    const std::size_t before = out.size();
    context_.UpcomingVictims(tier, n, out);
    if (tier == kHbmTier) listed_.Add(std::span(out).subspan(before), n);
  }
  [[nodiscard]] bool NeedsCopy(BlockId block, TierIndex tier) const noexcept override {
    return context_.NeedsCopy(block, tier);
  }
  [[nodiscard]] std::uint32_t FreeSlots(TierIndex tier) const noexcept override {
    return context_.FreeSlots(tier);
  }
  std::uint32_t ReleaseClean(TierIndex tier, std::uint32_t n) override {
    return context_.ReleaseClean(tier, n);
  }
  void MissingInHbm(std::uint32_t session, std::vector<BlockId>& out) const override {
    context_.MissingInHbm(session, out);
  }

 private:
  MigrationContext& context_;
  ListedBlocks& listed_;
};

class ListeningPlanner final : public Migrator {
 public:
  ListeningPlanner(std::unique_ptr<Migrator> planner, std::shared_ptr<ListedBlocks> listed)
      : planner_(std::move(planner)), listed_(std::move(listed)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return planner_->name(); }
  void OnSession(const SessionSignals& session, tidepool::TimePoint now) noexcept override {
    planner_->OnSession(session, now);
  }
  void Plan(TierIndex tier, MigrationContext& context, const SchedulingSignals& signals,
            std::vector<PlannedCopy>& plan) noexcept override {
    ListeningContext listening(context, *listed_);
    planner_->Plan(tier, listening, signals, plan);
  }
  void OnStarted(const PlannedCopy& copy) noexcept override { planner_->OnStarted(copy); }
  void PlanLoads(MigrationContext& context, const SchedulingSignals& signals,
                 std::vector<PlannedCopy>& plan) noexcept override {
    planner_->PlanLoads(context, signals, plan);
  }

 private:
  std::unique_ptr<Migrator> planner_;
  std::shared_ptr<ListedBlocks> listed_;
};

}  // namespace

std::unique_ptr<Migrator> MakeNaiveShadow() { return std::make_unique<NaiveShadow>(); }

std::unique_ptr<Migrator> MakeUnisonSwap(UnisonOptions options,
                                         std::shared_ptr<PromotionQueue> promotions) {
  return std::make_unique<UnisonSwap>(std::move(options), std::move(promotions));
}

void ListedBlocks::Add(std::span<const BlockId> blocks, std::uint32_t asked) {
  longest_ = std::max(longest_, asked);
  if (asked == longest_) ++listing_;
  for (const BlockId b : blocks) {
    if (b.value() >= listed_.size()) listed_.resize(b.value() + std::size_t{1});
    listed_[b.value()] = listing_;
  }
}

std::unique_ptr<Migrator> MakeListening(std::unique_ptr<Migrator> planner,
                                        std::shared_ptr<ListedBlocks> listed) {
  return std::make_unique<ListeningPlanner>(std::move(planner), std::move(listed));
}

void ReleasablePolicy::Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) {
  view_ = blocks;
  tier_ = tier;
  policy().Attach(blocks, tier, slots);
}

void ReleasablePolicy::SelectVictims(const tidepool::VictimQuery& query,
                                     const SchedulingSignals& signals,
                                     std::vector<BlockId>& victims) noexcept {
  if (only_.empty()) return policy().SelectVictims(query, signals, victims);
  std::uint32_t left = query.blocks;
  for (const BlockId b : only_) {
    if (left == 0) return;
    if (!view_.Evictable(b, tier_)) continue;
    if (query.filter != nullptr && !query.filter->Allows(b)) continue;
    victims.push_back(b);
    --left;
  }
}

}  // namespace policy_lab
