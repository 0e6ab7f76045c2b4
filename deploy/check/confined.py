"""The seccomp profile: it grants no more than the runtime's default and io_uring, and the proxy runs under it.

The second is tried with the runtime that kubelets use (runc), on the image's own files, with the DaemonSet's rights and
read-only root: the proxy must come up on io_uring, and with the runtime's default profile on epoll, with its warning.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DEPLOY = Path(__file__).resolve().parent.parent
PROFILE = DEPLOY / "seccomp" / "ringway.json"
RIGHTS = ["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_NET_RAW"]
RING = {"io_uring_setup", "io_uring_enter", "io_uring_register"}
# What SYS_ADMIN is there for; the default gives much more for it.
PODS = {"setns"}
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
START_S = 120


def fits(rule, architecture, rights):
    """Whether a rule of the runtime's default profile is for a container with these rights on this architecture."""
    includes, excludes = rule.get("includes", {}), rule.get("excludes", {})
    return (
        all(right in rights for right in includes.get("caps", []))
        and not any(right in rights for right in excludes.get("caps", []))
        and architecture in includes.get("arches", [architecture])
        and architecture not in excludes.get("arches", [])
    )


def granted(default, architecture):
    """The names that the runtime's default profile allows to a container without any rights."""
    rules = (rule for rule in default["syscalls"] if fits(rule, architecture, []))
    return {name for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}


def check_names(profile, default):
    allowed = [name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]]
    for name in sorted({name for name in allowed if allowed.count(name) > 1}):
        yield f"{name} is allowed twice"
    more = set(allowed) - granted(default, "amd64") - granted(default, "arm64") - RING - PODS
    for name in sorted(more):
        yield f"{name} is more than the runtime's default grants"
    for name in sorted((RING | PODS) - set(allowed)):
        yield f"{name} is missing"
    if profile["defaultAction"] != "SCMP_ACT_ERRNO":
        yield "what isn't named is allowed"


def flat(default):
    """The runtime's default profile as an OCI runtime takes it, for our rights on this architecture."""
    rules = [
        {"names": rule["names"], "action": rule["action"], "args": rule.get("args", [])}
        for rule in default["syscalls"]
        if fits(rule, ARCHITECTURE, RIGHTS)
    ]
    return {"defaultAction": default["defaultAction"], "syscalls": rules}


def container(profile, environment):
    """The configuration of an OCI container like the DaemonSet's."""
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 1337},
            "args": ["/usr/local/bin/ztunnel", "proxy", "ztunnel"],
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": "/",
            "capabilities": {kind: RIGHTS for kind in ("bounding", "effective", "permitted")},
            "noNewPrivileges": False,
        },
        "root": {"path": "root", "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("mount", "pid", "network", "ipc", "uts")],
            "seccomp": profile,
        },
    }


def first_words(binary, profile, end):
    """What the proxy says in a container with this profile, up to a line with `end`."""
    environment = {"FAKE_CA": "true", "RINGWAY_CA_DIR": "/tmp/ca", "XDS_ADDRESS": "", "INPOD_UDS": "/tmp/none"}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        subprocess.run([DEPLOY / "image" / "rootfs.sh", binary, root], check=True)
        # The kubelet's.
        (root / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
        (Path(folder) / "config.json").write_text(json.dumps(container(profile, environment)))
        name = f"ringway-check-{os.getpid()}"
        with open(Path(folder) / "log", "w+") as log:
            command = ["runc", "run", "--bundle", folder, name]
            started = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            try:
                begun = time.monotonic()
                said = ""
                while end not in said and started.poll() is None and time.monotonic() - begun < START_S:
                    time.sleep(0.1)
                    said = Path(folder, "log").read_text()
            finally:
                subprocess.run(["runc", "delete", "--force", name], capture_output=True, check=False)
                started.wait()
            return Path(folder, "log").read_text()


def check_start(binary, profile, default):
    came_up = "is the node agent healthy?"
    said = first_words(binary, profile, came_up)
    if "event loop: io_uring" not in said or came_up not in said:
        yield f"under our profile the proxy should come up on io_uring, it said:\n{said}"
    said = first_words(binary, flat(default), came_up)
    if "the container's seccomp profile denies it" not in said or came_up not in said:
        yield f"under the runtime's profile the proxy should come up on epoll and say why, it said:\n{said}"


def main(default, binary=None):
    profile, default = json.loads(PROFILE.read_text()), json.loads(Path(default).read_text())
    problems = list(check_names(profile, default))
    if binary and not shutil.which("runc"):
        problems.append("runc is needed")
    elif binary:
        problems += check_start(Path(binary).resolve(), profile, default)
    for problem in problems:
        print(f"deploy/seccomp/ringway.json: {problem}", file=sys.stderr)
    print(f"seccomp: {'tried in a container' if binary else 'read only'}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
