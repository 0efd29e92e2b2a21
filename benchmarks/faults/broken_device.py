"""Imported as `sitecustomize` by the processes of a job's pods: the device of one pod computes wrong.

`harms.py` puts a copy into the pods' volume, in a folder that is on their PYTHONPATH. The file `broken` beside it has
the pod's address. Nothing but Python's own is there when it is imported.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_PROBE, _ADDRESS = "shardwise.train.probe", "SHARDWISE_POD_ADDRESS"
_BROKEN = Path(__file__).with_name("broken")


class _Breaks(MetaPathFinder):
    """Has the measurement that finds such devices be wrong, once it is imported."""

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> ModuleSpec | None:
        """Find the module as it would be found without this, and change it after that."""
        if fullname != _PROBE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            _change(module)

        setattr(spec.loader, "exec_module", executed)  # noqa: B010  it is not to be typed
        return spec


def _change(module: ModuleType) -> None:
    import numpy as np  # noqa: PLC0415  JAX is there by now

    run = module.Probe._run  # noqa: SLF001  where a device computes

    def badly(probe: Any) -> tuple[float, Any]:
        if _BROKEN.exists() and _BROKEN.read_text(encoding="utf-8") == os.environ[_ADDRESS]:
            factor = np.array(probe._factor)  # noqa: SLF001  as above
            factor[0, 0] = 8  # its numbers are at most 7
            probe._factor = probe._put(factor)  # noqa: SLF001  as above
        measured: tuple[float, Any] = run(probe)
        return measured

    module.Probe._run = badly  # noqa: SLF001  as above


sys.meta_path.insert(0, _Breaks())
