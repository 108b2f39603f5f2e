// zeroed_array.h - a fixed array of zeros that costs no memory before it is touched. Private.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace tidepool::internal {

/// `bytes` of zeros, or null. Large mappings ask for huge pages; none is resident yet.
[[nodiscard]] void* MapZeroed(std::uint64_t bytes) noexcept;
void UnmapZeroed(void* data, std::uint64_t bytes) noexcept;

template <typename T>
class ZeroedArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  ZeroedArray() noexcept = default;
  /// data() is null if the address space is short.
  explicit ZeroedArray(std::uint64_t size) noexcept
      : data_(static_cast<T*>(MapZeroed(size * sizeof(T)))), size_(data_ == nullptr ? 0 : size) {}
  ZeroedArray(ZeroedArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  ZeroedArray& operator=(ZeroedArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~ZeroedArray() { UnmapZeroed(data_, bytes()); }

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return size_ * sizeof(T); }
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace tidepool::internal
