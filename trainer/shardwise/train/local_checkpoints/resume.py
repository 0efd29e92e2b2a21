"""Which local checkpoint a run goes on from, if any: the newest of which the hosts have every part between them.

Each host says what it has, and rank 0 chooses. A host that was replaced then fetches what its devices need from those
that have it. What follows is an ordinary restore from the host's own folder, with every check that has.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from shardwise.job.identity import recorded_differences
from shardwise.protocol.contract import COMMITTED
from shardwise.protocol.errors import CheckpointError
from shardwise.protocol.storage import first_line
from shardwise.train.checkpoint import Manifest, layout
from shardwise.train.checkpoint.manifest import MANIFEST, array_directory
from shardwise.train.local_checkpoints.folder import Held, Parts, file_name
from shardwise.train.local_checkpoints.neighbours import Neighbours


@dataclass(frozen=True)
class _Choice:
    """What rank 0 has chosen: a step, its manifest's SHA-256, and by rank the host that gives its part."""

    step: int
    id: str
    hosts: Mapping[int, int]


def newest_local(
    neighbours: Neighbours,
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    *,
    run: str,
    identity: Mapping[str, Any],
    after: int,
    show: Callable[[str], None],
    beat: Callable[[], None],
) -> int | None:
    """Return the newest step after `after` of which all parts are there, once this host has what it needs of it.

    None if there is none, or if some host could not fetch its part. Every process calls it.
    """
    peers = neighbours.peers
    own = _own(neighbours, run, identity, after)
    settled = json.loads(peers.agree("local checkpoints", json.dumps(own), choose))
    if settled is None:
        return None
    choice = _Choice(settled["step"], settled["id"], {int(rank): host for rank, host in settled["hosts"].items()})
    reason = ""
    try:
        _complete(neighbours, choice, wanted, beat)
    except (OSError, ValueError, CheckpointError) as error:
        reason = first_line(error)
    for rank, why in enumerate(peers.exchange("local parts", reason)):
        if why:
            show(f"the local checkpoint of step {choice.step} cannot be used: rank {rank}: {why}")
            return None
    return choice.step


def _own(neighbours: Neighbours, run: str, identity: Mapping[str, Any], after: int) -> dict[int, list[Any]]:
    """Return {step: [id, processes, ranks]} of this host's own, of this very run; nothing if it cannot be read."""
    try:
        held = [one for one in neighbours.folder.held() if one.step > after and _is_of(one, run, identity)]
    except (OSError, ValueError):
        return {}
    return {one.step: [one.id, one.parts.processes, one.parts.ranks] for one in held if one.parts}


def _is_of(held: Held, run: str, identity: Mapping[str, Any]) -> bool:
    return held.manifest.run == run and not recorded_differences(dict(held.manifest.identity), dict(identity))


def choose(texts: Sequence[str]) -> str:
    """Return the newest step of which every rank's part is on some host, as JSON; null if there is none."""
    by_host: list[dict[str, list[Any]]] = [json.loads(text) for text in texts]
    for step in sorted({int(step) for held in by_host for step in held}, reverse=True):
        hosts_of: dict[str, dict[int, int]] = {}  # by the checkpoint's id, since an attempt may repeat a step
        for host, held in enumerate(by_host):
            id_, processes, ranks = held.get(str(step), ("", 0, ()))
            if processes == len(texts):
                for rank in ranks:
                    hosts = hosts_of.setdefault(id_, {})
                    hosts[rank] = host if rank == host else hosts.get(rank, host)
        for id_, hosts in hosts_of.items():
            if len(hosts) == len(texts):
                return json.dumps({"step": step, "id": id_, "hosts": hosts})
    return json.dumps(None)


def _complete(
    neighbours: Neighbours, choice: _Choice, wanted: Mapping[str, jax.ShapeDtypeStruct], beat: Callable[[], None]
) -> None:
    """Fetch what this host lacks of what its devices need, the marker last."""
    folder, rank = neighbours.folder, neighbours.peers.rank
    fetch = partial(neighbours.fetch, choice.step, moved=beat)
    held = folder.read(choice.step)
    if held is None or held.id != choice.id or held.parts is None:
        folder.make_room(choice.step)
        fetch({choice.hosts[rank]: [MANIFEST, COMMITTED]})
        held = folder.read(choice.step)
    if held is None or held.id != choice.id:
        raise CheckpointError("its manifest is not the one that the others have")
    missing: dict[int, list[str]] = {}
    for name, writer in _needed(held.manifest, wanted):
        if not folder.has(choice.step, name):
            missing.setdefault(choice.hosts[writer], []).append(name)
    if rank in missing:
        raise CheckpointError(f"{missing[rank][0]} is missing")
    fetch(missing)
    if held.parts is None:
        folder.note(choice.step, Parts(processes=neighbours.peers.count, ranks=(rank,)))


def _needed(manifest: Manifest, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> Iterator[tuple[str, int]]:
    """Yield the files that this process's devices have values in, as paths in the checkpoint, with their writers.

    Raises:
        CheckpointError: the arrays were cut otherwise, as by another mesh.

    """
    for path, array in wanted.items():
        assert array.sharding is not None
        entry = manifest.arrays.get(path)
        cut = layout.plan(array.shape, array.dtype.itemsize, array.sharding)
        if entry is None or (entry.shape, entry.file_shape) != (array.shape, cut.file_shape):
            raise CheckpointError(f"{path} is not in it, or is cut otherwise")
        cells = {
            cell
            for box in layout.shard_regions(array.shape, array.sharding)
            for cell in layout.cells_over(box, cut.file_shape)
        }
        for cell in sorted(cells):
            yield f"{array_directory(path)}/{file_name(cell)}", cut.writers[cell]
