#include "tidepool/policy/sieve.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "src/recency_log.h"
#include "src/zeroed_array.h"

namespace tidepool {
namespace {

using internal::RecencyLog;
using internal::ZeroedArray;
using Verdict = RecencyLog::Verdict;
static_assert(RecencyLog::kQueues == kPriorityCount);

// The hand cuts a class's queue in two: what is ahead of it, next to be looked at first, and what
// it has passed. When nothing is ahead the hand stands at the oldest block again: the two change
// places.
//
// Invariants:
//   * a block is in at most one of the two logs, in the queue of its class;
//   * size_[log][class] counts the blocks there;
//   * kNamed: SelectVictims has named the block and nothing has used or filed it since.
class SievePolicy final : public EvictionPolicy {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "sieve"; }

  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) override;
  void OnInserted(std::span<const BlockId> blocks) noexcept override {
    if (tier_ != kHbmTier) FileNew(blocks);
  }
  void OnAccessed(std::span<const BlockId> blocks) noexcept override {
    for (const BlockId b : blocks) marks_[b.value()] = kVisited;
  }
  void OnEvictable(std::span<const BlockId> blocks) noexcept override {
    if (tier_ == kHbmTier) FileNew(blocks);
  }
  void OnPriorityChanged(std::span<const BlockId> blocks, Priority priority) noexcept override;
  void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept override;
  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override;
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override;

 private:
  enum Mark : std::uint8_t { kVisited = 1, kNamed = 2, kLeaving = 4 };
  using Class = std::uint32_t;

  [[nodiscard]] std::uint32_t Ahead(Class c) const noexcept { return ahead_[c]; }
  [[nodiscard]] std::uint32_t Passed(Class c) const noexcept { return 1 - ahead_[c]; }
  [[nodiscard]] bool Has(BlockId b, Mark mark) const noexcept {
    return (marks_[b.value()] & mark) != 0;
  }
  [[nodiscard]] bool Filed(BlockId b) const noexcept {
    return logs_[0].Contains(b) || logs_[1].Contains(b);
  }
  void Append(std::uint32_t log, Class c, std::span<const BlockId> blocks) noexcept;
  void FileNew(std::span<const BlockId> blocks) noexcept;
  void Unfile(BlockId b) noexcept;
  void Turn(Class c) noexcept { ahead_[c] ^= 1; }
  void TurnIfDone(Class c) noexcept {
    if (size_[Ahead(c)][c] == 0) Turn(c);
  }
  [[nodiscard]] Verdict Unavailable(BlockId b, std::uint32_t log, Class c) noexcept;
  bool Look(std::uint32_t log, Class c, const VictimQuery& query, std::size_t wanted,
            std::vector<BlockId>& victims) noexcept;
  void MoveHand(Class c, std::uint32_t leaving) noexcept;
  std::uint32_t Walk(Class c, std::uint32_t leaving) noexcept;

  BlockView view_{nullptr, nullptr};
  TierIndex tier_ = kHbmTier;
  std::array<RecencyLog, 2> logs_;
  std::array<std::array<std::uint32_t, kPriorityCount>, 2> size_{};
  std::array<std::uint8_t, kPriorityCount> ahead_{};  // which of the logs is ahead of the hand
  ZeroedArray<std::uint8_t> marks_;
  std::vector<BlockId> fresh_;   // scratch
  std::vector<BlockId> spared_;  // scratch: visited ones the hand passes, in order
};

void SievePolicy::Attach(const BlockView& blocks, TierIndex tier, std::uint32_t /*slots*/) {
  view_ = blocks;
  tier_ = tier;
  if (marks_.size() != 0) return;  // Resize: the order stands
  marks_ = ZeroedArray<std::uint8_t>(blocks.capacity());
  for (RecencyLog& log : logs_) log = RecencyLog(blocks.capacity());
}

// REQUIRES: none of them is filed.
void SievePolicy::Append(std::uint32_t log, Class c, std::span<const BlockId> blocks) noexcept {
  logs_[log].Append(c, blocks);
  size_[log][c] += static_cast<std::uint32_t>(blocks.size());
}

// Files the blocks that have no place yet as the newest, sections of one class last to first.
void SievePolicy::FileNew(std::span<const BlockId> blocks) noexcept {
  if (std::any_of(blocks.begin(), blocks.end(), [this](BlockId b) { return Filed(b); })) {
    fresh_.clear();
    std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(fresh_),
                 [this](BlockId b) { return !Filed(b); });
    blocks = fresh_;
  }
  while (!blocks.empty()) {
    const auto section = blocks.last(view_.SameTailPriority(blocks));
    const auto c = static_cast<Class>(view_.ClaimPriority(section.back()));
    TurnIfDone(c);
    Append(Ahead(c), c, section);
    blocks = blocks.first(blocks.size() - section.size());
  }
}

void SievePolicy::Unfile(BlockId b) noexcept {
  for (std::uint32_t log = 0; log < 2; ++log) {
    if (!logs_[log].Contains(b)) continue;
    --size_[log][logs_[log].queue(b)];
    logs_[log].Erase({&b, 1});
  }
}

