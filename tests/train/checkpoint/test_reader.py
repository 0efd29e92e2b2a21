"""Restoring: exact on every mesh, and every kind of damage is refused by name."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore as ts

from shardwise.protocol.errors import CheckpointError, StorageError
from shardwise.train.checkpoint import chunks, fetch, load_numpy, read_manifest, restore, steps
from shardwise.train.checkpoint.manifest import FORMAT_VERSION
from shardwise.train.checkpoint.store import Store
from shardwise.train.digest import Digester
from shardwise.train.peers import Settle

Toy = Any
"""The fixture's class lives in conftest.py, which is not imported."""

MESHES = [(4, 2), (2, 4), (8, 1), (1, 8), (1, 1)]


def _flip_bit(folder: Path) -> None:
    path = folder / "arrays/params.kernel/c.1.0"
    content = bytearray(path.read_bytes())
    content[10] ^= 4
    path.write_bytes(content)


def _flip_index_bit(folder: Path) -> None:
    path = folder / "arrays/params.kernel/c.1.0"
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)


def _rewrite_index(folder: Path, start: int, length: int) -> None:
    """Another place for the first chunk of a file, with an index whose checksum is good."""
    path = folder / "arrays/params.kernel/c.1.0"
    content = bytearray(path.read_bytes())
    index_at = len(content) - 4 - 16 * 4
    content[index_at : index_at + 16] = start.to_bytes(8, "little") + length.to_bytes(8, "little")
    content[-4:] = google_crc32c.value(bytes(content[index_at:-4])).to_bytes(4, "little")
    path.write_bytes(content)


def _drop_from_index(folder: Path) -> None:
    """As a writer leaves it that takes zeros for nothing."""
    _rewrite_index(folder, 2**64 - 1, 2**64 - 1)


def _point_behind_the_end(folder: Path) -> None:
    _rewrite_index(folder, 1 << 40, 2048 + 4)


def _point_beyond_all_files(folder: Path) -> None:
    _rewrite_index(folder, 2**63 - 1, 2048 + 4)


def _truncate(folder: Path) -> None:
    path = folder / "arrays/params.half/c.0.1.2"
    os.truncate(path, path.stat().st_size // 2)


def _empty(folder: Path) -> None:
    os.truncate(folder / "arrays/params.half/c.0.1.2", 0)


def _lose_file(folder: Path) -> None:
    (folder / "arrays/params.kernel/c.2.1").unlink()


def _lose_file_of_zeros(folder: Path) -> None:
    (folder / "arrays/optimizer.0.mu.kernel/c.0.3").unlink()


def _lose_scalar(folder: Path) -> None:
    (folder / "arrays/optimizer.0.count/c").unlink()


def _lose_array(folder: Path) -> None:
    shutil.rmtree(folder / "arrays/params.gain")


def _swap(left: Path, right: Path) -> None:
    spare = left.with_name("spare")
    left.rename(spare)
    right.rename(left)
    spare.rename(right)


def _swap_in_array(folder: Path) -> None:
    _swap(folder / "arrays/params.kernel/c.0.0", folder / "arrays/params.kernel/c.3.1")


def _swap_arrays(folder: Path) -> None:
    _swap(folder / "arrays/params.kernel/c.0.0", folder / "arrays/params.twin/c.0.0")


def _lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _lose_marker(folder: Path) -> None:
    (folder / "COMMITTED").unlink()


def _garble_marker(folder: Path) -> None:
    (folder / "COMMITTED").write_text("done", encoding="ascii")


def _edit_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"toy"', '"boy"'), encoding="utf-8")


def _rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edits the manifest and commits the edit, as a program would that means it."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    change(manifest)
    content = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(content)
    marker = {"format_version": FORMAT_VERSION, "manifest_sha256": hashlib.sha256(content).hexdigest()}
    (folder / "COMMITTED").write_text(json.dumps(marker), encoding="ascii")


def _newer_format(folder: Path) -> None:
    _rewrite(folder, lambda manifest: manifest.update(format_version=FORMAT_VERSION + 1, invented="yesterday"))


def _older_format(folder: Path) -> None:
    path = folder / "COMMITTED"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="ascii")) | {"format_version": 1}), encoding="ascii")


def _wrong_shape(folder: Path) -> None:
    cut = {"shape": [64, 512], "file_shape": [64, 512], "chunk_shape": [64, 512]}
    _rewrite(folder, lambda manifest: manifest["arrays"]["params.kernel"].update(cut))


