#!/bin/sh
# Checks what operators install, on a machine without a cluster: the chart against that of Istio's ztunnel and the
# schemas of Kubernetes, the plain manifest, dashboards, alerts, the seccomp profile in a container, the image's recipe,
# the Debian package, the bill of materials, the operators' pages. Root is needed for the container.
# RINGWAY_BIN (default: the debug build) is the proxy that is started and packed.
set -eu
cd "$(dirname "$0")/.."
. deploy/needs.sh
. deploy/check/tools.sh

as_root
need go golang-go runc runc shellcheck shellcheck nft nftables adduser adduser objdump binutils
need_toolchain
need_python
need_promtool
need_helm
RINGWAY_BIN=${RINGWAY_BIN:-$CARGO_TARGET_DIR/debug/ringway}
[ -x "$RINGWAY_BIN" ] || fail "no proxy at $RINGWAY_BIN: cargo build --workspace --bins"
istio=$(istio_module)
# Resource definitions of the Prometheus operator; the seccomp profile that container runtimes begin with.
operator=$(module github.com/prometheus-operator/prometheus-operator@v0.85.0)/example/prometheus-operator-crd
runtime=$(module github.com/moby/profiles/seccomp@v0.3.0)/default.json
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

echo "scripts"
shellcheck -x -s sh -S warning deploy/*.sh deploy/*/*.sh deploy/debian/p*

echo "what is generated"
deploy/generate.sh "$fresh"
for file in chart/values.schema.json chart/files/dashboard.json manifest/ringway.yaml; do
    cmp "$fresh/$file" "deploy/$file" || fail "deploy/$file is out of date: deploy/generate.sh writes it"
done

echo "chart"
"$HELM" lint --strict --quiet deploy/chart
python3 deploy/check/charts.py "$HELM" "$istio/manifests/charts/ztunnel" "$operator"

echo "alerts and dashboards"
"$PROMTOOL" check rules deploy/chart/files/alerts.yaml
"$PROMTOOL" test rules deploy/alerts/tests.yaml
python3 deploy/check/boards.py "$PROMTOOL" "$istio/manifests/addons/dashboards/ztunnel-dashboard.gen.json"

echo "image, and the seccomp profile in a container of it"
python3 deploy/check/image.py
python3 deploy/check/confined.py "$runtime" "$RINGWAY_BIN"

echo "package"
# Not to be shipped, so hardly compressed.
DPKG_DEB_COMPRESSOR_TYPE=gzip DPKG_DEB_COMPRESSOR_LEVEL=1 deploy/debian/build.sh "$RINGWAY_BIN" "$fresh"
deploy/debian/try.sh "$fresh"/ringway_*.deb
if command -v lintian >/dev/null 2>&1; then
    lintian --allow-root --fail-on error,warning "$fresh"/ringway_*.deb
fi

echo "bill of materials"
deploy/sbom.sh "$fresh/sbom.json"
python3 deploy/check/bom.py "$fresh/sbom.json"

echo "pages"
python3 deploy/check/pages.py
