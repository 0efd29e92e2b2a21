"""The functions that a script calls: `shardwise.init()`, and what follows it.

Under `shardwise run`, or in a pod, an agent has given this process its place (`shardwise.protocol.program`). Without
one the script is a run of one process, in a directory of its own. What a script starts inherits its variables, but not
its place: that is of the first process on the host that asks for it, as long as it lives.
"""

import atexit
import fcntl
import operator
import os
import re
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, SupportsIndex

from shardwise.job.environment import COLLECTIVE_TIMEOUT_FLAGS
from shardwise.program import endings, exits, forked
from shardwise.program.run import Run
from shardwise.protocol.contract import progress_name
from shardwise.protocol.errors import UsageError
from shardwise.protocol.message import MAX_INT32
from shardwise.protocol.program import Place
from shardwise.protocol.takeover import hold, next_attempt
from shardwise.train.jax_private import load_in_order

SAVE_EVERY_SECONDS = 600.0
KEPT = 3
_ALONE_HANG_SECONDS = 300.0
_FORKED = "in a process that its script has forked, which is no part of the run"

_run: Run | None = None  # a process has one part in one run, so this is global to it
_is_forked = False


def init(
    *,
    steps: int | None = None,
    save_every_seconds: float | None = SAVE_EVERY_SECONDS,
    keep: int = KEPT,
    directory: str | os.PathLike[str] | None = None,
) -> Run:
    """Join the run, and return this process's part in it. Call it before anything asks JAX for devices.

    From here on SIGTERM asks all processes to save and to end, and an error that nothing catches ends the process at
    once, with the exit code of its cause. So does `sys.exit`, with the code that it is given, unless that is 0.

    Args:
        steps: of the whole run, at most 2**31 - 1; with it the status has the time left.
        save_every_seconds: how often `should_save` says so by itself; None for never.
        keep: how many checkpoints stay.
        directory: of a script that is run by itself; `runs/NAME` if left out. `shardwise run` gives its own. A script
            that another one starts, which is in a run, has no part in that: it needs this, and is run by itself.

    Raises:
        UsageError: it was called before, or after JAX was used, or not in the main thread, or with too many steps; or
            another process on this host has its part in the run, and no directory is given.
        PeerError: another process did not come.
        RunDirectoryError: another live run uses the directory, or it cannot be written.

    """
    global _run  # noqa: PLW0603  see its definition
    if _is_forked:
        raise UsageError(f"shardwise.init() was called {_FORKED}")
    if _run is not None:
        raise UsageError("shardwise.init() was called before; call it once, at the beginning of the script")
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("shardwise.init() was called in a thread; only the main thread can take signals")
    sys.excepthook = _failed
    if steps is not None and steps > MAX_INT32:
        raise UsageError(f"init(steps={steps}): expected at most {MAX_INT32}; leave it out if the run has no end")
    # XLA reads them when the first device is asked for; what is there already wins.
    os.environ["XLA_FLAGS"] = " ".join((*COLLECTIVE_TIMEOUT_FLAGS, os.environ.get("XLA_FLAGS", ""))).strip()
    load_in_order()
    stack = ExitStack()
    place = Place.of(os.environ)
    if place and not _take(place, stack):
        if directory is None:
            raise UsageError(
                "shardwise.init(): another process on this host has the part of it in the run, and a run has one on "
                "each host: call it there alone; with directory=... this process is a run by itself"
            )
        place = None
    _run = Run(
        place or _place_alone(Path(directory or Path("runs") / _script()), stack),
        stack,
        alone=place is None,
        steps=steps,
        save_every_seconds=save_every_seconds,
        keep=keep,
    )
    exits.watch()
    atexit.register(_run.end)
    os.register_at_fork(after_in_child=_leave_run)
    return _run


def report(*, step: SupportsIndex, **metrics: Any) -> None:
    """Report that a step is complete, or is with the devices: every process calls it once after each step.

    Args:
        step: how many steps the run has now, from 1 to 2**31 - 1; a whole number of Python, numpy or JAX.
        metrics: `loss` and whatever else; numbers, or arrays of JAX that every process holds whole. An array is waited
            for one step later, so that the devices are never idle. `grad_norm`, `tokens_per_second` and `mfu` are shown
            as the trainer's are; `step_seconds` is measured, and no name for another number.

    """
    number = whole("report", step)
    if number > MAX_INT32:  # no status could hold it
        raise UsageError(f"report(step={number}): expected a step of at most {MAX_INT32}")
    current().report(number, metrics)


def should_save() -> bool:
    """Return whether to save now: because it is time, because someone asks for it, or before a stop.

    All processes get the same answer after the same step, which is that of the last `report`.
    """
    return current().saves


def should_stop() -> bool:
    """Return whether to exit now, after `should_save` has said to save; exit code 80 marks the run as resumable."""
    return current().stops


def save_now() -> None:
    """Ask all processes to save: `should_save` says so, on each of them, after one of the next steps."""
    current().ask_to_save()


def current() -> Run:
    """Return this process's part in the run; UsageError before `init`."""
    if _is_forked:
        raise UsageError(f"a function of shardwise was called {_FORKED}")
    if _run is None:
        raise UsageError("expected shardwise.init() first, at the beginning of the script")
    return _run


def whole(call: str, step: SupportsIndex) -> int:
    """Return the step that a call was given, as a number of Python; UsageError if it is no whole number."""
    try:
        return operator.index(step)
    except TypeError as error:
        raise UsageError(f"{call}(step={step!r}): expected a whole number") from error


def _leave_run() -> None:
    """Leave the run to the parent, in a child that the script has forked."""
    global _is_forked  # noqa: PLW0603  a process is forked or not
    _is_forked = True
    forked.end_apart(sys.__excepthook__ if sys.excepthook is _failed else sys.excepthook)


def _take(place: Place, stack: ExitStack) -> bool:
    """Take the place until the stack closes or the process ends; return False if another live process has it."""
    handle = os.open(f"{place.progress}.{place.attempt}.taken", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    stack.callback(os.close, handle)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock's it is not inherited by what is forked
    except BlockingIOError:
        return False
    return True


def _place_alone(directory: Path, stack: ExitStack) -> Place:
    """Return the place of a script that no agent has started, and hold its directory until the stack closes."""
    stack.enter_context(hold(directory))
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardwise-")))
    return Place(
        job=_script(),
        directory=str(directory.resolve()),
        rank=0,
        num_processes=1,
        coordinator="",
        attempt=next_attempt(directory),
        deadline_seconds=None,
        hang_after_seconds=_ALONE_HANG_SECONDS,
        progress=str(scratch / progress_name(0)),
        stacks=str(scratch / "stacks.txt"),
    )


def _script() -> str:
    """Return the name of the script as a job may have it."""
    name = re.sub(r"[^a-z0-9]+", "-", Path(sys.argv[0]).stem.lower()).strip("-")
    return name[:40].rstrip("-") or "script"


def _failed(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    """Take the place of `sys.excepthook`."""
    if _run is not None:
        _run.fail(error)
    else:  # it could not join
        endings.show(error)
        endings.leave(endings.code_of(error))
