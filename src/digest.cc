// The chained block digest; docs/digest.md defines every byte and has the test vectors.
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

// A block's message: 24 bytes of header, the tokens, the content key if there is one.
constexpr std::size_t kHeaderBytes = 24;
// A message up to this many bytes is hashed from the stack in one call.
constexpr std::size_t kOneShotBytes = 1024;
// Blocks of this many tokens, without content, have a copy and a hash of constant length.
constexpr std::size_t kCommonBlockTokens = 16;

// Written as the hash reads it, in words: a mix of sizes would stall store forwarding.
void WriteHeader(std::uint64_t* message, PrefixHash parent, std::size_t tokens, bool has_content) {
  message[0] = std::uint64_t{kDigestVersion} |
               std::uint64_t{static_cast<unsigned char>(kBlockMessage)} << 8 |
               std::uint64_t{has_content} << 16 | std::uint64_t{tokens} << 32;
  message[1] = parent.high;
  message[2] = parent.low;
}

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

PrefixHash DigestScheme::Block(PrefixHash parent, std::span<const Token> tokens,
                               const PrefixHash* content) const noexcept {
  if (tokens.size() != kCommonBlockTokens || content != nullptr) {
    return AnyBlock(parent, tokens, content);
  }
  constexpr std::size_t kTokenBytes = kCommonBlockTokens * sizeof(Token);
  std::array<std::uint64_t, (kHeaderBytes + kTokenBytes) / sizeof(std::uint64_t)> message;
  WriteHeader(message.data(), parent, kCommonBlockTokens, false);
  std::memcpy(message.data() + kHeaderBytes / sizeof(std::uint64_t), tokens.data(), kTokenBytes);
  return FromXxh(
      XXH3_128bits_withSecret(message.data(), sizeof(message), secret_, sizeof(secret_)));
}

PrefixHash DigestScheme::AnyBlock(PrefixHash parent, std::span<const Token> tokens,
                                  const PrefixHash* content) const noexcept {
  const std::size_t content_bytes = content != nullptr ? sizeof(*content) : 0;
  const std::size_t bytes = kHeaderBytes + tokens.size_bytes() + content_bytes;
  std::array<std::uint64_t, kOneShotBytes / sizeof(std::uint64_t)> message;
  WriteHeader(message.data(), parent, tokens.size(), content != nullptr);
  if (bytes <= sizeof(message)) {
    auto* const body = reinterpret_cast<unsigned char*>(message.data()) + kHeaderBytes;
    if (!tokens.empty()) std::memcpy(body, tokens.data(), tokens.size_bytes());
    if (content != nullptr) std::memcpy(body + tokens.size_bytes(), content, content_bytes);
    return FromXxh(XXH3_128bits_withSecret(message.data(), bytes, secret_, sizeof(secret_)));
  }
  XXH3_state_t state;
  (void)XXH3_128bits_reset_withSecret(&state, secret_, sizeof(secret_));
  (void)XXH3_128bits_update(&state, message.data(), kHeaderBytes);
  (void)XXH3_128bits_update(&state, tokens.data(), tokens.size_bytes());
  if (content != nullptr) (void)XXH3_128bits_update(&state, content, content_bytes);
  return FromXxh(XXH3_128bits_digest(&state));
}

}  // namespace tidepool
