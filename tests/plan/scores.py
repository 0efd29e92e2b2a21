"""In which formats scores go from their product to the softmax: read off a compiled program, or off a Pallas kernel.

Called by `compiler.py`. An exponential is a softmax's where a product lies upstream with nothing but elementwise
work between; those of attention and of the loss are all of them.
"""

from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from shardwise.plan.hlo import Instruction, Module

_PRODUCTS = ("dot", "convolution")
_FLOATS = ("f", "bf")
Place = tuple[str, str]
"""A computation and the name of an instruction in it."""


def of_program(module: Module) -> list[list[str]]:
    """For each softmax of a compiled program the formats of what lies between its product and its exponential."""
    upstream = _Upstream(module)
    found = []
    for computation, lines in module.computations.items():
        for one in lines:
            if one.op == "exponential":
                formats, from_product = upstream.of((computation, one.name))
                if from_product:
                    found.append(sorted(formats))
    return found


def _format(variable: Any) -> str:
    """Of a variable or literal of a jaxpr, whose abstract value is an array's."""
    return str(variable.aval.dtype.name)


def of_pallas(jaxpr: Jaxpr) -> list[list[str]]:
    """For each Pallas kernel with a softmax the formats of its products' results and of what it takes powers of."""
    found = []
    for call in _equations(jaxpr):
        if call.primitive.name != "pallas_call":
            continue
        inside = [one for inner in _inner(call) for one in _equations(inner)]
        powers = [_format(one.invars[0]) for one in inside if one.primitive.name == "exp"]
        products = [_format(one.outvars[0]) for one in inside if one.primitive.name == "dot_general"]
        if powers:
            found.append(sorted({*powers, *products}))
    return found


class _Upstream:
    """Walks a program against its stream, into fusions and out of them."""

    def __init__(self, module: Module) -> None:
        self._lines = {name: {one.name: one for one in lines} for name, lines in module.computations.items()}
        self._last = {name: lines[-1].name for name, lines in module.computations.items() if lines}
        self._fused = {
            called: (computation, one)
            for computation, lines in module.computations.items()
            for one in lines
            if one.op == "fusion"
            for _, called in one.called()
        }

    def of(self, start: Place) -> tuple[set[str], bool]:
        """The float formats between an instruction and the products before it, and whether there is one."""
        formats: set[str] = set()
        from_product, seen, left = False, {start}, [start]
        while left:
            place = left.pop()
            one = self._lines[place[0]].get(place[1])
            if one is None:
                continue
            if one.op not in ("parameter", "get-tuple-element", "fusion"):
                formats |= {array.dtype for array in one.results if array.dtype.startswith(_FLOATS)}
                if _is_product(one):
                    from_product = True
                    continue
            before = [after for after in self._before(place[0], one) if after not in seen]
            seen.update(before)
            left += before
        return formats, from_product

    def _before(self, computation: str, one: Instruction) -> Iterator[Place]:
        if one.op == "parameter":  # of a loop or of the program it is where the walk ends
            if computation in self._fused:
                caller, fusion = self._fused[computation]
                yield caller, fusion.operand_names[int(one.operands)]
        elif one.op == "fusion":
            called = next(name for _, name in one.called())
            yield called, self._last[called]
        elif one.op == "get-tuple-element":
            source = self._lines[computation].get(one.operand_names[0])
            if source is not None and source.op == "fusion":
                called = next(name for _, name in source.called())
                made = self._lines[called][self._last[called]]
                yield called, made.operand_names[_index(one)]
            elif source is not None and _is_product(source):
                yield computation, source.name
        elif one.op != "while":
            yield from ((computation, name) for name in one.operand_names)


def _is_product(one: Instruction) -> bool:
    library = one.op == "custom-call" and ("gemm" in one.attributes or "matmul" in one.attributes)
    return one.op in _PRODUCTS or library


def _index(one: Instruction) -> int:
    return int(one.attributes.partition("index=")[2].split(",")[0])


def _equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Every equation, those of inner jaxprs too, but for what runs inside of Pallas kernels."""
    for one in jaxpr.eqns:
        yield one
        if one.primitive.name != "pallas_call":
            for inner in _inner(one):
                yield from _equations(inner)


def _inner(equation: JaxprEqn) -> Iterator[Jaxpr]:
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item
