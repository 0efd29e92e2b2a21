"""shardwise.program.checkpoints and leaves: any tree comes back as it was, on any mesh."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.program.checkpoints import Checkpoints
from shardwise.program.leaves import Leaves
from shardwise.program.record import Record
from shardwise.protocol.errors import CheckpointError, RunDirectoryError, UsageError
from shardwise.protocol.takeover import next_attempt
from shardwise.train.peers import ALONE
from shardwise.train.phases import Phases
from shardwise.train.run_directory import RunDirectory


@contextmanager
def opened(directory: Path, *, keep: int = 3) -> Iterator[Checkpoints]:
    """The checkpoints of one more start of a run of one process."""
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    files = RunDirectory(directory, next_attempt(directory))
    phases = Phases(directory / "progress.json", attempt=files.attempt, rank=0, pid=1)
    record = Record(files, "mine", of=None, writes=True)
    with closing(record), closing(Checkpoints("mine", files, ALONE, phases, record, keep=keep)) as checkpoints:
        yield checkpoints


def laid(shape: tuple[int, ...], axes: tuple[str, ...], *spec: str | None) -> NamedSharding:
    """A sharding over the eight devices of the tests."""
    return NamedSharding(Mesh(np.array(jax.devices()).reshape(shape), axes), PartitionSpec(*spec))


def tree(sharding: NamedSharding, *, start: int) -> dict[str, Any]:
    """A tree with all kinds of leaves; `start` is in every value."""
    weights = jnp.arange(start, start + 32, dtype=jnp.float32).reshape(8, 4) / 7
    return {
        "weights": jax.device_put(weights, sharding),
        "half": [jax.device_put(weights.astype(jnp.bfloat16), sharding)],
        "here": jnp.float32(start) / 3,
        "key": jax.random.key(start),
        "numpy": np.arange(start, start + 3) / 7,
        "numpy half": np.arange(start, start + 3).astype(jnp.bfloat16),
        "single": np.float32(start) / np.float32(7),
        "count": 2**40 + start,
        "rate": start / 7,
        "on": bool(start % 2),
        "act": jnp.tanh,
        "a key/with signs": jnp.arange(start, start + 2),
    }


def same(one: Any, other: Any) -> bool:
    """Whether two trees are of the same kinds and bits."""
    left, right = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(left) == len(right) and all(map(_same, left, right))


def _same(one: Any, other: Any) -> bool:
    if callable(one):
        return one is other
    if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    here, there = np.asarray(one), np.asarray(other)
    return type(one) is type(other) and here.dtype == there.dtype and here.tobytes() == there.tobytes()


@pytest.mark.parametrize(
    "onto",
    [laid((2, 4), ("data", "tensor"), "data", "tensor"), laid((8,), ("all",), "all"), laid((8,), ("all",))],
    ids=["the same", "other axes", "whole"],
)
def test_any_tree_comes_back_on_any_mesh(tmp_path: Path, onto: NamedSharding) -> None:
    """Every kind of leaf has its bits and its type back, arrays with the sharding of what is asked for."""
    saved = tree(laid((2, 4), ("data", "tensor"), "data", "tensor"), start=5)
    with opened(tmp_path) as checkpoints:
        checkpoints.save(saved, 3)
    with opened(tmp_path) as checkpoints:
        found, step = checkpoints.restore(tree(onto, start=1), None)

    assert (step, same(found, saved)) == (3, True)
    assert found["weights"].sharding == onto
    assert not same(found, tree(onto, start=1))


def test_shapes_are_enough(tmp_path: Path) -> None:
    """What is asked for may be shapes and shardings, without values."""
    whole = laid((8,), ("all",))
    saved = {"weights": jax.device_put(jnp.arange(8.0), whole)}
    with opened(tmp_path) as checkpoints:
        checkpoints.save(saved, 1)
    with opened(tmp_path) as checkpoints:
        found, _ = checkpoints.restore({"weights": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=whole)}, None)

    assert same(found, saved)


def test_what_comes_back_goes_into_a_program_together(tmp_path: Path) -> None:
    """A key on the mesh is there again, and what was bound to no device is not: `jit` takes them beside each other."""
    whole = laid((8,), ("all",))

    def state() -> dict[str, jax.Array]:
        on_mesh = jax.device_put((jnp.arange(4.0), jax.random.key(1), jax.random.split(jax.random.key(2), 8)), whole)
        return {
            **dict(zip(("weights", "key", "keys"), on_mesh, strict=True)),
            "own": jax.random.key(3),
            "n": jnp.int32(4),
        }

    with opened(tmp_path) as checkpoints:
        checkpoints.save(state(), 1)
    with opened(tmp_path) as checkpoints:
        found, _ = checkpoints.restore(state(), None)

    drawn = jax.jit(lambda t: t["weights"] + t["n"] + sum(jax.random.normal(t[name], (4,)) for name in ("key", "own")))
    assert same(found, state())
    assert found["key"].sharding.is_equivalent_to(whole, 0)
    assert found["keys"].sharding.is_equivalent_to(whole, 1)
    assert not found["own"].committed
    assert not found["n"].committed
    assert (drawn(found) == drawn(state())).all()


def test_before_the_first_save(tmp_path: Path) -> None:
    """Without a checkpoint the tree comes back as it is, with step 0."""
    given = {"weights": jnp.arange(3.0)}
    with opened(tmp_path) as checkpoints:
        assert checkpoints.restore(given, None) == (given, 0)


def test_newest_and_by_step(tmp_path: Path) -> None:
    """The newest is restored, or that of a step; from there on later ones are replaced, and only so many stay."""
    with opened(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save({"n": step}, step)
    with opened(tmp_path, keep=2) as checkpoints:
        assert checkpoints.restore({"n": 0}, None) == ({"n": 3}, 3)
        assert checkpoints.restore({"n": 0}, 2) == ({"n": 2}, 2)
        checkpoints.save({"n": 33}, 3)
    with opened(tmp_path) as checkpoints:
        assert checkpoints.restore({"n": 0}, None) == ({"n": 33}, 3)
        with pytest.raises(CheckpointError, match="step-00000001 cannot be used"):
            checkpoints.restore({"n": 0}, 1)


def test_going_back_leaves_what_came_after(tmp_path: Path) -> None:
    """A start that goes back to a step, and saves, is what the run goes on from; that step stays, to go back again."""
    with opened(tmp_path) as checkpoints:
        for step in (10, 20, 30):
            checkpoints.save({"n": step}, step)
    with opened(tmp_path) as checkpoints:
        assert checkpoints.restore({"n": 0}, 10) == ({"n": 10}, 10)
    for _ in range(2):
        with opened(tmp_path) as checkpoints:
            assert checkpoints.restore({"n": 0}, None)[1] in (30, 14), "to look at a step changes nothing"
            assert checkpoints.restore({"n": 0}, 10) == ({"n": 10}, 10)
            for step in (11, 12, 13, 14):
                checkpoints.save({"n": -step}, step)
    with opened(tmp_path) as checkpoints:
        assert checkpoints.restore({"n": 0}, None) == ({"n": -14}, 14)


def test_what_was_saved_last_is_what_comes_back(tmp_path: Path) -> None:
    """At once after a save, which is written in the background: also the first one."""
    large = jnp.ones((64, 1024, 64))
    with opened(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save({"n": large * step}, step)
            restored, found = checkpoints.restore({"n": large}, None)
            assert (found, float(restored["n"].max())) == (step, step)


def test_another_shape_is_refused(tmp_path: Path) -> None:
    """A checkpoint that does not fit is no start: the leaf is named."""
    with opened(tmp_path) as checkpoints:
        checkpoints.save({"layer": {"weights": jnp.zeros((4, 2))}}, 1)
    with opened(tmp_path) as checkpoints, pytest.raises(CheckpointError, match=r"layer.weights is float32\[4, 2\]"):
        checkpoints.restore({"layer": {"weights": jnp.zeros((4, 3))}}, None)


def test_an_older_start_cannot_commit(tmp_path: Path) -> None:
    """Once a newer start of the run is counted, what an older one saves is not committed."""
    with opened(tmp_path) as checkpoints:
        next_attempt(tmp_path)
        checkpoints.save({"n": 1}, 1)
        with pytest.raises(RunDirectoryError, match="nothing was committed"):
            checkpoints.wait()
    assert not list((tmp_path / "checkpoints").glob("*/COMMITTED"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"f": print}, "has no array"),
        ({"a b": 1, "a/b": 2}, "two leaves have the path 'a_b'"),
        ({"n": 2**63}, "n is 9223372036854775808; expected a whole number of at most 64 bits"),
        ({"n": np.array(["a"])}, "n is of <U1; expected numbers"),
        ({"c": jnp.zeros(2, jnp.complex64)}, "c is of complex64; expected arrays of JAX of at most 32 bits"),
        ({"f": jnp.zeros(2, jnp.float8_e4m3fn)}, "f is of float8_e4m3fn; expected one of bool, bfloat16"),
        ({"f": jnp.zeros(2, jnp.float8_e5m2)}, "f is of float8_e5m2; expected one of bool, bfloat16"),
        ({"b": np.zeros(2, ">f4")}, "b is of >f4; expected one of bool, bfloat16"),
        ({"i": jnp.zeros(2, jnp.int4)}, "i is of int4; expected one of bool, bfloat16"),
        ({"f": np.zeros(2, jnp.float8_e4m3fn)}, "f is of float8_e4m3fn; expected one of bool, bfloat16"),
        ({"e": jnp.zeros((0, 3))}, r"e has the shape \(0, 3\); expected at least one value"),
        ({"e": np.zeros(0)}, r"e has the shape \(0,\); expected at least one value"),
        ({"k": jax.random.split(jax.random.key(1), 0)}, r"k has the shape \(0,\); expected at least one value"),
        ({"e": jax.ShapeDtypeStruct((2, 0), jnp.float32)}, r"e has the shape \(2, 0\); expected at least one value"),
    ],
)
def test_what_no_checkpoint_can_hold(given: dict[str, Any], message: str) -> None:
    """It is refused with the name of the leaf."""
    with pytest.raises(UsageError, match=message):
        Leaves.of(given)
