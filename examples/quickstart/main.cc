// One session fills the cache and waits for a tool, a second one shares its prompt, and the first
// comes back after its blocks have moved down. All in host memory and one file, in milliseconds.
#include <tidepool/tidepool.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

using namespace tidepool;
using namespace std::chrono_literals;

namespace {
int Fail(const char* what, std::string_view why) {
  std::fprintf(stderr, "%s: %.*s\n", what, static_cast<int>(why.size()), why.data());
  return 1;
}
void Report(const char* who, const Admission& a) {
  std::printf("%-14s %3u tokens ready, %3u loading, %3u to compute\n", who, a.ready_tokens,
              a.loading_tokens, a.recompute_tokens);
}
}  // namespace

int main() {
  const std::string name = "quickstart-" + std::to_string(getpid()) + ".tide";
  const auto file = std::filesystem::temp_directory_path() / name;
  ManagerOptions options;
  options.layout = KvLayout::Gqa({.layers = 4, .kv_heads = 2, .head_dim = 64, .block_tokens = 16});
  options.tiers = {Hbm(HostArena(4_MiB)), Dram(8_MiB), Nvme(file, 32_MiB)};
  StatusOr<std::unique_ptr<KvCacheManager>> created = KvCacheManager::Create(std::move(options));
  if (!created.ok()) return Fail("create", created.status().ToString());
  KvCacheManager& cache = **created;

  std::vector<Token> prompt(200);
  std::iota(prompt.begin(), prompt.end(), 1000);
  Admission a = cache.Admit({.session = 7, .tokens = prompt, .priority = Priority::kInteractive});
  if (!a.granted()) return Fail("admit", ToString(a.outcome));
  Report("first", a);  // nobody had anything: the engine computes all, into the slots of
  Sequence seq = std::move(a.sequence);  // seq.block_table(), and then says so:
  if (seq.Commit(200, Fence::Done()) != Outcome::kOk) return Fail("commit", "refused");
  seq.Pause({.wait = WaitClass::kTool, .expected_return = 3s});

  std::vector<Token> other(prompt.begin(), prompt.begin() + 150);  // the same beginning
  other.resize(180, 7);
  Admission b = cache.Admit({.session = 8, .tokens = other});
  if (!b.granted() || b.ready_tokens != 150) return Fail("second", ToString(b.outcome));
  Report("second", b);
  b.sequence.Finish();

  cache.Offload(prompt);  // copies one tier down; with those, HBM may be given up
  if (!cache.WaitIdle(5s) || cache.Evict(kHbmTier, 8) != 8) return Fail("offload", "incomplete");
  Admission r = seq.Resume();
  if (!r.granted() || r.loading_tokens != 8 * 16) return Fail("resume", ToString(r.outcome));
  Report("first, resumed", r);
  if (r.ticket.WaitReady() != Outcome::kOk) return Fail("load", "failed");
  std::printf("%llu blocks came back up\n", static_cast<unsigned long long>(cache.stats().loads));
  return std::filesystem::remove(file) && cache.Audit().ok() ? 0 : Fail("audit", "failed");
}
