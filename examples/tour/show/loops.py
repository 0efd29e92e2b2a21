"""What a compiled program moves with its loops counted: a collective in a loop's body is sent in every round."""

import re
from collections import defaultdict
from typing import Any

from show.collectives import Collective, on_line

_BEGINS = re.compile(r"^(?P<entry>ENTRY )?%(?P<name>\S+) \(.*\{$")
_CALLED = re.compile(r"(?:body|to_apply|calls|true_computation|false_computation)=%([\w.\-]+)")
_ROUNDS = re.compile(r'known_trip_count":\{"n":"(\d+)"')

Computation = str
"""The name of one in HLO: the program itself, the body of a loop, a called function."""


def repeated(jitted: Any, *args: Any) -> list[tuple[int, Collective]]:
    """(how often, which) of each collective in one call of a jitted function, compiled for the `args`.

    A loop whose number of rounds XLA does not know counts once; a `scan` says its own.
    """
    inside: defaultdict[Computation, list[Collective]] = defaultdict(list)
    calls: defaultdict[Computation, list[tuple[Computation, int]]] = defaultdict(list)
    here = program = ""
    for line in jitted.lower(*args).compile().as_text().splitlines():
        if begins := _BEGINS.match(line):
            here = begins["name"]
            program = here if begins["entry"] else program
        if collective := on_line(line):
            inside[here].append(collective)
        rounds = _ROUNDS.search(line) if " while(" in line else None
        calls[here] += [(called, int(rounds[1]) if rounds else 1) for called in _CALLED.findall(line)]

    def walk(computation: Computation, times: int) -> list[tuple[int, Collective]]:
        found = [(times, collective) for collective in inside[computation]]
        return found + [one for called, rounds in calls[computation] for one in walk(called, times * rounds)]

    return walk(program, 1)
