#include "tidepool/policy/arc.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "src/block_ghosts.h"
#include "src/recency_log.h"
#include "src/zeroed_array.h"

namespace tidepool {
namespace {

using internal::BlockGhosts;
using internal::RecencyLog;
using internal::ZeroedArray;
static_assert(RecencyLog::kQueues == kPriorityCount);

/// T1 and T2, and in the same order B1 and B2.
enum List : std::uint8_t { kRecent, kFrequent };
constexpr List Other(List list) noexcept { return list == kRecent ? kFrequent : kRecent; }

// Invariants:
//   * membership_[b] is 1 + the list of a resident block, 0 for all others;
//   * size_ counts membership_; a block in an order is in that of its list;
//   * a block in no order is held, or its release is still to come;
//   * size_[kRecent] + |B1| <= c unless B1 is empty, and all four <= 2c unless both are.
class ArcPolicy final : public EvictionPolicy {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "arc"; }
  [[nodiscard]] PolicyNeeds needs() const noexcept override { return {.misses = true}; }

  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) override;
  void OnInserted(std::span<const BlockId> blocks) noexcept override;
  void OnAccessed(std::span<const BlockId> blocks) noexcept override;
  void OnMissed(std::span<const PrefixHash> digests) noexcept override;
  void OnEvictable(std::span<const BlockId> blocks) noexcept override;
  void OnPriorityChanged(std::span<const BlockId> blocks, Priority priority) noexcept override;
  void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept override;
  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override;
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override;

  [[nodiscard]] ArcState State() const noexcept {
    return {.recent = size_[kRecent],
            .frequent = size_[kFrequent],
            .recent_ghosts = ghosts_.size(kRecent),
            .frequent_ghosts = ghosts_.size(kFrequent),
            .target = target_,
            .capacity = capacity_};
  }

 private:
  // Ghosts whose cache lines are fetched together, or ahead of the one in hand.
  static constexpr std::size_t kBatch = 64;
  static constexpr std::size_t kAhead = 16;

  // What REPLACE decides by, carried through one selection.
  struct Selection {
    const VictimQuery& query;
    std::size_t wanted;
    double target;
    std::uint32_t recent;
    std::size_t newcomer = 0;  // its number in query.incoming
    bool in_b2 = false;        // the newcomer is
  };

  [[nodiscard]] bool Resident(BlockId b) const noexcept { return membership_[b.value()] != 0; }
  [[nodiscard]] List ListOf(BlockId b) const noexcept {
    return static_cast<List>(membership_[b.value()] - 1);
  }
  [[nodiscard]] List ListOfGhost(BlockGhosts::Place ghost) const noexcept {
    return static_cast<List>(ghosts_.list(ghost));
  }
  void Join(BlockId b, List list) noexcept;
  void Leave(BlockId b) noexcept;
  void Classify(BlockId b) noexcept;
  void MoveToFrequent(BlockId b) noexcept;
  void File(std::span<const BlockId> blocks) noexcept;
  [[nodiscard]] std::size_t SameTailList(std::span<const BlockId> blocks) const noexcept;
  [[nodiscard]] double Moved(double target, List hit) const noexcept;
  void Count(BlockGhosts::Place ghost) noexcept;
  void Remember(std::span<const BlockId> blocks) noexcept;
  void TrimGhosts() noexcept;
  void Gather(List list, std::uint32_t queue, std::size_t most, const VictimFilter* filter);
  void SelectFrom(std::uint32_t queue, Selection& selection, std::vector<BlockId>& victims);
  void MeetNewcomer(Selection& selection) const noexcept;

  BlockView view_{nullptr, nullptr};
  TierIndex tier_ = kHbmTier;
  std::uint32_t capacity_ = 0;
  double target_ = 0;
  std::array<RecencyLog, 2> order_;
  ZeroedArray<std::uint8_t> membership_;
  std::array<std::uint32_t, 2> size_{};
  BlockGhosts ghosts_;
  std::array<std::vector<BlockId>, 2> candidates_;  // scratch of SelectVictims
  std::vector<BlockId> moved_;                      // scratch of OnPriorityChanged
};

void ArcPolicy::Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) {
  view_ = blocks;
  tier_ = tier;
  capacity_ = slots;
  if (membership_.size() == 0) {
    membership_ = ZeroedArray<std::uint8_t>(blocks.capacity());
    for (RecencyLog& order : order_) order = RecencyLog(blocks.capacity());
  }
  target_ = std::min(target_, static_cast<double>(slots));
  TrimGhosts();
}

void ArcPolicy::Join(BlockId b, List list) noexcept {
  membership_[b.value()] = static_cast<std::uint8_t>(list + 1);
  ++size_[list];
}

void ArcPolicy::Leave(BlockId b) noexcept {
  order_[ListOf(b)].Erase({&b, 1});
  --size_[ListOf(b)];
  membership_[b.value()] = 0;
}

