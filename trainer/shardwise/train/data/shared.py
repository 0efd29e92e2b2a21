"""Make token stores by all hosts of a run at once, each of which takes the next task that nobody has.

The hosts agree through counters of the run's coordinator, so no file is claimed: what a host that is killed had begun
is done by the next attempt, whose counters begin anew. It knows no tokens.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

from shardwise.protocol.eta import megabytes

Result = TypeVar("Result")

_TASKS_AT_ONCE = 2  # one reads while the threads of the tokenizer have another's text
_LOOKS_AT_ONCE = 16


class Hosts(Protocol):
    """The processes of a run."""

    def add(self, name: str, amount: int) -> int:
        """Add to a counter that all processes share, and return what it is then; it begins at 0."""

    def exchange(self, name: str, text: str) -> list[str]:
        """Return the texts of all processes, when all have called it."""


class SharedRun:
    """What runs tasks (`store_builder.Run`) on all hosts, each of which calls it with the same tasks.

    A host may leave out tasks whose results are there. It gets all results, those of other hosts' tasks last.
    """

    def __init__(self, hosts: Hosts) -> None:
        self._hosts, self._calls = hosts, 0

    def __call__(self, act: Callable[[Any], Result], tasks: Sequence[Any], /) -> Iterator[Result]:
        """Yield what `act` returns; `act` again where another host has done the task, and so left its result."""
        self._calls += 1
        left = {task.number: task for task in tasks}
        pool = ThreadPoolExecutor(_TASKS_AT_ONCE, thread_name_prefix="tokens")
        try:
            running = {pool.submit(act, task) for task in self._mine(left, _TASKS_AT_ONCE)}
            while running:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {pool.submit(act, task) for task in self._mine(left, len(ended))}
                yield from (each.result() for each in ended)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # an error does not wait for the others
        self._hosts.exchange("tasks", "")
        with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="tokens") as looking:
            yield from looking.map(act, left.values())

    def _mine(self, left: dict[int, Any], most: int) -> list[Any]:
        """Take at most so many tasks out of `left` that no other host has taken."""
        mine: list[Any] = []
        while len(mine) < most:
            number = self._hosts.add(f"tasks/{self._calls}", 1) - 1
            if number > max(left, default=-1):
                break
            if number in left:
                mine.append(left.pop(number))
        return mine


class SharedProgress:
    """How far all hosts are, as one line for people."""

    def __init__(self, hosts: Hosts, say: Callable[[str], None], report: Callable[[str], None]) -> None:
        """`say` gets each line, `report` the first and the last of each thing that is done."""
        self._hosts, self._say, self._report = hosts, say, report
        self._doing, self._began, self._own_bytes, self._of_all = "", 0.0, 0, 0

    def __call__(self, doing: str, before_bytes: int, done_bytes: int, of_bytes: int) -> None:
        """Tell how far it is: `before_bytes` were done by an earlier attempt, `done_bytes` by it and this host."""
        is_first = doing != self._doing
        if is_first:
            self._doing, self._began, self._own_bytes, self._of_all = doing, time.monotonic(), before_bytes, 0
        # A host's own tasks come first; when it gets to those of others, they have been counted.
        if is_first or before_bytes + self._of_all < of_bytes:
            self._of_all = self._hosts.add(f"bytes/{doing}", done_bytes - self._own_bytes)
        self._own_bytes = done_bytes
        now_bytes = min(of_bytes, before_bytes + self._of_all)
        seconds = time.monotonic() - self._began
        a_second = self._of_all / seconds if seconds > 0 and now_bytes < of_bytes else None
        line = f"{doing}: {megabytes(now_bytes, of_bytes, a_second)}"
        self._say(line)
        if is_first or done_bytes == of_bytes:
            self._report(line)
