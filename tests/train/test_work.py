"""What a person is told of a program for which there is no memory: which one it is, and what to change for it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from tests.train.conftest import SMALL

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.protocol.errors import OutOfMemoryError
from shardwise.train.completions import Completions
from shardwise.train.config import GptConfig
from shardwise.train.evaluation import means_of_sets
from shardwise.train.executables import Executables
from shardwise.train.state import Program
from shardwise.train.user_errors import user_errors

WORDS = (
    "data.train=[{name: some, paths: [some.jsonl], prompts: true}]",
    "batch.sequences=4",
    "reinforcement={samples: 2, maxTokens: 4, reward: {pattern: '(a)'}}",
)
OF_COMPLETIONS = (
    r"^out of memory for the program that makes completions: RESOURCE_EXHAUSTED: no room\. Raise "
    r"batch\.microbatches, since a device completes as many prompts at once as a microbatch has rows, down to a "
    r"least number; shorten model\.seqLen, .* and with it reinforcement\.maxTokens; or use more devices; committed "
)
OF_ROWS = r": RESOURCE_EXHAUSTED: no room\. Raise batch\.microbatches, lower batch\.sequences or model\.seqLen, or use"


def exhausted(*_: object, **__: object) -> Any:
    """Fail as XLA does."""
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room\nsecond line")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sampling-window-16 32 {}", OF_COMPLETIONS),
        ("scores", "^out of memory for the program that says how likely completions were" + OF_ROWS),
        ("evaluation-text", "^out of memory for the evaluation" + OF_ROWS),
        ("step", "^out of memory for the step" + OF_ROWS),
        ("step-8", "^out of memory for the step" + OF_ROWS),
        ("init", "^out of memory" + OF_ROWS),
    ],
)
def test_a_program_that_is_refused_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    """Also where a thread compiles it; one of which nothing is known is told of as such."""
    monkeypatch.setattr(jax.stages.Lowered, "compile", exhausted)
    job = resolve(loads(SMALL, []))
    config = GptConfig.of(job.spec.training, tokenizer_size=257, platform="cpu")
    kept = Executables(job, config, 0)
    lowered = jax.jit(lambda x: x).lower(1.0)
    with ThreadPoolExecutor(1) as pool, pytest.raises(OutOfMemoryError, match=expected), user_errors(job, tmp_path):
        pool.submit(kept.get, name, lambda: lowered).result()


def completions(program: Program) -> Completions:
    """Completions for which a device has no memory."""
    nothing: Any = SimpleNamespace(train=SimpleNamespace(prompts=list))
    sampler: Any = SimpleNamespace(program=program, complete=exhausted)
    phases: Any = SimpleNamespace(entered=lambda _: nullcontext(), beat=None)
    return Completions(program.training, nothing, sampler, nothing, nothing, phases)


def test_completions_without_memory_are_named(make_program: Callable[..., Program], tmp_path: Path) -> None:
    """In an evaluation as well: it is they that take it."""
    job, made = resolve(loads(SMALL, [])), completions(make_program(*WORDS, num_devices=2))
    with pytest.raises(OutOfMemoryError, match=OF_COMPLETIONS), user_errors(job, tmp_path):
        made.batches(0, {})


def test_an_evaluation_without_memory_is_named(make_program: Callable[..., Program], tmp_path: Path) -> None:
    """The error is of the devices' work, which is waited for there."""
    job, program = resolve(loads(SMALL, [])), make_program(num_devices=2)

    def evaluator(**_: object) -> Any:
        return SimpleNamespace(means=exhausted)

    one: Any = SimpleNamespace(name="books")
    expected = "^out of memory for the evaluation" + OF_ROWS
    with pytest.raises(OutOfMemoryError, match=expected), user_errors(job, tmp_path):
        means_of_sets(evaluator, program, {"params": {}}, [one])
