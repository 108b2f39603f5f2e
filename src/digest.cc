// The chained block digest; docs/digest.md defines every byte and has the test vectors.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <string_view>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tidepool/prefix_index.h"
#include "tidepool/version.h"

namespace tidepool {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are little-endian");

// Kinds of message; the second byte of each.
constexpr char kRootMessage = 'R';
constexpr char kBlockMessage = 'B';

// Tags of the typed fields of a root message.
enum class Field : unsigned char { kTenant = 1, kAdapter = 2, kModel = 3, kLayout = 4 };

// The first 24 bytes of a block's message, as little-endian words.
using BlockHeader = std::array<std::uint64_t, 3>;

BlockHeader MakeHeader(const PrefixHash& parent, std::size_t tokens, bool has_content) {
  const std::uint64_t first = std::uint64_t{kDigestVersion} |
                              std::uint64_t{static_cast<unsigned char>(kBlockMessage)} << 8 |
                              std::uint64_t{has_content} << 16 | std::uint64_t{tokens} << 32;
  return {first, parent.high, parent.low};
}

// A block's message up to this many bytes is hashed from the stack in one call.
constexpr std::size_t kOneShotBytes = 1024;
// For this many tokens the copy into the message is inlined.
constexpr std::size_t kCommonBlockTokens = 16;

PrefixHash FromXxh(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }

template <typename T>
void AppendBytes(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendField(std::string& out, Field field, std::string_view value) {
  out.push_back(static_cast<char>(field));
  AppendBytes(out, static_cast<std::uint64_t>(value.size()));
  out.append(value);
}

}  // namespace

DigestScheme::DigestScheme(std::uint64_t seed) {
  static_assert(sizeof(secret_) == XXH3_SECRET_DEFAULT_SIZE);
  (void)XXH3_generateSecret(secret_, sizeof(secret_), &seed, sizeof(seed));
}

PrefixHash DigestScheme::Root(const NamespaceKey& key, std::uint64_t epoch) const {
  std::string message = {static_cast<char>(kDigestVersion), kRootMessage, 0, 0};
  AppendBytes(message, epoch);
  AppendField(message, Field::kTenant, key.tenant);
  AppendField(message, Field::kAdapter, key.adapter);
  AppendField(message, Field::kModel, key.model);
  AppendField(message, Field::kLayout, key.layout);
  return FromXxh(XXH3_128bits_withSecret(message.data(), message.size(), secret_, sizeof(secret_)));
}

PrefixHash DigestScheme::Block(const PrefixHash& parent, std::span<const Token> tokens,
                               const PrefixHash* content) const noexcept {
  const BlockHeader header = MakeHeader(parent, tokens.size(), content != nullptr);
  const std::size_t content_at = sizeof(header) + tokens.size_bytes();
  const std::size_t bytes = content_at + (content != nullptr ? sizeof(*content) : 0);
  if (bytes <= kOneShotBytes) {
    // Words, written as they are read again: a mix of sizes would stall store forwarding.
    std::array<std::uint64_t, kOneShotBytes / sizeof(std::uint64_t)> message;
    std::copy(header.begin(), header.end(), message.begin());
    auto* const begin = reinterpret_cast<unsigned char*>(message.data());
    if (tokens.size() == kCommonBlockTokens) {
      std::memcpy(begin + sizeof(header), tokens.data(), kCommonBlockTokens * sizeof(Token));
    } else {
      std::memcpy(begin + sizeof(header), tokens.data(), tokens.size_bytes());
    }
    if (content != nullptr) std::memcpy(begin + content_at, content, sizeof(*content));
    return FromXxh(XXH3_128bits_withSecret(begin, bytes, secret_, sizeof(secret_)));
  }

  XXH3_state_t state;
  (void)XXH3_128bits_reset_withSecret(&state, secret_, sizeof(secret_));
  (void)XXH3_128bits_update(&state, header.data(), sizeof(header));
  (void)XXH3_128bits_update(&state, tokens.data(), tokens.size_bytes());
  if (content != nullptr) (void)XXH3_128bits_update(&state, content, sizeof(*content));
  return FromXxh(XXH3_128bits_digest(&state));
}

}  // namespace tidepool
