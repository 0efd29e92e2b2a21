"""A trainer process: imports what it needs, waits for its orders on standard input, obeys them, and ends with a code.

`python -m shardwise.train.child`, started by an agent, perhaps long before it is needed. What JAX shall see is in its
environment (`shardwise.job.environment`). Standard input is the rope to the agent: when it ends, this process ends.
"""

import faulthandler
import os
import sys
import threading
import time
import traceback
from pathlib import Path

import psutil

_BEGAN = time.time()

from rich.console import Console  # noqa: E402  the clock runs before the imports, which it measures
from rich.markup import escape  # noqa: E402

from shardwise.job.contract import ExitCode  # noqa: E402
from shardwise.job.errors import ShardwiseError  # noqa: E402
from shardwise.job.load import load  # noqa: E402
from shardwise.job.orders import STACKS_SIGNAL, Orders  # noqa: E402
from shardwise.train.main import run  # noqa: E402

_SPENT = {"interpreter": _BEGAN - psutil.Process().create_time(), "imports": time.time() - _BEGAN}
_COLUMNS = 120  # of a log that no terminal reads


def main() -> None:
    """Wait for orders, and end the process: at once after an error, since a lost peer would hold up JAX's own exit."""
    line = sys.stdin.readline()
    if not line:
        return
    orders = Orders.loads(line)
    faulthandler.register(STACKS_SIGNAL, file=Path(orders.stacks).open("w", encoding="utf-8"), all_threads=True)
    threading.Thread(target=_end_with_the_agent, daemon=True, name="rope").start()
    try:
        code = run(load(Path(orders.job_file)), orders, Console(width=_COLUMNS), spent=_SPENT)
    except ShardwiseError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        code = error.exit_code
    except Exception:  # noqa: BLE001  whatever it is, its traceback goes to the log and the agent hears of it
        traceback.print_exc()
        code = ExitCode.FAILURE
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_with_the_agent() -> None:
    sys.stdin.read()
    os._exit(ExitCode.FAILURE)


if __name__ == "__main__":
    main()
