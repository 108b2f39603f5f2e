#include "tests/support/replay_files.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace agent_replay::replay_files {

std::string TraceDirectory() {
  const char* directory = std::getenv("TIDEPOOL_TRACES");
  std::error_code error;
  if (directory == nullptr || !std::filesystem::is_directory(directory, error)) return {};
  return directory;
}

tidepool::StatusOr<Trace> Load(const std::string& name) {
  const std::string path = TraceDirectory() + "/" + name;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError("no such trace: " + path);
  }
  if (!name.ends_with(".zst")) return ReadTrace(path);
  std::FILE* pipe = popen(("zstd -dcq '" + path + "'").c_str(), "r");
  if (pipe == nullptr) return absl::UnavailableError("cannot run zstd");
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), n);
  }
  if (pclose(pipe) != 0) return absl::UnavailableError("zstd could not unpack " + path);
  return ParseTrace(text, path);
}

}  // namespace agent_replay::replay_files
