"""Shardwise trains over many hosts from one job file: GPTs by its trainer, or whatever an own program trains.

The version, and the library for own programs, which is imported when one of its names is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise.program import Run, checkpoint, init, report, save_now, should_save, should_stop

__version__ = "0.1.0"
__all__ = ["Run", "checkpoint", "init", "report", "save_now", "should_save", "should_stop"]


def __getattr__(name: str) -> Any:
    """Return a name of the library for own programs, which needs JAX."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("shardwise.program"), name)
