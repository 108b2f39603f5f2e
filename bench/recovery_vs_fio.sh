#!/usr/bin/env bash
# Opening a kept file full of headers against fio reading the same bytes: direct I/O, so that no cache
# helps either side; in turn, the first of each pair alternating.
#
#   bench/recovery_vs_fio.sh [DIR] [SLOTS] [PAIRS]     default: a temporary directory, 1000000, 9 pairs
#
# Passes when the median time is at most 1.5 times fio's plus 1 us a slot, and the median CPU time at
# most 1 us a slot. RECOVERY_TOOL names a tool that is built already, JSON a file for the result.
set -euo pipefail

dir=${1:-}
slots=${2:-1000000}
pairs=${3:-9}
root=$(cd "$(dirname "$0")/.." && pwd)

if ! command -v fio > /dev/null || ! command -v python3 > /dev/null; then
  sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  echo "installing Debian packages: fio python3"
  "${sudo[@]}" apt-get install -y --no-install-recommends fio python3 > /dev/null
fi
if [ -z "${RECOVERY_TOOL:-}" ]; then
  build=$root/build/nvme_vs_fio
  echo "building recovery_tool in $build"
  cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DTIDEPOOL_BUILD_BENCH=ON \
    -DTIDEPOOL_URING=ON > /dev/null
  cmake --build "$build" --target recovery_tool -j "$(nproc)" > /dev/null
  RECOVERY_TOOL=$(find "$build" -name recovery_tool -type f | head -n 1)
fi
made_dir=
if [ -z "$dir" ]; then
  dir=$(mktemp -d)
  made_dir=$dir
fi
file=$dir/recovery_vs_fio.$$
results=$(mktemp)
trap 'rm -f "$file" "$results"; [ -z "$made_dir" ] || rmdir "$made_dir"' EXIT

"$RECOVERY_TOOL" make "$file" "$slots"
read -r _ _ _ offset bytes <<< "$("$RECOVERY_TOOL" open "$file" "$slots")"
# fio reads whole pages.
bytes=$(((bytes + 4095) / 4096 * 4096))
fio_pass() {
  fio_result=$(GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=pass --filename="$file" --readonly \
    --offset="$offset" --size="$bytes" --rw=read --bs=1M --iodepth=16 --ioengine=io_uring \
    --direct=1 --fixedbufs=1 --registerfiles=1 --thread --output-format=json | python3 -c '
import json, sys
text = sys.stdin.read()
job = json.loads(text[text.index("{"):])["jobs"][0]["read"]
print(job["io_bytes"] / job["bw_bytes"])')
}
for ((pair = 1; pair <= pairs; ++pair)); do
  if ((pair % 2)); then fio_pass; fi
  tool_result=$("$RECOVERY_TOOL" open "$file" "$slots")
  if ((pair % 2 == 0)); then fio_pass; fi
  echo "$tool_result $fio_result" >> "$results"
done
python3 - "$results" "$slots" "${JSON:-}" << 'END'
import json, statistics, sys
rows = [[float(v) for v in line.split()] for line in open(sys.argv[1])]
slots = int(sys.argv[2])
assert all(r[2] == slots for r in rows), "not all headers were found"
time, cpu = (statistics.median(r[i] for r in rows) for i in (0, 1))
fio = statistics.median(r[5] for r in rows)
limit = 1.5 * fio + 1e-6 * slots
ok = time <= limit and cpu <= 1e-6 * slots
print(f"{slots} headers, {rows[0][4] / 1e6:.0f} MB: {time:.3f} s (limit {limit:.3f}: 1.5 x fio's "
      f"{fio:.3f} + 1 us a slot), CPU {1e6 * cpu / slots:.3f} us a slot (limit 1): "
      f"{'pass' if ok else 'fail'}")
if sys.argv[3]:
    json.dump({"slots": slots, "header_bytes": rows[0][4], "seconds": time, "limit_s": limit,
               "fio_s": fio, "cpu_us_per_slot": 1e6 * cpu / slots, "cpu_limit_us": 1, "pass": ok},
              open(sys.argv[3], "w"), indent=1)
sys.exit(0 if ok else 1)
END