def _wrong_dtype(folder: Path) -> None:
    _rewrite(folder, lambda manifest: manifest["arrays"]["params.half"].update(dtype="float16"))


def _wrong_digest(folder: Path) -> None:
    _rewrite(folder, lambda manifest: manifest["arrays"]["key"].update(digest="0" * 32))


def _wrong_step(folder: Path) -> None:
    _rewrite(folder, lambda manifest: manifest.update(step=3))


def _climb_out(folder: Path) -> None:
    _rewrite(folder, lambda manifest: manifest["arrays"].update({"../../x": manifest["arrays"]["key"]}))


def _drop_from_manifest(folder: Path) -> None:
    _rewrite(folder, lambda manifest: manifest["arrays"].pop("params.gain"))


DAMAGE = [
    (_flip_bit, "params.kernel: .*c.1.0"),
    (_flip_index_bit, "params.kernel: .*c.1.0"),
    (_drop_from_index, "params.kernel: c.1.0 has a chunk of 18446744073709551615 bytes instead of"),
    (_point_behind_the_end, "params.kernel: c.1.0 is cut short or was changed"),
    (_point_beyond_all_files, "params.kernel: c.1.0 has a chunk at byte 9223372036854775807, where no file has one"),
    (_truncate, "params.half: .*c.0.1.2"),
    (_empty, "params.half: .*c.0.1.2"),
    (_lose_file, "params.kernel: .*c.2.1.* is missing"),
    (_lose_file_of_zeros, "optimizer.0.mu.kernel: .*c.0.3.* is missing"),
    (_lose_scalar, "optimizer.0.count: .* is missing"),
    (_lose_array, "params.gain: c.* is missing"),
    (_swap_in_array, "values of params.kernel are not the ones that were saved: the digest differs"),
    (_swap_arrays, "values of params.kernel, params.twin are not the ones that were saved"),
    (_lose_manifest, "manifest.json is missing"),
    (_lose_marker, "COMMITTED is missing"),
    (_garble_marker, "COMMITTED is not JSON"),
    (_edit_manifest, "manifest.json is not the one that was committed"),
    (_newer_format, "manifest.json has format 3, written by a newer Shardwise"),
    (_older_format, "COMMITTED has format 1, written by an older Shardwise .* Export it with the older one"),
    (_wrong_shape, r"params.kernel is float32\[64, 512\] in it, but the run needs float32\[64, 256\]"),
    (_wrong_dtype, r"params.half is float16\[3, 8, 32\] in it, but the run needs bfloat16"),
    (_wrong_digest, "values of key are not the ones"),
    (_wrong_step, "manifest.json is of step 3, but lies in the directory of step 2"),
    (_climb_out, "manifest.json is not valid: arrays"),
    (_drop_from_manifest, "it holds no params.gain"),
]


@pytest.fixture
def two(toy: Toy, many_files: None) -> Toy:
    """Two checkpoints, cut into many files."""
    assert many_files is None
    writer = toy.writer()
    toy.save(writer, 1)
    toy.save(writer, 2)
    return toy


@pytest.mark.parametrize(("damage", "words"), DAMAGE, ids=[damage.__name__[1:] for damage, _ in DAMAGE])
def test_damage_is_refused_by_name(two: Toy, damage: Callable[[Path], None], words: str) -> None:
    """The damaged one is named with what is wrong, the one before it is used; asked for by name, it is an error."""
    damage(two.folder(2))
    assert two.restored_step() == 1
    assert [step for step, _ in two.reports] == [2]
    assert re.search(words, two.reports[0][1])
    with pytest.raises(CheckpointError, match=f"step-00000002 cannot be used: .*{words}"):
        two.restore(step=2)
    assert two.restored_step(step=1) == 1


def test_none_usable_lists_every_reason(two: Toy) -> None:
    """A run must not start over silently where checkpoints exist."""
    _flip_bit(two.folder(1))
    _lose_manifest(two.folder(2))
    with pytest.raises(CheckpointError) as caught:
        two.restore()
    assert "step-00000002: manifest.json is missing" in str(caught.value)
    assert "step-00000001: params.kernel: " in str(caught.value)


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("where", MESHES)
def test_restores_to_any_mesh(toy: Toy, where: tuple[int, int]) -> None:
    """Bit-equal values in the shardings that were asked for, whatever the mesh that saved them."""
    toy.save(toy.writer(), 1)
    restored = toy.restore(where=where)
    assert toy.restored_step(where=where) == 1
    for path, array in toy.arrays(1, where).items():
        assert restored.arrays[path].sharding == array.sharding
        assert restored.arrays[path].dtype == array.dtype


