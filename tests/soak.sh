#!/usr/bin/env bash
# The manager on the host engine under load, under the thread sanitizer: waits, TIDE, three tiers
# with a file, early returns, preemption, cancelled loads; every reused byte is compared. CI runs
# the same test for a few thousand turns.
#
#   tests/soak.sh [SECONDS]      default: 60
#
# SOAK_TESTS names a test binary that is built already.
set -euo pipefail

seconds=${1:-60}
root=$(cd "$(dirname "$0")/.." && pwd)

if [ -z "${SOAK_TESTS:-}" ]; then
  "$root/cmake/install_deps.sh" libgtest-dev libgmock-dev
  cd "$root"
  cmake --preset tsan > /dev/null
  cmake --build --preset tsan --target tidepool_tests
  SOAK_TESTS=$root/build/tsan/tests/tidepool_tests
fi
TIDEPOOL_SOAK_SECONDS=$seconds TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
  "$SOAK_TESTS" --gtest_filter='ThreadsStressTest.SoakOfWaitsAndEarlyReturns'
