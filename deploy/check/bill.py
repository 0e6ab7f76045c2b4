"""Turns `cargo metadata` (standard input) and `cargo tree` into a CycloneDX bill of materials of the package ringway.

What is counted is what gets into the binary or builds it, for one target: no dependencies of tests. The checksums are
Cargo.lock's. The same input gives the same bill: it has neither a date nor a random serial number.
"""

import json
import sys
import tomllib
import uuid

NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, checksums, kind="library"):
    found = {"type": kind, "bom-ref": purl(package), "name": package["name"], "version": package["version"]}
    if package.get("description"):
        found["description"] = " ".join(package["description"].split())
    if package.get("license"):
        # The old spelling of "either of them".
        found["licenses"] = [{"expression": " ".join(package["license"].replace("/", " OR ").split())}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        found["purl"] = purl(package)
    if package.get("repository"):
        found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return found


def closure(metadata, built):
    """All packages; which one is ringway; and what it needs with what each of these needs, as far as it is built."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    members = set(metadata["workspace_members"])
    root = next(member for member in members if packages[member]["name"] == "ringway")
    needed, waiting = {}, [root]
    while waiting:
        identity = waiting.pop()
        if identity in needed:
            continue
        needs = [
            dependency["pkg"]
            for dependency in nodes[identity]["deps"]
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])
            and (packages[dependency["pkg"]]["name"], packages[dependency["pkg"]]["version"]) in built
        ]
        needed[identity] = needs
        waiting += needs
    return packages, root, needed


def bill(metadata, lock, built, target):
    checksums = {(entry["name"], entry["version"]): entry.get("checksum") for entry in lock["package"]}
    packages, root, needed = closure(metadata, built)
    others = sorted((identity for identity in needed if identity != root), key=lambda one: purl(packages[one]))
    dependencies = [
        {"ref": purl(packages[one]), "dependsOn": sorted({purl(packages[other]) for other in needed[one]})}
        for one in [root, *others]
    ]
    components = [component(packages[one], checksums) for one in others]
    content = json.dumps([target, components, dependencies], sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, content)}",
        "version": 1,
        "metadata": {
            "component": component(packages[root], checksums, "application"),
            "properties": [{"name": "cargo:target", "value": target}],
        },
        "components": components,
        "dependencies": dependencies,
    }


def main(lock, tree, target):
    with open(lock, "rb") as file:
        locked = tomllib.load(file)
    with open(tree) as file:
        words = [line.split() for line in file if line.strip()]
    built = {(name, version.removeprefix("v")) for name, version, *_ in words}
    json.dump(bill(json.load(sys.stdin), locked, built, target), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