// Cases II to IV of the paper, as far as they concern the newcomer.
void ArcPolicy::Classify(BlockId b) noexcept {
  const PrefixHash digest = view_.Digest(b);
  const BlockGhosts::Place ghost =
      digest == PrefixHash{} ? BlockGhosts::kNone : ghosts_.Find(digest);
  if (ghost != BlockGhosts::kNone) {
    Count(ghost);  // an arrival from a lower tier is nobody's miss, but one of this tier
    ghosts_.Remove(ghost);
  }
  if (!Resident(b)) {
    Join(b, ghost == BlockGhosts::kNone ? kRecent : kFrequent);
  } else if (ghost != BlockGhosts::kNone) {
    MoveToFrequent(b);
  }
  TrimGhosts();
}

// A block that is in the order, and so not held, becomes the newest there.
void ArcPolicy::MoveToFrequent(BlockId b) noexcept {
  const bool ordered = order_[ListOf(b)].Contains(b);
  if (ListOf(b) != kFrequent) {
    Leave(b);
    Join(b, kFrequent);
  }
  if (ordered) File({&b, 1});
}

// In HBM a block is inserted while it is held; its release files it.
void ArcPolicy::OnInserted(std::span<const BlockId> blocks) noexcept {
  for (const BlockId b : blocks) Classify(b);
  if (tier_ != kHbmTier) File(blocks);
}

// Case I. In HBM all of these are held by now; their places in the order are worth nothing.
void ArcPolicy::OnAccessed(std::span<const BlockId> blocks) noexcept {
  for (const BlockId b : blocks) {
    if (!Resident(b)) Classify(b);  // shared before its commit fence passed
    if (ListOf(b) == kFrequent) continue;
    Leave(b);
    Join(b, kFrequent);
  }
  if (tier_ != kHbmTier) File(blocks);
}

void ArcPolicy::OnEvictable(std::span<const BlockId> blocks) noexcept {
  for (const BlockId b : blocks) {
    if (!Resident(b)) Classify(b);  // a private block
  }
  if (tier_ == kHbmTier) File(blocks);
}

// Sections of one class and list are filed last to first, like the blocks in them.
void ArcPolicy::File(std::span<const BlockId> blocks) noexcept {
  while (!blocks.empty()) {
    const std::size_t alike = SameTailList(blocks.last(view_.SameTailPriority(blocks)));
    order_[ListOf(blocks.back())].Append(
        static_cast<std::uint32_t>(view_.ClaimPriority(blocks.back())), blocks.last(alike));
    blocks = blocks.first(blocks.size() - alike);
  }
}

std::size_t ArcPolicy::SameTailList(std::span<const BlockId> blocks) const noexcept {
  const std::uint8_t last = membership_[blocks.back().value()];
  std::size_t alike = 1;
  while (alike < blocks.size() && membership_[blocks[blocks.size() - 1 - alike].value()] == last) {
    ++alike;
  }
  return alike;
}

// The adaptation of the paper's Figure 4 for a hit in a ghost list.
double ArcPolicy::Moved(double target, List hit) const noexcept {
  const double step = std::max(
      1.0, static_cast<double>(ghosts_.size(Other(hit))) / static_cast<double>(ghosts_.size(hit)));
  return hit == kRecent ? std::min(target + step, static_cast<double>(capacity_))
                        : std::max(target - step, 0.0);
}

void ArcPolicy::Count(BlockGhosts::Place ghost) noexcept {
  if (ghosts_.marked(ghost)) return;
  target_ = Moved(target_, ListOfGhost(ghost));
  ghosts_.SetMark(ghost);
}

void ArcPolicy::OnMissed(std::span<const PrefixHash> digests) noexcept {
  for (std::size_t i = 0; i < digests.size(); ++i) {
    if (i + kAhead < digests.size()) ghosts_.Prefetch(digests[i + kAhead]);
    const BlockGhosts::Place ghost = ghosts_.Find(digests[i]);
    if (ghost != BlockGhosts::kNone) Count(ghost);
  }
}

void ArcPolicy::OnPriorityChanged(std::span<const BlockId> blocks, Priority priority) noexcept {
  const auto queue = static_cast<std::uint32_t>(priority);
  for (RecencyLog& order : order_) {
    moved_.clear();
    for (const BlockId b : blocks) {
      if (order.Contains(b) && order.queue(b) != queue) moved_.push_back(b);
    }
    order.Append(queue, moved_);
  }
}

void ArcPolicy::OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept {
  const bool remembered = reason == EvictReason::kCapacity || reason == EvictReason::kDemoted;
  while (!blocks.empty()) {
    const auto batch = blocks.first(std::min(blocks.size(), kBatch));
    if (remembered) Remember(batch);
    for (const BlockId b : batch) {
      if (Resident(b)) Leave(b);
    }
    blocks = blocks.subspan(batch.size());
  }
}

