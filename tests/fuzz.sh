#!/bin/sh
# Builds the libFuzzer targets with clang, under the address and undefined behavior sanitizers, and
# runs each from its corpus. Inputs that fail, and the corpus that grew, are left in build/fuzz.
#
#   tests/fuzz.sh [seconds for each target, 300]
set -eu

seconds=${1:-300}
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/cmake/install_deps.sh" clang libgtest-dev libgmock-dev
cd "$root"
cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DTIDEPOOL_BUILD_TESTS=ON
for target in slot_file; do
  cmake --build build/fuzz --target ${target}_fuzz
  mkdir -p build/fuzz/corpus/$target
  # malloc_limit_mb: nothing in an untrusted file may ask for more.
  build/fuzz/tests/fuzz/${target}_fuzz build/fuzz/corpus/$target tests/fuzz/corpus/$target \
    -max_total_time="$seconds" -max_len=24576 -timeout=5 -malloc_limit_mb=1 \
    -print_final_stats=1 -artifact_prefix=build/fuzz/failed_${target}_
done
