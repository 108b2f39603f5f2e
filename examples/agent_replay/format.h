// agent_replay/format.h - printf into a string, for lines of at most 511 characters.
//
// Thread contract: a pure function.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace agent_replay {

[[gnu::format(printf, 1, 2)]] inline std::string Format(const char* format, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof(buffer), format, arguments);
  va_end(arguments);
  return buffer;
}

}  // namespace agent_replay
