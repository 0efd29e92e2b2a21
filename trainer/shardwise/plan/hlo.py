"""A compiled program's text as instructions, and how often each of them runs in one step.

XLA's own cost analysis counts the body of a loop once; here a body counts as often as its loop goes round. The text is
what `jax.stages.Compiled.as_text` gives for TPUs, GPUs and CPUs (https://openxla.org/xla/hlo).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from shardwise.job.rounding import num_parts

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(calls|to_apply|body|condition|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)")
_NAME = re.compile(r"[\w.\-]+")
_COMMENT = re.compile(r"/\*.*?\*/")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
# Instructions that compute nothing: they name values, or take tuples apart.
_IDLE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "partition-id", ""}
_HEAVY = {"while", "convolution", "dot"}
_BITS = {"pred": 8, "token": 0} | {
    f"{kind}{bits}": bits for kind in ("s", "u", "f", "bf", "c") for bits in (2, 4, 8, 16, 32, 64, 128)
}


@dataclass(frozen=True, kw_only=True)
class Array:
    """A shape of the program, without its layout."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Return the bytes of all elements; formats of 8 bits have names of their own, such as f8e4m3fn."""
        bits = _BITS.get(self.dtype, 8)
        for size in self.shape:
            bits *= size
        return bits // 8


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line: `name = type op(operands), attributes`."""

    name: str
    type: str
    op: str
    operands: str
    attributes: str

    @property
    def results(self) -> list[Array]:
        """Return the arrays of the result, those of nested tuples in a row."""
        return arrays(self.type)

    @property
    def operand_names(self) -> list[str]:
        """Return the names of its operands."""
        parts = _COMMENT.sub("", self.operands).split(", ")
        return [part.rpartition("%")[2].strip() for part in parts]

    def called(self) -> Iterator[tuple[str, str]]:
        """Yield how it calls (`body`, `calls`, ...) and the name of each computation that it calls."""
        for how, names in _CALLED.findall(self.attributes):
            for name in _NAME.findall(names):
                yield how, name


@dataclass(frozen=True, kw_only=True)
class Executed:
    """An instruction as it runs in one step."""

    instruction: Instruction
    times: int
    """How often; 0 inside of a loop of which the program does not say how often it runs."""
    computation: str
    """The name of the computation that it is part of."""
    callers: "tuple[Executed, ...]"
    """The instructions that it runs inside of, outermost first."""


@dataclass
class Module:
    """A program: its computations by name, and the one that begins."""

    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    entry: str = ""

    def executed(self) -> Iterator[Executed]:
        """Yield every instruction that runs, in the order of the text; conditions of loops are left out."""
        yield from self._walk(self.entry, 1, ())

    def overlaps(self, start: Executed) -> bool:
        """Return whether anything is computed between an instruction that starts something and its end."""
        line = self.computations[start.computation]
        after = line[line.index(start.instruction) + 1 :]
        for one in after:
            if start.instruction.name in one.operand_names:
                return False
            if one.op not in _IDLE:
                return True
        return False

    def is_heavy(self, instruction: Instruction) -> bool:
        """Return whether it is a product or a loop, or has one inside of it."""
        if instruction.op in _HEAVY:
            return True
        inside = (one for _, name in instruction.called() for one in self.computations.get(name, []))
        return instruction.op in ("fusion", "call") and any(self.is_heavy(one) for one in inside)

    def _walk(self, name: str, times: int, callers: tuple[Executed, ...]) -> Iterator[Executed]:
        for instruction in self.computations.get(name, []):
            one = Executed(instruction=instruction, times=times, computation=name, callers=callers)
            yield one
            for how, called in instruction.called():
                if how == "condition" or called not in self.computations:
                    continue
                # A body runs in each round of its loop; what is called in any other way runs with its caller.
                trips = self._trips(instruction) if how == "body" else 1
                yield from self._walk(called, times * trips, (*callers, one))

    def _trips(self, loop: Instruction) -> int:
        """Return how often a loop goes round: XLA's own count, else (bound - 0) / step from condition and body.

        Return 0 if that depends on data.
        """
        if known := _TRIPS.search(loop.attributes):
            return int(known[1])
        parts = dict(loop.called())
        condition, body = self.computations[parts["condition"]], self.computations[parts["body"]]
        whole = (one for one in (*condition, *body) if one.op == "constant" and one.operands.isdigit())
        constants = {one.name: int(one.operands) for one in whole}
        places = {one.name: _index(one) for one in condition if one.op == "get-tuple-element"}
        # The loops of a step count up to a constant; among what the condition computes is `counter < bound`.
        for compared in condition:
            counter, bound = (*compared.operand_names, "", "")[:2]
            if compared.op != "compare" or "direction=LT" not in compared.attributes:
                continue
            if counter in places and bound in constants:
                return num_parts(constants[bound], self._step(body, places[counter], constants))
        return 0

    def _step(self, body: list[Instruction], place: int, constants: dict[str, int]) -> int:
        """Return by how much the counter, that item of the body's result, grows in one round."""
        grown = body[-1].operand_names[place]
        for one in body:
            if one.name == grown and one.op == "add":
                return next((constants[name] for name in one.operand_names if name in constants), 1)
        return 1


def parse(text: str) -> Module:
    """Return the program of a text."""
    module, current = Module(), None
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = module.computations.setdefault(head[2], [])
            if head[1]:
                module.entry = head[2]
        elif current is not None and (found := _INSTRUCTION.match(line)):
            current.append(_instruction(found[1], found[2]))
    return module


def arrays(type_text: str) -> list[Array]:
    """Return the arrays of a type such as `(f32[8,2]{1,0}, bf16[4])`, without their layouts."""
    return [
        Array(dtype=dtype, shape=tuple(int(size) for size in sizes.split(",") if size))
        for dtype, sizes in _ARRAY.findall(type_text)
        if dtype in _BITS or dtype.startswith("f8")
    ]


def members(type_text: str) -> list[str]:
    """Return the outer members of a tuple's type: `(a, (b, c))` has `a` and `(b, c)`; another type has itself."""
    text = type_text.strip()
    if not text.startswith("("):
        return [text]
    found, depth, start = [], 0, 1
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if (letter == "," and depth == 1) or depth == 0:
            found.append(_COMMENT.sub("", text[start:at]).strip())
            start = at + 1
        if depth == 0:
            break
    return found


def _instruction(name: str, rest: str) -> Instruction:
    """Read what follows `name = `; a type may be a tuple, and layouts hold brackets of their own."""
    type_end = _close(rest, 0, " ")
    type_text, tail = rest[:type_end], rest[type_end + 1 :]
    op, bracket, _ = tail.partition("(")
    if not bracket or not re.fullmatch(r"[\w\-]+", op):
        return Instruction(name=name, type=type_text, op="", operands="", attributes=tail)
    end = _close(tail, len(op) + 1, ")")
    operands, attributes = tail[len(op) + 1 : end], tail[end + 1 :]
    return Instruction(name=name, type=type_text, op=op, operands=operands, attributes=attributes)


def _close(text: str, start: int, mark: str) -> int:
    """Return the first place of `mark` from `start` on that is outside of brackets opened after `start`."""
    depth = 0
    for at in range(start, len(text)):
        letter = text[at]
        if depth == 0 and letter == mark:
            return at
        depth += (letter in "([{") - (letter in ")]}")
    return len(text)


def _index(instruction: Instruction) -> int:
    found = re.search(r"index=(\d+)", instruction.attributes)
    assert found, instruction
    return int(found[1])
