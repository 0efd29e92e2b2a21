"""The stacks of a process, written to a file at a signal: what a person looks at when a run hangs."""

import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from shardwise.protocol.orders import STACKS_SIGNAL


def write_stacks_when_asked(path: Path) -> None:
    """Write all stacks at each `STACKS_SIGNAL`, even while the main thread waits for the devices.

    A thread reads the signal's number from a wakeup pipe, which needs no Python code in the main thread. faulthandler
    would read frames of running threads, and has crashed a process that was compiling.
    """
    reader, wakeup = os.pipe()
    os.set_blocking(wakeup, False)  # as set_wakeup_fd requires
    signal.signal(STACKS_SIGNAL, lambda *_: None)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def write_stacks() -> None:
        while numbers := os.read(reader, 64):
            if STACKS_SIGNAL in numbers:
                path.write_text(_stacks(), encoding="utf-8")

    threading.Thread(target=write_stacks, daemon=True, name="stacks").start()


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001  the documented way to see them all
    )
