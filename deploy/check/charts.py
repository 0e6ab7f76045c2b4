"""Our chart against that of Istio's ztunnel: rendered with the same values, the objects must be equal, field by field.

What may differ is `ours_by_design`, and nothing else. Each rendered object is also checked against the schemas of
Kubernetes, and those of the Prometheus operator's kinds against its own.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

HERE = Path(__file__).resolve().parent
CHART = HERE.parent / "chart"
# The newest Kubernetes of the Istio we are checked against, and the oldest that people still run it on.
KUBERNETES = ["1.27", "1.36"]
ABSENT = object()


class Chart:
    """A chart's folder, rendered by Helm."""

    def __init__(self, helm, folder):
        self.helm = helm
        self.folder = folder

    def render(self, values):
        """The objects by kind and name; a `Refused` where Helm refuses the values."""
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(values, file)
            file.flush()
            command = [self.helm, "template", "ztunnel", str(self.folder), "-n", "istio-system", "-f", file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Refused(done.stderr)
        return by_name(done.stdout)


class Refused(Exception):
    """Helm's own words about values that it didn't take."""


def by_name(text):
    objects = {}
    for document in yaml.safe_load_all(text):
        if document:
            key = (document["kind"], document["metadata"]["name"])
            if key in objects:
                raise ValueError(f"{key} is there twice")
            objects[key] = document
    return objects


def ours_by_design(document, same_image):
    """The object without what differs between the two charts by design."""
    document = json.loads(json.dumps(document))
    for metadata in (document["metadata"], document.get("spec", {}).get("template", {}).get("metadata", {})):
        # The name and version of the chart.
        for label in ("helm.sh/chart", "app.kubernetes.io/version"):
            metadata.get("labels", {}).pop(label, None)
        # No annotations or none in them: the same to Kubernetes.
        if not metadata.get("annotations"):
            metadata.pop("annotations", None)
    if document["kind"] == "DaemonSet":
        for container in document["spec"]["template"]["spec"]["containers"]:
            if not same_image:
                container.pop("image")
            # A quantity may be written as a number; an empty field is none.
            resources = container.pop("resources", None) or {}
            container["resources"] = {
                side: {name: str(quantity) for name, quantity in entries.items()} for side, entries in resources.items()
            }
    return document


def differences(ours, theirs, path=""):
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from differences(ours.get(key, ABSENT), theirs.get(key, ABSENT), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, pair in enumerate(zip(ours, theirs)):
            yield from differences(*pair, f"{path}[{index}]")
    elif ours != theirs:
        yield f"{path}: {shown(ours)} here, {shown(theirs)} in Istio's chart"


def shown(value):
    return "absent" if value is ABSENT else json.dumps(value)


def at(document, path):
    """What stands at a path of `cases.yaml`; None where nothing does."""
    for step in re.findall(r"\[[^]]+\]|(?:\\.|[^.\[\\])+", path):
        if document is None:
            return None
        if step.startswith("["):
            document = next((entry for entry in document if entry["name"] == step[1:-1]), None)
        else:
            document = document.get(re.sub(r"\\(.)", r"\1", step))
    return document


def check_case(case, ours, theirs, schemas):
    """What is wrong with one case, a line each."""
    values = case.get("values", {})
    try:
        rendered = ours.render(values)
    except Refused as refused:
        wanted = case.get("fails")
        if wanted is None or wanted not in str(refused):
            yield f"Helm refused it: {refused}"
        return
    if "fails" in case:
        yield f"Helm should have refused it for {case['fails']}"
    for document in rendered.values():
        yield from schemas.problems(document, case.get("kubernetes", KUBERNETES))
    if not case.get("ours-only"):
        reference = theirs.render(values)
        same_image = case.get("same-image", False)
        left = {key: ours_by_design(document, same_image) for key, document in rendered.items()}
        right = {key: ours_by_design(document, same_image) for key, document in reference.items()}
        for key in sorted(left.keys() | right.keys()):
            for difference in differences(left.get(key, ABSENT), right.get(key, ABSENT)):
                yield f"{'/'.join(key)}{difference}"
    if "count" in case:
        kinds = {}
        for kind, _ in rendered:
            kinds[kind] = kinds.get(kind, 0) + 1
        if kinds != case["count"]:
            yield f"objects: {kinds} instead of {case['count']}"
    daemon_set = next((document for (kind, _), document in rendered.items() if kind == "DaemonSet"), None)
    for path, wanted in case.get("expect", {}).items():
        found = at(daemon_set, path)
        if found != wanted:
            yield f"{path} is {json.dumps(found)}, should be {json.dumps(wanted)}"


class Schemas:
    """The API's schemas: those of Kubernetes, and the operator's by its resource definitions."""

    def __init__(self, definitions):
        self.operator = {}
        for kind in ("podmonitors", "prometheusrules"):
            definition = yaml.safe_load((Path(definitions) / f"monitoring.coreos.com_{kind}.yaml").read_text())
            for version in definition["spec"]["versions"]:
                name = f"{definition['spec']['group']}/{version['name']}"
                schema = version["schema"]["openAPIV3Schema"]
                self.operator[name, definition["spec"]["names"]["kind"]] = closed(schema)

    def problems(self, document, kubernetes):
        kind = document["apiVersion"], document["kind"]
        if kind in self.operator:
            for error in jsonschema.Draft202012Validator(self.operator[kind]).iter_errors(document):
                yield f"{document['kind']}: {error.json_path}: {error.message}"
            return
        for version in kubernetes:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{document['kind']}, Kubernetes {version}: {list(error.path)}: {error.message}"


def closed(schema):
    """The schema as the API server takes it: a field that it doesn't name is an error, not ignored."""
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
    return schema


def main(helm, reference, definitions):
    ours, theirs, schemas = Chart(helm, CHART), Chart(helm, reference), Schemas(definitions)
    cases = yaml.safe_load((HERE / "cases.yaml").read_text())
    wrong = 0
    for case in cases:
        for problem in check_case(case, ours, theirs, schemas):
            wrong += 1
            print(f"chart, {case['case']}: {problem}", file=sys.stderr)
    print(f"chart: {len(cases)} sets of values, {wrong} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
