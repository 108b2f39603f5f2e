// policy_lab/settings.h - everything that shapes a run, with its default. docs/policy_lab.md says
// where the constants come from.
//
// Thread contract: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tidepool/tier.h"
#include "tidepool/types.h"

namespace policy_lab {

/// Tokens of a block as the manager sees it; the trace's own block size only scales costs.
inline constexpr std::uint32_t kBlockTokens = 2;
/// Bytes that a block really takes; the modelled size is Settings::block_bytes.
inline constexpr std::uint64_t kRealBlockBytes = 4;
inline constexpr std::size_t kMaxLabTiers = 3;
/// While copies are under way the modelled engine looks at them so often (its step).
inline constexpr tidepool::Duration kEngineStep = std::chrono::milliseconds(10);

enum class Mode : std::uint8_t {
  kNoHold,  ///< service takes no time, oversize requests stream
  kEngine,  ///< closed loop, running blocks are held, oversize requests are refused
};

enum class StartKind : std::uint8_t { kFile, kPoisson, kTogether };
/// When each scope's first request arrives.
struct ScopeStart {
  StartKind kind = StartKind::kFile;
  double mean_s = 120;
};

/// Every `of`-th scope, counted from `index` (1-based); sessions where the trace has one scope.
struct Part {
  std::uint32_t index = 1;
  std::uint32_t of = 1;
};

/// How long a request runs in engine mode, loads apart.
enum class Service : std::uint8_t {
  kModel,  ///< prefill of what is missing, then decoding
  kTrace,  ///< the trace's server time, hit or miss; the model where it has none
};

/// Whether what goes up and what goes down share a link's bandwidth.
enum class LinkSharing : std::uint8_t { kEachWay, kShared };

enum class Completion : std::uint8_t { kSilent, kSignalled };

/// Where requests come from: a file or the generator's preset.
struct Source {
  std::string path;
  std::string preset;
  std::uint32_t sessions = 200;
  double mean_start_gap_s = 60;
  double between_sd = 0;
};

/// seconds of a 64-token block at position p of its prompt = c0 * (1 + p / slope_blocks).
struct PrefillModel {
  double c0_seconds = 8e-3;
  double slope_blocks = 835;
};

/// What a block weighs and costs.
struct ModelClass {
  double block_bytes = 0;
  PrefillModel prefill;
  double decode_s = 0;
};
/// 70 billion weights, grouped queries (8 heads of 128, 80 layers): algorithms.md 13.
inline constexpr ModelClass k70b{20e6, {8e-3, 835}, 25e-3};
/// 30 billion weights of which 3.3 work on a token (4 heads of 128, 48 layers: 98,304 bytes a
/// token, algorithms.md 3.1) at the 70b's rate of arithmetic: 6.6 / 140 of its prefill; attention
/// costs as much as the rest at block 6.6e9 / (64 x 4 x 48 x 4096) = 131.
inline constexpr ModelClass k30bA3b{64 * 98304.0, {8e-3 * 6.6 / 140, 131}, 10e-3};

struct Capacity {
  std::uint32_t blocks = 0;  ///< 0: a multiple of the mean held
  double held_multiple = 0;
};

struct Settings {
  Source source;
  Part part;
  std::optional<Source> train;
  Part train_part;

  Mode mode = Mode::kNoHold;
  std::optional<ScopeStart> scope_start;  ///< none: file with one scope, else poisson:120
  std::uint64_t seed = 1;
  std::uint32_t seeds = 1;
  std::vector<Capacity> capacities;
  std::vector<std::string> policies;
  std::string lower_policy;  ///< of the tiers below HBM; empty = the run's own

  std::uint32_t dram_blocks = 0;
  std::uint32_t nvme_blocks = 0;
  double dram_times = 0;  ///< instead of dram_blocks: a multiple of HBM's
  std::vector<double> link_gbs = {25, 3};
  LinkSharing nvme_link = LinkSharing::kShared;
  double block_bytes = 20e6;
  PrefillModel prefill;
  double decode_s = 25e-3;
  Service service = Service::kModel;
  std::optional<double> hint_log_sd;
  /// Test-only: so long after a wait began the session's clean blocks leave HBM.
  std::optional<double> release_after_s;
  Completion completion = Completion::kSilent;
  tidepool::Priority priority = tidepool::Priority::kNormal;
  std::uint32_t jobs = 1;
  std::string trace_out_path;  ///< of the one run there is; empty: not written

  void Use(const ModelClass& model) {
    block_bytes = model.block_bytes;
    prefill = model.prefill;
    decode_s = model.decode_s;
  }
  /// Blocks of the tier below an HBM of so many.
  [[nodiscard]] std::uint32_t DramBlocks(std::uint32_t hbm_blocks) const {
    return dram_times > 0 ? static_cast<std::uint32_t>(dram_times * hbm_blocks) : dram_blocks;
  }
  [[nodiscard]] bool has_dram() const { return dram_blocks != 0 || dram_times > 0; }
};

/// The prefill model in units of the trace's own blocks.
struct BlockCost {
  double base_s = 0;   ///< of the first block
  double slope_s = 0;  ///< more for each block before it
  BlockCost(const PrefillModel& model, std::uint32_t trace_block_tokens) {
    const double scale = trace_block_tokens / 64.0;
    base_s = model.c0_seconds * scale;
    slope_s = base_s * scale / model.slope_blocks;
  }
  /// Of the blocks at positions [first, last).
  [[nodiscard]] double Range(std::uint64_t first, std::uint64_t last) const {
    if (last <= first) return 0;
    const auto n = static_cast<double>(last - first);
    return n * base_s + slope_s * n * (static_cast<double>(first + last - 1) / 2);
  }
};

/// The cost that recompute_cost and prefill_cost count, in blocks at the start of a prompt.
inline constexpr double kCostSlopeBlocks = 2000;
[[nodiscard]] constexpr double RelativeCost(double position) {
  return 1 + position / kCostSlopeBlocks;
}

}  // namespace policy_lab
