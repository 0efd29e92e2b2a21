"""Devices that JAX is said to find, in every Python process that has this folder in PYTHONPATH.

The variable FAKED_DEVICES says which, such as `gpu 4`; in truth they are simulated ones. One function is not that of a
machine that has them: `shardwise.train.devices._visible`, the only one that asks JAX. Another takes its place in the
source, so that it does in `python -m shardwise.train.devices` too. Python imports a `sitecustomize` by itself.
"""

import ast
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType

_MODULE = "shardwise.train.devices"
_VISIBLE = """
def _visible():
    import os

    platform, number = os.environ["FAKED_DEVICES"].split()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", int(number))
    return Visible(platform=platform, devices=jax.devices())
"""


class _Loader(SourceFileLoader):
    """Compiles the module with the other function; neither reads nor writes what Python keeps compiled."""

    def get_code(self, fullname: str) -> CodeType:
        module = ast.parse(self.get_data(self.get_filename(fullname)))
        names = [node.name if isinstance(node, ast.FunctionDef) else "" for node in module.body]
        module.body[names.index("_visible")] = ast.parse(_VISIBLE).body[0]
        return compile(module, self.get_filename(fullname), "exec")


class _Finder(MetaPathFinder):
    """Finds that module, and leaves all others to Python."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Say what loads the module; None where it is another one."""
        del target
        spec = PathFinder.find_spec(fullname, path) if fullname == _MODULE else None  # type: ignore[arg-type]
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder())
