#!/bin/sh
# Builds the release binaries and compares Ringway with the yardstick: the one command behind the table.
# Needs root, two CPUs, iproute2, iptables and util-linux. Arguments go to `ringway-gen compare`, e.g. --quick.
set -eu
cd "$(dirname "$0")/.."
: "${RINGWAY_CACHE:=${HOME:-/root}/.cache/ringway}"
: "${CARGO_TARGET_DIR:=$RINGWAY_CACHE/target}"
export CARGO_TARGET_DIR
cargo build --release --locked -p ringway -p ringway-gen
out="$CARGO_TARGET_DIR/compare"
mkdir -p "$out"
exec "$CARGO_TARGET_DIR/release/ringway-gen" compare \
    --ringway "$CARGO_TARGET_DIR/release/ringway" \
    --arms direct,hop2,h2tokio,control,ringway,ringway-epoll --base h2tokio \
    --json "$out/compare.json" --markdown "$out/compare.md" "$@"
