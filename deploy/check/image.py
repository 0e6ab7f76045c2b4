"""What can be checked of the image's recipe without building it: deploy/image/Dockerfile."""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
RECIPE = ROOT / "deploy" / "image" / "Dockerfile"


def instructions():
    text = re.sub(r"\\\n", " ", RECIPE.read_text())
    for line in text.splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def check_sources(recipe):
    """The files that are copied are there, are let through by .dockerignore, and are a workspace that Cargo takes."""
    allowed = set(re.findall(r"^!(.*)$", Path(f"{RECIPE}.dockerignore").read_text(), re.M))
    with tempfile.TemporaryDirectory() as folder:
        for word, rest in recipe:
            if word != "COPY" or rest.startswith("--from"):
                continue
            *sources, target = shlex.split(rest)
            for source in sources:
                if source not in allowed:
                    yield f".dockerignore keeps {source} out"
                place = Path(folder) / target / (source if target == "./" else "")
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("target"))
                elif (ROOT / source).is_file():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / source, place)
                else:
                    yield f"it copies {source}, which isn't there"
        command = ["cargo", "metadata", "--quiet", "--locked", "--format-version", "1", "--no-deps"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield f"what it copies is no workspace: {done.stderr}"


def check_build(recipe):
    """It builds what the tests build, with a compiler that is new enough."""
    tested = re.search(r"^    cargo (build .*)$", (ROOT / "deploy/test.sh").read_text(), re.M)[1]
    built = [rest for word, rest in recipe if word == "RUN" and " build " in rest]
    if [line.replace("auditable ", "").replace("--release --locked ", "") for line in built] != [f"cargo {tested}"]:
        yield f"it builds by {built}, the tests by 'cargo {tested}'"
    wanted = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    given = next(rest for word, rest in recipe if word == "ARG" and rest.startswith("RUST=")).removeprefix("RUST=")
    if [int(part) for part in given.split(".")] < [int(part) for part in wanted.split(".")]:
        yield f"its Rust {given} is older than {wanted}"


def check_version(recipe):
    """One version everywhere: Cargo's, the chart's, the image's."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    chart = yaml.safe_load((ROOT / "deploy/chart/Chart.yaml").read_text())
    given = {rest.removeprefix("VERSION=") for word, rest in recipe if word == "ARG" and rest.startswith("VERSION=")}
    if {chart["version"], chart["appVersion"], *given} != {version}:
        yield f"Cargo.toml has version {version}, the chart {chart['version']} and {chart['appVersion']}, it {given}"


def check_start(recipe):
    """It starts by the path that Istio's image has, with the arguments of the DaemonSet."""
    facts = {word: yaml.safe_load(rest) for word, rest in recipe if word in ("ENTRYPOINT", "CMD")}
    documents = yaml.safe_load_all((ROOT / "deploy/manifest/ringway.yaml").read_text())
    daemon_set = next(document for document in documents if document and document["kind"] == "DaemonSet")
    args = daemon_set["spec"]["template"]["spec"]["containers"][0]["args"]
    if facts != {"ENTRYPOINT": ["/usr/local/bin/ztunnel"], "CMD": args}:
        yield f"it starts by {facts}"


def main():
    recipe = list(instructions())
    checks = check_sources, check_build, check_version, check_start
    problems = [problem for check in checks for problem in check(recipe)]
    for problem in problems:
        print(f"deploy/image/Dockerfile: {problem}", file=sys.stderr)
    print(f"image: {len(recipe)} instructions, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
