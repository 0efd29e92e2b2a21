"""The command line as a person has it: a process of its own, or, where many calls are made, this process.

`run` is always a process of its own: it becomes the parent of whatever its children leave behind.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import pytest

from shardwise.cli.app import main
from shardwise.protocol.contract import CACHE_VARIABLE

NUM_DEVICES = 8
QUICKSTART = Path(__file__).parent.parent / "job" / "golden" / "quickstart.yaml"
COMMAND = [sys.executable, "-P", "-m", "shardwise.cli.app"]
MODEL = "training.model={preset: tiny, layers: 2, heads: 2, embed: 64, mlp: 128, seqLen: 32}"
"""Of every job that is run here, so that few programs are compiled."""
QUICK = {"XLA_FLAGS": "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"}
"""Of processes that train outside of a cluster's pods: the same for all, or their bits would differ.

These are the options of `shardwise.train.state.COMPILED_QUICKLY`, which programs of one host lack by themselves.
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    error: str


Command = Callable[..., Ended]


def outside() -> dict[str, str]:
    """Return the environment without what JAX's devices and compiler have in these tests' own process."""
    return {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}


def person(cache: Path) -> dict[str, str]:
    """Return the environment of a person's shell, one who has asked XLA to be quick."""
    return outside() | QUICK | {CACHE_VARIABLE: str(cache), "COLUMNS": "80"}


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Return a function of (arguments, folder) that runs `shardwise` as a process of its own and waits for it."""
    environment = person(tmp_path_factory.getbasetemp() / "cache")

    def run(*arguments: str, folder: Path) -> Ended:
        done = subprocess.run([*COMMAND, *arguments], cwd=folder, env=environment, capture_output=True, check=False)
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def command(
    tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    """Return a function of (arguments) that runs `shardwise` here, with the JAX and the eight devices of the tests.

    Not for a `run` that comes as far as starting anything: that is `process`.
    """
    # A command sets the environment of its own job: what came first to JAX's devices would choose them for all tests.
    assert len(jax.devices()) == NUM_DEVICES
    before = dict(os.environ)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> Ended:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["shardwise", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, error = capfd.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, out, error)

    yield run
    os.environ.clear()  # `generate` and `export` set JAX's environment for the life of their process
    os.environ.update(before)


@pytest.fixture
def quickstart() -> str:
    """Return the path of the quickstart's job file."""
    return str(QUICKSTART)
