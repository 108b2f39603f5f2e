// tidepool/types.h - the small value types every other header is written in: strong ids, tokens,
// prefix hashes, fences and byte literals.
//
// Thread contract: plain values, safe to copy between threads.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace tidepool {

/// An integer that cannot be mixed up with another kind of id. A default-constructed id is
/// invalid. Ids that an engine chooses (`kImplicit`) convert from a plain integer; ids that the
/// library hands out do not.
template <typename Tag, typename Rep, bool kImplicit = false>
class StrongId {
 public:
  using rep = Rep;
  static constexpr Rep kInvalidValue = static_cast<Rep>(-1);

  constexpr StrongId() noexcept = default;
  constexpr explicit(!kImplicit) StrongId(Rep value) noexcept : value_(value) {}

  [[nodiscard]] constexpr Rep value() const noexcept { return value_; }
  [[nodiscard]] constexpr bool valid() const noexcept { return value_ != kInvalidValue; }
  friend constexpr auto operator<=>(StrongId, StrongId) noexcept = default;

 private:
  Rep value_ = kInvalidValue;
};

/// A logical block, dense: state about blocks lives in arrays indexed by `BlockId::value()`.
using BlockId = StrongId<struct BlockTag, std::uint32_t>;
/// A physical place for one block in one tier's arena. Byte offset = 64-bit id x stride.
using SlotId = StrongId<struct SlotTag, std::uint32_t>;
/// A node of the prefix index (one run of blocks).
using NodeId = StrongId<struct NodeTag, std::uint32_t>;
/// One submitted copy; unique for the life of a manager.
using TransferId = StrongId<struct TransferTag, std::uint64_t>;
/// A registered key space (tenant, adapter, model); see prefix_index.h.
using NamespaceId = StrongId<struct NamespaceTag, std::uint32_t>;
/// The engine's name for a conversation or agent.
using SessionId = StrongId<struct SessionTag, std::uint64_t, true>;
/// The engine's name for one waiting request; identifies its entry in the demand ledger.
using RequestId = StrongId<struct RequestTag, std::uint64_t, true>;
/// A device stream of steps that complete in order.
using TimelineId = StrongId<struct TimelineTag, std::uint32_t, true>;

/// Position of a tier in the manager's stack: 0 is HBM, larger is further from the compute.
using TierIndex = std::uint8_t;
inline constexpr TierIndex kHbmTier = 0;
inline constexpr TierIndex kMaxTiers = 6;

/// Position of a cache group in the layout (full attention, sliding window, ...).
using GroupIndex = std::uint8_t;
inline constexpr GroupIndex kMaxGroups = 4;

using Token = std::int32_t;

/// A 128-bit digest of (namespace, parent, tokens, content). All zero means "none".
struct PrefixHash {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend constexpr auto operator<=>(const PrefixHash&, const PrefixHash&) noexcept = default;
};

/// "Everything up to `step` of `timeline` has finished on the device." `Done()` has always passed.
struct Fence {
  TimelineId timeline;
  std::uint64_t step = 0;
  static constexpr Fence Done() noexcept { return {}; }
  [[nodiscard]] constexpr bool done() const noexcept { return !timeline.valid(); }
  friend constexpr bool operator==(const Fence&, const Fence&) noexcept = default;
};

/// Importance of a request and of the blocks its session claims. Consumed at admission (who gets
/// freed slots), at victim choice (whose blocks leave) and by PlanReclaim (who is preempted).
enum class Priority : std::uint8_t {
  kBackground = 0,
  kNormal = 1,
  kInteractive = 2,
  kCritical = 3
};
inline constexpr std::size_t kPriorityCount = 4;

inline namespace literals {
constexpr std::uint64_t operator""_KiB(unsigned long long n) { return n << 10; }
constexpr std::uint64_t operator""_MiB(unsigned long long n) { return n << 20; }
constexpr std::uint64_t operator""_GiB(unsigned long long n) { return n << 30; }
}  // namespace literals

}  // namespace tidepool

template <typename Tag, typename Rep, bool kImplicit>
struct std::hash<tidepool::StrongId<Tag, Rep, kImplicit>> {
  std::size_t operator()(tidepool::StrongId<Tag, Rep, kImplicit> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
