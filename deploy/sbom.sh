#!/bin/sh
# Writes the bill of materials: CycloneDX 1.6 JSON of every crate in the proxy, from Cargo.lock.
#   deploy/sbom.sh [FILE]       to standard output without a file
set -eu
cd "$(dirname "$0")/.."
. deploy/needs.sh

need_toolchain >&2
need python3 python3 >&2
target=${TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
built=$(mktemp)
trap 'rm -f "$built"' EXIT
# The metadata also has what only tests switch on.
cargo tree --quiet --locked --workspace --edges normal,build --prefix none --target "$target" >"$built"
cargo metadata --quiet --locked --format-version 1 --filter-platform "$target" |
    python3 deploy/check/bill.py Cargo.lock "$built" "$target" >"${1:-/dev/stdout}"
