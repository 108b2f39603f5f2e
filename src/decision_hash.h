// A rolling hash over what a manager decides, so that runs and ranks can be compared by one word.
// It sees ids, slots and numbers only: no addresses, no order of a hash map, no time of day.
// Thread contract: thread-compatible.
#pragma once

#include <cstdint>
#include <span>

namespace tidepool::internal {

/// What a decision is about; stands at its beginning.
enum class Decision : std::uint8_t {
  kCopy = 1,   ///< started: class, tiers, block, both slots
  kGiveUp,     ///< copies: tier, reason, blocks
  kAdmission,  ///< outcome and numbers of Admit and Resume
  kTable,      ///< of a sequence, from a position on: slots
  kGrant,      ///< slots set aside for a demand
  kTakeGrantBack,
  kTaken,   ///< loads that the engine computes instead
  kDemand,  ///< registered or renewed: how much it needs
};

class DecisionHash {
 public:
  void Begin(Decision kind, std::uint64_t detail) noexcept {
    Add(std::uint64_t{static_cast<std::uint8_t>(kind)} << 56 ^ detail);
  }
  /// COMPLEXITY: about a nanosecond.
  void Add(std::uint64_t value) noexcept {
    state_ = (state_ ^ value) * 0x9fb21c651e98df25u;
    state_ ^= state_ >> 35;
  }
  /// COMPLEXITY: some nanoseconds and half of one for each number.
  void Add(std::span<const std::uint32_t> numbers) noexcept;
  [[nodiscard]] std::uint64_t value() const noexcept { return state_; }

 private:
  std::uint64_t state_ = 0x746964656c6f6721u;
};

}  // namespace tidepool::internal
