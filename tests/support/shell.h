// tests/support/shell.h - programs as a user meets them: a shell's command line, what it prints and
// its exit status.
//
// Thread contract: any thread.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <string>

namespace tidepool::testing {

struct ShellRun {
  int status = -1;     ///< -1: it did not exit by itself
  std::string output;  ///< stdout and stderr
};

inline ShellRun Shell(const std::string& command) {
  ShellRun run;
  std::FILE* pipe = popen(("exec 2>&1; " + command).c_str(), "r");
  if (pipe == nullptr) return run;
  std::array<char, 4096> buffer;
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    run.output.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  run.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

}  // namespace tidepool::testing
