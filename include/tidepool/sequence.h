// tidepool/sequence.h - handles an engine holds: a running sequence and the loads it waits for.
//
// Handles are 16 bytes, move-only and carry a generation. A moved-from, stale or orphaned handle
// (its manager is gone) answers every call with an error and changes nothing. Destroying a Sequence
// finishes it.
//
// Thread contract: scheduler thread, except that a handle may be destroyed on any thread (the
// release is then carried out at the manager's next Poll or Admit).
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "tidepool/clock.h"
#include "tidepool/export.h"
#include "tidepool/scheduling_signals.h"
#include "tidepool/status.h"
#include "tidepool/types.h"

namespace tidepool {

namespace internal {
struct Control;
class ManagerCore;
}  // namespace internal

class KvCacheManager;
struct Admission;
struct ForkResult;

/// Identity of a sequence for logs and PlanReclaim; unique for the life of a manager.
using SequenceId = StrongId<struct SequenceTag, std::uint64_t>;

/// The array an attention kernel reads: `size` HBM slots, one per block position. The address is
/// stable for the life of the sequence; positions before `dropped` hold the null slot.
struct BlockTable {
  const std::uint32_t* slots = nullptr;
  std::uint32_t size = 0;
  std::uint32_t dropped = 0;
  std::uint32_t changed_from = 0;  ///< first position that differs from the last call's table
  std::uint64_t version = 0;       ///< grows whenever an entry changes
};

/// What the engine knows about a wait that begins.
struct PauseHint {
  WaitClass wait = WaitClass::kUnknown;
  std::uint32_t tool = 0;
  Duration expected_return = Duration::max();  ///< from now; max = unknown
  float expected_return_log_sd = std::numeric_limits<float>::quiet_NaN();
};

/// What becomes of a preempted sequence's private tail: its committed blocks that are not
/// published, mostly the partial last one. Published blocks become cached whatever the mode, and
/// leave in the policy's order: clean ones at once, dirty ones when copied down or where
/// recomputing is cheaper.
enum class PreemptMode : std::uint8_t {
  kRecompute,  ///< drop the tail at once; Resume lists its tokens for recomputation
  kOffload,    ///< copy the tail one tier down and give its slots up then; its bytes come back
  kKeep,       ///< leave the tail where it is, reclaimable in the policy's order like the rest
  kAuto,       ///< the cheapest of these, see ReclaimChoice: kKeep while nobody waits for room
};

/// Loads that an admission waits for.
class TIDEPOOL_EXPORT LoadTicket {
 public:
  LoadTicket() noexcept = default;
  LoadTicket(LoadTicket&& other) noexcept;
  LoadTicket& operator=(LoadTicket&& other) noexcept;
  ~LoadTicket();

  /// kOk: layer `layer` of every block is in HBM. kPending: not yet. kLoadFailed: a load failed and
  /// no other is under way; the sequence was cut back to Sequence::tokens(). An empty ticket
  /// (nothing to load) is kOk.
  [[nodiscard]] Outcome Ready(std::uint32_t layer) const noexcept;
  [[nodiscard]] Outcome Ready() const noexcept;  ///< all layers
  /// Polls and waits on the transfer engine until Ready(layer) is not kPending, or `timeout`.
  Outcome WaitReady(std::uint32_t layer, Duration timeout = std::chrono::seconds(30)) noexcept;
  Outcome WaitReady() noexcept;

 private:
  friend class internal::ManagerCore;
  friend class KvCacheManager;
  internal::Control* control_ = nullptr;
  std::uint32_t index_ = 0;
  std::uint32_t generation_ = 0;
};

/// Part of an admission's loading tokens that the engine computes instead.
struct TakenLoads {
  Outcome outcome = Outcome::kInvalidArgument;
  std::uint32_t first_token = 0;
  std::uint32_t tokens = 0;
};

class TIDEPOOL_EXPORT Sequence {
 public:
  Sequence() noexcept = default;
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&& other) noexcept;
  ~Sequence();

  [[nodiscard]] bool alive() const noexcept;
  [[nodiscard]] SequenceId id() const noexcept;
  [[nodiscard]] std::uint32_t tokens() const noexcept;     ///< 0 when not alive
  [[nodiscard]] std::uint32_t committed() const noexcept;  ///< tokens whose KV is written
  [[nodiscard]] bool paused() const noexcept;

  /// Adds tokens and reserves what they need: same plan as an admission, all or nothing. A shared
  /// or published partial tail is copied first (copy-on-write). Errors: kBusy (shortfall is in the
  /// demand ledger), kNeverFits, kPaused, handle errors; kLoadFailed, once, if a failed load has
  /// cut the sequence back and nothing has said so yet; kStillLoading if the tail to be copied is.
  Outcome Append(std::span<const Token> tokens) noexcept;
  Outcome Append(Token token) noexcept { return Append(std::span(&token, 1)); }

