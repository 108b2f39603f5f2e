// agent_replay/turn_server.h - the part of the replay that is like an engine: it owns a
// KvCacheManager and serves one turn at a time of many sessions, with real bytes in every block.
//
// A turn goes Begin, Place (until granted), Start, End. Place takes a fresh match (Admit), or
// continues the paused sequence of a session whose prompt only grew (Resume, Append). Start waits
// for the loads layer by layer, compares every reused block byte for byte with what its identity
// says, writes the others and commits them. End completes the step and pauses the sequence while
// its tool runs, or finishes it.
//
// Thread contract: one thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "payload.h"
#include "replay.h"
#include "tidepool/tidepool.h"

namespace agent_replay {

/// Time of the trace, or of the wall since the clock was made.
class ReplayClock final : public tidepool::Clock {
 public:
  explicit ReplayClock(bool wall) : wall_(wall) {}
  [[nodiscard]] tidepool::TimePoint Now() const noexcept override {
    if (wall_) return tidepool::TimePoint{std::chrono::steady_clock::now() - start_};
    return tidepool::TimePoint{std::chrono::milliseconds(now_ms_.load(std::memory_order_relaxed))};
  }
  void Set(std::int64_t ms) noexcept { now_ms_.store(ms, std::memory_order_relaxed); }

 private:
  const bool wall_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<std::int64_t> now_ms_{0};
};

class TurnServer {
 public:
  TurnServer(const Trace& trace, const Schedule& schedule, const ReplayOptions& options);
  tidepool::Status Create();

  /// The turn `request` of its session arrives.
  void Begin(std::uint32_t request);
  /// True when granted. False when only the end of a running turn can help; the session then holds
  /// nothing, and Place may be called again later.
  tidepool::StatusOr<bool> Place(std::uint32_t request);
  /// False when a load failed: the turn has to be placed again.
  tidepool::StatusOr<bool> Start(std::uint32_t request);
  tidepool::Status End(std::uint32_t request);

  void SetTime(std::int64_t ms) { clock_.Set(ms); }
  void Poll();
  /// Waits until no transfer is in flight.
  tidepool::Status Drain();
  /// Counters so far; sums that come from the manager are filled in by Summarize.
  [[nodiscard]] ReplayResult& result() { return result_; }
  /// Ends all sessions, checks the manager's invariants and completes the result.
  tidepool::Status Summarize();

 private:
  enum class Stage : std::uint8_t {
    kNone,      // no sequence
    kPaused,    // its sequence waits for a tool
    kResumed,   // holds the blocks of its last turn, not yet those of this one
    kAdmitted,  // holds all blocks of this turn
  };
  struct Session {
    Stage stage = Stage::kNone;
    tidepool::Sequence sequence;
    tidepool::LoadTicket ticket;
    std::uint32_t request = kNoRequest;  // the turn being served, or the last one
    std::uint32_t blocks = 0;            // of it, after clipping
    std::uint32_t tokens = 0;
    std::uint32_t hit_blocks = 0;
    std::uint32_t kept_blocks = 0;  // that the turn shares with the one before it
    std::uint32_t recomputed_tokens = 0;
    std::array<std::uint64_t, kTiers> hit_tokens{};
    std::uint64_t tail_key = 0;
    std::uint64_t cpu_ns = 0;
    int failed_loads = 0;
    bool stalled = false;
    bool resumed = false;
    bool returns = false;  // has ended a turn before
    tidepool::TimePoint begun{}, placed{}, started{}, ended{};
  };

  Session& SessionOf(std::uint32_t request) { return sessions_[schedule_.session[request]]; }
  const Request& RequestOf(const Session& session) const {
    return trace_.requests[session.request];
  }
  void BuildPrompt(const Session& session);
  [[nodiscard]] std::uint64_t Activity() const;
  bool DrainByRounds();
  [[nodiscard]] std::uint64_t QueuedBytes() const;
  void SummarizeTide(const tidepool::ManagerStats& stats);
  void TraceWait(std::uint32_t request, const Session& session);
  void TraceTurn(std::uint32_t request, const Session& session);

  tidepool::Outcome TryPlace(Session& session);
  tidepool::Outcome AdmitTurn(Session& session);
  tidepool::Outcome ResumeTurn(Session& session);
  tidepool::Outcome CutTail(Session& session, std::uint32_t tokens);
  tidepool::Outcome AppendTurn(Session& session);
  void Drop(Session& session);
  void SplitHits(std::uint32_t hit_tokens, std::uint32_t old_blocks, Session& session);
  void CheckTail(Session& session, std::uint32_t position);

  [[nodiscard]] bool Verifies() const { return options_.verification == Verification::kOn; }
  tidepool::Outcome CommitTurn(Session& session);
  void CheckReused(Session& session, std::uint32_t layer);
  void WriteRecomputed(Session& session);
  void Mismatch(BlockIdentity block, std::uint32_t position);
  [[nodiscard]] std::span<std::byte> Bytes(std::uint32_t slot, std::uint32_t layer) const {
    return {manager_->arena(tidepool::kHbmTier).At(tidepool::SlotId(slot), layer), layer_bytes_};
  }
  [[nodiscard]] std::uint64_t LayerSeed(std::uint32_t layer) const {
    return options_.payload_seed + layer;
  }

  const Trace& trace_;
  const Schedule& schedule_;
  const ReplayOptions& options_;
  const std::uint32_t max_blocks_;
  std::uint32_t layers_ = 1;
  std::uint64_t layer_bytes_ = 0;
  std::vector<std::size_t> tier_of_;  // the manager's tier -> ours
  ReplayClock clock_;
  tidepool::TransferEngine* engine_ = nullptr;  // the manager's
  std::shared_ptr<tidepool::Tide> tide_;        // null: on demand
  std::unique_ptr<tidepool::KvCacheManager> manager_;
  std::vector<Session> sessions_;  // declared after it: their handles end first
  std::uint64_t step_ = 0;
  std::uint32_t paused_ = 0;
  std::vector<tidepool::Token> prompt_;
  std::vector<tidepool::BlockId> found_;
  std::vector<tidepool::TierIndex> found_tiers_;
  std::set<std::uint32_t> bad_positions_;  // of the turn being checked
  std::vector<std::uint64_t> metadata_ns_;
  std::vector<std::uint64_t> load_wait_ns_;
  ReplayResult result_;
};

}  // namespace agent_replay
