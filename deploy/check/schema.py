"""The schema of the chart's values: Istio's keys loosely, as its own chart takes them; ours to the letter.

`ringway.settings` has one key for each RINGWAY_ variable of the configuration page.
"""

import json
import re
from pathlib import Path

DEPLOY = Path(__file__).resolve().parent.parent
PAGE = DEPLOY / "docs" / "configuration.md"

TEXT = {"type": ["string", "null"]}
SCALAR = {"type": ["string", "number", "boolean"]}
WORD = {"type": ["string", "number", "null"]}
FLAG = {"type": ["boolean", "null"]}
MAP = {"type": ["object", "null"]}
SCALARS = {"type": ["object", "null"], "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}
STRINGS = {"type": ["object", "null"], "additionalProperties": {"type": ["string", "null"]}}
LIST = {"type": ["array", "null"]}
WHOLE = {"type": "integer", "minimum": 0}


def settings(page):
    """The settings and their descriptions, by the rows of the page's table."""
    found = {}
    for name, value, _, meaning in re.findall(r"^\| `RINGWAY_(\w+)` \| (.*?) \| (.*?) \| (.*) \|$", page, re.M):
        words = name.lower().split("_")
        found[words[0] + "".join(word.capitalize() for word in words[1:])] = {
            **SCALAR,
            "title": f"RINGWAY_{name}: {value}",
            "description": meaning.replace("`", ""),
        }
    return found


def strict(properties):
    return {"type": "object", "properties": properties, "additionalProperties": False}


def loose(properties):
    return {"type": ["object", "null"], "properties": properties}


def schema():
    own = strict(
        {
            "settings": strict(settings(PAGE.read_text())),
            "workers": SCALAR,
            "socks5": SCALAR,
            "dnsCapture": SCALAR,
            "seccompProfile": {
                "type": "object",
                "properties": {
                    "type": {"enum": ["RuntimeDefault", "Unconfined", "Localhost"]},
                    "localhostProfile": {"type": "string"},
                },
                "additionalProperties": False,
            },
            "podMonitor": strict({"enabled": {"type": "boolean"}, "interval": {"type": "string"}, "labels": STRINGS}),
            "prometheusRule": strict(
                {"enabled": {"type": "boolean"}, "labels": STRINGS, "runbooks": {"type": "string"}}
            ),
            "dashboard": strict({"enabled": {"type": "boolean"}, "labels": STRINGS, "annotations": STRINGS}),
        }
    )
    values = {
        **dict.fromkeys(("hub", "variant", "image", "imagePullPolicy", "resourceName", "revision"), TEXT),
        **dict.fromkeys(("istioNamespace", "xdsAddress", "caAddress", "network", "logLevel", "dnsPolicy"), TEXT),
        **dict.fromkeys(("profile", "platform", "trustBundleName", "ownerName"), TEXT),
        **dict.fromkeys(("tag", "compatibilityVersion"), WORD),
        **dict.fromkeys(("labels", "annotations", "podLabels", "podAnnotations", "nodeSelector"), STRINGS),
        **dict.fromkeys(("affinity", "updateStrategy", "dnsConfig", "seLinuxOptions"), MAP),
        **dict.fromkeys(("imagePullSecrets", "tolerations", "volumes", "volumeMounts"), LIST),
        "logAsJson": FLAG,
        "env": SCALARS,
        "multiCluster": loose({"clusterName": TEXT}),
        "meshConfig": loose({"defaultConfig": loose({"proxyMetadata": SCALARS})}),
        "peerCaCrl": loose({"enabled": FLAG}),
        "resources": loose({"requests": MAP, "limits": MAP}),
        "resourceQuotas": loose({"enabled": FLAG, "pods": WORD}),
        "terminationGracePeriodSeconds": WHOLE,
        "resourceScope": {"enum": ["all", "cluster", "namespace"]},
        "global": MAP,
        "ringway": own,
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart ringway",
        "type": "object",
        "properties": {"_defaults": {"type": "object"}, **values},
    }


def text():
    return json.dumps(schema(), indent=2) + "\n"
