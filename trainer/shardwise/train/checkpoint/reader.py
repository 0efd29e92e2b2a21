"""Restore a state from the newest checkpoint that is whole, straight into the shardings of the run.

    newest first:  marker -> manifest -> shapes -> every chunk's crc32c -> every array's digest

The first four find damage; the digest also finds what a checksum cannot, such as two chunks that changed places. A
checkpoint that fails is refused by name and the one before it is tried. How the arrays are read is `fetch`'s business.
It never writes.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.protocol.contract import COMMITTED, checkpoint_name
from shardwise.protocol.errors import CheckpointError
from shardwise.protocol.storage import first_line, in_words, with_retries
from shardwise.train.checkpoint.chunks import Refusal
from shardwise.train.checkpoint.fetch import fetch
from shardwise.train.checkpoint.manifest import MANIFEST, Manifest, decode
from shardwise.train.checkpoint.store import Store
from shardwise.train.digest import Digester, to_hex
from shardwise.train.peers import Agree

_Digest = Callable[[Mapping[str, jax.Array]], dict[str, jax.Array]]
Report = Callable[[int, str], None]
"""Is told of each refused checkpoint: (step, reason)."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The arrays of one checkpoint, the newer ones that were refused, and (if `partial`) the paths it does not hold."""

    step: int
    arrays: dict[str, jax.Array]
    manifest: Manifest
    refused: list[tuple[int, str]]
    missing: list[str]


def restore(  # noqa: PLR0913  all but two are given by name
    root: str,
    abstract: Mapping[str, jax.ShapeDtypeStruct],
    *,
    step: int | None,
    digester: Digester,
    report: Report,
    partial: bool = False,
    masters: Mapping[str, str] | None = None,
    agree: Agree = lambda own, settle: settle([own]),
    beat: Callable[[], None] = lambda: None,
) -> Restored | None:
    """Return the newest usable checkpoint, or that of `step`, with the shapes, dtypes and shardings of `abstract`.

    `digester` was built for `abstract`. Arrays that the checkpoint holds beyond `abstract` are left alone; ones that it
    lacks are a reason to refuse it, unless `partial`. Those of `masters`, {path: path of its float32 weights}, may be
    wanted in bfloat16 and held in float32, or the other way round, and are returned as they are held: by these weights
    if the checkpoint has them. Return None if nothing was ever committed. Raise `CheckpointError` if checkpoints were
    committed and none can be used, or if the one asked for cannot, and `StorageError` if the store does not answer for
    some time. Each of several processes reads what its devices hold; through `agree` all of them try what rank 0 sees,
    in its order, and refuse what one refuses. `beat` is called after each chunk.
    """
    store = Store(root)
    steps = _first_rank_sees(store, agree)
    refused: list[tuple[int, str]] = []
    for candidate in [step] if step is not None else sorted(steps, reverse=True):
        try:
            manifest, arrays = _whole(
                store, candidate, abstract, digester, agree, beat, partial=partial, masters=masters or {}
            )
        except Refusal as refusal:
            refused.append((candidate, str(refusal)))
            report(candidate, str(refusal))
        else:
            missing = sorted(abstract.keys() - arrays.keys())
            return Restored(step=candidate, arrays=arrays, manifest=manifest, refused=refused, missing=missing)
    if step is None and not any(steps.values()):
        return None
    raise CheckpointError(_none_usable(store, step, steps, refused))


def read_manifest(root: str, step: int) -> Manifest:
    """Return the manifest of a committed checkpoint; raise `CheckpointError` if it is damaged or missing."""
    try:
        return _manifest(Store(root), step)
    except Refusal as refusal:
        raise CheckpointError(f"{root}/{checkpoint_name(step)}: {refusal}") from refusal


def steps(root: str) -> list[int]:
    """Return the committed steps, ascending."""
    store = Store(root)
    return [step for step, committed in _reachable(store, store.steps).items() if committed]


