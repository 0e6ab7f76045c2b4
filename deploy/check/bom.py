"""The bill of materials: it fits the schema of CycloneDX, and names the crates that Cargo itself lists."""

import json
import subprocess
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator


def tree(package, target):
    """Names and versions of what goes into a package."""
    command = ["cargo", "tree", "--quiet", "--locked", *package, "-e", "normal,build", "--prefix", "none"]
    done = subprocess.run([*command, "--target", target], capture_output=True, text=True, check=True)
    words = [line.split() for line in done.stdout.splitlines()]
    return {(name, version.removeprefix("v")) for name, version, *_ in filter(None, words)}


def main(file):
    text = open(file).read()
    bill = json.loads(text)
    problems = []
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault:
        problems.append(f"it doesn't fit CycloneDX 1.6: {fault}")
    target = bill["metadata"]["properties"][0]["value"]
    named = {(one["name"], one["version"]) for one in bill["components"]}
    root = (bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"])
    # The workspace is built as one, so the package has some crates more than it would have alone; never fewer.
    missing = tree(["-p", "ringway"], target) - named - {root}
    problems += [f"it lacks {name} {version}" for name, version in sorted(missing)]
    bare = [one["name"] for one in bill["components"] if not {"licenses", "hashes"} <= set(one)]
    problems += [f"{name} has no license or no checksum" for name in bare]
    for problem in problems:
        print(f"bill of materials: {problem}", file=sys.stderr)
    print(f"bill of materials: {len(named)} crates, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
