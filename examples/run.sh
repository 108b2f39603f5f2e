#!/bin/sh
# Builds a release and runs the main job, examples/agent_replay, with the arguments given.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
"$root/cmake/install_deps.sh" libbenchmark-dev
(
  cd "$root"
  cmake --preset release
  cmake --build --preset release --target agent_replay
)
exec "$root/build/release/examples/agent_replay/agent_replay" "$@"
