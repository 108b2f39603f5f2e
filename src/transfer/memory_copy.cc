#include "src/transfer/memory_copy.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tidepool {
namespace {

constexpr std::uint64_t kLineBytes = 64;
// Measured: from here on streaming wins at every size; below, memcpy stays in the cache.
constexpr std::uint64_t kStreamFromBytes = 16u << 10;

#if defined(__SANITIZE_THREAD__)
#define TIDEPOOL_STREAMING_COPY 0  // ThreadSanitizer does not see the intrinsics' accesses
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TIDEPOOL_STREAMING_COPY 0
#endif
#endif
#if !defined(TIDEPOOL_STREAMING_COPY) && defined(__SSE2__)
#define TIDEPOOL_STREAMING_COPY 1
#endif

#if defined(TIDEPOOL_STREAMING_COPY) && TIDEPOOL_STREAMING_COPY
// Whole lines only. REQUIRES: `to` is aligned to a line.
void StreamLines(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  constexpr std::uint64_t kPrefetchBytes = 1024;
  for (std::uint64_t i = 0; i < bytes; i += kLineBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(from + i + kPrefetchBytes), _MM_HINT_NTA);
    const auto* in = reinterpret_cast<const __m128i*>(from + i);
    auto* out = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();
}
#else
void StreamLines(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  std::memcpy(to, from, bytes);
}
#endif

// Calls `piece(arena address, distance from range.offset, bytes)` for each extent of `range`.
template <typename Piece>
void ForEachExtent(const Arena& arena, const SlotRange& range, Piece piece) {
  for (std::uint64_t done = 0; done < range.bytes;) {
    const std::uint64_t at = range.offset + done;
    const auto layer = static_cast<std::uint32_t>(at / arena.layer_bytes);
    const std::uint64_t inside = at % arena.layer_bytes;
    const std::uint64_t bytes = std::min(arena.layer_bytes - inside, range.bytes - done);
    piece(arena.At(range.slot, layer) + inside, done, bytes);
    done += bytes;
  }
}

}  // namespace

void CopyBytes(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept {
  if (bytes < kStreamFromBytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  const std::uint64_t head = -reinterpret_cast<std::uintptr_t>(to) % kLineBytes;
  const std::uint64_t lines = (bytes - head) / kLineBytes * kLineBytes;
  std::memcpy(to, from, head);
  StreamLines(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}

bool IsContiguous(const Arena& arena) noexcept {
  for (std::size_t layer = 1; layer < arena.layer_base.size(); ++layer) {
    if (arena.layer_base[layer] != arena.layer_base[layer - 1] + arena.layer_bytes) return false;
  }
  return true;
}

void GatherSlot(const Arena& arena, const SlotRange& range, std::byte* to) noexcept {
  ForEachExtent(arena, range, [to](const std::byte* at, std::uint64_t done, std::uint64_t bytes) {
    CopyBytes(to + done, at, bytes);
  });
}

void ScatterSlot(const Arena& arena, const SlotRange& range, const std::byte* from) noexcept {
  ForEachExtent(arena, range, [from](std::byte* at, std::uint64_t done, std::uint64_t bytes) {
    CopyBytes(at, from + done, bytes);
  });
}

void CopySlot(const Arena& from, const SlotRange& range, const Arena& to, SlotId to_slot) noexcept {
  const bool flat_to = IsContiguous(to);
  if (IsContiguous(from)) {
    const std::byte* source = SlotBytes(from, range.slot, range.offset);
    if (flat_to) return CopyBytes(SlotBytes(to, to_slot, range.offset), source, range.bytes);
    ScatterSlot(to, {to_slot, range.offset, range.bytes}, source);
  } else if (flat_to) {
    GatherSlot(from, range, SlotBytes(to, to_slot, range.offset));
  } else {
    ForEachExtent(from, range, [&](const std::byte* at, std::uint64_t done, std::uint64_t bytes) {
      ScatterSlot(to, {to_slot, range.offset + done, bytes}, at);
    });
  }
}

}  // namespace tidepool
