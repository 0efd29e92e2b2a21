"""What completions are worth: by a pattern that finds an answer in each, or by a program of the author's.

A program is started once by each host, without a shell, and with the trainer's environment. It gets a line of JSON for
each completion, the prompt's own line with the key `completion` beside, and answers each in turn with a number on a
line of its own. What it writes to standard error is in the trainer's log. Its standard input is closed at the end of
the run. With a trainer that dies it is killed.
"""

import json
import math
import os
import re
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol

from shardwise.job.spec.reinforcement import Reward
from shardwise.protocol.errors import DataError, RewardError
from shardwise.protocol.parent import start_ending_with_this

COMPLETION = "completion"
_SHOWN_CHARS = 60
_LOOK_SECONDS = 1.0
_END_SECONDS = 5.0
_READ_BYTES = 1 << 16

Line = Mapping[str, Any]


class Rewards(Protocol):
    """What says how good completions are."""

    def ask(self, line: Line) -> None:
        """Ask about a completion, a prompt's line that has it beside; wait for nothing, and raise nothing."""

    def answers(self, beat: Callable[[], None]) -> list[float]:
        """Return the reward of each that was asked about since the last answers; call `beat` while it takes long.

        Raises:
            DataError: an answer is no number, or a line lacks what an answer is compared with.
            RewardError: the program is gone, or does not answer in time.

        """

    def close(self) -> None:
        """End what was started."""


def rewards_of(reward: Reward) -> Rewards:
    """Return what a job names. Raise DataError if its program cannot be started."""
    return Program(reward) if reward.pattern is None else Answer(re.compile(reward.pattern), reward.field)


class Answer:
    """1 for a completion whose answer is the one in its line's field, 0 for any other.

    Its answer is what the pattern's last match has in the first group. Both are compared as texts, without the space
    around them.
    """

    def __init__(self, pattern: re.Pattern[str], field: str) -> None:
        """Nothing is asked yet."""
        self._pattern, self._field = pattern, field
        self._asked: list[Line] = []

    def ask(self, line: Line) -> None:
        """Keep it."""
        self._asked.append(line)

    def answers(self, beat: Callable[[], None]) -> list[float]:
        """Return the reward of each."""
        beat()
        lines, self._asked = self._asked, []
        return [float(self._is_right(line)) for line in lines]

    def close(self) -> None:
        """Nothing was started."""

    def _is_right(self, line: Line) -> bool:
        right = line.get(self._field)
        if isinstance(right, bool) or not isinstance(right, (str, int, float)):
            raise DataError(
                f"reward.field: a prompt's line has {_shown(json.dumps(right))} in {self._field!r}; expected the right "
                f"answer, a text or a number (its fields: {', '.join(sorted(line))})"
            )
        found = [match[1] for match in self._pattern.finditer(line[COMPLETION]) if match[1] is not None]
        return bool(found) and found[-1].strip() == str(right).strip()


class Program:
    """A program that is asked. A thread writes, so that neither side waits for the other's pipe."""

    def __init__(self, reward: Reward) -> None:
        """Start it. To be called by the main thread."""
        self._command, self._seconds = reward.command, reward.within.seconds
        try:
            self._process = start_ending_with_this(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            raise DataError(
                f"reward.command: {self._command[0]!r} cannot be started: {error.strerror or error}. Expected a "
                "program that each host has"
            ) from error
        self._num_asked, self._unasked = 0, b""
        self._coming: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._write, daemon=True).start()

    def ask(self, line: Line) -> None:
        """Have the line written."""
        if not self._num_asked:
            self._unasked = self._said()
        self._num_asked += 1
        self._coming.put(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def answers(self, beat: Callable[[], None]) -> list[float]:
        """Return the reward of each, in the order in which they were asked about."""
        count, self._num_asked = self._num_asked, 0
        if self._unasked:  # each answer would be taken for another's
            raise DataError(
                f"{self._name} has said {_shown(self._unasked)} unasked; expected a line for each that it is given"
            )
        return [self._number(answer, number) for number, answer in enumerate(self._answers(count, beat))]

    def close(self) -> None:
        """Close its input, and kill it if it does not end by that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._coming.put(b"")
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _said(self) -> bytes:
        """Return what it has said and nobody has read."""
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        return os.read(handle, _READ_BYTES) if select.select([handle], [], [], 0)[0] else b""

    def _write(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, or was ended: whoever reads its answers finds it out
            while line := self._coming.get():
                rest = memoryview(line)
                while rest:
                    rest = rest[self._process.stdin.write(rest) or 0 :]

    def _answers(self, count: int, beat: Callable[[], None]) -> list[bytes]:
        """Return its next lines, so many."""
        assert self._process.stdout is not None
        until, content, handle = time.monotonic() + self._seconds, b"", self._process.stdout.fileno()
        while (num_given := content.count(b"\n")) < count:
            beat()
            left, given = until - time.monotonic(), f"{num_given} of {count} answers"
            if left <= 0:
                raise RewardError(
                    f"{self._name} has given {given} within {self._seconds:g} s; expected all of them. Set "
                    "reward.within higher, have it flush each line, or make it quicker"
                )
            if not select.select([handle], [], [], min(left, _LOOK_SECONDS))[0]:
                continue
            if not (block := os.read(handle, _READ_BYTES)):
                raise RewardError(
                    f"{self._name} has ended ({_how(self._process)}) after {given}; expected a program that answers "
                    "lines until its input is closed. What it wrote to standard error is in this log"
                )
            content += block
        *answers, more = content.split(b"\n")
        if len(answers) > count or more:
            raise DataError(f"{self._name} has answered {count} lines with more: {_shown((*answers, more)[count])}")
        return answers

    def _number(self, answer: bytes, number: int) -> float:
        """Return the number of a line."""
        try:
            value = json.loads(answer)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise DataError(
                f"{self._name} has answered line {number + 1} with {_shown(answer)}; expected a number such as 0.5"
            )
        return float(value)

    @property
    def _name(self) -> str:
        return f"reward.command: {' '.join(self._command)!r}"


def _how(process: subprocess.Popen[bytes]) -> str:
    """Return how a program that has closed its output ended."""
    try:
        code = process.wait(_LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return "it closed its output"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _shown(given: bytes | str) -> str:
    text = given.decode("utf-8", errors="replace") if isinstance(given, bytes) else given
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")
