# What test.sh and demo.sh share: where things are kept, and how what is missing is installed. To be sourced.

RINGWAY_CACHE=${RINGWAY_CACHE:-${HOME:-/root}/.cache/ringway}
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$RINGWAY_CACHE/target}
export RINGWAY_CACHE CARGO_TARGET_DIR
mkdir -p "$RINGWAY_CACHE" "$CARGO_TARGET_DIR"

# A non-login shell may lack cargo's directory and the system directories.
for directory in "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin" /usr/local/sbin /usr/sbin /sbin; do
    case ":$PATH:" in *":$directory:"*) ;; *) PATH=$PATH:$directory ;; esac
done
export PATH

fail() {
    echo "$0: $*" >&2
    exit 1
}

as_root() {
    [ "$(id -u)" -eq 0 ] || fail "root is needed: network namespaces and iptables rules inside them are made"
}

# need PROGRAM PACKAGE ...: installs, in one go, the Debian packages whose program isn't there.
need() {
    missing=
    while [ $# -ge 2 ]; do
        command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
        shift 2
    done
    [ -z "$missing" ] && return 0
    command -v apt-get >/dev/null 2>&1 || fail "please install:$missing"
    echo "installing:$missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a list of words
    apt-get install -y --no-install-recommends $missing >"$RINGWAY_CACHE/apt.log" 2>&1 ||
        { apt-get update >>"$RINGWAY_CACHE/apt.log" 2>&1 &&
            apt-get install -y --no-install-recommends $missing >>"$RINGWAY_CACHE/apt.log" 2>&1; } ||
        { tail -20 "$RINGWAY_CACHE/apt.log" >&2; fail "apt-get could not install:$missing"; }
}

need_toolchain() {
    command -v cargo >/dev/null 2>&1 || fail "cargo is needed: https://rustup.rs"
    # aws-lc-rs builds C and assembly.
    need cc gcc cmake cmake make make
}
