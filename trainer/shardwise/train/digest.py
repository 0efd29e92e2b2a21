"""A fingerprint of sharded arrays that does not depend on the mesh, and needs nothing gathered.

The digest of an array is the sum, over its elements, of mix(path, global index, bits), in exact integers: four lanes of
uint32 that wrap around, 128 bits together. A sum has no order, so every mesh and every replica count gives the same;
the index in the mix detects swapped rows or chunks, the path detects swapped arrays, and the bits (instead of values)
detect a NaN's payload and the sign of zero.

    key(path, c0 .. cn)  = finish(finish(seed(path) ^ c0 * G) ^ c1 * G) ... + cn * G     per lane, hashed by dimension
    mix(key, bits, lane) = scatter((bits ^ key) * odd(lane))

Hashing by dimension keeps every index within 32 bits however large the array is, and makes all but the last step a
broadcast. `finish` is the 32-bit finaliser of MurmurHash3 (Appleby, public domain). It finds damage and mistakes; it is
no defence against a forger.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Compiled, Lowered

from shardwise.train.host_memory import fetched, is_on_host
from shardwise.train.peers import Agree

NUM_LANES = 4
_GOLDEN = np.uint32(0x9E3779B1)
_FINISH_FIRST, _FINISH_SECOND = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_LANE_FACTORS = tuple(np.uint32(odd) for odd in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F))
_ZERO = np.uint32(0)

Compile = Callable[[str, Callable[[], Lowered]], Compiled]
"""(name, how to lower it) -> the compiled program."""
_Signature = tuple[tuple[int, ...], np.dtype, NamedSharding]


class Digester:
    """Digests of arrays with known shapes, dtypes and shardings, compiled once when it is built.

    Arrays that differ only in their path share one compiled program, so a parameter and its moments cost one compile.
    """

    def __init__(self, abstract: Mapping[str, jax.ShapeDtypeStruct], compiled: Compile | None = None) -> None:
        """Compile for `abstract`: {path: shape, dtype of at most 32 bits, NamedSharding}.

        `compiled` compiles a program; it may keep it under its name, which contains everything that decides it. Without
        it programs are kept as long as the process: an export digests each array of a model by itself.
        """
        programs: dict[_Signature, Compiled] = {}
        self._programs: dict[str, Compiled] = {}
        self._seeds: dict[str, jax.Array] = {}
        for path, array in abstract.items():
            sharding = array.sharding
            assert isinstance(sharding, NamedSharding), f"{path}: {sharding} is not a NamedSharding"
            signature = (array.shape, array.dtype, sharding)
            if signature not in programs:
                name = f"digest {array.dtype}{list(array.shape)} {sharding}"
                programs[signature] = compiled(name, partial(_lower, *signature)) if compiled else _kept(signature)
            self._programs[path] = programs[signature]
            self._seeds[path] = jax.device_put(seed(path), NamedSharding(sharding.mesh, PartitionSpec()))

    def __call__(self, arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Return {path: uint32[device, lane]} for any of the paths it was built for, without waiting for the devices.

        Each device sums its own part, and `to_hex` adds the sums up on the host. A program without collectives may run
        beside the next step; one with them must not, since on CPU the two can wait for each other's threads.
        """
        return {path: self._programs[path](array, self._seeds[path]) for path, array in arrays.items()}


def seed(path: str) -> np.ndarray:
    """Return the start of an array's mixing: uint32[lane], the first 128 bits of the SHA-256 of its path."""
    return np.frombuffer(hashlib.sha256(path.encode()).digest(), "<u4", NUM_LANES).astype(np.uint32)


def to_hex(digests: Mapping[str, jax.Array], agree: Agree = lambda own, settle: settle([own])) -> dict[str, str]:
    """Wait for the devices and the other processes, and return {path: 32 hexadecimal digits}."""
    own = {path: _sum_here(lanes) for path, lanes in digests.items()}
    sums: dict[str, list[int]] = json.loads(agree(json.dumps(own), _sum_of_all))
    return {path: "".join(f"{lane:08x}" for lane in lanes) for path, lanes in sums.items()}


def _sum_of_all(texts: Sequence[str]) -> str:
    """Add the sums of all processes up by path. Rank 0 does so: the total is as short as the sums of one process."""
    total = {path: np.array(lanes, np.uint32) for path, lanes in json.loads(texts[0]).items()}
    for text in texts[1:]:
        for path, lanes in json.loads(text).items():
            total[path] += np.array(lanes, np.uint32)
    return json.dumps({path: lanes.tolist() for path, lanes in total.items()})


def _sum_here(lanes: jax.Array) -> list[int]:
    """Return the sum over this process's devices, by lane."""
    shards = [np.asarray(shard.data) for shard in lanes.addressable_shards]
    total: list[int] = np.concatenate(shards).sum(axis=0, dtype=np.uint32).tolist()
    return total


