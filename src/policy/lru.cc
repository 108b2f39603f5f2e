#include "tidepool/policy/lru.h"

#include "src/recency_log.h"

namespace tidepool {
namespace {

using internal::RecencyLog;
static_assert(RecencyLog::kQueues == kPriorityCount);

class LruPolicy final : public EvictionPolicy {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "lru"; }

  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t /*slots*/) override {
    view_ = blocks;
    tier_ = tier;
    if (attached_) return;  // Resize: the order stands
    attached_ = true;
    log_ = RecencyLog(blocks.capacity());
  }

  // In HBM a block is inserted while it is held; its release files it.
  void OnInserted(std::span<const BlockId> blocks) noexcept override {
    if (tier_ != kHbmTier) File(blocks);
  }
  void OnAccessed(std::span<const BlockId> blocks) noexcept override {
    if (tier_ != kHbmTier) File(blocks);
  }
  void OnEvictable(std::span<const BlockId> blocks) noexcept override {
    if (tier_ == kHbmTier) File(blocks);
  }
  void OnEvicted(std::span<const BlockId> blocks, EvictReason /*reason*/) noexcept override {
    log_.Erase(blocks);
  }

  void OnPriorityChanged(std::span<const BlockId> blocks, Priority priority) noexcept override {
    const auto queue = static_cast<std::uint32_t>(priority);
    moved_.clear();
    for (BlockId b : blocks) {
      if (log_.Contains(b) && log_.queue(b) != queue) moved_.push_back(b);
    }
    log_.Append(queue, moved_);
  }

  void SelectVictims(const VictimQuery& query, const SchedulingSignals& /*signals*/,
                     std::vector<BlockId>& victims) noexcept override {
    if (query.blocks == 0) return;
    const std::size_t wanted = victims.size() + query.blocks;
    const auto visit = [&](BlockId b) {
      if (!view_.Evictable(b, tier_)) return Unavailable(b);
      if (query.filter != nullptr && !query.filter->Allows(b)) return RecencyLog::Verdict::kKeep;
      victims.push_back(b);
      return victims.size() == wanted ? RecencyLog::Verdict::kStop : RecencyLog::Verdict::kKeep;
    };
    const auto prefetch = [this](BlockId b) { view_.Prefetch(b, tier_); };
    for (std::uint32_t queue = 0; queue < kPriorityCount; ++queue) {
      if (!log_.Scan(queue, visit, prefetch)) return;
    }
  }

  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override {
    return sizeof(*this) - sizeof(log_) + log_.MemoryBytes() + moved_.capacity() * sizeof(BlockId);
  }

 private:
  // A held block's place is worth nothing: its release files it anew. One that a transfer uses, or
  // a plan has taken, may come back as it was.
  [[nodiscard]] RecencyLog::Verdict Unavailable(BlockId b) const noexcept {
    return tier_ == kHbmTier && view_.Held(b) ? RecencyLog::Verdict::kDrop
                                              : RecencyLog::Verdict::kKeep;
  }

  // Sections of one class are filed last to first, like the blocks in them.
  void File(std::span<const BlockId> blocks) noexcept {
    while (!blocks.empty()) {
      const std::size_t same = view_.SameTailPriority(blocks);
      log_.Append(static_cast<std::uint32_t>(view_.ClaimPriority(blocks.back())),
                  blocks.last(same));
      blocks = blocks.first(blocks.size() - same);
    }
  }

  BlockView view_{nullptr, nullptr};
  TierIndex tier_ = kHbmTier;
  bool attached_ = false;
  RecencyLog log_;
  std::vector<BlockId> moved_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruPolicy() { return std::make_unique<LruPolicy>(); }

}  // namespace tidepool