def test_small_arrays_are_one_file_each(toy: Toy) -> None:
    """What eight devices hold of a small array lies in one file, and restores on another mesh all the same."""
    toy.save(toy.writer(), 1)
    files = sorted(path.name for path in (toy.folder(1) / "arrays/params.kernel").iterdir())
    assert files == ["c.0.0", "zarr.json"]
    assert toy.restored_step(where=(2, 4)) == 1


def test_replicas_share_no_memory_and_can_be_donated(toy: Toy) -> None:
    """A restored state goes into the step that donates it: each device has a buffer of its own."""
    toy.save(toy.writer(), 1)
    arrays = toy.restore().arrays
    pointers = [s.data.unsafe_buffer_pointer() for array in arrays.values() for s in array.addressable_shards]
    assert len(set(pointers)) == len(pointers)
    before = np.asarray(toy.arrays(1)["params.gain"])
    gain = jax.jit(lambda x: x + 1, donate_argnums=0)(arrays["params.gain"])
    assert arrays["params.gain"].is_deleted()
    assert all(np.array_equal(np.asarray(shard.data), before + np.float16(1)) for shard in gain.addressable_shards)


@pytest.mark.parametrize(("seen", "taken"), [([[1, True]], 1), ([[1, True], [2, True]], 2)], ids=["less", "as much"])
def test_all_ranks_try_what_the_first_one_sees(
    monkeypatch: pytest.MonkeyPatch, toy: Toy, seen: list[list[Any]], taken: int
) -> None:
    """A network volume may show one host an older listing: what rank 0 sees is tried by all, and by all the same."""
    for step in (1, 2):
        toy.save(toy.writer(), step)
    told = iter([json.dumps(seen)])

    def agree(own: str, settle: Settle) -> str:
        return next(told, None) or settle([own])

    monkeypatch.setattr(Store, "steps", lambda _: pytest.fail("only rank 0 lists"))
    restored = toy.restore(agree=agree)

    assert restored is not None
    assert restored.step == taken


def test_nothing_saved_is_none(toy: Toy) -> None:
    """A run without checkpoints starts from the beginning, also where only a save that was cut short lies."""
    assert toy.restore() is None
    (toy.folder(1) / "arrays").mkdir(parents=True)
    assert toy.restore() is None
    assert [step for step, _ in toy.reports] == [1]
    assert steps(str(toy.root)) == []


def test_step_that_is_not_there_names_those_that_are(two: Toy) -> None:
    """Asked for by name, a checkpoint that does not exist is an error that helps."""
    with pytest.raises(CheckpointError, match=r"step-00000009 cannot be used: .*Committed steps there: 1, 2"):
        two.restore(step=9)


def test_weights_only_restores_in_part(toy: Toy) -> None:
    """A weights checkpoint serves a whole state only where that is asked for, and tells what it lacks."""
    toy.save(toy.writer(), 0, prefix="params.", kind="weights")
    with pytest.raises(CheckpointError, match="it holds no key"):
        toy.restore()
    restored = toy.restore(partial=True)
    assert restored.manifest.kind == "weights"
    assert restored.missing == ["key", "optimizer.0.count", "optimizer.0.mu.kernel"]
    assert set(restored.arrays) == {"params.gain", "params.half", "params.kernel", "params.twin"}


def test_float32_in_place_of_bfloat16_is_returned_as_it_is_held(two: Toy) -> None:
    """Only where that is asked for, and verified as it was saved."""
    abstract = {"params.kernel": two.restore().arrays["params.kernel"]}
    wanted = {path: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16, sharding=x.sharding) for path, x in abstract.items()}
    reading = partial(restore, str(two.root), wanted, step=None, digester=Digester(wanted), report=print)
    with pytest.raises(CheckpointError, match=r"params.kernel is float32\[.*\] in it, but the run needs bfloat16"):
        reading()
    masters = {"params.kernel": "optimizer.weights.kernel"}
    restored = reading(masters=masters)
    assert restored is not None
    assert np.array_equal(restored.arrays["params.kernel"], two.restore().arrays["params.kernel"])
    assert restored.arrays["params.kernel"].dtype == np.float32

    _swap_in_array(two.folder(restored.step))
    again = reading(masters=masters)
    assert again is not None
    assert [step for step, _ in again.refused] == [restored.step]


