"""A worker's side of the turns (see `benchmarks.turns`): how it starts its clock, times steps, and reports memory.

Imports nothing but the standard library, so that it works in every peer's environment.
"""

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


class Stopwatch:
    """Seconds from the command to here, by phase; `begun` is wall-clock time since the parent spawned this process."""

    def __init__(self) -> None:
        """Everything until now was the interpreter's."""
        self.seconds = {"interpreter": time.time() - float(os.environ.get("STARTED_AT", time.time()))}
        self._at = time.perf_counter()

    def lap(self, phase: str) -> None:
        """The phase that ends here."""
        now = time.perf_counter()
        self.seconds[phase], self._at = now - self._at, now


def simulate(num_devices: int) -> None:
    """Make JAX see so many CPU devices; call it before importing JAX."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["NPROC"] = str(4 * num_devices)  # as shardwise.job.environment sets it, and why
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={num_devices}"


def compiled_memory(compiled: Any) -> dict[str, float]:
    """Bytes on one device, as the compiler counts them; the peak only where the platform gives one that holds both."""
    analysis = compiled.memory_analysis()
    return {"argument_bytes": analysis.argument_size_in_bytes, "temporary_bytes": analysis.temp_size_in_bytes}


def peak_resident_bytes() -> int:
    """The most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(turn: Callable[[], float], facts: Mapping[str, Any]) -> None:
    """Warm up, say ready with the facts, then answer every line of standard input with the rate of one turn."""
    turn()
    say({**facts, "peak_resident_bytes": peak_resident_bytes()})
    for _ in sys.stdin:
        say({"rate": turn()})


def rate_of(step: Callable[[], object], *, steps: int, work: float) -> float:
    """Work a second, by the median of so many calls of `step`, which blocks and does `work`."""
    return work / statistics.median(_seconds(step) for _ in range(steps))


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def say(answer: Mapping[str, Any]) -> None:
    """One answer to the parent."""
    print(json.dumps(answer), flush=True)
