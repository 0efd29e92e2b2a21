"""A small state of every dtype on 8 devices, saved to and restored from real files."""

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.job.spec import Keep
from shardwise.train.checkpoint import CheckpointWriter, Restored, SaveTicket, layout, restore
from shardwise.train.checkpoint.staging import stage
from shardwise.train.digest import Digester

ARRAYS: dict[str, tuple[tuple[int, ...], Any, PartitionSpec]] = {
    "params.kernel": ((64, 256), np.float32, PartitionSpec("data", "tensor")),
    "params.twin": ((64, 256), np.float32, PartitionSpec("data", "tensor")),
    "params.half": ((3, 8, 32), ml_dtypes.bfloat16, PartitionSpec(None, "tensor", "data")),
    "params.gain": ((24,), np.float16, PartitionSpec()),
    "optimizer.0.mu.kernel": ((64, 256), np.float32, PartitionSpec(None, ("data", "tensor"))),
    "optimizer.0.count": ((), np.int32, PartitionSpec()),
    "key": ((2,), np.uint32, PartitionSpec()),
}


@dataclass
class Toy:
    """A run of the toy state: what a test saves, and how it reads it back."""

    root: Path
    reports: list[tuple[int, str]] = field(default_factory=list)
    writers: list[CheckpointWriter] = field(default_factory=list)

    def writer(self, **options: Any) -> CheckpointWriter:
        """A writer with plain settings, closed after the test."""
        defaults: dict[str, Any] = {"keep": Keep(last=3), "run": "toy", "attempt": 0, "fence": nullcontext}
        self.writers.append(CheckpointWriter(str(self.root), **defaults | options))
        return self.writers[-1]

    def save(self, writer: CheckpointWriter, step: int, **options: Any) -> SaveTicket:
        """Saves the values of `step` and waits until they are durable."""
        ticket = self.start(writer, step, **options)
        writer.wait()
        return ticket

    def start(
        self, writer: CheckpointWriter, step: int, seed: int | None = None, prefix: str = "", **options: Any
    ) -> SaveTicket:
        """Starts to save the values of `seed` (by default the step) as the checkpoint of `step`."""
        sharded = {p: a for p, a in self.arrays(step if seed is None else seed).items() if p.startswith(prefix)}
        return writer.save(step, sharded, digester=digester((4, 2)), identity={"model": "toy"}, **options)

    def arrays(self, seed: int, where: tuple[int, int] = (4, 2)) -> dict[str, jax.Array]:
        """The values of `seed`, sharded."""
        shapes = abstract(where)
        return {path: jax.device_put(value, shapes[path].sharding) for path, value in values(seed).items()}

    def staged(self, seed: int) -> tuple[Any, Any, Any]:
        """What a save hands to `put`: the parts in host memory, and what and how large the arrays are."""
        arrays = self.arrays(seed)
        layouts = {path: layout.plan(a.shape, a.dtype.itemsize, a.sharding) for path, a in arrays.items()}
        with ThreadPoolExecutor(1) as copiers:
            parts = stage(arrays, layouts, copiers)
        return parts, abstract((4, 2)), layouts

    def restore(self, step: int | None = None, where: tuple[int, int] = (4, 2), **options: Any) -> Restored | None:
        """Restores onto a mesh of data x tensor."""
        return restore(
            str(self.root),
            abstract(where),
            step=step,
            digester=digester(where),
            report=lambda *refused: self.reports.append(refused),
            **options,
        )

    def restored_step(self, **options: Any) -> int:
        """Restores, proves that the values are those of the step bit by bit, and returns the step."""
        restored = self.restore(**options)
        assert restored is not None
        assert_equal(restored.arrays, restored.step)
        return restored.step

    def folder(self, step: int) -> Path:
        """The directory of a checkpoint."""
        return self.root / f"step-{step:08d}"

    def folders(self) -> list[int]:
        """The steps of all directories, committed or not."""
        return sorted(int(path.name.removeprefix("step-")) for path in self.root.iterdir())


def values(seed: int) -> dict[str, np.ndarray]:
    """Normal numbers from the seed; the first moment is zero, as in a fresh run."""
    random = np.random.default_rng(seed)
    drawn = {p: np.asarray(random.standard_normal(shape) * 99).astype(t) for p, (shape, t, _) in ARRAYS.items()}
    return drawn | {"optimizer.0.mu.kernel": np.zeros((64, 256), np.float32)}


@functools.cache
def abstract(where: tuple[int, int]) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, dtypes and shardings on a mesh of data x tensor."""
    mesh = Mesh(np.array(jax.devices()[: where[0] * where[1]]).reshape(where), ("data", "tensor"))
    return {
        path: jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
        for path, (shape, dtype, spec) in ARRAYS.items()
    }


@functools.cache
def digester(where: tuple[int, int]) -> Digester:
    """One for each mesh: building it compiles."""
    return Digester(abstract(where))


def assert_equal(arrays: dict[str, jax.Array], seed: int) -> None:
    """Bit by bit, not by value."""
    assert {path: np.asarray(array).tobytes() for path, array in arrays.items()} == {
        path: value.tobytes() for path, value in values(seed).items() if path in arrays
    }


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    """A run in an empty folder."""
    run = Toy(root=tmp_path / "checkpoints")
    yield run
    for writer in run.writers:
        writer.close()


@pytest.fixture
def many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts the toy's arrays as finely as large ones are: a file for each device, several chunks in a file."""
    monkeypatch.setattr(layout, "JOIN_UP_TO_BYTES", 0)
    monkeypatch.setattr(layout, "CUT_ABOVE_BYTES", 2048)
    monkeypatch.setattr(layout, "MIN_CHUNK_BYTES", 256)
