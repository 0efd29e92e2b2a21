"""Another operator: its program, compiled from its Go module, and when it is ready.

Called by `jobset.py` and `benchmarks.faults.kuberay`. Of a module one version is taken, checked by its sum.
Nothing of it is kept in this repository.
"""

import json
import shutil
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.commands import ClusterError, run, say
from tests.cluster.places import CACHE
from tests.cluster.programs import go_compiler, locked


@dataclass(frozen=True, kw_only=True)
class Module:
    """A Go module.

    Attributes:
        name: of the operator, in one word.
        path: of the module.
        version: as `go` writes it.
        checksum: of its content, as in a go.sum.

    """

    name: str
    path: str
    version: str
    checksum: str


def compiled(module: Module) -> Path:
    """Return a folder with its `source` and its program, `manager`; both are made where they are missing.

    Raises:
        ClusterError: the content has another sum.

    """
    folder = CACHE / f"{module.name.lower()}-{module.version}"
    with locked(module.name.lower()):
        if not folder.exists():
            made = folder.with_suffix(".part")
            shutil.rmtree(made, ignore_errors=True)
            say(f"compiling {module.name} {module.version}: a few minutes on two cores")
            go = go_compiler()
            found = json.loads(run(go, "mod", "download", "-json", f"{module.path}@{module.version}", folder=CACHE))
            if found["Sum"] != module.checksum:
                raise ClusterError(
                    f"{module.path} {module.version} has the sum {found['Sum']}, expected {module.checksum}"
                )
            shutil.copytree(found["Dir"], made / "source")
            run("chmod", "-R", "u+w", made)
            run(go, "build", "-o", made / "manager", ".", folder=made / "source", environment={"CGO_ENABLED": "0"})
            made.rename(folder)
    return folder


def is_ready(probe: str) -> bool:
    """Return whether the program says so at host:port."""
    try:
        with urllib.request.urlopen(f"http://{probe}/readyz", timeout=2):
            return True
    except OSError:  # it does not listen yet, or says no
        return False
