#!/bin/sh
# Where the CPU time of a scenario goes: a flame graph of both proxies, user and kernel, as SVG.
#   sh loadtest/profile.sh [SCENARIO] [SECONDS]        # up1 and 10; scenarios as in loadtest/README.md
# Needs root, perf (Debian: linux-perf) and what compare.sh needs. inferno, from the crate registry, draws the graph.
# The memory of a running proxy: /debug/pprof/heap of its admin port.
set -eu
cd "$(dirname "$0")/.."
scenario=${1:-up1}
seconds=${2:-10}
. deploy/needs.sh
as_root
need_toolchain
need perf linux-perf ip iproute2 iptables-restore iptables setpriv util-linux
out=$CARGO_TARGET_DIR/profile
mkdir -p "$out"
cargo build --release --locked --workspace --bins
tools=$RINGWAY_CACHE/inferno
[ -x "$tools/bin/inferno-flamegraph" ] ||
    cargo install --quiet --locked --no-default-features --features cli --root "$tools" inferno

# A name of its own, by which only these proxies are found.
proxy=$out/ringway
cp "$CARGO_TARGET_DIR/release/ringway" "$proxy"
"$CARGO_TARGET_DIR/release/ringway-gen" compare --ringway "$proxy" --arms ringway --base ringway \
    --scenarios "$scenario" --mode cost --rounds 1 --seconds "$((seconds + 4))" \
    --json "$out/$scenario.json" --markdown "$out/$scenario.md" >"$out/$scenario.log" 2>&1 &
load=$!
trap 'kill "$load" 2>/dev/null || true' EXIT

# Those that carry load: a first pair only tells its version. Then past the pods' set-up and the warm-up.
proxies=
for _ in $(seq 1 60); do
    before=$proxies
    sleep 1.5
    proxies=$(pgrep -d , -f "^$proxy " || true)
    case $proxies in *,*) [ "$proxies" != "$before" ] || break ;; esac
done
case $proxies in *,*) ;; *) cat "$out/$scenario.log" >&2; fail "the proxies did not start" ;; esac
sleep 1.5
# Frame pointers are not in a release build, so the stacks are copied and unwound later. Of the whole machine: bound to
# processes perf would set its timer anew at each switch of tasks, and show that as the switching's own cost.
perf record --quiet --event cpu-clock --freq 999 --call-graph dwarf,8192 --all-cpus \
    --output "$out/$scenario.perf" -- sleep "$seconds"
trap - EXIT
wait "$load" || { cat "$out/$scenario.log" >&2; fail "the load failed"; }
perf script --no-inline --pid "$proxies" --input "$out/$scenario.perf" 2>/dev/null |
    "$tools/bin/inferno-collapse-perf" --all >"$out/$scenario.folded"
"$tools/bin/inferno-flamegraph" --title "$scenario, both proxies" "$out/$scenario.folded" >"$out/$scenario.svg"
rm -f "$out/$scenario.perf"
# By what ran itself, to read without a browser.
awk '{ count = $NF; sub(/ [0-9]+$/, ""); n = split($0, frame, ";"); self[frame[n]] += count; all += count }
    END { for (name in self) printf "%6.2f%%  %s\n", 100 * self[name] / all, name }' "$out/$scenario.folded" |
    sort -rn | head -25
echo "$out/$scenario.svg"
