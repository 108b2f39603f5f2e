// tidepool/tier.h - what a tier is: kind, capacity, format, priors, and the memory or file behind
// it. A manager has one ordered stack of tiers, HBM first.
//
// Thread contract: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/clock.h"
#include "tidepool/export.h"
#include "tidepool/kv_layout.h"
#include "tidepool/status.h"
#include "tidepool/types.h"

namespace tidepool {

enum class TierKind : std::uint8_t { kHbm, kDram, kCxl, kNvme, kRemote, kShared };
TIDEPOOL_EXPORT std::string_view ToString(TierKind kind) noexcept;

/// Memory that holds slots. Block-first: slot s of layer l lies at
/// base[l] + s * slot_stride_bytes. The library's own arenas have one base per layer inside one
/// allocation; an engine registers the tensors it already has.
struct Arena {
  std::vector<std::byte*> layer_base;   ///< one per layer, aligned to 64 B
  std::uint64_t slot_stride_bytes = 0;  ///< distance of consecutive slots inside one layer
  std::uint64_t layer_bytes = 0;        ///< bytes of one layer of one block
  std::uint32_t slots = 0;              ///< slots that fit
  std::shared_ptr<void> owner;          ///< keeps owned memory alive; null when registered

  [[nodiscard]] std::byte* At(SlotId slot, std::uint32_t layer) const noexcept {
    return layer_base[layer] + SlotOffset(slot, slot_stride_bytes);
  }
};

/// How the manager gets work done that belongs to the device's timeline: block-to-block copies
/// (copy-on-write) and zeroing of slots that change tenant.
enum class DeviceWork : std::uint8_t {
  kQueued,  ///< the engine drains it each step (KvCacheManager::DrainStepWork)
  kInline,  ///< done at once by memcpy on the calling thread: host arenas, synchronous engines
};

/// How a file tier treats what it holds. docs/nvme_format.md has the file.
struct FileStore {
  bool keep = false;     ///< the file outlives the process; blocks found in it may be hit again
  bool durable = false;  ///< a copy counts as made once a power cut cannot undo it; needs `keep`
  bool tokens = true;   ///< headers hold the tokens; without them a digest alone tells blocks apart
  bool verify = false;  ///< read and check all payloads at the start, not each when it is loaded
  std::string identity;  ///< whose bytes these are: weights, dtype, shard; another one is refused
  /// Copies into the tier stop while it has taken more than this in the last day; 0 = no limit.
  std::uint64_t write_bytes_per_day = 0;
};

struct TierSpec {
  TierKind kind = TierKind::kDram;
  std::uint64_t bytes = 0;  ///< capacity; 0 when `slots` is given
  std::uint32_t slots = 0;  ///< capacity in blocks; 0 when `bytes` is given
  StorageFormat format = StorageFormat::kIdentity;
  bool holes_allowed = false;  ///< interior blocks may leave before tails
  Arena arena;                 ///< memory kinds; empty = the library allocates
  std::string path;            ///< kNvme: the file, created fresh and truncated unless kept
  FileStore store;             ///< kNvme
  bool clear_on_reuse =
      false;  ///< HBM: zero every slot before a new owner, not only across tenants
  DeviceWork device_work = DeviceWork::kInline;  ///< HBM only
  double prior_bytes_per_second = 10e9;          ///< until measured, each direction
  Duration prior_latency{20'000};
};

/// HBM emulated in host memory of `bytes` (the embedded default).
struct HostArena {
  std::uint64_t bytes = 0;
  constexpr explicit HostArena(std::uint64_t n) : bytes(n) {}
};
TIDEPOOL_EXPORT TierSpec Hbm(HostArena arena);
/// HBM in memory the engine owns; device work is queued for the engine.
TIDEPOOL_EXPORT TierSpec Hbm(Arena arena);
TIDEPOOL_EXPORT TierSpec Dram(std::uint64_t bytes);
TIDEPOOL_EXPORT TierSpec Nvme(std::string path, std::uint64_t bytes, FileStore store = {});

/// One contiguous 4 KiB-aligned, huge-page advised allocation laid out as an Arena, layers of one
/// slot adjacent (so that a whole block is one extent). Error names size and kind of memory.
TIDEPOOL_EXPORT StatusOr<Arena> AllocateHostArena(std::uint32_t slots, std::uint32_t layers,
                                                  std::uint64_t layer_bytes);

/// Stands for memory that this process cannot reach, only a transfer engine's workers can
/// (transfer/rank_engine.h): a geometry without addresses. As HBM it wants DeviceWork::kQueued.
TIDEPOOL_EXPORT Arena UnreachableArena(std::uint32_t slots, std::uint32_t layers,
                                       std::uint64_t layer_bytes);

}  // namespace tidepool
