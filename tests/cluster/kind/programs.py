"""The programs of kind and of its nodes, compiled from pinned Go modules and kept by content. Called by the verbs.

`kind` is kind itself. The others go into a node image of our own, where no registry is in reach: `kube` is etcd, the
control plane, kube-proxy, kubelet, kubeadm, kubectl and the nodes' network in one; `pause` and `coredns` are what they
are called.
"""

import hashlib
import shutil
from pathlib import Path

from tests.cluster.commands import retry, run, say
from tests.cluster.kind.places import CACHE, SOURCE
from tests.cluster.programs import go_compiler

_MODULES = SOURCE / "programs"
_BUILD = ("build", "-trimpath", "-buildvcs=false")
_VERSION = "k8s.io/component-base/version"


def kind() -> Path:
    """The program kind; compiles it first where it is missing, which takes seconds."""
    return _made("kind", {"kind": ("kind", "sigs.k8s.io/kind")})


def node_programs() -> Path:
    """The folder of the node's programs; compiles them first where they are missing, which takes minutes."""
    programs = {"coredns": ("dns", "."), "kube": ("kube", "."), "pause": ("kube", "./pause")}
    return _made("coredns", programs).parent


def kubernetes_version() -> str:
    """The version of Kubernetes in the node's programs, such as v1.35.4."""
    listed = run(go_compiler(), "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes", folder=_MODULES / "kube")
    return listed.strip()


def fingerprint(*folders: Path) -> str:
    """What the files of these folders hold, as a name of 16 letters."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(SOURCE)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _made(wanted: str, programs: dict[str, tuple[str, str]]) -> Path:
    """Return the program `wanted`, of the folder that its modules' content names; compile all where it is missing."""
    modules = [_MODULES / module for module in sorted({module for module, _ in programs.values()})]
    folder = CACHE / fingerprint(*modules)
    if not folder.exists():
        _compile(folder, modules, programs)
    return folder / wanted


def _compile(folder: Path, modules: list[Path], programs: dict[str, tuple[str, str]]) -> None:
    made = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for source in modules:
        say(f"{source.name}: its Go modules")
        retry(go_compiler(), "mod", "download", folder=source)
    for program, (module, package) in programs.items():
        say(f"{program}: compiling" + (" (minutes the first time)" if program == "kube" else ""))
        flags = ("-ldflags", f"-s -w {_version_flags() if program == 'kube' else ''}", "-o", made / program)
        run(go_compiler(), *_BUILD, *flags, package, folder=_MODULES / module, environment={"CGO_ENABLED": "0"})
    made.rename(folder)


def _version_flags() -> str:
    """Linker flags that tell Kubernetes its version, as its own build does; kubeadm refuses without."""
    version = kubernetes_version()
    _, minor, _ = version.split(".")
    values = {"gitVersion": version, "gitMajor": "1", "gitMinor": minor}
    return " ".join(f"-X {_VERSION}.{key}={value}" for key, value in values.items())