  /// The KV of the first `n` tokens is written once `fence` has passed. Full blocks are published
  /// then; requests on the same timeline may match them before. n == committed() is allowed (a
  /// later fence for the same tokens).
  /// Errors: kBeyondLength, kNotMonotonic, kStillLoading, kLoadFailed, kPaused, handle errors.
  Outcome Commit(std::uint32_t n, Fence fence) noexcept;

  /// Two-ended load (Cake, arXiv 2410.03065): the engine computes from the front what would still
  /// be loaded from the back. Withdraws loads that have not begun, at most `blocks` of them, from
  /// the first missing block on; what it returns is the engine's to compute, into the slots of the
  /// block table. Nothing (tokens = 0) while the first missing block is being moved or withdrawn,
  /// when none is missing, or while taken tokens are not committed: ask again after the next Poll.
  /// What is withdrawn and not taken within 8 polls is loaded after all. Admit with `two_ended`, or
  /// the front comes first.
  [[nodiscard]] TakenLoads TakeLoads(std::uint32_t blocks) noexcept;
  /// The KV of all that TakeLoads returned is written once `fence` has passed. Steps of the same
  /// timeline may read it before. Errors: kInvalidArgument (nothing is taken, another timeline),
  /// kNotMonotonic, kPaused, handle errors.
  Outcome CommitTaken(Fence fence) noexcept;

  /// Forgets tokens from `n` on (rejected drafts). Blocks that only they used are released.
  Outcome Truncate(std::uint32_t n) noexcept;

  /// A second sequence over the same tokens; shares every block, also the partial tail.
  [[nodiscard]] ForkResult Fork() noexcept;

  /// The first `blocks` blocks are no longer read (sliding window); counted from the start,
  /// monotone. The tail block cannot be dropped.
  Outcome DropLeading(std::uint32_t blocks) noexcept;

  /// The session waits: holds become claims, HBM may be taken under pressure.
  Outcome Pause(const PauseHint& hint) noexcept;
  /// Continues after Pause or Preempt: like Admit, the sequence keeps its handle
  /// (Admission::sequence stays empty). recompute_tokens are the sequence's last tokens.
  [[nodiscard]] Admission Resume() noexcept;
  /// Lets go of all blocks to make room for others; Resume continues. The sequence keeps its rank,
  /// see KvCacheManager::PlanReclaim. An offload that the tier below refuses is a kKeep.
  Outcome Preempt(PreemptMode mode = PreemptMode::kAuto) noexcept;
  /// Ends the sequence. `fence`: the last step that may touch its blocks, when later than the last
  /// commit's. `wait`: what its session waits for until its next request. The handle is empty
  /// afterwards.
  Outcome Finish(Fence fence = Fence::Done(), const PauseHint& wait = {}) noexcept;

  /// Current table; deltas are relative to the last call.
  [[nodiscard]] BlockTable block_table() noexcept;

 private:
  friend class internal::ManagerCore;
  friend class KvCacheManager;
  internal::Control* control_ = nullptr;
  std::uint32_t index_ = 0;
  std::uint32_t generation_ = 0;
};

static_assert(sizeof(Sequence) == 16 && sizeof(LoadTicket) == 16);

/// Why an admission was refused, and what would help.
struct Shortfall {
  std::uint32_t needed = 0;     ///< HBM slots the request needs beyond its hits
  std::uint32_t available = 0;  ///< free, less what is set aside for stronger demands
  std::uint32_t evictable = 0;  ///< cached blocks; those that are dirty need write-back first
  std::uint32_t in_flight = 0;  ///< slots that transfers will free
};

/// Result of Admit and Resume. tokens of the prompt = ready + loading + recompute.
struct Admission {
  Outcome outcome = Outcome::kInvalidArgument;
  Sequence sequence;
  std::uint32_t ready_tokens = 0;      ///< in HBM now
  std::uint32_t loading_tokens = 0;    ///< being onboarded; see ticket
  std::uint32_t recompute_tokens = 0;  ///< the engine computes these, always the last ones
  LoadTicket ticket;
  Shortfall shortfall;                ///< when not granted
  std::uint64_t signals_version = 0;  ///< snapshot the decision was made from

  [[nodiscard]] bool granted() const noexcept { return outcome == Outcome::kOk; }
};

struct ForkResult {
  Outcome outcome = Outcome::kInvalidArgument;
  Sequence sequence;
};

}  // namespace tidepool
