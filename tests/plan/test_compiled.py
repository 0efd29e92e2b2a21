"""shardwise.plan.compiled: what a person is told of a step that XLA refuses."""

import re
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from tests.train.conftest import SMALL

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.plan import build
from shardwise.plan.compiled import LoweredStep, compiled_in_words
from shardwise.protocol.errors import CompilerError, OutOfMemoryError
from shardwise.train.work import Work


def _step(refusal: str) -> LoweredStep:
    """A lowered step that XLA refuses with this text."""
    nothing: Any = None
    lowered = _refused(refusal)
    return LoweredStep(
        job=nothing, program=nothing, lowered=lowered, lower_seconds=0.0, stand_in=None, assumed_vocab_size=None
    )


def _refused(refusal: str) -> Any:
    """A lowered program that XLA refuses with this text."""

    class Refused:
        def compile(self) -> None:
            raise jax.errors.JaxRuntimeError(refusal)

    return Refused()


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


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("INTERNAL: no such thing", CompilerError, "^XLA cannot compile the program that makes completions for this"),
        ("RESOURCE_EXHAUSTED: Used 20.1G of 15.7G", OutOfMemoryError, r"^RESOURCE_EXHAUSTED: Used 20\.1G of 15\.7G$"),
    ],
)
def test_a_program_beside_the_step_is_not_called_the_step(text: str, kind: type[Exception], said: str) -> None:
    """Who reads it changes what that program takes."""
    with pytest.raises(kind) as refused:
        compiled_in_words(_refused(text), Work.COMPLETIONS)
    assert re.search(said, str(refused.value))
    assert Work.of_error(refused.value) == Work.COMPLETIONS


def test_a_plan_has_which_program_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are those that XLA says, and no other program's."""
    text = "RESOURCE_EXHAUSTED: Used 20.0G of 15.7G"
    monkeypatch.setattr(build, "lowered_step", lambda _: SimpleNamespace(compile=lambda: None))
    monkeypatch.setattr(build, "memory", lambda _: None)
    monkeypatch.setattr(build, "completions", lambda *_: compiled_in_words(_refused(text), Work.COMPLETIONS))
    found = build.plan(resolve(loads(SMALL, [])))

    assert (found.fits, found.refusal, found.refused) == (False, text, Work.COMPLETIONS)
    assert found.needed_bytes == 20 << 30
