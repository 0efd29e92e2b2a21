"""A trainer process: imports what it needs, waits for its orders, obeys them, and ends with a code.

`python -m shardwise.train.child`, started by an agent, perhaps long before it is needed. What JAX shall see is in its
environment (`shardwise.job.environment`). Before it obeys, it forks the process that waits for the next orders
(`shardwise.job.orders`, docs/decisions/0019-forked-trainers.md): importing may therefore start no thread.
"""

import gc
import io
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TextIO

_BEGAN = time.time()
# Imports make hundreds of thousands of objects and hardly any garbage: looking for it would be a fifth of their time.
gc.disable()
# Programs are kept by `shardwise.train.executables`. One that JAX took from its own cache cannot be kept again: written
# out a second time it lacks functions ("Function iota_convert_fusion not found").
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

from rich.console import Console  # noqa: E402  the clock runs before the imports, which it measures
from rich.markup import escape  # noqa: E402

from shardwise.job.contract import ExitCode  # noqa: E402
from shardwise.job.errors import ShardwiseError  # noqa: E402
from shardwise.job.load import load  # noqa: E402
from shardwise.job.orders import STACKS_SIGNAL, wait_for_orders, wait_for_the_agents_end  # noqa: E402
from shardwise.job.resolve import resolve  # noqa: E402
from shardwise.job.storage import passing_over  # noqa: E402
from shardwise.train.main import run  # noqa: E402

# What was imported stays. Later collections need not look at it, and a forked process shares the memory for longer.
gc.freeze()
gc.enable()


def _age_seconds() -> float:
    """Of this process. What psutil says of its creation counts from a boot time that is cut to whole seconds."""
    created_ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - created_ticks / os.sysconf("SC_CLK_TCK")


_IMPORTS_SECONDS = time.time() - _BEGAN
_SPENT = {"interpreter": _age_seconds() - _IMPORTS_SECONDS, "imports": _IMPORTS_SECONDS}
_IMPORTED_BY = os.getpid()
_COLUMNS = 120  # of a log that no terminal reads


def main() -> None:
    """Wait for orders, and end the process: at once after an error, since a lost peer would hold up JAX's own exit."""
    orders = wait_for_orders()
    if orders is None:
        return
    spent = _SPENT if os.getpid() == _IMPORTED_BY else dict.fromkeys(_SPENT, 0.0)
    os.environ.update(orders.variables)
    sys.stdout, sys.stderr = _Log(sys.stdout), _Log(sys.stderr)
    _write_stacks_when_asked(Path(orders.stacks))
    threading.Thread(target=_end_with_the_agent, daemon=True, name="rope").start()
    try:
        code = run(resolve(load(Path(orders.job_file))), orders, Console(width=_COLUMNS), spent=spent)
    except ShardwiseError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        code = error.exit_code
    except Exception:  # noqa: BLE001  whatever it is, its traceback goes to the log and the agent hears of it
        traceback.print_exc()
        code = ExitCode.FAILURE
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Log(io.TextIOWrapper):
    """A standard stream that goes to a file, where what a full disk does not take is lost and ends nothing."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream.buffer, encoding="utf-8", errors="replace", line_buffering=True)

    def write(self, text: str, /) -> int:
        """Write it, if that can be done now."""
        with passing_over():
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if that can be done now."""
        with passing_over():
            super().flush()


def _write_stacks_when_asked(path: Path) -> None:
    """Have a thread write all stacks at each `STACKS_SIGNAL`, also while the main thread waits for the devices.

    The signal's number goes through a pipe, which needs no Python of the main thread. faulthandler reads the frames of
    threads that run, and has ended a process that was compiling.
    """
    heard, said = os.pipe()
    os.set_blocking(said, False)
    signal.signal(STACKS_SIGNAL, lambda *_: None)
    signal.set_wakeup_fd(said, warn_on_full_buffer=False)

    def answer() -> None:
        while numbers := os.read(heard, 64):
            if STACKS_SIGNAL in numbers:
                path.write_text(_stacks(), encoding="utf-8")

    threading.Thread(target=answer, daemon=True, name="stacks").start()


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001  the documented way to see them all
    )


def _end_with_the_agent() -> None:
    wait_for_the_agents_end()
    os._exit(ExitCode.FAILURE)


if __name__ == "__main__":
    main()
