#include <algorithm>

#include "tidepool/tide/migrator.h"

namespace tidepool {
namespace {

class DemandWriteBack final : public Migrator {
 public:
  std::string_view name() const noexcept override { return "demand write-back"; }

  void Plan(TierIndex tier, MigrationContext& context, const SchedulingSignals& signals,
            std::vector<PlannedCopy>& plan) noexcept override {
    (void)signals;
    const std::uint32_t missing = context.Shortfall(tier);
    if (missing == 0) return;
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
  std::vector<BlockId> victims_;
};

}  // namespace

std::unique_ptr<Migrator> MakeDemandWriteBack() { return std::make_unique<DemandWriteBack>(); }

}  // namespace tidepool
