// Tiers, patterns and a completion loop for the tests of transfer engines.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/testing/fault_file_io.h"
#include "tidepool/transfer/host_engine.h"

namespace tidepool::testing {

/// A path in the test's temporary directory; the file goes with the object.
class TempPath {
 public:
  TempPath()
      : path_(::testing::TempDir() + "tidepool_" + std::to_string(::getpid()) + "_" +
              std::to_string(next_++)) {}
  ~TempPath() { ::unlink(path_.c_str()); }
  TempPath(const TempPath&) = delete;
  TempPath& operator=(const TempPath&) = delete;
  [[nodiscard]] const std::string& str() const { return path_; }

 private:
  static inline int next_ = 0;
  std::string path_;
};

class LogObserver final : public Observer {
 public:
  void OnLog(LogLevel level, std::string_view text) noexcept override {
    std::lock_guard<std::mutex> lock(mutex_);
    lines_.emplace_back(level, std::string(text));
  }
  [[nodiscard]] std::size_t Count(LogLevel level, std::string_view part) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<std::size_t>(std::ranges::count_if(lines_, [&](const auto& line) {
      return line.first == level && line.second.find(part) != std::string::npos;
    }));
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> lines_;
};

struct RigOptions {
  std::uint32_t slots = 16;
  std::uint32_t layers = 4;
  std::uint64_t layer_bytes = 4096;
  unsigned copy_threads = 1;
  bool checksums = true;
  std::uint32_t max_queued_copies = 4096;
};

inline constexpr TierIndex kHbm = 0;
inline constexpr TierIndex kDram = 1;
inline constexpr TierIndex kNvme = 2;

/// A host engine with an HBM arena, a DRAM arena and a file.
class Rig {
 public:
  explicit Rig(RigOptions options = {}) : options_(options) {
    for (TierIndex tier : {kHbm, kDram, kNvme}) {
      TierBinding& binding = tiers_.emplace_back();
      binding.slots = options.slots;
      binding.layers = options.layers;
      binding.slot_bytes = options.layers * options.layer_bytes;
      binding.prior_bytes_per_second = 1e9;
      if (tier != kNvme) {
        binding.arena = *AllocateHostArena(options.slots, options.layers, options.layer_bytes);
      }
    }
    tiers_[kHbm].kind = TierKind::kHbm;
    tiers_[kNvme].kind = TierKind::kNvme;
    tiers_[kNvme].path = path_.str();
  }

  ~Rig() {
    if (fault_file_ != nullptr) fault_file_->Resume();  // a failed test must not hang
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  TierBinding& tier(TierIndex i) { return tiers_[i]; }
  TransferEngine& engine() { return *engine_; }
  LogObserver& log() { return log_; }

  Status TryStart(std::unique_ptr<FileIo> file_io) {
    HostEngineOptions options;
    options.copy_threads = options_.copy_threads;
    options.file_io = std::move(file_io);
    options.checksums = options_.checksums;
    options.max_queued_copies = options_.max_queued_copies;
    engine_ = MakeHostEngine(std::move(options));
    return engine_->Attach(tiers_, &log_);
  }
  void Start(std::unique_ptr<FileIo> file_io = nullptr) {
    const Status status = TryStart(std::move(file_io));
    ASSERT_TRUE(status.ok()) << status;
  }
  /// Starts on a fault-injecting file, which the engine owns.
  FaultFileIo& StartOnFaultFile(FaultFileOptions options = {}) {
    auto file = std::make_unique<FaultFileIo>(options);
    fault_file_ = file.get();
    Start(std::move(file));
    return *fault_file_;
  }
  void Stop() {
    fault_file_ = nullptr;
    engine_.reset();
  }

  CopyRequest Request(TierIndex from, std::uint32_t source, TierIndex to, std::uint32_t destination,
                      TransferClass transfer_class = TransferClass::kDemandLoad) {
    return {.id = TransferId(next_id_++),
            .from = from,
            .to = to,
            .source = SlotId(source),
            .destination = SlotId(destination),
            .transfer_class = transfer_class};
  }
  TransferId Submit(const CopyRequest& request) {
    EXPECT_EQ(engine_->Submit({&request, 1}), 1u);
    return request.id;
  }
  TransferId Submit(TierIndex from, std::uint32_t source, TierIndex to, std::uint32_t destination,
                    TransferClass transfer_class = TransferClass::kDemandLoad) {
    return Submit(Request(from, source, to, destination, transfer_class));
  }

  /// Polls until `id` has ended; checks that nothing ends twice and that progress only grows.
  TransferResult Await(TransferId id) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!ended_.contains(id.value())) {
      engine_->Wait(std::chrono::milliseconds(100));
      PollOnce();
      if (std::chrono::steady_clock::now() > give_up) {
        ADD_FAILURE() << "transfer " << id.value() << " did not end";
        return TransferResult::kTimedOut;
      }
    }
    return ended_[id.value()];
  }
  TransferResult Copy(TierIndex from, std::uint32_t source, TierIndex to,
                      std::uint32_t destination) {
    return Await(Submit(from, source, to, destination));
  }
  void PollOnce() {
    std::vector<Completion> completions;
    engine_->Poll(completions);
    for (const Completion& completion : completions) {
      std::uint32_t& layers = layers_[completion.id.value()];
      EXPECT_GE(completion.layers_done, layers);
      layers = completion.layers_done;
      if (!completion.terminal) {
        ++progress_;
        continue;
      }
      EXPECT_TRUE(ended_.emplace(completion.id.value(), completion.result).second)
          << "transfer " << completion.id.value() << " ended twice";
      order_.push_back(completion.id);
    }
  }
  [[nodiscard]] bool Ended(TransferId id) const { return ended_.contains(id.value()); }
  [[nodiscard]] std::size_t progress() const { return progress_; }
  [[nodiscard]] const std::vector<TransferId>& order() const { return order_; }

  /// Bytes that depend on seed, layer and place.
  void Fill(TierIndex tier, std::uint32_t slot, std::uint32_t seed) {
    ForEachWord(tier, slot, seed, [](std::byte* at, std::uint64_t word, std::uint64_t bytes) {
      std::memcpy(at, &word, bytes);
      return true;
    });
  }
  [[nodiscard]] bool Holds(TierIndex tier, std::uint32_t slot, std::uint32_t seed) {
    return ForEachWord(tier, slot, seed, [](std::byte* at, std::uint64_t word, std::uint64_t n) {
      return std::memcmp(at, &word, n) == 0;
    });
  }

 private:
  template <typename Visit>
  bool ForEachWord(TierIndex tier, std::uint32_t slot, std::uint32_t seed, Visit visit) {
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      std::byte* base = tiers_[tier].arena.At(SlotId(slot), layer);
      for (std::uint64_t at = 0; at < options_.layer_bytes; at += 8) {
        const std::uint64_t word =
            (std::uint64_t{seed} << 40 | std::uint64_t{layer} << 32 | at) * 0x9E3779B97F4A7C15u;
        const std::uint64_t bytes = std::min<std::uint64_t>(8, options_.layer_bytes - at);
        if (!visit(base + at, word, bytes)) return false;
      }
    }
    return true;
  }

  const RigOptions options_;
  TempPath path_;
  std::vector<TierBinding> tiers_;
  LogObserver log_;
  std::unique_ptr<TransferEngine> engine_;
  FaultFileIo* fault_file_ = nullptr;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, TransferResult> ended_;
  std::map<std::uint64_t, std::uint32_t> layers_;
  std::vector<TransferId> order_;
  std::size_t progress_ = 0;
};

}  // namespace tidepool::testing
