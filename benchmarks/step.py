"""The train step: tokens a second, memory, and the share of the machine's peak, for every peer on every case.

Called by `benchmarks.main`. The limit runs twice: the second one's ratio to the first is the noise of this machine.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from benchmarks.machine import Pythons
from benchmarks.sizes import Case
from benchmarks.turns import Spread, Worker, ratios, take_turns

from shardwise.job.environment import HUGE_PAGES

LIMIT, AGAIN, SHARDWISE = "limit", "limit again", "Shardwise"
LEVANTER, TUNED = "Levanter", "Levanter, blocks of 2048"
PEAK = "matrix product"
TUNABLES = {"GLIBC_TUNABLES": HUGE_PAGES}
"""As a run gives them to its trainers; the C library reads them once, when the process begins."""
Report = Callable[[str], None]


def measure(cases: Sequence[Case], pythons: Pythons, *, rounds: int, deadline: float, report: Report) -> dict[str, Any]:
    """{case: {"rounds", "peers": {peer: figures}, ...}}; the cases share the time until `deadline` (monotonic)."""
    results = {}
    for number, case in enumerate(cases):
        now = time.monotonic()
        report(f"step: {case.name}")
        results[case.name] = _measure(
            case, pythons, rounds=rounds, deadline=now + (deadline - now) / (len(cases) - number)
        )
    return results


def _measure(case: Case, pythons: Pythons, *, rounds: int, deadline: float) -> dict[str, Any]:
    argument = case.dumps()
    commands = {
        LIMIT: (pythons.own, "limit_step", argument),
        SHARDWISE: (pythons.own, "shardwise_step", argument),
        LEVANTER: (pythons.peers, "levanter_step", argument),
        TUNED: (pythons.peers, "levanter_step", argument, "2048"),
        AGAIN: (pythons.own, "limit_step", argument),
        PEAK: (pythons.own, "gemm"),
    }
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(*command, environment=TUNABLES if name == SHARDWISE else None))
            for name, command in commands.items()
        }
        results = take_turns(workers, rounds=rounds, deadline=deadline)
    flops = workers[SHARDWISE].facts["flops_per_token"]
    to_limit, to_peak = ratios(results, LIMIT), ratios(results, PEAK)
    peers = {
        name: {
            "tokens_per_second": asdict(Spread.of([rates[name] for rates in results])),
            "ratio": asdict(to_limit[name]),
            "mfu": flops * to_peak[name].median,
            **worker.facts,
        }
        for name, worker in workers.items()
        if name != PEAK
    }
    against = {name: asdict(ratios(results, name)[SHARDWISE]) for name in (LEVANTER, TUNED)}
    peak = asdict(Spread.of([rates[PEAK] for rates in results]))
    return {"rounds": len(results), "peers": peers, "against": against, "peak_flops": peak}
