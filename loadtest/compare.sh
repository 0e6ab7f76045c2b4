#!/bin/sh
# Builds the release binaries and compares Ringway with its yardsticks: the one command behind the table and its plots.
# Needs root and two CPUs; fetches Envoy. Arguments go to `ringway-gen compare`, e.g. --quick.
set -eu
cd "$(dirname "$0")/.."
. deploy/needs.sh
as_root
need_toolchain
need ip iproute2 iptables-restore iptables setpriv util-linux
fetch_envoy
cargo build --release --locked --workspace --bins
out="$CARGO_TARGET_DIR/compare"
mkdir -p "$out"
case " $* " in
*" --arms"*) ;;
*) set -- --arms direct,hop2,h2tokio,control,h2tokio-aes128,envoy,ringway,ringway-epoll "$@" ;;
esac
exec "$CARGO_TARGET_DIR/release/ringway-gen" compare \
    --ringway "$CARGO_TARGET_DIR/release/ringway" \
    --json "$out/compare.json" --markdown "$out/compare.md" --plot "$out" "$@"
