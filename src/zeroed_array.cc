#include "src/zeroed_array.h"

#include <sys/mman.h>

namespace tidepool::internal {
namespace {

constexpr std::uint64_t kHugePageBytes = std::uint64_t{4} << 20;

}  // namespace

void* MapZeroed(std::uint64_t bytes) noexcept {
  if (bytes == 0) return nullptr;
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  if (bytes >= kHugePageBytes) (void)madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

void UnmapZeroed(void* data, std::uint64_t bytes) noexcept {
  if (data != nullptr) (void)munmap(data, bytes);
}

}  // namespace tidepool::internal
