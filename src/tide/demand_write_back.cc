#include <algorithm>

#include "tidepool/tide/migrator.h"

namespace tidepool {
namespace {

class DemandWriteBack final : public Migrator {
 public:
  std::string_view name() const noexcept override { return "demand write-back"; }

  void Plan(TierIndex tier, MigrationContext& context, const SchedulingSignals& signals,
            std::vector<PlannedCopy>& plan) noexcept override {
    const std::uint32_t missing = context.Shortfall(tier);
    if (missing == 0 || !Alive(tier, signals)) return;
    victims_.clear();
    context.NextDirtyVictims(tier, missing, victims_);
    for (const BlockId block : victims_) {
      plan.push_back({.block = block,
                      .from = tier,
                      .to = static_cast<TierIndex>(tier + 1),
                      .transfer_class = TransferClass::kSpill,
                      .release = true});
    }
  }

 private:
  // Zero, negative and NaN bandwidths all mean that nothing should be sent.
  static bool Alive(TierIndex tier, const SchedulingSignals& signals) noexcept {
    for (const LinkSignals& link : signals.links) {
      if (link.from == tier && link.to == tier + 1) return link.bytes_per_second > 0;
    }
    return false;
  }

  std::vector<BlockId> victims_;
};

}  // namespace

std::unique_ptr<Migrator> MakeDemandWriteBack() { return std::make_unique<DemandWriteBack>(); }

}  // namespace tidepool
