// A policy of one's own beside the built-in LRU: one session waits for a tool while others come and
// go; how much of its prompt is still in HBM when it is back?
#include <tidepool/policy/lru.h>
#include <tidepool/tidepool.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "tool_first.h"

using namespace tidepool;

namespace {

constexpr std::uint32_t kBlockTokens = 16;
constexpr std::uint32_t kHbmBlocks = 256;
constexpr std::uint32_t kTurnTokens = 40 * kBlockTokens;

// One turn of a session whose text nobody shares. Returns the tokens it found in HBM.
std::uint32_t Turn(KvCacheManager& cache, Token session, std::uint32_t length, WaitClass wait) {
  std::vector<Token> prompt(length);
  for (std::uint32_t i = 0; i < length; ++i) prompt[i] = session * 100'000 + static_cast<Token>(i);
  Admission a = cache.Admit({.session = static_cast<std::uint64_t>(session), .tokens = prompt});
  if (!a.granted()) return 0;
  (void)a.sequence.Commit(length, Fence::Done());  // the engine computes here
  (void)a.sequence.Finish(Fence::Done(), {.wait = wait});
  return a.ready_tokens;
}

bool Run(const char* name, std::unique_ptr<EvictionPolicy> (*make)()) {
  ManagerOptions options;
  options.layout = KvLayout::Opaque(64, kBlockTokens);
  options.tiers = {Hbm(HostArena(kHbmBlocks * 64))};
  options.policy = [make](TierIndex) { return make(); };
  StatusOr<std::unique_ptr<KvCacheManager>> cache = KvCacheManager::Create(std::move(options));
  if (!cache.ok()) return false;
  (void)Turn(**cache, 1, kTurnTokens, WaitClass::kTool);
  for (Token user = 2; user < 12; ++user) {
    (void)Turn(**cache, user, kTurnTokens, WaitClass::kUser);
  }
  const std::uint32_t found = Turn(**cache, 1, kTurnTokens + kBlockTokens, WaitClass::kTool);
  std::printf("%-15s %4u of %u tokens are still there\n", name, found, kTurnTokens);
  return (*cache)->Audit().ok();
}

}  // namespace

int main() {
  const bool lru = Run("lru", &MakeLruPolicy);
  const bool own = Run("tool_first", &example::MakeToolFirstPolicy);
  return lru && own ? 0 : 1;
}
