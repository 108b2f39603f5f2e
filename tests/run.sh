#!/bin/sh
# Builds the library with its tests and runs them; arguments go to ctest (-R Admit, -j 1, ...).
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
"$root/cmake/install_deps.sh" libgtest-dev libgmock-dev zstd
cd "$root"
cmake --preset dev
cmake --build --preset dev
exec ctest --preset dev --parallel "$(nproc)" "$@"
