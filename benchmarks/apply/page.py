"""The table on the way to the first step, from the figures of `__main__.py`. It measures nothing."""

from collections.abc import Mapping
from typing import Any

from benchmarks import notes
from benchmarks.apply import paths
from benchmarks.apply.stage import EXAMPLE
from benchmarks.pages import Table

_METHOD = """
`make bench-apply` (`benchmarks/apply/`) measures it: seconds from `kubectl apply` of cpu-two-hosts, of
examples/kubernetes, to its first step on the three nodes of the bare test cluster, and beside it `shardwise run` of
the same file; two hosts either way. Each phase is counted to its end on the last host. Pods, their places and their
containers: by a watch of the API server; agents and Ray: by the launcher's events; from the interpreter on: rank 0's
own account. Trainers import while Ray opens and compile while data are read, so phases overlap; `other` is the total
less the phases, and may be less than nothing. The images are on the nodes. Resumed: a suspend has taken the pods away,
and the new ones find the compiled programs of the old on the job's volume. Warm: a new directory with the cache of the
run before.
"""
_STATUS = """
The last row is how long after the first step `kubectl get tj` had one: the operator asks a run every two seconds
(`pollSeconds`).
"""


def table(results: Mapping[str, Any]) -> Table:
    """The table; `results` as `__main__.py` keeps them."""
    ways: Mapping[str, Mapping[str, Mapping[str, float]]] = results["ways"]
    rows = [[phase, *(_seconds(figures.get(phase)) for figures in ways.values())] for phase in _order()]
    return Table(
        title=f"Apply to first step: {EXAMPLE}",
        columns=["", *ways],
        rows=rows,
        notes=[notes.paragraph(_METHOD), notes.paragraph(_STATUS), _measured(results)],
    )


def _order() -> tuple[str, ...]:
    before = (paths.MADE, paths.SCHEDULED, paths.STARTED, paths.AGENTS, paths.RAY)
    return *before, *paths.OF_TRAINERS, paths.STEP, paths.OTHER, paths.TOTAL, paths.TOLD


def _seconds(spread: Mapping[str, float] | None) -> str:
    return "" if spread is None else f"{spread['median']:.2f}"


def _measured(results: Mapping[str, Any]) -> str:
    machine, rounds = results["machine"], results["rounds"]
    counted = "1 round" if rounds == 1 else f"{rounds} rounds"
    return (
        f"{counted} on {machine['date']}: {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gib']:.0f} GiB, load at the start {machine['load']:.1f}; Python {machine['python']}, "
        f"JAX {machine['jax']}."
    )
