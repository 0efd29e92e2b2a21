"""Sizes of every value in a compiled program, read off its HLO text: what proves that nothing large is ever made."""

import math
import re

from jax.stages import Compiled

_BYTES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "bf16": 2,
    "f16": 2,
    "s16": 2,
    "u16": 2,
    "f32": 4,
    "s32": 4,
    "u32": 4,
    "s64": 8,
    "u64": 8,
    "f64": 8,
}
_RESULT = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*?) [\w\-]+\(")
_SHAPE = re.compile(r"\b(\w+)\[([\d,]*)\]")


def largest_buffer_bytes(compiled: Compiled) -> int:
    """The bytes of the largest array that any instruction of one device's program makes; tuples count by part."""
    sizes = [
        _BYTES[dtype] * math.prod(int(extent) for extent in dims.split(",") if extent)
        for line in (compiled.as_text() or "").splitlines()
        if (result := _RESULT.match(line))
        for dtype, dims in _SHAPE.findall(result[1])
        if dtype in _BYTES
    ]
    assert sizes
    return max(sizes)
