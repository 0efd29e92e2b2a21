"""Which collectives of a compiled program could meet each other's partners: see docs/decisions/0043-channels.md."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import NamedTuple

_COLLECTIVE = re.compile(r"all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter")
_CALLED = re.compile(r"(?:body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
Keys = frozenset[tuple[str, ...]]
"""What partners find each other by: the kind, the channel, and the groups of devices."""


class _Instruction(NamedTuple):
    name: str
    kind: str
    operands: list[str]
    called: list[str]
    rest: str


def strangers(program: str) -> list[tuple[str, str]]:
    """Return pairs of instructions in whose collectives partners may be mistaken, of an optimized program as text.

    They are of one computation, at least one of them is a loop or a call, and neither needs data of the other. XLA's
    CPU runtime orders collectives of one computation, but of a kept program not those inside and outside of a loop.
    """
    computations = dict(_computations(program))

    @cache
    def keys_of(computation: str) -> Keys:
        return frozenset[tuple[str, ...]]().union(*map(keys, computations.get(computation, [])))

    def keys(one: _Instruction) -> Keys:
        if not _COLLECTIVE.fullmatch(one.kind):
            return frozenset[tuple[str, ...]]().union(*map(keys_of, one.called))
        channel = re.findall(r"channel_id=\d+", one.rest)
        groups = [] if one.kind == "collective-permute" else re.findall(r"replica_groups=\S+", one.rest)
        return frozenset({(one.kind, *channel, *groups)})

    found = []
    for instructions in computations.values():
        needs: dict[str, set[str]] = {}
        for one in instructions:  # in the order of their data
            needs[one.name] = set(one.operands).union(*(needs.get(name, set()) for name in one.operands))
        having = [one for one in instructions if keys(one)]
        for first, second in combinations(having, 2):
            in_order = first.name in needs[second.name] or second.name in needs[first.name]
            if (first.called or second.called) and not in_order and keys(first) & keys(second):
                found.append((first.name, second.name))
    return found


def _computations(program: str) -> Iterator[tuple[str, list[_Instruction]]]:
    for part in re.findall(r"^(?:ENTRY )?%?[\w.\-]+ .*?^\}", program, re.DOTALL | re.MULTILINE):
        head, *lines = part.splitlines()
        instructions = [one for line in lines if (one := _instruction(line)) is not None]
        yield head.removeprefix("ENTRY ").split()[0].lstrip("%"), instructions


def _instruction(line: str) -> _Instruction | None:
    """Parse `%name = type kind(operands), attributes`; a type has no word before a bracket."""
    if (found := re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = .*? ([a-z][\w\-]*)\((.*)$", line)) is None:
        return None
    name, kind, rest = found.groups()
    given, _, attributes = rest.partition(")")
    called = [] if _COLLECTIVE.fullmatch(kind) or kind in {"fusion", "reduce"} else _CALLED.findall(attributes)
    if branches := _BRANCHES.search(attributes):
        called += re.findall(r"[\w.\-]+", branches[1])
    return _Instruction(name, kind, re.findall(r"%([\w.\-]+)", given), called, attributes)
