// tidepool/version.h - the library's version, for compile-time checks. Thread contract: constants.
#pragma once

#define TIDEPOOL_VERSION_MAJOR 0
#define TIDEPOOL_VERSION_MINOR 1
#define TIDEPOOL_VERSION_PATCH 0

namespace tidepool {
inline constexpr int kVersionMajor = TIDEPOOL_VERSION_MAJOR;
inline constexpr int kVersionMinor = TIDEPOOL_VERSION_MINOR;
inline constexpr int kVersionPatch = TIDEPOOL_VERSION_PATCH;
/// Version of the digest of prefix_index.h; part of every PrefixHash.
inline constexpr unsigned kDigestVersion = 1;
}  // namespace tidepool
