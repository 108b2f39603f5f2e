// A minimal StrCat over std::string_view. Debian's Abseil is built with its own string_view, so
// absl::StrCat does not take the standard one.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace tidepool::internal {

inline void AppendPiece(std::string& out, std::string_view piece) { out.append(piece); }
template <std::integral T>
void AppendPiece(std::string& out, T value) {
  out.append(std::to_string(value));
}
inline void AppendPiece(std::string& out, double value) { out.append(std::to_string(value)); }

template <typename... Pieces>
std::string StrCat(const Pieces&... pieces) {
  std::string out;
  (AppendPiece(out, pieces), ...);
  return out;
}

}  // namespace tidepool::internal
