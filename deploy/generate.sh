#!/bin/sh
# Writes what is made out of something else: the schema of the chart's values, the dashboard's JSON and the plain
# manifest. `deploy/check.sh` fails where one of them isn't what this makes.
#   deploy/generate.sh [FOLDER]     into another folder than deploy/, to compare
set -eu
cd "$(dirname "$0")/.."
. deploy/needs.sh
. deploy/check/tools.sh

into=${1:-deploy}
need_helm
need_python
mkdir -p "$into/chart/files" "$into/manifest"
python3 deploy/check/made.py schema >"$into/chart/values.schema.json"
python3 deploy/check/made.py dashboard >"$into/chart/files/dashboard.json"
manifest=$("$HELM" template ztunnel deploy/chart -n istio-system)
{
    echo "# Ringway without Helm, for a cluster whose Istio is in istio-system: kubectl apply -f. Put your image in."
    echo "# Made of deploy/chart by deploy/generate.sh."
    # Labels that only Helm may write.
    echo "$manifest" | sed '/^# Source: /d; /managed-by: "Helm"/d; /helm\.sh\/chart:/d; /kubernetes\.io\/instance:/d'
} >"$into/manifest/ringway.yaml"
