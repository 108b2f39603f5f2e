// tools/json.h - JSON, written as it comes: nothing is kept but how deep it is.
//
// Thread contract: thread-compatible.
#pragma once

#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool::tools {

/// Between quotes in JSON. Bytes that are not ASCII become the code points of their values, so that
/// any bytes give valid text.
inline std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      char code[7];
      std::snprintf(code, sizeof(code), "\\u%04x", byte);
      out += code;
    }
  }
  return out;
}

class JsonWriter {
 public:
  explicit JsonWriter(std::FILE* out) : out_(out) {}

  /// `bracket` is '{' or '['. In objects members have a key, in arrays none.
  void Open(char bracket, std::string_view key = {}) {
    Lead(key);
    std::fputc(bracket, out_);
    open_.push_back(bracket == '{' ? '}' : ']');
    first_ = true;
  }
  void Close() {
    std::fputc(open_.back(), out_);
    open_.pop_back();
    first_ = false;
    if (open_.empty()) std::fputc('\n', out_);
  }
  void Member(std::string_view key, std::integral auto value) {
    Lead(key);
    std::fputs(std::to_string(value).c_str(), out_);
  }
  void Member(std::string_view key, bool value) {
    Lead(key);
    std::fputs(value ? "true" : "false", out_);
  }
  void Member(std::string_view key, std::string_view value) {
    Lead(key);
    std::fprintf(out_, "\"%s\"", Escaped(value).c_str());
  }
  void Null(std::string_view key) {
    Lead(key);
    std::fputs("null", out_);
  }

 private:
  void Lead(std::string_view key) {
    if (!first_) std::fputs(", ", out_);
    first_ = false;
    if (!key.empty()) std::fprintf(out_, "\"%s\": ", Escaped(key).c_str());
  }

  std::FILE* out_;
  std::vector<char> open_;
  bool first_ = true;
};

}  // namespace tidepool::tools
