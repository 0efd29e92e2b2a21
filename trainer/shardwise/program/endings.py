"""How a program ends: an error as the exit code of its cause, and no wait for processes that may be gone."""

import os
import signal
import sys
import traceback
from contextlib import suppress
from functools import partial
from typing import NoReturn

from shardwise.program import exits
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import ShardwiseError
from shardwise.protocol.storage import first_line, may_pass
from shardwise.train.control import StoppedError
from shardwise.train.user_errors import exit_code_of


def code_of(error: BaseException) -> int:
    """Return the exit code that names the cause of an error; 1 if it is the program's own, and names none."""
    if isinstance(error, SystemExit):
        return exits.code_of(error)
    if isinstance(error, StoppedError):
        return ExitCode.SAVED
    if isinstance(error, ShardwiseError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, OSError) and may_pass(error):
        return ExitCode.STORAGE
    return exit_code_of(error)


def show(error: BaseException) -> None:
    """Write the error to standard error: in words if that is enough for the user, else with its traceback.

    A full disk takes no words, and must not make the error another one.
    """
    with suppress(OSError):
        _write(error)


def leave(code: int) -> NoReturn:
    """End this process now: JAX's own exit would wait for its peers, one of which may be lost."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def end_with(code: int) -> None:
    """Have this process end with the code, for an exit handler, which cannot say so itself.

    Everything comes before that would without it: the other handlers, what files still buffer. What the module `sys`
    holds is the last that Python lets go.
    """
    sys.__dict__["shardwise_exit"] = _Last(code)


class _Last:
    """Ends the process when it is let go."""

    def __init__(self, code: int) -> None:
        self._end = partial(os._exit, code)

    def __del__(self) -> None:
        self._end()


def _write(error: BaseException) -> None:
    if isinstance(error, StoppedError):
        print("shardwise: stopped before the first step; there was nothing to save", file=sys.stderr)  # noqa: T201
    elif isinstance(error, ShardwiseError):
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  the program's log
    elif code_of(error) == ExitCode.PEER:  # what explains it is in the other's log
        print(f"error: another process of the run is gone: {first_line(error)}", file=sys.stderr)  # noqa: T201
    else:
        traceback.print_exception(error)
