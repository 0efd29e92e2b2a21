"""The machine that a figure was measured on, and the environments that the workers run in."""

import os
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.turns import ROOT


@dataclass(frozen=True, kw_only=True)
class Pythons:
    """The interpreters of the workers."""

    own: str
    """Shardwise and what it installs."""
    peers: str
    """Levanter and Orbax; Levanter needs another haliax."""

    @classmethod
    def found(cls) -> "Pythons":
        """This interpreter, and that of .venv-bench, which `make bench` makes."""
        peers = ROOT / ".venv-bench" / "bin" / "python"
        if not peers.exists():
            sys.exit(f"{peers} does not exist; it holds the peers. `make bench` makes it: run that instead.")
        return cls(own=sys.executable, peers=str(peers))


def describe() -> dict[str, Any]:
    """Cores, memory, versions and the load that others put on the machine now."""
    import jax  # noqa: PLC0415  only for its version; the parent of the workers runs no array code

    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
