#include "tests/support/lifecycle_doc.h"

#include "tidepool/lifecycle.h"

namespace tidepool::testing {
namespace {

std::string Row(const std::string& from, const std::string& to, const std::string& when) {
  return "| " + from + " | " + to + " | " + when + " |\n";
}

// Mermaid writes the state before and after all others as [*].
std::string State(Phase phase) {
  return phase == Phase::kFree ? "[*]" : std::string(ToString(phase));
}

}  // namespace

std::string LifecycleEdges() {
  std::string table = Row("from", "to", "when") + Row("---", "---", "---");
  std::string diagram = "```mermaid\nstateDiagram-v2\n";
  for (const Edge& edge : kEdges) {
    table += Row(std::string(ToString(edge.from)), std::string(ToString(edge.to)),
                 std::string(edge.when));
    diagram += "  " + State(edge.from) + " --> " + State(edge.to) + "\n";
  }
  return table + "\n" + diagram + "```\n";
}

}  // namespace tidepool::testing
