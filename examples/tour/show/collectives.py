"""What a compiled program moves between devices: its collectives, read from its HLO, and the bytes they send."""

import math
import re
from dataclasses import dataclass
from typing import Any

from show.memory import compiled

_KINDS = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
_CALL = re.compile(rf"= (?P<shape>\(.*?\)|\S+) (?P<kind>{_KINDS})(?:-start)?\((?P<rest>.*)")
_ARRAY = re.compile(r"(?P<dtype>pred|bf16|[fsuc]\d+)\[(?P<dims>[\d,]*)\]")
_GROUPS = re.compile(r"replica_groups=(?:\{\{(?P<listed>[\d,]*)\}|\[\d+,(?P<size>\d+)\])")
_MESH = re.compile(r"replica_groups=mesh\[(?P<axes>[^\]]*)\][^{]*\{(?P<over>[^}]*)\}")
"""Groups named by axes of a mesh: `mesh['a'=4,'b'=2] {'a'}`; part of an axis is `'a':(1)2`, of size 2."""
_BYTES = {"pred": 1, "bf16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective of a compiled program."""

    kind: str
    """As XLA names it: all-reduce, all-gather, reduce-scatter, collective-permute, all-to-all."""
    shapes: str
    """Of its result on one device."""
    result_bytes: int
    group: int
    """How many devices take part together."""

    @property
    def sent_bytes(self) -> int:
        """The bytes that each device sends when the group is a ring, the least that is possible.

        A sum of B bytes is 2 (n-1)/n B: a reduce-scatter, then an all-gather, of (n-1)/n B each.
        """
        share = (self.group - 1) / self.group
        factor = {
            "all-reduce": 2 * share,
            "all-gather": share,
            "reduce-scatter": self.group * share,
            "collective-permute": 1.0,
            "all-to-all": share,
        }
        return round(factor[self.kind] * self.result_bytes)


def collectives(program: Any, *args: Any) -> list[Collective]:
    """The collectives of a jitted or compiled function, for the shapes and shardings of `args`.

    One inside a loop is listed once, however often the loop runs.
    """
    lines = compiled(program, *args).as_text().splitlines()
    return [collective for line in lines if (collective := on_line(line))]


def bytes_moved(program: Any, *args: Any) -> int:
    """The bytes that each device sends in one call of a jitted or compiled function."""
    return sum(collective.sent_bytes for collective in collectives(program, *args))


def on_line(line: str) -> Collective | None:
    """The collective of a line of HLO, None if it has none."""
    if (call := _CALL.search(line)) is None:
        return None
    arrays = list(_ARRAY.finditer(call["shape"]))
    return Collective(
        kind=call["kind"],
        shapes=" ".join(array[0] for array in arrays),
        result_bytes=sum(map(_num_bytes, arrays)),
        group=_group(call["rest"]),
    )


def _num_bytes(array: re.Match[str]) -> int:
    size = _BYTES.get(array["dtype"]) or int(re.sub(r"\D", "", array["dtype"])) // 8
    return size * math.prod(int(dim) for dim in array["dims"].split(",") if dim)


def _group(rest: str) -> int:
    """How many devices are in a group; a permute lists pairs."""
    if mesh := _MESH.search(rest):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh["axes"]))
        over = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", mesh["over"])
        return math.prod(int(part or sizes[axis]) for axis, part in over)
    if groups := _GROUPS.search(rest):
        return int(groups["size"]) if groups["size"] else len(groups["listed"].split(","))
    if "source_target_pairs" in rest:
        return 2
    raise ValueError(f"no groups found in {rest!r}; expected replica_groups={{{{...}}}}, [m,n] or mesh[...] {{...}}")
