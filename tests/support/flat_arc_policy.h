// flat_arc_policy.h - ARC exactly as Megiddo and Modha, FAST 2003, behind the public policy
// interface: the reference that other ARCs are measured against, written for reading, not speed.
//
// T1 and T2 hold resident blocks (seen once, seen again), B1 and B2 the digests of those that left.
// The target p adapts once for each miss that a ghost list knew (OnMissed), by a real-valued step
// as in the paper's Figure 4. REPLACE is SelectVictims; OnEvicted moves a victim to its ghost list.
// Held blocks count towards |T1| and |T2| but are out of the order; when the preferred list has no
// candidate, the other gives one.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "tidepool/eviction_policy.h"

namespace tidepool::testing {

class FlatArcPolicy final : public EvictionPolicy {
 public:
  enum List : std::uint8_t { kT1, kT2 };  // and B1, B2 in the same order

  [[nodiscard]] std::string_view name() const noexcept override { return "flat_arc"; }
  [[nodiscard]] PolicyNeeds needs() const noexcept override { return {.misses = true}; }
  void Attach(const BlockView& blocks, TierIndex tier, std::uint32_t slots) override;
  void OnInserted(std::span<const BlockId> blocks) noexcept override;
  void OnAccessed(std::span<const BlockId> blocks) noexcept override;
  void OnMissed(std::span<const PrefixHash> digests) noexcept override;
  void OnProtected(std::span<const BlockId> blocks) noexcept override;
  void OnEvictable(std::span<const BlockId> blocks) noexcept override;
  void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept override;
  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override;
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override;

  /// The paper's |T1|, |T2|, |B1|, |B2|, p and c.
  [[nodiscard]] std::size_t resident(List list) const { return size_[list]; }
  [[nodiscard]] std::size_t ghosts(List list) const { return ghosts_[list].order.size(); }
  [[nodiscard]] double target() const { return target_; }
  [[nodiscard]] std::uint32_t capacity() const { return capacity_; }

 private:
  struct DigestHash {
    std::size_t operator()(const PrefixHash& digest) const noexcept {
      return digest.high * 0x9E3779B97F4A7C15u ^ digest.low;
    }
  };
  // Digests, least recently added first.
  struct GhostList {
    std::list<PrefixHash> order;
    std::unordered_map<PrefixHash, std::list<PrefixHash>::iterator, DigestHash> places;
    [[nodiscard]] bool Has(const PrefixHash& digest) const { return places.count(digest) != 0; }
    void Add(const PrefixHash& digest);
    bool Remove(const PrefixHash& digest);
    void RemoveOldest() { Remove(order.front()); }
  };
  struct Entry {
    List list = kT1;
    PrefixHash digest;
    bool ordered = false;  // in order_; a held block is not
    std::list<BlockId>::iterator place;
  };

  void Order(BlockId block, Entry& entry);
  void Unorder(Entry& entry);
  void MoveTo(List list, Entry& entry);
  void TrimGhosts();

  BlockView view_{nullptr, nullptr};
  TierIndex tier_ = 0;
  std::uint32_t capacity_ = 0;
  double target_ = 0;
  std::unordered_map<BlockId, Entry> entries_;
  std::array<std::list<BlockId>, 2> order_;  // least recently used first
  std::array<std::size_t, 2> size_{};        // held blocks included
  std::array<GhostList, 2> ghosts_;
};

std::unique_ptr<EvictionPolicy> MakeFlatArcPolicy();

}  // namespace tidepool::testing
