// Traces for tests: the directory that TIDEPOOL_TRACES names. Files that end in .zst go through the
// zstd tool.
#pragma once

#include <string>

#include "examples/agent_replay/trace.h"

namespace agent_replay::replay_files {

/// Empty when TIDEPOOL_TRACES is not set or names no directory.
std::string TraceDirectory();
/// A file of that directory. Errors: no such file, no zstd, or what the parser says.
tidepool::StatusOr<Trace> Load(const std::string& name);

}  // namespace agent_replay::replay_files
