"""Workers that take turns: several trainers, each in its own process and environment, measured seconds apart.

A worker (`benchmarks.workers.*`) prepares itself, says that it is ready, then works once for every line on its standard
input and answers with a rate. Noise that lasts longer than a turn falls on all of them alike, so what is quoted is the
ratio to the reference within a round: median and quartiles over the rounds. Called by the parts of the benchmark.
"""

import json
import os
import random
import select
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
READY_WITHIN_SECONDS = 300
TURN_WITHIN_SECONDS = 300


class WorkerError(Exception):
    """A worker ended early or said nothing for too long; the message has the end of what it wrote."""


class Worker:
    """A child process that measures one thing; `facts` is what it said when it was ready."""

    def __init__(self, python: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Start it and wait until it is ready, so that no two workers compile at the same time."""
        self._name = f"{module} {' '.join(arguments)}"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._process = subprocess.Popen(
            [python, "-m", f"benchmarks.workers.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env={**os.environ, **(environment or {}), "STARTED_AT": str(time.time())},
        )
        try:
            self.facts = self._answer(READY_WITHIN_SECONDS)
        except BaseException:
            self.close()
            raise

    def turn(self) -> dict[str, Any]:
        """Work once; what the worker answered."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()
        return self._answer(TURN_WITHIN_SECONDS)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, within_seconds: float) -> dict[str, Any]:
        """The next line that is a JSON object; libraries print, too."""
        deadline = time.monotonic() + within_seconds
        assert self._process.stdout is not None
        while select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            line = self._process.stdout.readline()
            if not line:
                raise WorkerError(f"{self._name} ended early (exit code {self._process.wait()}):\n{self._said()}")
            if line.startswith(b"{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise WorkerError(f"{self._name} said nothing for {within_seconds} s:\n{self._said()}")

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The spread of at least one value."""
        if len(values) == 1:
            return cls(median=values[0], low=values[0], high=values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median=median, low=low, high=high)


def take_turns(workers: Mapping[str, Worker], *, rounds: int, deadline: float) -> list[dict[str, float]]:
    """The rate of every worker in every round, in shuffled order.

    A round begins only if it would end before `deadline` (monotonic seconds), but two always run.
    """
    results: list[dict[str, float]] = []
    longest = 0.0
    while len(results) < rounds and (len(results) < 2 or time.monotonic() + longest < deadline):
        began = time.monotonic()
        order = list(workers)
        random.Random(len(results)).shuffle(order)  # noqa: S311  repeatable, not secret
        rates = {name: workers[name].turn()["rate"] for name in order}
        results.append(rates)
        longest = max(longest, time.monotonic() - began)
    return results


def ratios(results: Sequence[Mapping[str, float]], reference: str) -> dict[str, Spread]:
    """Each worker's rate over the reference's of the same round."""
    return {name: Spread.of([rates[name] / rates[reference] for rates in results]) for name in results[0]}
