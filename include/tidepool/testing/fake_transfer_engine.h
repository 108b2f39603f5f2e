// tidepool/testing/fake_transfer_engine.h - a transfer engine that a test drives: it says when and
// how each copy ends, or gives a seed and probabilities and lets the engine decide.
//
// Bytes really move, at Progress and Finish; tiers without an arena get memory of their own. A copy
// that fails or is cancelled leaves its destination scribbled over, so that nobody can use it
// unnoticed. Rules that a caller must keep are checked while copies are alive, see violations().
//
// Three ways to run it:
//   manual    nothing ends until the test says so (the default);
//   automatic each Poll ends what is due; `faults` delay, fail, reorder and repeat by seed;
//   modelled  `clock` set: each link moves one copy at a time, in class order, at SetLink's speed.
//
// Thread contract: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tidepool/export.h"
#include "tidepool/testing/manual_clock.h"
#include "tidepool/transfer/engine.h"

namespace tidepool::testing {

/// Probabilities per copy, for the automatic mode. All zero: every copy ends well at the next Poll.
struct FakeFaults {
  double fail = 0;           ///< ends with kFailed
  double time_out = 0;       ///< ends with kTimedOut
  double delay = 0;          ///< takes 1 to max_delay_polls more polls
  double reorder = 0;        ///< changes places with another completion of the same Poll
  double duplicate = 0;      ///< its terminal completion comes again, now or some polls later
  double progress = 0;       ///< reports some layers before it ends
  double refuse = 0;         ///< Submit accepts only a part
  double finish_anyway = 0;  ///< Cancel comes too late: ends as it would have
  std::uint32_t max_delay_polls = 8;
  std::uint32_t dead_tiers = 0;  ///< bit per tier: copies into and out of it fail
};

struct FakeEngineOptions {
  bool automatic = false;
  FakeFaults faults;
  std::uint64_t seed = 1;
  std::size_t accept_limit = static_cast<std::size_t>(-1);  ///< copies that one Submit accepts
  std::size_t max_in_flight = static_cast<std::size_t>(-1);
  bool copy_at_submit = false;  ///< bytes are in place at once, completions come as always
  bool scribble_on_failure = true;
  bool check_sources = true;     ///< a source that changes while it is read is a violation
  ManualClock* clock = nullptr;  ///< modelled time; Wait moves it to the next completion
};

class TIDEPOOL_EXPORT FakeTransferEngine final : public TransferEngine {
 public:
  explicit FakeTransferEngine(FakeEngineOptions options = {});
  ~FakeTransferEngine() override;

  // What the test does. All of it shows at the next Poll; an id that is not in flight is ignored,
  // and returns false where there is a result.

  /// Ends a copy; kOk moves the bytes that are still missing.
  bool Finish(TransferId id, TransferResult result = TransferResult::kOk);
  /// Ends all copies in the order they were submitted.
  void FinishAll(TransferResult result = TransferResult::kOk);
  /// Moves the bytes of the first `layers` layers and reports them.
  bool Progress(TransferId id, std::uint32_t layers);
  /// Delivers again the terminal completion of a copy that has ended.
  bool Repeat(TransferId id);
  /// The copy never ends: Finish, FinishAll and the automatic mode leave it alone until Undrop.
  bool Drop(TransferId id);
  void Undrop(TransferId id);
  /// Flips one byte of the destination when the copy ends well: a silent error.
  bool Corrupt(TransferId id);
  /// Turns round the order of what the next Poll delivers.
  void ReverseUndelivered();
  void set_accept_limit(std::size_t copies) { options_.accept_limit = copies; }
  void set_automatic(bool automatic) { options_.automatic = automatic; }
  void set_faults(const FakeFaults& faults) { options_.faults = faults; }
  /// Modelled mode: speed of one direction; the tier's prior until set.
  void SetLink(TierIndex from, TierIndex to, double bytes_per_second, Duration latency);

  // What the test reads.

