"""Digest: independent of the mesh, equal to a plain numpy one, and changed by every kind of damage."""

import hashlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.train.digest import Digester, combine, to_hex

MESHES = [(1, 1), (4, 2), (2, 4), (8, 1)]
DTYPES = [np.float32, ml_dtypes.bfloat16, np.float16, np.int32, np.uint32, np.int8, np.bool_]


def _mesh(data: int, tensor: int) -> Mesh:
    return Mesh(np.array(jax.devices()[: data * tensor]).reshape(data, tensor), ("data", "tensor"))


def _digest(
    value: np.ndarray, path: str = "x", where: tuple[int, int] = (1, 1), spec: PartitionSpec | None = None
) -> str:
    sharding = NamedSharding(_mesh(*where), spec or PartitionSpec())
    array = jax.device_put(value, sharding)
    digester = Digester({path: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)})
    return to_hex(digester({path: array}))[path]


def _plain_digest(path: str, value: np.ndarray) -> str:
    """The definition once more, in Python integers over numpy, without the library's code."""
    width = 0xFFFFFFFF
    words = value.reshape(value.shape or (1,))
    lanes = []
    for lane, factor in enumerate((0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)):
        start = int.from_bytes(hashlib.sha256(path.encode()).digest()[4 * lane : 4 * lane + 4], "little")
        total = 0
        for index in np.ndindex(words.shape):
            key = start
            for axis, place in enumerate(index):
                step = place * 0x9E3779B1 & width
                if axis == words.ndim - 1:
                    key = key + step & width
                    break
                key ^= step
                key = (key ^ key >> 16) * 0x85EBCA6B & width
                key = (key ^ key >> 13) * 0xC2B2AE35 & width
                key ^= key >> 16
            mixed = (int.from_bytes(words[index].tobytes(), "little") ^ key) * factor & width
            mixed = (mixed ^ mixed >> 15) * 0x85EBCA6B & width
            total += mixed ^ mixed >> 16
        lanes.append(f"{total & width:08x}")
    return "".join(lanes)


def _random(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    return np.asarray(np.random.default_rng(0).standard_normal(shape) * 40).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_plain_numpy(dtype: type) -> None:
    """Every dtype, in three dimensions, gives what the definition gives."""
    value = _random((3, 4, 5), dtype)
    assert _digest(value, "a.b") == _plain_digest("a.b", value)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3), (1, 1, 4, 2)])
def test_agrees_for_every_rank(shape: tuple[int, ...]) -> None:
    """Scalars and arrays of any number of dimensions."""
    value = _random(shape)
    assert _digest(value) == _plain_digest("x", value)


@pytest.mark.parametrize("where", MESHES)
@pytest.mark.parametrize(
    "spec",
    [
        PartitionSpec(),
        PartitionSpec("data", "tensor"),
        PartitionSpec(None, "data"),
        PartitionSpec(("tensor", "data")),
        PartitionSpec(None, None, "tensor"),
    ],
)
def test_is_the_same_on_every_mesh(where: tuple[int, int], spec: PartitionSpec) -> None:
    """Sharded any way, replicated in part or whole, the digest is that of the plain definition."""
    value = _random((8, 8, 4), ml_dtypes.bfloat16)
    assert _digest(value, where=where, spec=spec) == _plain_digest("x", value)


def _flip_a_bit(value: np.ndarray) -> None:
    value.view(np.uint32)[3, 5] ^= 1 << 31


def _swap_rows(value: np.ndarray) -> None:
    value[[2, 6]] = value[[6, 2]]


def _swap_columns(value: np.ndarray) -> None:
    value[:, [2, 6]] = value[:, [6, 2]]


def _swap_elements(value: np.ndarray) -> None:
    value[0, 0], value[7, 7] = value[7, 7], value[0, 0]


def _negate_zero(value: np.ndarray) -> None:
    value[0, 1] = -0.0


def _change_payload(value: np.ndarray) -> None:
    value.view(np.uint32)[0, 2] ^= 1


@pytest.mark.parametrize(
    "change", [_flip_a_bit, _swap_rows, _swap_columns, _swap_elements, _negate_zero, _change_payload]
)
def test_every_change_changes_it(change: Callable[[np.ndarray], None]) -> None:
    """A bit, an order, the sign of zero and the payload of a NaN all count."""
    value = _random((8, 8))
    value[0, 1], value[0, 2] = 0.0, np.nan
    before = _digest(value, where=(4, 2), spec=PartitionSpec("data", "tensor"))
    change(value)
    assert _digest(value, where=(4, 2), spec=PartitionSpec("data", "tensor")) != before


def test_every_single_bit_changes_all_lanes() -> None:
    """Each of the four lanes alone finds any one flipped bit, because the mix of an element is a bijection."""
    value = _random((2, 2))
    before = _digest(value)
    for bit in range(32):
        flipped = value.copy()
        flipped.view(np.uint32)[1, 0] ^= np.uint32(1 << bit)
        after = _digest(flipped)
        assert all(before[lane : lane + 8] != after[lane : lane + 8] for lane in range(0, 32, 8))


def test_swapped_arrays_change_both() -> None:
    """The path counts: the same values under another name have another digest."""
    left, right = _random((8, 8)), _random((8, 8)) + 1
    assert len({_digest(value, path) for value in (left, right) for path in ("left", "right")}) == 4


def test_equal_signatures_share_a_program() -> None:
    """A parameter and its moments, alike in shape, dtype and sharding, cost one compile."""
    sharding = NamedSharding(_mesh(4, 2), PartitionSpec("data"))
    abstract = {name: jax.ShapeDtypeStruct((8, 3), jnp.float32, sharding=sharding) for name in ("p", "mu", "nu")}
    assert len({id(program) for program in Digester(abstract)._programs.values()}) == 1


def test_a_digester_of_the_same_shape_compiles_nothing() -> None:
    """An export, which digests each array by itself, compiles a program for each shape and not for each array."""
    sharding = NamedSharding(_mesh(4, 2), PartitionSpec("tensor"))
    one, other = ({name: jax.ShapeDtypeStruct((6, 5), jnp.float32, sharding=sharding)} for name in ("one", "other"))
    assert Digester(other)._programs["other"] is Digester(one)._programs["one"]


def test_temporaries_are_small() -> None:
    """The compiled program holds no buffer beside the shard: nothing is gathered and no hash is materialised."""
    sharding = NamedSharding(_mesh(4, 2), PartitionSpec("data", "tensor"))
    digester = Digester({"x": jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=sharding)})
    memory = digester._programs["x"].memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 16 << 10


def test_combine_depends_on_paths_and_values_not_on_order() -> None:
    """The digest of a whole state is one for a set of (path, digest)."""
    assert combine({"a": "1", "b": "2"}) == combine({"b": "2", "a": "1"})
    assert len({combine({"a": "1", "b": "2"}), combine({"a": "2", "b": "1"}), combine({"a": "1"})}) == 3