void ArcPolicy::Remember(std::span<const BlockId> blocks) noexcept {
  std::array<PrefixHash, kBatch> digests;
  for (std::size_t i = 0; i < blocks.size(); ++i) digests[i] = view_.Digest(blocks[i]);
  for (std::size_t i = 0; i < blocks.size(); ++i) ghosts_.Prefetch(digests[i]);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (Resident(blocks[i]) && digests[i] != PrefixHash{}) {
      ghosts_.Add(ListOf(blocks[i]), digests[i]);
    }
  }
}

// The paper drops ghosts before it inserts, which leaves the same.
void ArcPolicy::TrimGhosts() noexcept {
  const std::uint64_t recent = size_[kRecent];
  while (ghosts_.size(kRecent) != 0 && recent + ghosts_.size(kRecent) > capacity_) {
    ghosts_.RemoveOldest(kRecent);
  }
  const std::uint64_t others = recent + size_[kFrequent] + ghosts_.size(kRecent);
  while (ghosts_.size(kFrequent) != 0 &&
         others + ghosts_.size(kFrequent) > std::uint64_t{2} * capacity_) {
    ghosts_.RemoveOldest(kFrequent);
  }
}

// Finds the oldest candidates of one list and class. A held block's place is worth nothing: its
// release files it anew. One that a transfer uses, or a plan has taken, may come back as it was.
void ArcPolicy::Gather(List list, std::uint32_t queue, std::size_t most,
                       const VictimFilter* filter) {
  std::vector<BlockId>& found = candidates_[list];
  found.clear();
  const auto visit = [&](BlockId b) {
    if (!view_.Evictable(b, tier_)) {
      return tier_ == kHbmTier && view_.Held(b) ? RecencyLog::Verdict::kDrop
                                                : RecencyLog::Verdict::kKeep;
    }
    if (filter != nullptr && !filter->Allows(b)) return RecencyLog::Verdict::kKeep;
    found.push_back(b);
    return found.size() == most ? RecencyLog::Verdict::kStop : RecencyLog::Verdict::kKeep;
  };
  order_[list].Scan(queue, visit, [this](BlockId b) { view_.Prefetch(b, tier_); });
}

// A newcomer moves the target before room is made for it, if OnMissed has not told of it yet.
void ArcPolicy::MeetNewcomer(Selection& selection) const noexcept {
  selection.in_b2 = false;
  const std::span<const PrefixHash> incoming = selection.query.incoming;
  if (selection.newcomer >= incoming.size()) return;
  const BlockGhosts::Place ghost = ghosts_.Find(incoming[selection.newcomer]);
  if (ghost == BlockGhosts::kNone) return;
  selection.in_b2 = ListOfGhost(ghost) == kFrequent;
  if (!ghosts_.marked(ghost)) selection.target = Moved(selection.target, ListOfGhost(ghost));
}

// REPLACE, once for each victim, within one class.
void ArcPolicy::SelectFrom(std::uint32_t queue, Selection& selection,
                           std::vector<BlockId>& victims) {
  std::array<bool, 2> gathered{};
  std::array<std::size_t, 2> next{};
  const auto has_candidate = [&](List list) {
    if (!std::exchange(gathered[list], true)) {
      Gather(list, queue, selection.wanted - victims.size(), selection.query.filter);
    }
    return next[list] < candidates_[list].size();
  };
  while (victims.size() < selection.wanted) {
    const auto recent = static_cast<double>(selection.recent);
    const bool over = recent > selection.target || (selection.in_b2 && recent == selection.target);
    List from = selection.recent != 0 && over ? kRecent : kFrequent;
    if (!has_candidate(from)) from = Other(from);
    if (!has_candidate(from)) return;
    victims.push_back(candidates_[from][next[from]++]);
    if (from == kRecent) --selection.recent;
    ++selection.newcomer;
    MeetNewcomer(selection);
  }
}

void ArcPolicy::SelectVictims(const VictimQuery& query, const SchedulingSignals& /*signals*/,
                              std::vector<BlockId>& victims) noexcept {
  Selection selection = {.query = query,
                         .wanted = victims.size() + query.blocks,
                         .target = target_,
                         .recent = size_[kRecent]};
  MeetNewcomer(selection);
  for (std::uint32_t queue = 0; queue < kPriorityCount; ++queue) {
    SelectFrom(queue, selection, victims);
  }
}

std::uint64_t ArcPolicy::MemoryBytes() const noexcept {
  std::uint64_t bytes = sizeof(*this) - sizeof(order_) + membership_.bytes() +
                        ghosts_.MemoryBytes() + moved_.capacity() * sizeof(BlockId);
  for (const RecencyLog& order : order_) bytes += order.MemoryBytes();
  for (const auto& candidates : candidates_) bytes += candidates.capacity() * sizeof(BlockId);
  return bytes;
}

}  // namespace

std::unique_ptr<EvictionPolicy> MakeArcPolicy() { return std::make_unique<ArcPolicy>(); }

ArcState GetArcState(const EvictionPolicy& policy) noexcept {
  return static_cast<const ArcPolicy&>(policy).State();
}

}  // namespace tidepool
