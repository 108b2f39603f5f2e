// What the decision hash covers, besides copies given up (NotifyEvicted).
#include "src/manager/core.h"

namespace tidepool::internal {
namespace {

constexpr std::uint64_t Pair(std::uint32_t high, std::uint32_t low) noexcept {
  return std::uint64_t{high} << 32 | low;
}

}  // namespace

void ManagerCore::NoteCopy(const Transfer& transfer) noexcept {
  decisions_.Begin(Decision::kCopy,
                   std::uint64_t{static_cast<std::uint8_t>(transfer.transfer_class)} << 16 |
                       std::uint64_t{transfer.from} << 8 | transfer.to);
  decisions_.Add(transfer.block.block.value());
  decisions_.Add(Pair(transfer.source.value(), transfer.destination.value()));
}

void ManagerCore::NoteTable(const SequenceData& seq, std::uint32_t from) noexcept {
  decisions_.Begin(Decision::kTable, from);
  decisions_.Add(seq.serial);
  const std::size_t size = seq.blocks.size();
  if (from < size) decisions_.Add({seq.table.get() + from, size - from});
}

void ManagerCore::NoteDemand(Decision kind, const Demand& demand, std::uint32_t slots) noexcept {
  decisions_.Begin(kind, slots);
  decisions_.Add(demand.order);
}

void ManagerCore::NoteResult(const TakenLoads& taken) noexcept {
  decisions_.Begin(Decision::kTaken, static_cast<std::uint8_t>(taken.outcome));
  decisions_.Add(Pair(taken.first_token, taken.tokens));
}

void ManagerCore::NoteResult(const Admission& admission) noexcept {
  const Shortfall& missing = admission.shortfall;
  decisions_.Begin(Decision::kAdmission, static_cast<std::uint8_t>(admission.outcome));
  decisions_.Add(Pair(admission.ready_tokens, admission.loading_tokens));
  decisions_.Add(Pair(admission.recompute_tokens, missing.needed));
  decisions_.Add(Pair(missing.available, missing.evictable));
  decisions_.Add(missing.in_flight);
}

}  // namespace tidepool::internal
