"""The tables on gangs of many hosts, from the figures of `stage.py`. It measures nothing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import notes
from benchmarks.pages import Table

JUDGE_SECONDS, POLLED_SECONDS, MEMBERSHIP_SECONDS = 0.020, 5.0, 60.0
_GANGS = """
`make bench-gang` (`benchmarks/gang/`) measures it: the leader is the real agent of host 0 on one core, with its server,
its watchdog and its status. All other hosts are played by one process on another core: each polls over HTTP as a
follower does, with a connection and a signature for each poll, and answers for an agent whose trainer takes a step a
second, all at the same moment. Ray is a wire between the two, over which the leader asks as it asks Ray's driver.
Membership: from the moment at which the last host is there until every trainer has its orders. Judged: the watchdog's
word on all ranks; a look: all that the leader does when it looks at its trainers, that included. Polled: the longest
time that any one host waited for its next answer in 20 s of steps. Memory and threads are the leader's.
"""
_RAY = """
Ray 2.60 on as many hosts as this machine has room for, all started at once on its two cores; each host has a raylet and
one worker, and host 0 the head and the driver beside them. Memory: the processes' own pages, and their share of those
that they have in common (PSS), which hosts that are machines of their own do not share.
"""


def tables(results: Mapping[str, Any]) -> list[Table]:
    """The tables; `results` as `__main__.py` keeps them."""
    machine = _machine(results["machine"])
    return [_gangs(results["gangs"], machine), _ray(results["ray"], machine)]


def _gangs(gangs: Sequence[Mapping[str, float]], machine: str) -> Table:
    lines = (
        ("membership complete, s", "<= 60", "membership_seconds", 1.0, ".1f"),
        ("ranks judged, ms", "<= 20", "judge_seconds", 1e3, ".1f"),
        ("the same, the longest, ms", "", "judge_most_seconds", 1e3, ".1f"),
        ("a look at all trainers, ms", "", "look_seconds", 1e3, ".1f"),
        ("a status made, ms", "", "board_seconds", 1e3, ".1f"),
        ("all hosts polled, s", "<= 5", "polled_seconds", 1.0, ".1f"),
        ("polls a second", "", "polls_per_second", 1.0, ".0f"),
        ("leader's cores", "<= 1", "cores", 1.0, ".2f"),
        ("the crowd's cores", "", "crowd_cores", 1.0, ".2f"),
        ("status, KiB", "", "status_bytes", 2**-10, ".0f"),
        ("leader's memory, MiB", "", "resident_bytes", 2**-20, ".0f"),
        ("leader's threads", "", "threads", 1.0, ".0f"),
        ("said to stall, times", "0", "stalls", 1.0, ".0f"),
    )
    rows = [[name, aim, *(format(gang[key] * scale, form) for gang in gangs)] for name, aim, key, scale, form in lines]
    return Table(
        title="Big gangs: what the leader has to do",
        columns=["", "aim at 1,024", *(f"{gang['hosts']:,.0f} hosts" for gang in gangs)],
        rows=rows,
        notes=[notes.paragraph(_GANGS), machine],
    )


def _ray(runs: Sequence[Mapping[str, float]], machine: str) -> Table:
    return Table(
        title="Big gangs: Ray",
        columns=["hosts", "head ready s", "all joined s", "head MiB", "a host MiB"],
        rows=[list(_row(run)) for run in runs],
        notes=[notes.paragraph(_RAY), machine],
    )


def _row(run: Mapping[str, float]) -> Iterator[str]:
    yield f"{run['hosts']:.0f}"
    yield from (f"{run[key]:.1f}" for key in ("head_seconds", "joined_seconds"))
    yield from (f"{run[key] / 2**20:.0f}" for key in ("head_bytes", "host_bytes"))


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"1 round on {machine['date']}: {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gib']:.0f} GiB, load at the start {machine['load']:.1f}; Python {machine['python']}."
    )
