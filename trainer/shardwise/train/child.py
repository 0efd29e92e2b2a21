"""A trainer process: it imports what it needs, waits for its orders, follows them, and exits with a code.

An agent starts `python -m shardwise.train.child`, perhaps long before it is needed, with the environment for JAX
(`shardwise.job.environment`). Before it follows its orders it forks the process that waits for the next ones
(`shardwise.protocol.orders`, docs/decisions/0019-forked-trainers.md), so the imports must start no thread.
"""

import gc
import io
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TextIO

_BEGAN = time.time()
# Imports make hundreds of thousands of objects and hardly any garbage; collections would take a fifth of their time.
gc.disable()
# `shardwise.train.executables` keeps programs. It could not keep one that JAX took from its own cache: serialized a
# second time a program lacks functions ("Function iota_convert_fusion not found").
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

from rich.console import Console  # noqa: E402  the clock runs before the imports, which it measures
from rich.markup import escape  # noqa: E402

from shardwise.job.load import load_own  # noqa: E402
from shardwise.job.resolve import resolve  # noqa: E402
from shardwise.protocol.contract import ExitCode  # noqa: E402
from shardwise.protocol.errors import ShardwiseError  # noqa: E402
from shardwise.protocol.orders import wait_for_orders, wait_for_the_agents_end  # noqa: E402
from shardwise.protocol.storage import passing_over  # noqa: E402
from shardwise.train.control import StoppedError  # noqa: E402
from shardwise.train.main import run  # noqa: E402
from shardwise.train.stacks import write_stacks_when_asked  # noqa: E402

# Imported objects stay. Later collections skip them, so a forked process shares their memory for longer.
gc.freeze()
gc.enable()


def _age_seconds() -> float:
    """Return the age of this process. psutil would round: it counts from a boot time in whole seconds."""
    created_ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - created_ticks / os.sysconf("SC_CLK_TCK")


_IMPORTS_SECONDS = time.time() - _BEGAN
_SPENT = {"interpreter": _age_seconds() - _IMPORTS_SECONDS, "imports": _IMPORTS_SECONDS}
_IMPORTED_BY = os.getpid()
_COLUMNS = 120  # of a log, which has no terminal's width


def main() -> None:
    """Wait for orders, follow them, and exit."""
    orders = wait_for_orders()
    if orders is None:
        return
    spent = _SPENT if os.getpid() == _IMPORTED_BY else dict.fromkeys(_SPENT, 0.0)
    os.environ.update(orders.variables)
    sys.stdout, sys.stderr = _Log(sys.stdout), _Log(sys.stderr)
    write_stacks_when_asked(Path(orders.stacks))
    threading.Thread(target=_end_with_the_agent, daemon=True, name="agent-watch").start()
    try:
        code = run(resolve(load_own(Path(orders.job_file))), orders, Console(width=_COLUMNS), spent=spent)
    except StoppedError:  # before the run could record it, or after
        code = ExitCode.SAVED
    except ShardwiseError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        code = error.exit_code
    except Exception:  # noqa: BLE001  whatever it is, the traceback goes to the log and the code to the agent
        traceback.print_exc()
        code = ExitCode.FAILURE
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: JAX's own exit waits for its peers, one of which may be lost.
    os._exit(code)


class _Log(io.TextIOWrapper):
    """A standard stream to a file. If the disk is full, text is lost and the trainer goes on."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream.buffer, encoding="utf-8", errors="replace", line_buffering=True)

    def write(self, text: str, /) -> int:
        """Write the text, or drop it if the disk refuses."""
        with passing_over():
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, unless the disk refuses."""
        with passing_over():
            super().flush()


def _end_with_the_agent() -> None:
    wait_for_the_agents_end()
    os._exit(ExitCode.FAILURE)


if __name__ == "__main__":
    main()
