#!/usr/bin/env bash
# Host transfers to and from a file against fio on the same file: io_uring, O_DIRECT, 1 MiB, depth
# 16, registered file and buffers, one thread; whole passes in turn, the first of each pair
# alternating. Passes when the median of the ratios is at least 0.9 for writes and for reads.
#
#   bench/nvme_vs_fio.sh [DIR] [MIB] [PAIRS]     default: a temporary directory, 2048 MiB, 15 pairs
#
# DIR must be on the disk to measure. With a disk of 1 GB/s the default takes about 3 minutes.
# NVME_IO_TOOL names a tool that is built already, TOOL_OPTIONS goes to it: "nosums" turns the
# tier's checksums off, "background" makes the copies spills. Compilers running beside it spoil it.
set -euo pipefail

dir=${1:-}
mib=${2:-2048}
pairs=${3:-15}
root=$(cd "$(dirname "$0")/.." && pwd)
goal=0.9

install_missing() {
  local missing=() sudo=()
  command -v fio > /dev/null || missing+=(fio)
  command -v python3 > /dev/null || missing+=(python3)
  [ ${#missing[@]} -eq 0 ] && return
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  echo "installing Debian packages: ${missing[*]}"
  "${sudo[@]}" apt-get install -y --no-install-recommends "${missing[@]}" > /dev/null
}

build_tool() {
  local build=$root/build/nvme_vs_fio
  echo "building nvme_io_tool in $build"
  cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DTIDEPOOL_BUILD_BENCH=ON \
    -DTIDEPOOL_URING=ON > /dev/null
  cmake --build "$build" --target nvme_io_tool -j "$(nproc)" > /dev/null
  NVME_IO_TOOL=$(find "$build" -name nvme_io_tool -type f | head -n 1)
}

install_missing
[ -n "${NVME_IO_TOOL:-}" ] || build_tool
made_dir=
if [ -z "$dir" ]; then
  dir=$(mktemp -d)
  made_dir=$dir
fi
file=$dir/tidepool_vs_fio.$$
results=$(mktemp)
cleanup() {
  [ -z "${tool_pid:-}" ] || kill "$tool_pid" 2> /dev/null || true
  rm -f "$file" "$results"
  [ -z "$made_dir" ] || rmdir "$made_dir"
}
trap cleanup EXIT

begin=$SECONDS
echo "$pairs pairs of writes and of reads of $mib MiB in $dir: about $((pairs * mib / 256 + 10)) s" \
  "at 1 GB/s"
read -r -a tool_options <<< "${TOOL_OPTIONS:-}"
# The tool writes the whole file once, so that neither side measures the first allocation.
coproc TOOL { "$NVME_IO_TOOL" "$file" "$mib" "${tool_options[@]}"; }
tool_pid=$TOOL_PID
read -r ready <&"${TOOL[0]}"
echo "$ready"

tool_pass() { # write|read -> "bytes/s cpu_s/GiB"
  echo "$1" >&"${TOOL[1]}"
  read -r tool_result <&"${TOOL[0]}"
}

fio_pass() { # write|read -> "bytes/s cpu_s/GiB"
  # malloc in huge pages, as the tool's arena is: fio is up to three times slower without.
  fio_result=$(GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=pass --filename="$file" \
    --size="${mib}M" --rw="$1" --bs=1M --iodepth=16 --ioengine=io_uring --direct=1 --fixedbufs=1 \
    --registerfiles=1 --thread --overwrite=1 --scramble_buffers=0 \
    --output-format=json | python3 -c '
import json, sys
text = sys.stdin.read()
job = json.loads(text[text.index("{"):])["jobs"][0]
side = job[sys.argv[1]]
cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * side["runtime"] / 1000
print(side["bw_bytes"], round(cpu / (side["io_bytes"] / 2**30), 4))' "$1")
}

# All reads first: fio's writes would not match the tool's checksums.
for rw in read write; do
  for ((pair = 1; pair <= pairs; ++pair)); do
    if ((pair % 2)); then
      tool_pass $rw
      fio_pass $rw
    else
      fio_pass $rw
      tool_pass $rw
    fi
    echo "$rw $tool_result $fio_result" >> "$results"
    echo "$rw, pair $pair: tidepool $tool_result, fio $fio_result (bytes/s, CPU s/GiB)"
  done
done
echo quit >&"${TOOL[1]}"
wait "$tool_pid" || true
tool_pid=
echo "took $((SECONDS - begin)) s"

python3 - "$results" "$goal" << 'END'
import statistics, sys
rows = [line.split() for line in open(sys.argv[1])]
goal = float(sys.argv[2])
worst = None
for rw in ("write", "read"):
    mine = [[float(v) for v in row[1:]] for row in rows if row[0] == rw]
    ratio = statistics.median(r[0] / r[2] for r in mine)
    print(f"{rw}: median of {len(mine)} pairs {ratio:.3f} "
          f"(tidepool {statistics.median(r[0] for r in mine) / 1e9:.2f} GB/s, "
          f"fio {statistics.median(r[2] for r in mine) / 1e9:.2f} GB/s; CPU s/GiB "
          f"{statistics.median(r[1] for r in mine):.3f} against "
          f"{statistics.median(r[3] for r in mine):.3f})")
    worst = ratio if worst is None else min(worst, ratio)
print(f"ratio {worst:.3f} ({'pass' if worst >= goal else 'fail'}, goal {goal})")
sys.exit(0 if worst >= goal else 1)
END
