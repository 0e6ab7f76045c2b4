#!/bin/sh
# Builds Ringway and shows it at work on this machine: two nodes and three pods as network namespaces, real programs
# in them, a look at the wire. Needs root; leaves nothing behind. `deploy/demo.sh --hold` keeps everything up to try.
set -eu
cd "$(dirname "$0")/.."
. deploy/needs.sh

as_root
need_toolchain
need ip iproute2 iptables-restore iptables curl curl nginx nginx-light
cargo build --quiet --bin ringway
exec "$CARGO_TARGET_DIR/debug/ringway" demo "$@"
