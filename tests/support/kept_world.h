// tests/support/kept_world.h - an engine with HBM and a kept file that is opened, used, closed, cut
// off and opened again. It writes for each token bytes that depend on everything before it, and
// compares whatever it is told to reuse.
//
// Thread contract: one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tidepool/kv_cache_manager.h"
#include "tidepool/testing/fault_file_io.h"
#include "tidepool/testing/manual_clock.h"
#include "tidepool/transfer/host_engine.h"

namespace tidepool::testing {

struct KeptOptions {
  std::uint32_t hbm = 8;  ///< slots
  std::uint32_t slots = 16;
  std::uint32_t layers = 2;
  std::uint64_t layer_bytes = 512;
  FileStore store{.keep = true};
  std::string path;        ///< a real file instead of a FaultDisk
  std::uint64_t seed = 1;  ///< of digests
  std::uint64_t epoch = 0;
  std::function<void(ManagerOptions&)> adjust = nullptr;
};

class KeptWorld {
 public:
  static constexpr std::uint32_t kTokens = 4;  ///< of a block
  static constexpr TierIndex kFileTier = 1;

  explicit KeptWorld(KeptOptions options = {});

  /// Opens the file with a new manager.
  Status Open();
  void Close();
  KeptOptions& options() { return options_; }
  KvCacheManager& manager() { return *manager_; }
  ManualClock& clock() { return clock_; }
  FaultDisk& disk() { return *disk_; }
  /// Null with a real file.
  FaultFileIo* file() { return file_; }

  /// A request of these tokens: loads, compares, computes the rest, ends. Returns how many tokens
  /// were reused, or -1 if a byte was wrong (and fails the test).
  int Serve(const std::vector<Token>& tokens, NamespaceId ns = NamespaceId(0));
  /// Copies what HBM has of these tokens into the file. Returns the copies made.
  int Spill(const std::vector<Token>& tokens, NamespaceId ns = NamespaceId(0));
  /// Serve, Spill, and HBM forgets them.
  int Store(const std::vector<Token>& tokens, NamespaceId ns = NamespaceId(0));
  [[nodiscard]] std::uint32_t Found(const std::vector<Token>& tokens,
                                    NamespaceId ns = NamespaceId(0)) const;
  void WaitIdle();
  /// Offset in the file of the payload of a slot.
  [[nodiscard]] std::uint64_t PayloadOffset(std::uint32_t slot) const;
  [[nodiscard]] std::uint64_t HeaderOffset(std::uint32_t slot) const;
  /// Slots of the file that hold blocks of these tokens.
  [[nodiscard]] std::vector<SlotId> Slots(const std::vector<Token>& tokens) const;

  /// `n` tokens of text number `text`.
  static std::vector<Token> Text(int text, std::uint32_t n);

 private:
  void WriteBlock(SlotId slot, const std::vector<Token>& tokens, std::uint32_t block);
  [[nodiscard]] bool Holds(SlotId slot, const std::vector<Token>& tokens, std::uint32_t block);
  std::vector<std::byte> Bytes(const std::vector<Token>& tokens, std::uint32_t block,
                               std::uint32_t layer) const;

  KeptOptions options_;
  ManualClock clock_;
  std::shared_ptr<FaultDisk> disk_ = std::make_shared<FaultDisk>();
  FaultFileIo* file_ = nullptr;  // the manager's
  std::unique_ptr<KvCacheManager> manager_;
};

}  // namespace tidepool::testing
