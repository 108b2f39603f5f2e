// flat_arc_policy.h - ARC exactly as Megiddo and Modha, FAST 2003, behind the public policy
// interface: the reference that other ARCs are measured against, written for reading, not speed.
//
// T1 and T2 hold resident blocks (seen once, seen again), B1 and B2 the digests of those that left.
// The target p adapts once for each stay in a ghost list that ends in a miss (OnMissed, or
// OnInserted if that was nobody's miss), by a real-valued step as in the paper's Figure 4. REPLACE
// is SelectVictims; OnEvicted moves a victim to its ghost list. Held blocks count towards |T1| and
// |T2| but are out of the order; when the preferred list has no candidate, the other gives one. The
// lowest priority class gives first.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tidepool/eviction_policy.h"
#include "tidepool/policy/arc.h"

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
  void OnPriorityChanged(std::span<const BlockId> blocks, Priority priority) noexcept override;
  void OnEvicted(std::span<const BlockId> blocks, EvictReason reason) noexcept override;
  void SelectVictims(const VictimQuery& query, const SchedulingSignals& signals,
                     std::vector<BlockId>& victims) noexcept override;
  [[nodiscard]] std::uint64_t MemoryBytes() const noexcept override;

  [[nodiscard]] ArcState State() const noexcept;

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
    std::unordered_set<PrefixHash, DigestHash> counted;  // have moved the target already
    [[nodiscard]] bool Has(const PrefixHash& digest) const { return places.count(digest) != 0; }
    void Add(const PrefixHash& digest);
    bool Remove(PrefixHash digest);
    void RemoveOldest() { Remove(order.front()); }
  };
  struct Entry {
    List list = kT1;
    bool ordered = false;                       // in order_; a held block is not
    Priority priority = Priority::kBackground;  // when it was ordered
    std::list<BlockId>::iterator place;
  };

  [[nodiscard]] std::size_t ghosts(List list) const { return ghosts_[list].order.size(); }
  Entry& Classify(BlockId block);
  double Adapted(double target, const PrefixHash& digest) const;
  void Count(const PrefixHash& digest);
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
