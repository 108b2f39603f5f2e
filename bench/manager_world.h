// What manager_benchmark.cc and scale_tool.cc build before they measure: managers on small block
// payloads, and prompts of 16-token blocks in which some tokens are shared by a group and the rest
// is nobody else's.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tidepool/kv_cache_manager.h"

namespace tidepool::bench {

inline constexpr std::uint32_t kBlockTokens = 16;
inline constexpr std::uint64_t kBlockBytes = 64;  // payloads do not matter here

struct PromptShape {
  std::uint32_t tokens = 0;
  std::uint32_t shared = 0;  ///< leading tokens that depend on the group only
  std::uint64_t group = 0;
  std::uint64_t own = 0;  ///< what the rest depends on
};

inline Token Scramble(std::uint64_t key, std::uint64_t position) {
  std::uint64_t x = (key + 1) * 0x9E3779B97F4A7C15u + position;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<Token>((x ^ (x >> 31)) % 128'000);
}

inline void Write(const PromptShape& shape, std::vector<Token>& out) {
  out.resize(shape.tokens);
  for (std::uint32_t i = 0; i < shape.tokens; ++i) {
    out[i] = i < shape.shared ? Scramble(shape.group, i) : Scramble(shape.own + (1u << 20), i);
  }
}

[[noreturn]] inline void Die(const char* what) {
  std::fprintf(stderr, "benchmark set-up failed: %s\n", what);
  std::exit(1);
}

/// One tier for each entry of `slots`, HBM first; all of it in memory.
inline std::unique_ptr<KvCacheManager> MakeManager(std::span<const std::uint32_t> slots,
                                                   std::uint32_t max_sequence_blocks) {
  ManagerOptions options;
  options.layout = KvLayout::Opaque(kBlockBytes, kBlockTokens);
  for (std::size_t t = 0; t < slots.size(); ++t) {
    options.tiers.push_back(t == 0 ? Hbm(HostArena(0)) : Dram(0));
    options.tiers.back().slots = slots[t];
  }
  options.max_sequence_blocks = max_sequence_blocks;
  StatusOr<std::unique_ptr<KvCacheManager>> manager = KvCacheManager::Create(std::move(options));
  if (!manager.ok()) Die(manager.status().ToString().c_str());
  return *std::move(manager);
}

/// Admits, commits and finishes a prompt: leaves its full blocks cached.
inline void Cache(KvCacheManager& manager, std::span<const Token> tokens) {
  Admission a = manager.Admit({.request = 1, .tokens = tokens});
  for (int i = 0; !a.granted() && i < 100; ++i) {
    manager.WaitIdle(std::chrono::seconds(10));
    a = manager.Admit({.request = 1, .tokens = tokens});
  }
  if (!a.granted()) Die("a prompt was not admitted");
  (void)a.ticket.WaitReady();
  (void)a.sequence.Commit(static_cast<std::uint32_t>(tokens.size()), Fence::Done());
  (void)a.sequence.Finish();
}

}  // namespace tidepool::bench
