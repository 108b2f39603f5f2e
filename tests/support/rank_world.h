// tests/support/rank_world.h - a manager over a RankEngine and some workers, each with memory of
// its own for both tiers. Workers execute their plans late, fail, report layers, repeat themselves
// and answer out of order, as chance has it. What a sequence may read is compared on every rank
// with a pattern that depends on all tokens before it, on the layer and on the rank.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tidepool/kv_cache_manager.h"
#include "tidepool/testing/manual_clock.h"
#include "tidepool/transfer/rank_engine.h"

namespace tidepool::testing {

/// Chances of each copy, on one rank.
struct RankFaults {
  double late = 0;      ///< not begun in this round
  double fail = 0;      ///< its destination is then scribbled over
  double repeat = 0;    ///< the completion comes twice
  double reorder = 0;   ///< changes places with another
  double layers = 0;    ///< reports some layers first
  double nonsense = 0;  ///< a report of something that never was
};

/// One worker: its memory, what it has been given, and what it must never see.
class FakeWorker {
 public:
  FakeWorker(std::uint32_t rank, std::vector<std::uint32_t> slots, std::uint32_t layers,
             std::uint64_t layer_bytes);
  void Receive(const RankPlan& plan);
  /// Executes what it holds, most urgent first, as far as chance lets it; returns its reports.
  std::vector<Completion> Work(const RankFaults& faults, std::mt19937_64& random);
  void Execute(const StepWork& work);
  /// Forgets all it was given, and its memory with it.
  void Die();

  [[nodiscard]] std::byte* At(TierIndex tier, SlotId slot, std::uint32_t layer) const {
    return arenas_[tier].At(slot, layer);
  }
  [[nodiscard]] const std::vector<CopyRequest>& held() const { return held_; }
  /// A plan out of order, a cancel of what it never had, a load whose checksum is not known.
  [[nodiscard]] const std::string& violation() const { return violation_; }

 private:
  [[nodiscard]] std::uint64_t Checksum(TierIndex tier, SlotId slot) const;
  void Move(const CopyRequest& copy, std::vector<Completion>& done);
  void Fail(const std::string& what);

  std::uint32_t rank_;
  std::uint32_t layers_;
  std::vector<Arena> arenas_;
  std::vector<CopyRequest> held_;
  std::map<std::uint64_t, std::uint32_t> begun_;      // layers moved, by transfer
  std::map<std::uint32_t, std::uint64_t> checksums_;  // of slots below HBM
  std::vector<Completion> late_;
  std::string violation_;
};

struct RankWorldOptions {
  std::uint32_t ranks = 2;
  std::uint32_t hbm = 12;
  std::uint32_t dram = 16;
  std::uint32_t layers = 2;
  RankFaults faults = {};
  std::uint64_t seed = 1;
  InputLog* input_log = nullptr;
};

class RankWorld {
 public:
  explicit RankWorld(const RankWorldOptions& options);
  ~RankWorld();

  /// One operation of the engine's day, by chance; checks everything afterwards.
  void Step();
  /// Plans to all ranks, work, reports. `all`: until nothing is left, without faults.
  void Exchange(bool all = false);
  /// Ends every sequence and checks that nothing is left anywhere.
  void WindDown();

  [[nodiscard]] static ManagerOptions Options(const RankWorldOptions& options);
  [[nodiscard]] KvCacheManager& manager() { return *manager_; }
  [[nodiscard]] RankEngine& engine() { return *engine_; }
  [[nodiscard]] FakeWorker& worker(std::uint32_t rank) { return workers_[rank]; }
  [[nodiscard]] ManualClock& clock() { return clock_; }
  [[nodiscard]] const std::string& failure() const { return failure_; }
  [[nodiscard]] std::uint64_t verified() const { return verified_; }
  [[nodiscard]] std::uint64_t loaded() const { return loaded_; }

  /// Admits and, if there is room, computes all of `tokens`; the number of the sequence, or -1.
  int Admit(const std::vector<Token>& tokens, SessionId session = {});
  void Finish(int sequence);
  void Check(const std::string& step);
  void EndAll() { live_.clear(); }
  void set_faults(const RankFaults& faults) { options_.faults = faults; }

 private:
  struct Live {
    Sequence handle;
    LoadTicket ticket;
    std::vector<Token> tokens;
    bool loading = false;
  };
  [[nodiscard]] std::vector<Token> Prompt();
  void Take(Live& live, Admission admission);
  void Compute(Live& live);
  void Settle(Live& live);
  void Verify(const Live& live);
  void Fail(const std::string& what);
  [[nodiscard]] bool Chance(double probability);

  RankWorldOptions options_;
  std::mt19937_64 random_;
  ManualClock clock_{TimePoint(std::chrono::hours(1))};
  RankEngine* engine_ = nullptr;
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<FakeWorker> workers_;
  std::map<int, Live> live_;
  int next_ = 1;
  RankPlan plan_;
  StepWork work_;
  std::string failure_;
  std::uint64_t verified_ = 0;  // cells
  std::uint64_t loaded_ = 0;    // tokens
};

}  // namespace tidepool::testing