void SievePolicy::OnPriorityChanged(std::span<const BlockId> blocks, Priority priority) noexcept {
  const auto c = static_cast<Class>(priority);
  spared_.clear();
  for (const BlockId b : blocks) {
    const std::uint32_t log = logs_[0].Contains(b) ? 0 : 1;
    if (logs_[log].Contains(b) && logs_[log].queue(b) != c) spared_.push_back(b);
  }
  for (const BlockId b : spared_) {
    Unfile(b);
    marks_[b.value()] &= kVisited;
  }
  TurnIfDone(c);
  Append(Ahead(c), c, spared_);
}

// A held block's release files it anew. One that a transfer uses, or a plan has taken, may come
// back as it was.
Verdict SievePolicy::Unavailable(BlockId b, std::uint32_t log, Class c) noexcept {
  if (tier_ != kHbmTier || !view_.Held(b)) return Verdict::kKeep;
  marks_[b.value()] &= kVisited;
  --size_[log][c];
  return Verdict::kDrop;
}

// What the hand would take on its way through one log; those it would spare go to spared_. Returns
// false when there are victims enough.
bool SievePolicy::Look(std::uint32_t log, Class c, const VictimQuery& query, std::size_t wanted,
                       std::vector<BlockId>& victims) noexcept {
  const auto visit = [&](BlockId b) {
    if (!view_.Evictable(b, tier_)) return Unavailable(b, log, c);
    if (query.filter != nullptr && !query.filter->Allows(b)) return Verdict::kKeep;
    if (Has(b, kVisited)) {
      spared_.push_back(b);
      return Verdict::kKeep;
    }
    marks_[b.value()] |= kNamed;
    victims.push_back(b);
    return victims.size() == wanted ? Verdict::kStop : Verdict::kKeep;
  };
  return logs_[log].Scan(c, visit, [this](BlockId b) {
    view_.Prefetch(b, tier_);
    __builtin_prefetch(&marks_[b.value()]);
  });
}

// Once round finds the blocks without a mark; a second time round, those that had one.
void SievePolicy::SelectVictims(const VictimQuery& query, const SchedulingSignals& /*signals*/,
                                std::vector<BlockId>& victims) noexcept {
  const std::size_t wanted = victims.size() + query.blocks;
  for (Class c = 0; c < kPriorityCount && victims.size() < wanted; ++c) {
    spared_.clear();
    if (!Look(Ahead(c), c, query, wanted, victims)) return;
    if (!Look(Passed(c), c, query, wanted, victims)) return;
    for (const BlockId b : spared_) {
      if (victims.size() == wanted) return;
      marks_[b.value()] |= kNamed;
      victims.push_back(b);
    }
  }
}

// Blocks that the hand had come to take it along; others (mapped to a tail, invalidated) just go.
void SievePolicy::OnEvicted(std::span<const BlockId> blocks, EvictReason /*reason*/) noexcept {
  std::array<std::uint32_t, kPriorityCount> leaving{};
  for (const BlockId b : blocks) {
    if (!Has(b, kNamed) || !Filed(b)) {
      Unfile(b);
      marks_[b.value()] = 0;
      continue;
    }
    const std::uint32_t log = logs_[0].Contains(b) ? 0 : 1;
    marks_[b.value()] |= kLeaving;
    ++leaving[logs_[log].queue(b)];
  }
  for (Class c = 0; c < kPriorityCount; ++c) {
    if (leaving[c] != 0) MoveHand(c, leaving[c]);
  }
}

// A visited block leaves only when the hand comes to it for the second time.
void SievePolicy::MoveHand(Class c, std::uint32_t leaving) noexcept {
  TurnIfDone(c);
  while ((leaving = Walk(c, leaving)) != 0) Turn(c);
  TurnIfDone(c);
}

// Moves the hand on until the last of `leaving` blocks has left or nothing is ahead; returns how
// many are left. Blocks that were no candidates stay ahead.
std::uint32_t SievePolicy::Walk(Class c, std::uint32_t leaving) noexcept {
  const std::uint32_t log = Ahead(c);
  BlockId last;
  spared_.clear();
  const auto visit = [&](BlockId b) {
    if (Has(b, kVisited)) {
      marks_[b.value()] &= static_cast<std::uint8_t>(~kVisited);
      spared_.push_back(b);
      --size_[log][c];
      return Verdict::kDrop;
    }
    if (!Has(b, kLeaving)) return Unavailable(b, log, c);
    marks_[b.value()] = 0;
    --size_[log][c];
    if (--leaving != 0) return Verdict::kDrop;
    last = b;
    return Verdict::kStop;
  };
  logs_[log].Scan(c, visit, [this](BlockId b) { __builtin_prefetch(&marks_[b.value()]); });
  if (last.valid()) logs_[log].Erase({&last, 1});
  std::reverse(spared_.begin(), spared_.end());  // the last of a span comes first in the log
  Append(Passed(c), c, spared_);
  return leaving;
}

std::uint64_t SievePolicy::MemoryBytes() const noexcept {
  return sizeof(*this) - sizeof(logs_) + logs_[0].MemoryBytes() + logs_[1].MemoryBytes() +
         marks_.bytes() + (fresh_.capacity() + spared_.capacity()) * sizeof(BlockId);
}

}  // namespace

std::unique_ptr<EvictionPolicy> MakeSievePolicy() { return std::make_unique<SievePolicy>(); }

}  // namespace tidepool
