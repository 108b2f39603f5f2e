#!/usr/bin/env bash
# Do operations cost the same in a large pool? Instructions per operation at LARGE cached blocks
# against SMALL; passes when none costs more than 1.5 times as many.
#
#   bench/scale.sh [LARGE] [SMALL]      default: 15000000 and 100000 blocks
#
# The default needs 4 GiB of memory and takes some minutes. Instructions come from the processor's
# counter where the kernel gives access to it, and from callgrind otherwise.
# SCALE_TOOL names a tool that is built already.
set -euo pipefail

large=${1:-15000000}
small=${2:-100000}
goal=1.5
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

install_valgrind() {
  local sudo=()
  command -v valgrind > /dev/null && return
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  echo "installing Debian packages: valgrind"
  "${sudo[@]}" apt-get install -y --no-install-recommends valgrind > /dev/null
}

build_tool() {
  local build=$root/build/scale
  echo "building scale_tool in $build"
  cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DTIDEPOOL_BUILD_BENCH=ON > /dev/null
  cmake --build "$build" --target scale_tool -j "$(nproc)" > /dev/null
  SCALE_TOOL=$(find "$build" -name scale_tool -type f | head -n 1)
}

# Prints "operation instructions-per-item".
under_callgrind() {
  local out=$work/callgrind.$1 dump name
  valgrind --tool=callgrind --instr-atstart=no --callgrind-out-file="$out" "$SCALE_TOOL" "$1" \
    > "$work/items" 2> "$work/log" || { cat "$work/log" >&2; return 1; }
  for dump in "$out".*; do
    name=$(sed -n 's/^desc: Trigger: Client Request: //p' "$dump")
    [ -n "$name" ] || continue
    awk -v name="$name" 'FNR == NR { if ($2 == name) items = $3; next }
      $1 == "summary:" || $1 == "totals:" { total = $2 }
      END { printf "%s %.1f\n", name, total / items }' "$work/items" "$dump"
  done
}

measure() {
  local rc=0
  "$SCALE_TOOL" "$1" > "$work/native" 2> /dev/null || rc=$?
  if [ "$rc" -eq 3 ]; then
    how=callgrind
    install_valgrind
    under_callgrind "$1"
  else
    [ "$rc" -eq 0 ] || return 1
    cat "$work/native"
  fi
}

how="the processor's counter"
[ -n "${SCALE_TOOL:-}" ] || build_tool
measure "$small" | sort > "$work/small"
measure "$large" | sort > "$work/large"
echo "instructions per item, at $small and at $large blocks"
join "$work/small" "$work/large" | awk -v goal="$goal" '
  { ratio = $3 / $2; if (ratio > worst) worst = ratio
    printf "%-32s %10.1f %10.1f %6.2f\n", $1, $2, $3, ratio }
  END { printf "worst ratio %.2f, allowed %.2f\n", worst, goal; exit !(NR > 0 && worst <= goal) }'
