// lifecycle_doc.h - the generated part of docs/lifecycle.md, from the table in lifecycle.h.
#pragma once

#include <string>

namespace tidepool::testing {

/// Table and diagram of every legal edge, in Markdown.
[[nodiscard]] std::string LifecycleEdges();

}  // namespace tidepool::testing