def load_numpy(root: str, step: int, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays whose path starts with `prefix`, verified, by path, one in memory at a time."""
    store, manifest = Store(root), read_manifest(root, step)
    whole = NamedSharding(Mesh(jax.local_devices()[:1], ("device",)), PartitionSpec())
    for path, entry in sorted(manifest.arrays.items()):
        if path.startswith(prefix):
            abstract = {path: jax.ShapeDtypeStruct(entry.shape, np.dtype(entry.dtype), sharding=whole)}
            try:
                arrays, digests = _read(store, manifest, abstract, Digester(abstract))
                _compare(manifest, to_hex(digests))
            except Refusal as refusal:
                raise CheckpointError(f"{root}/{checkpoint_name(step)}: {refusal}") from refusal
            yield path, np.asarray(arrays[path])


def _first_rank_sees(store: Store, agree: Agree) -> dict[int, bool]:
    """Return rank 0's listing: a network volume may show another host an older one, and all must try the same."""
    return dict(json.loads(agree("", lambda _: json.dumps(sorted(_reachable(store, store.steps).items())))))


def _none_usable(store: Store, step: int | None, steps: Mapping[int, bool], refused: list[tuple[int, str]]) -> str:
    if step is not None:
        there = ", ".join(str(other) for other, committed in steps.items() if committed) or "none"
        return f"{store.root}/{checkpoint_name(step)} cannot be used: {refused[0][1]}. Committed steps there: {there}"
    reasons = "".join(f"\n  {checkpoint_name(refused_step)}: {reason}" for refused_step, reason in refused)
    return f"no checkpoint in {store.root} can be used:{reasons}"


def _reachable(store: Store, ask: Callable[[], Any]) -> Any:
    """Return what `ask` returns; a store that does not answer is an error, not a damaged checkpoint."""
    try:
        return with_retries(ask)
    except (ValueError, OSError) as error:
        raise in_words(error, f"{store.root} cannot be read: {first_line(error)}", CheckpointError) from error


def _manifest(store: Store, step: int) -> Manifest:
    marker = _reachable(store, lambda: store.read(step, COMMITTED))
    manifest = _reachable(store, lambda: store.read(step, MANIFEST))
    try:
        return decode(manifest, marker, step)
    except CheckpointError as error:
        raise Refusal(str(error)) from error


def _wanted(
    manifest: Manifest, abstract: Mapping[str, jax.ShapeDtypeStruct], *, partial: bool
) -> dict[str, jax.ShapeDtypeStruct]:
    missing = sorted(abstract.keys() - manifest.arrays.keys())
    if missing and not partial:
        raise Refusal(f"it holds no {missing[0]} (and lacks {len(missing) - 1} more arrays that the run needs)")
    wanted = {path: array for path, array in abstract.items() if path in manifest.arrays}
    for path, array in wanted.items():
        entry = manifest.arrays[path]
        if entry.shape != array.shape or entry.dtype != str(array.dtype):
            held, needed = f"{entry.dtype}{list(entry.shape)}", f"{array.dtype}{list(array.shape)}"
            raise Refusal(f"{path} is {held} in it, but the run needs {needed}")
    return wanted


def _held_otherwise(
    manifest: Manifest, abstract: Mapping[str, jax.ShapeDtypeStruct], masters: Mapping[str, str]
) -> dict[str, str]:
    """Return {path: path that it is held by} of the arrays that a checkpoint has in the other dtype of the two."""
    return {
        path: master if master in manifest.arrays else path
        for path, master in masters.items()
        if path in abstract
        and path in manifest.arrays
        and {manifest.arrays[path].dtype, str(abstract[path].dtype)} == {"bfloat16", "float32"}
    }


def _digesting(digester: Digester, others: Mapping[str, jax.ShapeDtypeStruct]) -> _Digest:
    """Return what digests arrays one by one: these others by themselves, since they have another dtype."""
    of_others = Digester(others)
    return lambda arrays: (of_others if arrays.keys() <= others.keys() else digester)(arrays)


def _whole(
    store: Store,
    step: int,
    abstract: Mapping[str, jax.ShapeDtypeStruct],
    digester: Digester,
    agree: Agree,
    beat: Callable[[], None],
    *,
    partial: bool,
    masters: Mapping[str, str],
) -> tuple[Manifest, dict[str, jax.Array]]:
    """Return a checkpoint that no process refuses: its manifest, and the wanted arrays."""
    try:
        manifest = _manifest(store, step)
        held_by = _held_otherwise(manifest, abstract, masters)
        others = {held: abstract[path].update(dtype=manifest.arrays[held].dtype) for path, held in held_by.items()}
        own = {path: array for path, array in abstract.items() if path not in held_by}
        wanted = _wanted(manifest, {**own, **others}, partial=partial)
        arrays, digests = _read(store, manifest, wanted, _digesting(digester, others), beat)
    except Refusal as refusal:
        agree(str(refusal), _first_refusal)  # each rank takes part once, whether it refuses or not
        raise
    if reason := agree("", _first_refusal):
        raise Refusal(reason)
    # Last, because digests are sums over all ranks: a rank that had refused would be missing.
    _compare(manifest, to_hex(digests, agree))
    places = {path: held_by.get(path, path) for path in abstract}
    return manifest, {path: arrays[held] for path, held in places.items() if held in arrays}


def _first_refusal(reasons: Sequence[str]) -> str:
    """Return the refusal that holds for all, and its rank; "" if no process refuses."""
    return next((f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason), "")


def _read(
    store: Store,
    manifest: Manifest,
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    digest: _Digest,
    beat: Callable[[], None] = lambda: None,
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Return the arrays and their digests; each digest is computed while the next arrays are read."""
    arrays: dict[str, jax.Array] = {}
    digests: dict[str, jax.Array] = {}
    for path, array in fetch(store, manifest, wanted, beat):
        arrays[path] = array
        digests |= digest({path: array})
    # `fetch` gives the largest first; the state keeps the order of what was asked for.
    return {path: arrays[path] for path in wanted}, digests


def _compare(manifest: Manifest, digests: Mapping[str, str]) -> None:
    wrong = sorted(path for path, digest in digests.items() if digest != manifest.arrays[path].digest)
    if wrong:
        raise Refusal(
            f"the values of {', '.join(wrong[:4])} are not the ones that were saved: the digest differs "
            f"({len(wrong)} of {len(digests)} arrays)"
        )
