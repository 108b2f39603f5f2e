// Builders for tier specs, and the memory behind host arenas.
#include "tidepool/tier.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace tidepool {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kHugePageBytes = 2u << 20;
constexpr std::uint64_t kCacheLineBytes = 64;

// Slots of a page or more start on a page, so that direct I/O can move them without a bounce.
constexpr std::uint64_t StrideFor(std::uint64_t slot_bytes) {
  const std::uint64_t unit = slot_bytes >= kPageBytes ? kPageBytes : kCacheLineBytes;
  return (slot_bytes + unit - 1) / unit * unit;
}

std::string Sizes(std::uint32_t slots, std::uint32_t layers, std::uint64_t layer_bytes) {
  return std::to_string(slots) + " slots x " + std::to_string(layers) + " layers x " +
         std::to_string(layer_bytes) + " bytes";
}

}  // namespace

std::string_view ToString(TierKind kind) noexcept {
  switch (kind) {
    case TierKind::kHbm:
      return "hbm";
    case TierKind::kDram:
      return "dram";
    case TierKind::kCxl:
      return "cxl";
    case TierKind::kNvme:
      return "nvme";
    case TierKind::kRemote:
      return "remote";
    case TierKind::kShared:
      return "shared";
  }
  return "unknown";
}

TierSpec Hbm(HostArena arena) { return {.kind = TierKind::kHbm, .bytes = arena.bytes}; }

TierSpec Hbm(Arena arena) {
  TierSpec spec{.kind = TierKind::kHbm, .slots = arena.slots};
  spec.arena = std::move(arena);
  spec.device_work = DeviceWork::kQueued;
  return spec;
}

TierSpec Dram(std::uint64_t bytes) { return {.kind = TierKind::kDram, .bytes = bytes}; }

TierSpec Nvme(std::string path, std::uint64_t bytes, FileStore store) {
  TierSpec spec{.kind = TierKind::kNvme, .bytes = bytes};
  spec.path = std::move(path);
  spec.store = std::move(store);
  spec.prior_bytes_per_second = 1.5e9;
  spec.prior_latency = Duration{100'000};
  return spec;
}

Arena UnreachableArena(std::uint32_t slots, std::uint32_t layers, std::uint64_t layer_bytes) {
  Arena arena;
  arena.layer_base.assign(layers, nullptr);
  arena.layer_bytes = layer_bytes;
  arena.slots = slots;
  return arena;
}

StatusOr<Arena> AllocateHostArena(std::uint32_t slots, std::uint32_t layers,
                                  std::uint64_t layer_bytes) {
  if (slots == 0 || layers == 0 || layer_bytes == 0) {
    return absl::InvalidArgumentError("host arena: " + Sizes(slots, layers, layer_bytes) +
                                      ": none may be 0");
  }
  // Divide instead of multiplying: the product may not fit in 64 bits.
  constexpr std::uint64_t kLimit = std::numeric_limits<std::int64_t>::max() - 2 * kHugePageBytes;
  if (layer_bytes > kLimit / layers || StrideFor(layer_bytes * layers) > kLimit / slots) {
    return absl::InvalidArgumentError("host arena: " + Sizes(slots, layers, layer_bytes) +
                                      " overflows 64 bits");
  }
  const std::uint64_t stride = StrideFor(layer_bytes * layers);
  const std::uint64_t bytes = stride * slots;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        "host arena: mmap of " + std::to_string(bytes) + " bytes of anonymous memory (" +
        Sizes(slots, layers, layer_bytes) + "): " + std::strerror(errno));
  }
  if (bytes >= kHugePageBytes) ::madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: may be refused

  Arena arena;
  arena.owner = std::shared_ptr<void>(memory, [bytes](void* p) { ::munmap(p, bytes); });
  arena.slot_stride_bytes = stride;
  arena.layer_bytes = layer_bytes;
  arena.slots = slots;
  arena.layer_base.reserve(layers);
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    arena.layer_base.push_back(static_cast<std::byte*>(memory) + layer_bytes * layer);
  }
  return arena;
}

}  // namespace tidepool