def combine(digests: Mapping[str, str]) -> str:
    """Return one digest for a whole state, 32 hexadecimal digits, whatever the order of the paths."""
    lines = "".join(f"{path} {digest}\n" for path, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[: 8 * NUM_LANES]


@cache
def _kept(signature: _Signature) -> Compiled:
    return _lower(*signature).compile()


def _lower(shape: tuple[int, ...], dtype: np.dtype, sharding: NamedSharding) -> Lowered:
    whole = PartitionSpec()
    program: Callable[..., jax.Array] = jax.shard_map(
        partial(_device_digest, sharding=sharding),
        mesh=sharding.mesh,
        in_specs=(sharding.spec, whole),
        out_specs=PartitionSpec(sharding.mesh.axis_names),
        check_vma=False,
    )
    seeds = jax.ShapeDtypeStruct((NUM_LANES,), jnp.uint32, sharding=NamedSharding(sharding.mesh, whole))
    if is_on_host(sharding):
        on_devices, program = program, lambda array, seeds: on_devices(fetched(array), seeds)
    return jax.jit(program).lower(jax.ShapeDtypeStruct(shape, dtype, sharding=sharding), seeds)


def _device_digest(shard: jax.Array, seeds: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Run on one device: return uint32[1, lane], zeros on all replicas of a shard but the first."""
    axes = [_axes(entry) for entry in sharding.spec] + [()] * (shard.ndim - len(sharding.spec))
    offsets = [_position(names, sharding) * np.uint32(size) for names, size in zip(axes, shard.shape, strict=True)]
    used = {name for names in axes for name in names}
    replicas = tuple(name for name, size in sharding.mesh.shape.items() if name not in used and size > 1)
    if replicas:
        # A cond, not a mask: the other replicas then skip the work.
        first = _position(replicas, sharding) == _ZERO
        lanes = lax.cond(first, partial(_sum_of_mixes, offsets=offsets), lambda *_: jnp.zeros_like(seeds), shard, seeds)
    else:
        lanes = _sum_of_mixes(shard, seeds, offsets=offsets)
    total: jax.Array = lanes[None]
    return total


def _axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _position(names: tuple[str, ...], sharding: NamedSharding) -> jax.Array:
    """Return this device's index along the product of the mesh axes `names`, the first outermost: uint32 scalar."""
    place: jax.Array = jnp.uint32(0)
    for name in names:
        index = lax.axis_index(name).astype(jnp.uint32)
        place = place * np.uint32(sharding.mesh.shape[name]) + index
    return place


def _sum_of_mixes(shard: jax.Array, seeds: jax.Array, offsets: Sequence[jax.Array]) -> jax.Array:
    """Return uint32[lane], the sums of the shard's mixed elements."""
    # All four lanes in one pass over the shard: four passes cost ten times as much on CPU.
    bits = _bits(shard)
    mixes = []
    for lane, factor in enumerate(_LANE_FACTORS):
        mixed = (bits ^ _keys(bits.shape, seeds[lane], offsets)) * factor
        mixed = (mixed ^ (mixed >> np.uint32(15))) * _FINISH_FIRST
        mixes.append(mixed ^ (mixed >> np.uint32(16)))
    sums: tuple[jax.Array, ...] = lax.reduce(tuple(mixes), (_ZERO,) * NUM_LANES, _add, tuple(range(bits.ndim)))
    return jnp.stack(sums)


def _add(left: tuple[jax.Array, ...], right: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def _bits(shard: jax.Array) -> jax.Array:
    """Return the elements' bits as uint32, with at least one dimension."""
    shard = shard.reshape(shard.shape or (1,))
    if shard.dtype == jnp.bool_:
        return shard.astype(jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[shard.dtype.itemsize]
    return lax.bitcast_convert_type(shard, unsigned).astype(jnp.uint32)


def _keys(shape: tuple[int, ...], start: jax.Array, offsets: Sequence[jax.Array]) -> jax.Array:
    """Return the key of every element from its global index, one dimension after the other; broadcasts to `shape`."""
    key = jnp.broadcast_to(start, (1,) * len(shape))
    for dimension, size in enumerate(shape):
        line = tuple(size if other == dimension else 1 for other in range(len(shape)))
        index = lax.broadcasted_iota(jnp.uint32, line, dimension)
        if offsets:
            index = index + offsets[dimension]
        step = index * _GOLDEN
        key = key + step if dimension == len(shape) - 1 else _finish(key ^ step)
    return key


def _finish(key: jax.Array) -> jax.Array:
    key = (key ^ (key >> np.uint32(16))) * _FINISH_FIRST
    key = (key ^ (key >> np.uint32(13))) * _FINISH_SECOND
    return key ^ (key >> np.uint32(16))
