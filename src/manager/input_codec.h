// Arguments of calls as bytes and back. A struct is a list of its fields, written once for both
// directions; numbers are little-endian and of their own width.
// Thread contract: thread-compatible.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "src/manager/core.h"

namespace tidepool::internal {

static_assert(std::endian::native == std::endian::little, "the log is little-endian");

template <typename T, typename U>
concept Same = std::same_as<std::remove_const_t<T>, U>;
template <typename T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

// --- Fields. A new type of argument gets a line here. ---
void Fields(auto& a, Same<SequenceRef> auto& v) { a(v.index, v.generation); }
void Fields(auto& a, Same<PrefixHash> auto& v) { a(v.high, v.low); }
void Fields(auto& a, Same<BlockContent> auto& v) { a(v.block, v.key); }
void Fields(auto& a, Same<Fence> auto& v) { a(v.timeline, v.step); }
void Fields(auto& a, Same<Quota> auto& v) { a(v.soft, v.hard); }
void Fields(auto& a, Same<LinkLimit> auto& v) {
  a(v.bytes_per_second, v.background_bytes_per_second);
}
void Fields(auto& a, Same<NamespaceKey> auto& v) { a(v.tenant, v.adapter, v.model, v.layout); }
void Fields(auto& a, Same<PauseHint> auto& v) {
  a(v.wait, v.tool, v.expected_return, v.expected_return_log_sd);
}
void Fields(auto& a, Same<AdmitRequest> auto& v) {
  a(v.session, v.request, v.tokens, v.ns, v.priority, v.timeline, v.lookahead_tokens, v.content,
    v.publish, v.critical_path, v.two_ended, v.recompute_if_sooner);
}
void Fields(auto& a, Same<Completion> auto& v) { a(v.id, v.terminal, v.result, v.layers_done); }

void Fields(auto& a, Same<StoredBlock> auto& v) {
  a(v.slot, v.position, v.generation, v.epoch, v.root, v.digest, v.content);
}
void Fields(auto& a, Same<StoredBlocks> auto& v) { a(v.blocks, v.tokens, v.epoch); }

class Encoder {
 public:
  explicit Encoder(std::vector<std::byte>* out) : out_(out) {}
  template <typename... T>
  void operator()(const T&... values) {
    (Put(values), ...);
  }

 private:
  void Raw(const void* data, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(data);
    out_->insert(out_->end(), first, first + bytes);
  }
  template <typename T>
  void Put(const T& value) {
    Fields(*this, value);
  }
  template <Number T>
  void Put(const T& value) {
    Raw(&value, sizeof(value));
  }
  template <typename Tag, typename Rep, bool kImplicit>
  void Put(const StrongId<Tag, Rep, kImplicit>& id) {
    Put(id.value());
  }
  void Put(const Duration& value) { Put(value.count()); }
  void Put(const TimePoint& value) { Put(value.time_since_epoch()); }
  void Put(const std::string& text) { Put(std::span<const char>(text)); }
  template <typename T>
  void Put(const std::vector<T>& values) {
    Put(std::span<const T>(values));
  }
  template <typename T>
  void Put(const std::span<const T>& values) {
    Put(static_cast<std::uint32_t>(values.size()));
    if constexpr (Number<T>) {
      Raw(values.data(), values.size_bytes());
    } else {
      for (const T& value : values) Put(value);
    }
  }

  std::vector<std::byte>* out_;
};

/// Reads what an Encoder wrote. When the bytes run out, values are left as they were and Finished
/// is false. Spans point into the decoder.
class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> in) : in_(in) {}
  template <typename... T>
  void operator()(T&... values) {
    (Get(values), ...);
  }
  [[nodiscard]] bool Finished() const noexcept { return !failed_ && in_.empty(); }

 private:
  bool Raw(void* data, std::size_t bytes) {
    if (bytes > in_.size()) {
      failed_ = true;
      return false;
    }
    if (bytes != 0) std::memcpy(data, in_.data(), bytes);
    in_ = in_.subspan(bytes);
    return true;
  }
  template <typename T>
  void Get(T& value) {
    Fields(*this, value);
  }
  template <Number T>
  void Get(T& value) {
    Raw(&value, sizeof(value));
  }
  void Get(bool& value) {
    std::uint8_t byte = 0;
    Get(byte);
    value = byte != 0;
  }
  template <typename Tag, typename Rep, bool kImplicit>
  void Get(StrongId<Tag, Rep, kImplicit>& id) {
    Rep value = id.value();
    Get(value);
    id = StrongId<Tag, Rep, kImplicit>(value);
  }
  void Get(Duration& value) {
    Duration::rep count = value.count();
    Get(count);
    value = Duration(count);
  }
  void Get(TimePoint& value) {
    Duration since = value.time_since_epoch();
    Get(since);
    value = TimePoint(since);
  }
  void Get(std::string& text) {
    std::vector<char> chars;
    Get(chars);
    text.assign(chars.begin(), chars.end());
  }
  template <typename T>
  void Get(std::vector<T>& values) {
    std::uint32_t count = 0;
    Get(count);
    const std::size_t least = Number<T> ? sizeof(T) : 1;  // bytes of one
    if (failed_ || count > in_.size() / least) {
      failed_ = true;
      return;
    }
    values.resize(count);
    if constexpr (Number<T>) {
      Raw(values.data(), count * sizeof(T));
    } else {
      for (T& value : values) Get(value);
    }
  }
  template <typename T>
  void Get(std::span<const T>& values) {
    auto owned = std::make_shared<std::vector<T>>();
    Get(*owned);
    values = *owned;
    owned_.push_back(std::move(owned));
  }

  std::span<const std::byte> in_;
  bool failed_ = false;
  std::vector<std::shared_ptr<void>> owned_;
};

}  // namespace tidepool::internal
