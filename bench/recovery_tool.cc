// Makes a kept file full of headers, and opens one: the tool side of recovery_vs_fio.sh.
//
//   recovery_tool make FILE SLOTS     SLOTS sound headers of 64-token blocks; the payloads are a
//   hole recovery_tool open FILE SLOTS     a manager on it; prints seconds, CPU seconds, blocks
//   found, and
//                                     where the headers are: offset and bytes
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tidepool/kv_cache_manager.h"
#include "tidepool/transfer/host_engine.h"
#include "tidepool/transfer/slot_file.h"
#include "tidepool/transfer/uring_file_io.h"

namespace {

constexpr std::uint32_t kBlockTokens = 64;
constexpr std::uint64_t kSlotBytes = 4096;

tidepool::SlotFileLayout Layout(std::uint32_t slots) {
  return {.identity = "recovery",
          .digest_check = tidepool::DigestScheme(0).Root({}, 0).low,
          .slots = slots,
          .layers = 1,
          .block_tokens = kBlockTokens,
          .stores_tokens = true,
          .slot_bytes = kSlotBytes,
          .slot_stride = kSlotBytes,
          .segment_ends = {kSlotBytes}};
}

int Fail(const std::string& what) {
  std::fprintf(stderr, "recovery_tool: %s\n", what.c_str());
  return 1;
}

// Prompts of 32 blocks each, as sessions would leave them.
int Make(const std::string& path, std::uint32_t slots) {
  const tidepool::SlotFileLayout layout = Layout(slots);
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return Fail("cannot write " + path);
  const auto put = [file](std::span<const std::byte> bytes) {
    return std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  };
  bool ok = put(tidepool::EncodeSuperblock(layout));
  ok = ok && put(tidepool::EncodeState({.sequence = 0}));
  ok = ok && put(tidepool::EncodeState({.sequence = 1}));
  const tidepool::DigestScheme scheme(0);
  const tidepool::PrefixHash root = scheme.Root({}, 0);
  std::vector<std::byte> header(layout.header_bytes());
  std::vector<tidepool::Token> tokens(kBlockTokens);
  const std::uint64_t sum = 0;
  tidepool::PrefixHash parent = root;
  for (std::uint32_t slot = 0; ok && slot < slots; ++slot) {
    std::ranges::fill(tokens, static_cast<tidepool::Token>(slot));
    const std::uint32_t position = slot % 32;
    if (position == 0) parent = root;
    const tidepool::PrefixHash digest = scheme.Block(parent, tokens, nullptr);
    tidepool::SlotHeader slot_header;
    slot_header.slot = slot;
    slot_header.generation = slot + 1;
    slot_header.identity.root = root;
    slot_header.identity.parent = parent;
    slot_header.identity.digest = digest;
    slot_header.identity.position = position;
    slot_header.identity.tokens = tokens;
    slot_header.sums = std::as_bytes(std::span(&sum, 1));
    tidepool::EncodeSlotHeader(slot_header, layout, header);
    ok = put(header);
    parent = digest;
  }
  ok = std::fflush(file) == 0 && ok;
  ok = ::ftruncate(fileno(file), static_cast<off_t>(layout.file_bytes())) == 0 && ok;
  ok = ::fsync(fileno(file)) == 0 && ok;
  ok = std::fclose(file) == 0 && ok;
  return ok ? 0 : Fail("cannot write " + path);
}

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int Open(const std::string& path, std::uint32_t slots) {
  tidepool::ManagerOptions options;
  options.layout = tidepool::KvLayout::Opaque(kSlotBytes, kBlockTokens);
  options.tiers = {tidepool::Hbm(tidepool::HostArena(1u << 20)),
                   tidepool::Nvme(path, 0, {.keep = true, .identity = "recovery"})};
  options.tiers[1].slots = slots;
  tidepool::HostEngineOptions engine;
  engine.file_io = tidepool::MakeUringFileIo({.depth = 16});
  options.engine = tidepool::MakeHostEngine(std::move(engine));
  const double cpu = CpuSeconds();
  const auto start = std::chrono::steady_clock::now();
  auto manager = tidepool::KvCacheManager::Create(std::move(options));
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  const double cpu_seconds = CpuSeconds() - cpu;
  if (!manager.ok()) return Fail(std::string(manager.status().message()));
  const tidepool::SlotFileLayout layout = Layout(slots);
  std::printf("%.4f %.4f %u %llu %llu\n", time.count(), cpu_seconds,
              (*manager)->recovery().recovered,
              static_cast<unsigned long long>(tidepool::SlotFileLayout::headers_offset()),
              static_cast<unsigned long long>(std::uint64_t{slots} * layout.header_bytes()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  const long slots = argc > 3 ? std::atol(argv[3]) : 0;
  if ((command != "make" && command != "open") || slots < 1 || slots > 1 << 28) {
    std::fprintf(stderr, "usage: recovery_tool make|open FILE SLOTS\n");
    return 2;
  }
  const auto count = static_cast<std::uint32_t>(slots);
  return command == "make" ? Make(argv[2], count) : Open(argv[2], count);
}