  /// Copies that have no terminal completion yet, in the order they were submitted.
  [[nodiscard]] std::vector<CopyRequest> InFlight() const;
  /// Every copy accepted and every cancel or withdrawal asked for since ClearRecords, in order.
  [[nodiscard]] const std::vector<CopyRequest>& submitted() const { return submitted_; }
  [[nodiscard]] const std::vector<TransferId>& cancelled() const { return cancelled_; }
  void ClearRecords();
  /// Rules broken by the caller: a slot that two live copies write, or one writes and one reads;
  /// a slot freed under a live copy; a source that changed while it was read; an id used twice; a
  /// tier or slot that does not exist.
  [[nodiscard]] const std::vector<std::string>& violations() const { return violations_; }
  /// The bytes of one layer of a slot, file tiers included.
  [[nodiscard]] std::span<std::byte> Bytes(TierIndex tier, SlotId slot, std::uint32_t layer = 0);

  Status Attach(std::span<const TierBinding> tiers, Observer* observer) override;
  [[nodiscard]] bool Supports(TierIndex from, TierIndex to) const noexcept override;
  std::size_t Submit(std::span<const CopyRequest> copies) noexcept override;
  void Poll(std::vector<Completion>& completions) noexcept override;
  /// Never sleeps. Manual: true if something is undelivered. Automatic: lets polls pass until
  /// something is due. Modelled: moves the clock, by at most `timeout`.
  bool Wait(Duration timeout) noexcept override;
  void Cancel(TransferId id) noexcept override;
  /// As Cancel, except that a copy which has reported progress goes on.
  void Withdraw(TransferId id) noexcept override;
  void OnSlotFreed(TierIndex tier, SlotId slot) noexcept override;
  [[nodiscard]] TransferEstimate EstimateCost(TierIndex from, TierIndex to,
                                              std::uint64_t bytes) const noexcept override;
  [[nodiscard]] double BytesPerSecond(TierIndex from, TierIndex to) const noexcept override;
  [[nodiscard]] std::uint64_t QueuedBytes(TierIndex from, TierIndex to) const noexcept override;
  [[nodiscard]] std::string Describe() const override { return "fake"; }

 private:
  struct Copy {
    CopyRequest request;
    std::uint64_t source_hash = 0;
    std::uint64_t sequence = 0;
    TimePoint submitted_at{};
    std::uint64_t due_poll = 0;        // automatic
    std::optional<TimePoint> done_at;  // modelled: set once its link moves it
    TransferResult planned = TransferResult::kOk;
    std::uint32_t layers_done = 0;
    bool bytes_moved = false;
    bool dropped = false;
    bool corrupt = false;
    bool report_progress = false;
    bool repeat = false;
  };
  struct Link {
    double bytes_per_second = 0;
    Duration latency{0};
    TimePoint free_at{};
  };
  struct Late {
    Completion completion;
    std::uint64_t due_poll;
  };

  [[nodiscard]] bool Chance(double probability);
  [[nodiscard]] std::uint32_t DelayPolls();
  [[nodiscard]] Copy* Find(TransferId id);
  [[nodiscard]] Link& LinkOf(TierIndex from, TierIndex to);
  [[nodiscard]] const Link& LinkOf(TierIndex from, TierIndex to) const;
  [[nodiscard]] bool Usable(const CopyRequest& request) const;
  [[nodiscard]] std::uint64_t SourceHash(const CopyRequest& request) const;
  void CheckConflicts(const CopyRequest& request);
  void Violation(const CopyRequest& request, std::string_view what);
  void Plan(Copy& copy);
  void MoveLayers(Copy& copy, std::uint32_t layers);
  void Scribble(const CopyRequest& request);
  void End(std::size_t index, TransferResult result);
  void EndDue();
  void AdvanceLinks(TimePoint now);
  void Shuffle(std::size_t first);
  [[nodiscard]] std::optional<TimePoint> NextDone() const;

  FakeEngineOptions options_;
  std::mt19937_64 random_;
  std::vector<TierBinding> tiers_;
  std::array<Link, std::size_t{kMaxTiers} * kMaxTiers> links_;
  std::vector<Copy> in_flight_;  // in the order of submission
  std::vector<Completion> undelivered_;
  std::vector<Late> late_;         // repeated completions of later polls
  std::vector<Completion> ended_;  // terminal completions, for Repeat
  std::vector<CopyRequest> submitted_;
  std::vector<TransferId> cancelled_;
  std::vector<std::string> violations_;
  std::uint64_t polls_ = 0;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace tidepool::testing
