"""The exit code that a script gives itself by `sys.exit`, as argparse does too.

Python takes such an end for a good one: it asks no `sys.excepthook`, runs the exit handlers, and tells them nothing. So
`sys.exit` is replaced by one that keeps what it was given. A `raise SystemExit` of the script's own stays unseen.
"""

import sys
import threading
from typing import NoReturn

_given: list[SystemExit] = []


def watch() -> None:
    """Keep from here on what `sys.exit` is given."""
    sys.exit = _exit


def went_on() -> None:
    """Note that the script goes on: it has caught what it gave."""
    _given.clear()


def give(code: int) -> None:
    """Note that the script ends by this code, without `sys.exit`."""
    _given.append(SystemExit(code))


def given() -> SystemExit | None:
    """Return what the script ends by, for an exit handler; None if it has come to its end."""
    return _given[-1] if _given else None


def code_of(error: SystemExit) -> int:
    """Return the exit code as a parent process sees it; words count as 1."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _exit(status: object = None, /) -> NoReturn:
    error = SystemExit(status)
    if threading.current_thread() is threading.main_thread():
        _given.append(error)
    raise error
