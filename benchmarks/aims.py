"""What the project set out to reach, beside what was measured. Called by `benchmarks.pages`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.checkpoint import SHARDWISE
from benchmarks.recovery import ALLOWED, SAID, TRAINER
from benchmarks.sizes import CASES, TINY

Results = Mapping[str, Any]
GIB = 2**30
MIB = 2**20
RESTORE_MEMORY_BYTES = 0.3 * GIB
SOAK_MEMORY_BYTES = 64 * MIB


@dataclass(frozen=True, kw_only=True)
class Aim:
    """One aim and its outcome, in words."""

    name: str
    wanted: str
    measured: str
    met: bool


def aims(results: Results) -> Iterator[Aim]:
    """The aims of the parts that were measured."""
    if "step" in results:
        yield from _step(results["step"])
    if "checkpoint" in results:
        yield from _checkpoint(results["checkpoint"])
    if "bucket" in results:
        yield from _bucket(results["bucket"])
    if "recovery" in results:
        yield from _recovery(results["recovery"])


def _step(part: Results) -> Iterator[Aim]:
    for case in CASES:
        measured = part["cases"].get(case.name)
        if case.size == TINY or measured is None:
            continue
        yield _at_least(f"speed of the limit, {case.name}", 0.97, measured["peers"][SHARDWISE]["ratio"])
        for peer in measured["against"]:
            yield _at_least(f"speed of {peer}, {case.name}", 1.25, measured["against"][peer])


def _checkpoint(part: Results) -> Iterator[Aim]:
    saver = part["savers"][SHARDWISE]
    ratio = saver["ratio"]
    yield _at_most("save blocks, times a host copy", 1.1, ratio["blocked_seconds"])
    yield _at_most("save durable, times a plain file with fsync", 1.2, ratio["durable_seconds"])
    yield _at_most("restore, times reading a plain file", 1.5, ratio["restore_seconds"])
    yield _at_most("restore on another mesh, the same", 1.5, ratio["other_mesh_seconds"])
    for name, key in (("restore", "restore_grown_bytes"), ("restore on another mesh", "other_mesh_grown_bytes")):
        above = saver[key]["median"] - saver["tree_bytes"]["median"]
        yield _bytes_at_most(f"{name}, resident memory above the tree", RESTORE_MEMORY_BYTES, above)
    soak = part["soak"]
    grown = soak["last_bytes"] - soak["early_bytes"]
    yield _bytes_at_most(f"resident memory after {soak['saves']} saves, above that after 5", SOAK_MEMORY_BYTES, grown)


def _bucket(part: Results) -> Iterator[Aim]:
    ratio = part["savers"][SHARDWISE]["ratio"]
    yield _at_most("save into a bucket, times a client's bytes alone", 1.3, ratio["durable_seconds"])
    yield _at_most("restore from a bucket, the same", 1.3, ratio["restore_seconds"])


def _recovery(part: Results) -> Iterator[Aim]:
    seconds, ratio = part["seconds"], part["ratio"]
    yield _at_most("kill -9 of a trainer to the next step, times what is unavoidable", 1.5, ratio[TRAINER])
    yield _at_most("the same, seconds", 3.0, seconds[TRAINER])
    yield _at_least("starting everything anew, times that", 3.0, part["gain"])
    hang = part["hang"]
    yield _at_most("a trainer stands still, said after seconds", hang[ALLOWED]["median"], hang[SAID])


def _at_least(name: str, aim: float, spread: Mapping[str, float]) -> Aim:
    return Aim(name=name, wanted=f">= {aim}", measured=_words(spread), met=spread["median"] >= aim)


def _at_most(name: str, aim: float, spread: Mapping[str, float]) -> Aim:
    return Aim(name=name, wanted=f"<= {aim:.3g}", measured=_words(spread), met=spread["median"] <= aim)


def _bytes_at_most(name: str, aim_bytes: float, num_bytes: float) -> Aim:
    return Aim(
        name=name,
        wanted=f"<= {aim_bytes / GIB:.2f} GiB",
        measured=f"{num_bytes / GIB:.2f} GiB",
        met=num_bytes <= aim_bytes,
    )


def _words(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['low']:.2f} - {spread['high']:.2f})"
