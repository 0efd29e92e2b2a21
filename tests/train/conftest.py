"""Small jobs for the trainer's tests: a GPT that compiles in seconds and still has every part."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import jax
import pytest
from jax._src.interpreters.pxla import clear_in_memory_compilation_cache
from jax.experimental.compilation_cache import compilation_cache
from rich.console import Console

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.protocol import storage
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.orders import Orders
from shardwise.protocol.takeover import next_attempt
from shardwise.train import main
from shardwise.train.config import GptConfig
from shardwise.train.layout import Layout
from shardwise.train.state import Program

SMALL = """
apiVersion: shardwise.dev/v1alpha1
kind: TrainingJob
metadata: {name: small}
spec:
  hardware: {accelerator: cpu-sim, topology: 1x8}
  training:
    model: {layers: 3, heads: 4, embed: 32, seqLen: 32}
    data: {train: [{name: text, paths: [unused.txt]}]}
    batch: {sequences: 16}
    optimizer: {name: adamw, learningRate: 1e-3}
    steps: 20
"""

MakeProgram = Callable[..., Program]
IN_FULL: dict[str, str | bool] = {"xla_backend_optimization_level": "3", "xla_cpu_use_fusion_emitters": True}
"""Compiler options by which a test has a program as XLA makes it when it may take its time, as on one host."""


@pytest.fixture
def make_program() -> MakeProgram:
    """Return a function of (`--set` words, number of devices) that builds the small job's program; always the same."""
    return _make_program


def _make_program(*overrides: str, num_devices: int = 8) -> Program:
    job = resolve(loads(SMALL, [f"spec.hardware.topology=1x{num_devices}", *_below_training(overrides)]))
    training = job.spec.training
    config = GptConfig.of(training, tokenizer_size=257, platform="cpu")
    return Program.of(training, Layout.of(training, jax.devices()[:num_devices]), config)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what storage stops tried again, twice, without a wait."""
    monkeypatch.setattr(storage, "WAITS_SECONDS", (0.0, 0.0))


@pytest.fixture
def as_a_trainer(tmp_path: Path) -> Iterator[None]:
    """Let whole runs be in this process."""
    with runs_here(tmp_path):
        yield


@contextmanager
def runs_here(folder: Path) -> Iterator[None]:
    """Let whole runs be in this process: tokens are kept in the folder, and JAX's own cache is off, as in a trainer.

    Their programs are kept for all tests, by their text. What JAX took from its own cache for a test before is
    forgotten: kept once more such a program works in its own process alone.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDWISE_CACHE", str(folder / "cache"))
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()
        clear_in_memory_compilation_cache()
        try:
            yield
        finally:
            jax.config.update("jax_enable_compilation_cache", True)
            compilation_cache.reset_cache()


def run_here(
    directory: Path,
    *overrides: str,
    fork: bool = False,
    step: int | None = None,
    committed: int | None = None,
    deadline_seconds: float | None = None,
    said: TextIO | None = None,
) -> ExitCode:
    """Start the small job's run, or go on with it, in this process; its folder of logs is there.

    What a person reads goes into `said`.
    """
    orders = Orders(
        job_file="",
        directory=str(directory),
        progress=str(directory / "progress.json"),
        stacks="",
        rank=0,
        num_processes=1,
        coordinator="",
        attempt=next_attempt(directory),
        fork=fork,
        step=step,
        deadline_seconds=deadline_seconds,
        committed=committed,
    )
    return main.run(resolve(loads(SMALL, overrides)), orders, Console(file=said or io.StringIO()), spent={})


def _below_training(overrides: Sequence[str]) -> list[str]:
    return [f"training.{override}" for override in overrides]