def test_arrays_beyond_the_wanted_are_left_alone(toy: Toy) -> None:
    """`generate` reads the parameters of a state and not its optimizer."""
    toy.save(toy.writer(), 1)
    whole = toy.restore()
    abstract = {p: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for p, a in whole.arrays.items()}
    some = {path: array for path, array in abstract.items() if path.startswith("params.")}
    restored = restore(str(toy.root), some, step=None, digester=Digester(some), report=print)
    assert restored is not None
    assert restored.arrays.keys() == some.keys()


def test_load_numpy_gives_verified_arrays_one_by_one(two: Toy) -> None:
    """Export sees plain arrays, and damage is an error there too."""
    expected = two.arrays(2)
    loaded = dict(load_numpy(str(two.root), 2, "params."))
    assert sorted(loaded) == ["params.gain", "params.half", "params.kernel", "params.twin"]
    assert all(loaded[path].tobytes() == np.asarray(expected[path]).tobytes() for path in loaded)
    _swap_in_array(two.folder(2))
    with pytest.raises(CheckpointError, match=r"step-00000002: the values of params.kernel"):
        list(load_numpy(str(two.root), 2, "params."))


def test_read_manifest_refuses_what_is_not_committed(two: Toy) -> None:
    """The manifest alone is not trusted without its marker."""
    _lose_marker(two.folder(2))
    with pytest.raises(CheckpointError, match="step-00000002: it was never committed"):
        read_manifest(str(two.root), 2)
    assert steps(str(two.root)) == [1]


@pytest.mark.parametrize(
    ("error", "words", "kind"),
    [
        (ValueError("UNAVAILABLE: the network is down"), "UNAVAILABLE", StorageError),
        (OSError(errno.EIO, "Input/output error"), "Input/output error", StorageError),
        (PermissionError(errno.EACCES, "Permission denied"), "Permission denied", CheckpointError),
    ],
    ids=["bucket", "disk", "folder"],
)
@pytest.mark.usefixtures("at_once")
def test_a_store_out_of_reach_is_not_damage(
    monkeypatch: pytest.MonkeyPatch, two: Toy, error: Exception, words: str, kind: type[Exception]
) -> None:
    """A network, disk or mount that fails must not send a run back to an older checkpoint."""

    def unreachable(*_: object) -> None:
        raise error

    monkeypatch.setattr(chunks, "_LocalFile", unreachable)
    with pytest.raises(kind, match=f"cannot be read: .*{words}"):
        two.restore()
    assert two.reports == []


@pytest.mark.usefixtures("at_once")
def test_a_disk_that_fails_for_a_moment_is_read_again(monkeypatch: pytest.MonkeyPatch, two: Toy) -> None:
    """One error of a network volume neither ends the start nor refuses the newest checkpoint."""
    read = os.preadv
    failed: list[int] = []

    def shaky(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if not failed:
            failed.append(descriptor)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", shaky)
    assert two.restored_step() == 2
    assert failed
    assert two.reports == []


def test_others_read_an_array_as_zarr(two: Toy) -> None:
    """TensorStore, which is told nothing but where an array lies, finds its values: what we read is zarr."""
    expected = two.arrays(2)
    for path in ("params.kernel", "params.half", "optimizer.0.count"):
        place = {"driver": "file", "path": f"{two.folder(2)}/arrays/{path}/"}
        values = ts.open({"driver": "zarr3", "kvstore": place}, open=True, read=True).result().read().result()
        assert values.tobytes() == np.asarray(expected[path]).tobytes()


@pytest.mark.usefixtures("many_files")
def test_few_chunks_at_a_time(monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
    """One reader, and no array begun before the one ahead of it is there: slower, and the same values."""
    toy.save(toy.writer(), 1)
    monkeypatch.setattr(fetch, "_NUM_CHUNKS_AT_ONCE", 1)
    monkeypatch.setattr(fetch, "_NUM_CHUNKS_AHEAD", 0)
    assert toy.restored_step(where=(2, 4)) == 1
