// tidepool/transfer/engine.h - the interface of what moves bytes between tiers. Engines move bytes
// and never choose victims; the manager pins both ends, waits for the producer's fence before it
// submits, and treats each submitted copy as alive until its one terminal completion.
//
// Rules an engine keeps:
//   * per direction (source tier, destination tier) classes are strict: a queued copy of a more
//     urgent class starts first; within a class the earlier deadline, then tenants in turns of
//     bytes, then submission order. No background copy waits for ever: at least one in
//     kBackgroundPatience background chunks is of the one that has waited longest;
//   * copies are cut into chunks of at most kMaxChunkBytes at layer boundaries where it can, and
//     while a demand load waits or runs in a direction, at most one background chunk is in flight
//     in that direction;
//   * exactly one terminal completion per accepted copy; progress completions before it are
//     optional and only ever grow `layers_done`;
//   * a failed read or a checksum mismatch is kFailed: the destination's bytes are undefined; a
//     device without room is kNoSpace;
//   * Cancel and Withdraw are requests. The slot memory belongs to the engine until the terminal
//     completion.
//
// Thread contract: all calls come from the scheduler thread; engines may run threads inside.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tidepool/clock.h"
#include "tidepool/export.h"
#include "tidepool/observer.h"
#include "tidepool/status.h"
#include "tidepool/tier.h"
#include "tidepool/transfer/stored_block.h"
#include "tidepool/types.h"

namespace tidepool {

inline constexpr std::uint64_t kMaxChunkBytes = 4u << 20;
inline constexpr std::uint32_t kBackgroundPatience = 8;

/// Strict order, most urgent first.
enum class TransferClass : std::uint8_t {
  kDemandLoad,
  kCertainPrefetch,
  kPredictedPrefetch,
  kShadowCopy,
  kSpill,
};
inline constexpr std::size_t kTransferClassCount = 5;

/// One block from a slot of one tier to a slot of another.
struct CopyRequest {
  TransferId id;
  BlockId block;
  std::uint32_t generation = 0;
  TierIndex from = 0;
  TierIndex to = 0;
  SlotId source;
  SlotId destination;
  TransferClass transfer_class = TransferClass::kSpill;
  TimePoint deadline = kNever;  ///< when it should be done; nothing happens when it is not
  std::uint32_t tenant = 0;
  std::uint64_t order = 0;  ///< of creation; grows over the life of a manager
  /// Into a kept tier: who the block is. Null: not to be found again after a restart.
  std::shared_ptr<const BlockIdentity> identity{};
};

struct Completion {
  TransferId id;
  bool terminal = false;
  TransferResult result = TransferResult::kOk;  ///< when terminal
  std::uint32_t layers_done = 0;                ///< leading layers whose bytes are in place
};

struct TransferEstimate {
  Duration time{0};    ///< expected, queue included
  Duration margin{0};  ///< one standard deviation, or half of `time` when only a prior is known
  std::string_view method;  ///< "prior" or "measured"
};

/// What the engine gets to know about a tier. `arena` is empty for file tiers.
struct TierBinding {
  TierKind kind = TierKind::kDram;
  Arena arena;
  std::string path;  ///< file tiers
  std::uint32_t slots = 0;
  std::uint64_t slot_bytes = 0;  ///< payload of one block
  std::uint32_t layers = 1;      ///< equal parts of slot_bytes
  double prior_bytes_per_second = 0;
  Duration prior_latency{0};
  FileStore store;  ///< file tiers
  std::uint32_t block_tokens = 0;
  std::uint64_t digest_check = 0;  ///< equal for equal digest seeds
  std::uint64_t epoch = 0;         ///< that blocks are to be of; a kept file may be further on
};

class TIDEPOOL_EXPORT TransferEngine {
 public:
  virtual ~TransferEngine() = default;  ///< cancels or drains, joins; never hangs

  /// Called once, before anything else. Opens files, registers memory. Error names the tier.
  virtual Status Attach(std::span<const TierBinding> tiers, Observer* observer) = 0;
  /// True if it can copy from one tier to the other in one step.
  [[nodiscard]] virtual bool Supports(TierIndex from, TierIndex to) const noexcept = 0;

  /// Accepts a leading part of `copies` and returns its length; the rest is refused for now.
  virtual std::size_t Submit(std::span<const CopyRequest> copies) noexcept = 0;
  /// Appends what completed since the last call. Never blocks.
  virtual void Poll(std::vector<Completion>& completions) noexcept = 0;
  /// Blocks until Poll would return something or `timeout` passed. Returns false on timeout or
  /// when nothing is in flight.
  virtual bool Wait(Duration timeout) noexcept = 0;
  virtual void Cancel(TransferId id) noexcept = 0;
  /// Cancels the copy if none of its bytes have moved; one that has started goes on to its end.
  virtual void Withdraw(TransferId id) noexcept { (void)id; }
  /// A block's bytes moved by a slot that was given up need no trace: told so that engines can
  /// forget per-slot state (checksums). Called when a slot of `tier` is freed.
  virtual void OnSlotFreed(TierIndex tier, SlotId slot) noexcept { (void)tier, (void)slot; }

  /// Appends what a kept tier found when it was opened; asked once, right after Attach. The slots
  /// are taken until OnSlotFreed.
  virtual void TakeStored(TierIndex tier, StoredBlocks& stored) { (void)tier, (void)stored; }
  /// Every kept tier forgets these blocks. Blocks the caller until a power cut cannot bring them
  /// back; an error means that one may.
  virtual Status Invalidate(const Invalidation& what) {
    (void)what;
    return absl::OkStatus();
  }
  [[nodiscard]] virtual FileTierStats file_stats(TierIndex tier) const noexcept {
    (void)tier;
    return {};
  }

  [[nodiscard]] virtual TransferEstimate EstimateCost(TierIndex from, TierIndex to,
                                                      std::uint64_t bytes) const noexcept = 0;
  /// Smoothed bytes per second while busy, or the prior; and what is queued.
  [[nodiscard]] virtual double BytesPerSecond(TierIndex from, TierIndex to) const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t QueuedBytes(TierIndex from, TierIndex to) const noexcept = 0;
  /// Name of what is in use, for logs: "host: memcpy x2, io_uring O_DIRECT depth 32".
  [[nodiscard]] virtual std::string Describe() const { return "unnamed"; }
};

}  // namespace tidepool
