"""shardwise.plan.compiled: what a person is told of a step that XLA refuses."""

from typing import Any

import jax
import pytest

from shardwise.plan.compiled import LoweredStep
from shardwise.protocol.errors import CompilerError, OutOfMemoryError


def _step(refusal: str) -> LoweredStep:
    """A lowered step that XLA refuses with this text."""

    class Refused:
        def compile(self) -> None:
            raise jax.errors.JaxRuntimeError(refusal)

    nothing: Any = None
    lowered: Any = Refused()
    return LoweredStep(
        job=nothing, program=nothing, lowered=lowered, lower_seconds=0.0, stand_in=None, assumed_vocab_size=None
    )


@pytest.mark.parametrize(
    "text",
    [
        "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\n\nRan out of memory in memory space vmem.\nmore",
        "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of memory in vmem. Used 20.1M of 16.0M.\nmore",
    ],
)
def test_want_of_memory_on_the_chip_is_no_want_of_the_devices(text: str) -> None:
    """A kernel too large for the chip's own memory is refused in XLA's words, and not as too large for the device."""
    with pytest.raises(CompilerError, match="CompileTimeScopedVmemOom: Ran out of memory in") as refused:
        _step(text).compile()
    assert "more" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory: hbm. Used 20.1G of 15.7G",
        "RESOURCE_EXHAUSTED: Out of memory: the temporaries (3.5G) are too large\nmore",
    ],
)
def test_want_of_the_devices_memory_is_told_as_such(text: str) -> None:
    """XLA's count of what the device would have to hold makes it so."""
    with pytest.raises(OutOfMemoryError):
        _step(text).compile()
