# The tools of the checks, each installed once into RINGWAY_CACHE. To be sourced after needs.sh.

HELM_VERSION=v3.22.0

# Built from its Go module: a few minutes with an empty cache of Go's.
need_helm() {
    HELM=${HELM_BIN:-$RINGWAY_CACHE/tools/helm-$HELM_VERSION}
    [ -x "$HELM" ] && return 0
    need go golang-go
    echo "building Helm (Go: helm.sh/helm/v3)" >&2
    fresh=$RINGWAY_CACHE/tools/helm.$$
    mkdir -p "$fresh"
    CGO_ENABLED=0 GOBIN=$fresh nice go install -buildvcs=false -trimpath -ldflags='-s -w' \
        "helm.sh/helm/v3/cmd/helm@$HELM_VERSION" >"$RINGWAY_CACHE/helm.log" 2>&1 ||
        { tail -20 "$RINGWAY_CACHE/helm.log" >&2; fail "Helm could not be built (or set HELM_BIN)"; }
    mv "$fresh/helm" "$HELM" && rmdir "$fresh"
}

# PyPI's packages, in a folder of their own: nothing of the machine's Python changes.
need_python() {
    need python3 python3
    PYTHONPATH=$RINGWAY_CACHE/tools/python-$(sha256sum <deploy/check/requirements.txt | cut -c 1-16)
    export PYTHONPATH PYTHONDONTWRITEBYTECODE=1
    [ -d "$PYTHONPATH" ] && return 0
    python3 -m pip --version >/dev/null 2>&1 || need pip3 python3-pip
    rm -rf "$PYTHONPATH.new"
    python3 -m pip install --quiet --disable-pip-version-check --target "$PYTHONPATH.new" \
        -r deploy/check/requirements.txt 2>"$RINGWAY_CACHE/pip.log" ||
        { tail -20 "$RINGWAY_CACHE/pip.log" >&2; fail "PyPI's packages could not be installed"; }
    mv "$PYTHONPATH.new" "$PYTHONPATH"
}

# Unpacked from Debian's package, not installed: that would start a server.
need_promtool() {
    PROMTOOL=$(command -v promtool || echo "$RINGWAY_CACHE/tools/promtool")
    [ -x "$PROMTOOL" ] && return 0
    need apt-get apt dpkg-deb dpkg
    fresh=$RINGWAY_CACHE/tools/prometheus.$$
    mkdir -p "$fresh"
    (cd "$fresh" && { apt-get -q download prometheus || { apt-get -q update && apt-get -q download prometheus; }; }) \
        >"$RINGWAY_CACHE/apt.log" 2>&1 || { tail -20 "$RINGWAY_CACHE/apt.log" >&2; fail "promtool could not be had"; }
    dpkg-deb -x "$fresh"/prometheus_*.deb "$fresh"
    mv "$fresh/usr/bin/promtool" "$PROMTOOL" && rm -rf "$fresh"
}

# The folder of a Go module that is read, not built; downloaded by Go where it isn't there yet.
module() {
    (cd "${TMPDIR:-/tmp}" && go mod download -json "$1") | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'
}

# The folder of the Istio whose istiod the end-to-end tests run: its own chart and dashboards are in it.
istio_module() {
    (cd loadtest/peer/istiod && go mod download istio.io/istio && go list -m -f '{{.Dir}}' istio.io/istio)
}
