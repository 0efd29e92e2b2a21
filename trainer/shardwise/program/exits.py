"""The exit code that a script gives itself: by `sys.exit`, by argparse, by `raise SystemExit`.

Python takes such an end for a good one: it asks no `sys.excepthook`, runs the exit handlers, and tells them nothing.
What has imported `exit` from `sys` before `watch` is not noticed.
"""

import ctypes
import gc
import inspect
import sys
from typing import NoReturn

_given: list[SystemExit] = []


def watch() -> None:
    """Know from here on by which SystemExit the interpreter ends.

    It asks the error for its `code`, and it alone asks from outside of any function. So the attribute is replaced, in
    the class itself, where `raise` finds it, by one of the same value. `sys.exit` makes no error, only its number.
    """
    code = SystemExit.__dict__["code"]

    def read(error: SystemExit) -> object:
        frame = inspect.currentframe()
        if frame is None or frame.f_back is None:
            _given.append(error.with_traceback(None))
        value: object = code.__get__(error)
        return value

    (attributes,) = gc.get_referents(SystemExit.__dict__)  # a class of C's refuses setattr
    attributes["code"] = property(read, code.__set__)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
    sys.exit = _exit


def given() -> SystemExit | None:
    """Return what the script ends by, for an exit handler; None if it has come to its end."""
    return _given[-1] if _given else None


def code_of(error: SystemExit) -> int:
    """Return the exit code as a parent process sees it; words count as 1."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _exit(status: object = None, /) -> NoReturn:
    """Take the place of `sys.exit`."""
    raise SystemExit(status)
