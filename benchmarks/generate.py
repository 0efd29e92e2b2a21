"""Generation: tokens a second on one device beside a loop by hand, for one sequence and for many at once.

It is measured as `shardwise generate` makes them, and as requests to `shardwise serve`.

Called by `benchmarks.main`.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from benchmarks.machine import Pythons
from benchmarks.sizes import SMALL, TINY, Case
from benchmarks.turns import Spread, Worker, ratios, take_turns

LIMIT, SHARDWISE, SERVED = "limit", "Shardwise", "Shardwise, served"
BATCHES = (1, 16)
CASES = tuple(Case(size=size, data=1, tensor=1) for size in (SMALL, TINY))
Report = Callable[[str], None]


def measure(pythons: Pythons, *, rounds: int, deadline: float, report: Report) -> dict[str, Any]:
    """{"rounds", "cases": {case: {batch: {peer: {"tokens_per_second", "ratio"}}}}}; they share the time."""
    cases: dict[str, Any] = {}
    left, counts = len(CASES) * len(BATCHES), []
    for case in CASES:
        for batch in BATCHES:
            now = time.monotonic()
            report(f"generate: {case.name}, batch {batch}")
            peers, count = _measure(case, batch, pythons, rounds=rounds, deadline=now + (deadline - now) / left)
            cases.setdefault(case.name, {})[str(batch)] = peers
            counts.append(count)
            left -= 1
    return {"rounds": min(counts), "cases": cases}


def _measure(case: Case, batch: int, pythons: Pythons, *, rounds: int, deadline: float) -> tuple[dict[str, Any], int]:
    modules = {LIMIT: "limit_generate", SHARDWISE: "shardwise_generate", SERVED: "shardwise_served"}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(pythons.own, module, case.dumps(), str(batch)))
            for name, module in modules.items()
        }
        results = take_turns(workers, rounds=rounds, deadline=deadline)
    to_limit = ratios(results, LIMIT)
    peers = {
        name: {
            "tokens_per_second": asdict(Spread.of([rates[name] for rates in results])),
            "ratio": asdict(to_limit[name]),
        }
        for name in workers
    }
    return peers, len(results)
