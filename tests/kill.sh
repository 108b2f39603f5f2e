#!/usr/bin/env bash
# A writer of a kept file is killed at random and the file recovered, many times.
#
#   tests/kill.sh [CYCLES]      default: 500, twice: durable, and with slots that are overwritten
#
# KILL_TESTS names a test binary that is built already.
set -euo pipefail

cycles=${1:-500}
root=$(cd "$(dirname "$0")/.." && pwd)

if [ -z "${KILL_TESTS:-}" ]; then
  "$root/cmake/install_deps.sh" libgtest-dev libgmock-dev
  cd "$root"
  cmake --preset dev > /dev/null
  cmake --build --preset dev --target tidepool_tests
  KILL_TESTS=$root/build/dev/tests/tidepool_tests
fi
TIDEPOOL_KILL_CYCLES=$cycles "$KILL_TESTS" --gtest_filter='KillTest.*'
