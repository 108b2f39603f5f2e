#!/usr/bin/env bash
# Host transfers to and from a file against fio on the same file: io_uring, O_DIRECT, depth 16,
# registered file and buffers, one thread; whole passes in turn, the first of each pair alternating.
#
#   bench/nvme_vs_fio.sh [DIR] [MIB] [PAIRS]     default: a temporary directory, 2048 MiB, 15 pairs
#
# Passes when, for writes and for reads, the median of the ratios of throughput is at least 0.95 (0.9
# for blocks below 1 MiB) and the median CPU time a GiB is at most 1.2 times fio's, to which that of
# the checksums alone is added where they are on. They are measured in the same run, on memory of the
# same kind while fio moves the same blocks: hashing is as slow as the memory is busy.
#
# BLOCKS="64 1024 4096" are the sizes in KiB, one run each. TOOL_OPTIONS goes to the tool: "nosums"
# turns the checksums off, "keep" has headers written, "background" makes the copies spills.
# NVME_IO_TOOL names a tool that is built already, JSON a file for the result.
#
# DIR must be on the disk to measure. With a disk of 1 GB/s the default takes about 9 minutes.
# Compilers running beside it spoil it.
set -euo pipefail

dir=${1:-}
mib=${2:-2048}
pairs=${3:-15}
blocks=${BLOCKS:-64 1024 4096}
root=$(cd "$(dirname "$0")/.." && pwd)

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

read -r -a tool_options <<< "${TOOL_OPTIONS:-}"
sums=on
[[ " ${TOOL_OPTIONS:-} " != *" nosums "* ]] || sums=off

tool_pass() { # write|read|hash -> "bytes/s cpu_s/GiB"
  echo "$1" >&"${TOOL[1]}"
  read -r tool_result <&"${TOOL[0]}"
}

fio_pass() { # write|read -> "bytes/s cpu_s/GiB"
  # malloc in huge pages, as the tool's arena is: fio is up to three times slower without.
  fio_result=$(GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=pass --filename="$file" \
    --offset="$offset" --size="${mib}M" --rw="$1" --bs="${block}k" --iodepth=16 \
    --ioengine=io_uring --direct=1 --fixedbufs=1 --registerfiles=1 --thread --overwrite=1 \
    --scramble_buffers=0 --output-format=json | python3 -c '
import json, sys
text = sys.stdin.read()
job = json.loads(text[text.index("{"):])["jobs"][0]
side = job[sys.argv[1]]
cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * side["runtime"] / 1000
print(side["bw_bytes"], round(cpu / (side["io_bytes"] / 2**30), 4))' "$1")
}

# The checksums alone, beside a fio that is not measured.
hash_pass() { # read|write -> "bytes/s cpu_s/GiB"
  fio --name=beside --filename="$file" --offset="$offset" --size="${mib}M" --rw="$1" \
    --bs="${block}k" --iodepth=16 --ioengine=io_uring --direct=1 --fixedbufs=1 --registerfiles=1 \
    --thread --overwrite=1 --time_based --runtime=3 > /dev/null &
  local beside=$!
  sleep 1
  local results=()
  for _ in 1 2 3 4 5; do
    tool_pass hash
    results+=("$tool_result")
  done
  wait $beside
  hash_result=$(printf '%s\n' "${results[@]}" | sort -k2 -n | sed -n 3p)
}

begin=$SECONDS
for block in $blocks; do
  echo "blocks of $block KiB: $pairs pairs of reads and of writes of $mib MiB in $dir"
  rm -f "$file"
  # The tool writes the whole file once, so that neither side measures the first allocation.
  coproc TOOL { "$NVME_IO_TOOL" "$file" "$mib" "block=$block" "${tool_options[@]}"; }
  tool_pid=$TOOL_PID
  read -r ready offset description <&"${TOOL[0]}"
  [ "$ready" = ready ]
  echo "$description"
  # All reads first: fio's writes would not match the tool's checksums.
  for rw in read write; do
    hash_pass $rw
    for ((pair = 1; pair <= pairs; ++pair)); do
      if ((pair % 2)); then
        tool_pass $rw
        fio_pass $rw
      else
        fio_pass $rw
        tool_pass $rw
      fi
      echo "$block $rw $tool_result $fio_result $hash_result" >> "$results"
    done
  done
  echo quit >&"${TOOL[1]}"
  wait "$tool_pid" || true
  tool_pid=
done
echo "took $((SECONDS - begin)) s"

python3 - "$results" "$sums" "${JSON:-}" << 'END'
import json, statistics, sys
rows = [line.split() for line in open(sys.argv[1])]
sums = sys.argv[2] == "on"
good, out = True, []
for block in dict.fromkeys(row[0] for row in rows):
    goal = 0.95 if int(block) >= 1024 else 0.9
    for rw in ("read", "write"):
        mine = [[float(v) for v in row[2:]] for row in rows if row[:2] == [block, rw]]
        median = lambda f: statistics.median(f(r) for r in mine)
        speed = median(lambda r: r[0] / r[2])
        cpu = median(lambda r: r[1] / (r[3] + (r[5] if sums else 0)))
        ok = speed >= goal and cpu <= 1.2
        good &= ok
        out.append({"block_kib": int(block), "op": rw, "pairs": len(mine), "checksums": sums,
                    "speed_ratio": round(speed, 3), "speed_goal": goal, "cpu_ratio": round(cpu, 3),
                    "cpu_limit": 1.2, "gb_per_s": round(median(lambda r: r[0]) / 1e9, 3),
                    "fio_gb_per_s": round(median(lambda r: r[2]) / 1e9, 3),
                    "cpu_s_per_gib": round(median(lambda r: r[1]), 4),
                    "fio_cpu_s_per_gib": round(median(lambda r: r[3]), 4),
                    "hash_cpu_s_per_gib": round(mine[0][5], 4), "pass": ok})
        print(f"{block} KiB {rw}: speed {speed:.3f} of fio (goal {goal}), CPU {cpu:.2f} of fio's"
              f"{' and the checksums' if sums else ''} (limit 1.2); {out[-1]['gb_per_s']} against "
              f"{out[-1]['fio_gb_per_s']} GB/s, {out[-1]['cpu_s_per_gib']} against "
              f"{out[-1]['fio_cpu_s_per_gib']} + {out[-1]['hash_cpu_s_per_gib']} s/GiB: "
              f"{'pass' if ok else 'fail'}")
if sys.argv[3]:
    json.dump(out, open(sys.argv[3], "w"), indent=1)
sys.exit(0 if good else 1)
END
