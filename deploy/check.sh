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
need go golang-go runc runc shellcheck shellcheck
need_python
need_promtool
need_helm
RINGWAY_BIN=${RINGWAY_BIN:-$CARGO_TARGET_DIR/debug/ringway}
[ -x "$RINGWAY_BIN" ] || fail "no proxy at $RINGWAY_BIN: cargo build --workspace --bins"
istio=$(istio_module)
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

echo "scripts"
shellcheck -x deploy/*.sh deploy/check/*.sh deploy/debian/*.sh

echo "what is generated"
deploy/generate.sh "$fresh"
for file in chart/values.schema.json chart/files/dashboard.json manifest/ringway.yaml; do
    cmp "$fresh/$file" "deploy/$file" || fail "deploy/$file is out of date: deploy/generate.sh writes it"
done

echo "chart"
"$HELM" lint --strict --quiet deploy/chart
python3 deploy/check/charts.py "$HELM" "$istio/manifests/charts/ztunnel" \
    "$(module "$OPERATOR")/example/prometheus-operator-crd"

echo "alerts and dashboards"
"$PROMTOOL" check rules deploy/chart/files/alerts.yaml
"$PROMTOOL" test rules deploy/alerts/tests.yaml
python3 deploy/check/boards.py "$PROMTOOL" "$istio/manifests/addons/dashboards/ztunnel-dashboard.gen.json"

echo "seccomp"
python3 deploy/check/confined.py "$(module "$PROFILES")/default.json" "$RINGWAY_BIN"
