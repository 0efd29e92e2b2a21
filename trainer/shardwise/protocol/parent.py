"""End with one's parent: the kernel kills a process as soon as the one that has started it is gone.

The kernel has to be asked by the process itself (`prctl`), between its fork and its exec. `subprocess` would run Python
there by `preexec_fn`, in a fork of a process with threads such as JAX's, where any lock may be held for ever. So what
is started is `python -m shardwise.protocol.parent`, which has one thread, asks, and becomes the command. A watcher with
a pidfd would be one more process, which can be killed before the one that it is to end.

The kernel's word for "the parent" is the thread that has forked. So the main thread has to, which ends last.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the kernel end this process, and what it becomes, as soon as its parent has ended; end now if it has.

    `parent` is what `os.getppid` has said, or what the parent has said of itself: that it is still the parent proves
    that it had not ended before the kernel was asked.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def default_signals() -> None:
    """Heed again the signals that Python ignores: what is executed would inherit that."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def start_ending_with_this(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command that the kernel ends with this process; `options` go to `Popen`.

    Raises:
        OSError: it cannot be executed.

    """
    assert threading.current_thread() is threading.main_thread(), "the kernel ends it with the thread that starts it"
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as refused:
        try:
            own = (sys.executable, "-P", "-m", __name__, str(os.getpid()), str(writer))
            process = subprocess.Popen((*own, *command), pass_fds=[writer], **options)  # noqa: S603  without a shell
        finally:
            os.close(writer)
        # The end comes when the command has taken the place of Python, which closes the pipe.
        number = refused.read()
    if number:
        process.communicate()
        raise OSError(int(number), os.strerror(int(number)))
    return process


def _main() -> None:
    parent, refused, *command = sys.argv[1:]
    end_with(int(parent))
    with closing(os.fdopen(int(refused), "w")) as handle:
        os.set_inheritable(handle.fileno(), False)
        default_signals()
        try:
            os.execvp(command[0], command)  # noqa: S606  what the parent names
        except OSError as error:
            handle.write(str(error.errno))


if __name__ == "__main__":
    _main()
