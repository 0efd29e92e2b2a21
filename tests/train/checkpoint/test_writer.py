"""Saving: what is on disk afterwards, what happens when it cannot be written, and what stays in memory."""

import errno
import json
import re
import resource
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore as ts
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.job.spec import Keep
from shardwise.protocol import storage
from shardwise.protocol.errors import CheckpointError, ShardwiseError, StorageError
from shardwise.train.checkpoint import SaveTicket, load_numpy, one_at_a_time, put, read_manifest, steps
from shardwise.train.checkpoint import writer as writing
from shardwise.train.checkpoint.retention import set_aside
from shardwise.train.checkpoint.store import Store
from shardwise.train.digest import Digester
from shardwise.train.peers import ALONE

Toy = Any
"""The fixture's class lives in conftest.py, which is not imported."""


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.saved_steps: list[int] = []
        self.events: list[dict[str, Any]] = []

    def saved(self, ticket: SaveTicket) -> None:
        """Keep the step."""
        self.saved_steps.append(ticket.step)

    def event(self, record: Mapping[str, Any]) -> None:
        """Keep it."""
        self.events.append(dict(record))


def unavailable(*_: object) -> None:
    """Stand in for a write into a bucket that does not answer."""
    raise ValueError("UNAVAILABLE: 503")


def test_ticket_tells_bytes_and_seconds(toy: Toy) -> None:
    """The bytes are the values' own; durable comes after blocked."""
    ticket = toy.save(toy.writer(), 1)
    assert ticket.bytes == sum(array.nbytes for array in toy.arrays(1).values())
    assert 0 < ticket.blocked_seconds < ticket.durable_seconds


def test_manifest_says_what_it_holds(toy: Toy) -> None:
    """Identity, owner and attempt come back as they were given."""
    toy.save(toy.writer(run="mine", attempt=7), 5)
    manifest = read_manifest(str(toy.root), 5)
    assert (manifest.run, manifest.attempt, manifest.step, manifest.kind) == ("mine", 7, 5, "state")
    assert manifest.identity == {"model": "toy"}
    assert manifest.arrays["params.half"].dtype == "bfloat16"


def test_donation_right_after_save_keeps_the_saved_values(toy: Toy) -> None:
    """save() leaves no view behind: the next step reuses the buffers, and the checkpoint holds the old values."""
    arrays = toy.arrays(1)
    sharding = arrays["params.kernel"].sharding
    digester = Digester({"k": jax.ShapeDtypeStruct((64, 256), jnp.float32, sharding=sharding)})
    kernel = jax.jit(lambda x: x * 1, out_shardings=sharding)(arrays["params.kernel"])
    pointers = {shard.data.unsafe_buffer_pointer() for shard in kernel.addressable_shards}
    writer = toy.writer()
    writer.save(1, {"k": kernel}, digester=digester, identity={})
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    after = step(kernel)
    assert {shard.data.unsafe_buffer_pointer() for shard in after.addressable_shards} == pointers
    writer.wait()
    stored = dict(load_numpy(str(toy.root), 1, ""))
    assert np.array_equal(stored["k"], np.asarray(arrays["params.kernel"]))


def test_same_step_and_values_is_left_alone(toy: Toy) -> None:
    """A run that comes back to a step that is already saved writes nothing."""
    toy.save(toy.writer(), 1)
    before = {path: path.stat().st_mtime_ns for path in toy.folder(1).rglob("*")}
    toy.save(toy.writer(), 1)
    assert {path: path.stat().st_mtime_ns for path in toy.folder(1).rglob("*")} == before


def test_same_step_with_other_values_is_refused_unless_overwritten(toy: Toy) -> None:
    """A committed checkpoint is replaced only on request."""
    toy.save(toy.writer(), 1)
    with pytest.raises(CheckpointError, match=r"step-00000001 is committed and holds other values"):
        toy.save(toy.writer(), 1, seed=2)
    assert toy.restored_step() == 1
    toy.save(toy.writer(), 1, seed=2, overwrite=True)
    restored = toy.restore()
    assert np.array_equal(np.asarray(restored.arrays["params.kernel"]), np.asarray(toy.arrays(2)["params.kernel"]))


def test_partial_directory_of_the_same_step_is_replaced(toy: Toy) -> None:
    """What a killed save left behind neither stops the next one nor stays in it."""
    leftover = toy.folder(1) / "arrays" / "params.kernel" / "c.9.9"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"old")
    toy.save(toy.writer(), 1)
    assert toy.restored_step() == 1
    assert not leftover.exists()


def test_partial_directories_go_after_a_commit(toy: Toy) -> None:
    """The first commit also clears what killed saves of other steps left."""
    toy.folder(3).mkdir(parents=True)
    (toy.root / "notes").mkdir()
    toy.save(toy.writer(), 4)
    assert not toy.folder(3).exists()
    assert (toy.root / "notes").exists()


def test_retention_keeps_last_and_permanent(toy: Toy) -> None:
    """The two newest and every multiple of four stay."""
    writer = toy.writer(keep=Keep(last=2, every_steps=4))
    for step in range(1, 8):
        toy.save(writer, step)
    assert steps(str(toy.root)) == [4, 6, 7]


def test_fence_is_called_before_the_commit_and_may_refuse_it(toy: Toy) -> None:
    """A save of an overtaken attempt is never committed, and its own error comes through."""
    seen = []

    def fence() -> None:
        seen.append(sorted(path.name for path in toy.folder(2).iterdir()))
        raise ShardwiseError("attempt 2 exists")

    toy.save(toy.writer(), 1)
    writer = toy.writer(fence=fence)
    with pytest.raises(ShardwiseError, match="attempt 2 exists"):
        toy.save(writer, 2)
    assert seen == [["arrays", "manifest.json"]]
    assert toy.restored_step() == 1


@pytest.mark.usefixtures("many_files")
def test_failed_write_leaves_the_earlier_one_and_no_partial_directory(toy: Toy) -> None:
    """A file that may not grow stands in for a full disk: plain words, nothing lost, and the next save is tried."""
    heard = Heard()
    writer = toy.writer(listener=heard)
    toy.save(writer, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        ticket = toy.save(writer, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for words in (
        str(toy.folder(2)),
        "size limit",
        "partial directory is removed",
        "Earlier checkpoints are untouched",
    ):
        assert words in str(ticket.error)
        assert words in heard.events[0]["reason"]
    assert heard.events[0] | {"reason": ""} == {"event": "saveFailed", "step": 2, "inARow": 1, "reason": ""}
    assert toy.folders() == [1]
    assert toy.restored_step() == 1
    assert toy.save(writer, 3).error is None
    assert toy.restored_step() == 3
    assert heard.saved_steps == [1, 3]


@pytest.mark.usefixtures("at_once")
def test_saves_that_fail_for_too_long_end_the_run(monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
    """Neither many failures in a short time nor a few over a long time do; one that succeeds begins the count anew."""
    monkeypatch.setattr(writing, "_MAX_FAILING_SECONDS", 0.0)
    toy.save(toy.writer(), 1)
    writer = toy.writer(restored=True)
    with monkeypatch.context() as patch:
        patch.setattr(put, "_start_write", unavailable)
        toy.save(writer, 2)
        toy.save(writer, 3)
    toy.save(writer, 4)
    monkeypatch.setattr(put, "_start_write", unavailable)
    toy.save(writer, 5)
    toy.save(writer, 6)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "_MAX_FAILING_SECONDS", 1e6)
        toy.save(writer, 7)
    with pytest.raises(StorageError, match=r"step-00000008 was not saved: .*UNAVAILABLE"):
        toy.save(writer, 8)


def test_a_lease_that_cannot_be_renewed_fails_the_save_alone(toy: Toy) -> None:
    """Without it nothing is committed; it may be renewed again at the next save, unless another run has it by then."""
    toy.save(toy.writer(), 1)
    answers: list[Exception] = [ValueError("DEADLINE_EXCEEDED: 503"), ShardwiseError("another run has taken over")]

    def fence() -> None:
        raise answers.pop(0)

    writer = toy.writer(fence=fence, restored=True)
    ticket = toy.save(writer, 2)
    assert isinstance(ticket.error, StorageError)
    assert steps(str(toy.root)) == [1]
    with pytest.raises(ShardwiseError, match="another run has taken over"):
        toy.save(writer, 3)


@pytest.mark.usefixtures("at_once")
def test_a_checkpoint_that_cannot_be_looked_at_stays(monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
    """A save that fails before it has written anything removes nothing: what is there is another's."""
    toy.save(toy.writer(), 1)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "read", unavailable)
        ticket = toy.save(toy.writer(restored=True), 1)
    assert isinstance(ticket.error, StorageError)
    assert "Nothing of it was written." in str(ticket.error)
    assert toy.restored_step() == 1


@pytest.mark.usefixtures("at_once")
def test_a_file_that_was_not_written_is_written_again(monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
    """An error that passes fails no save."""
    start, calls = put._start_write, []

    def shaky(*given: Any) -> Any:
        calls.append(given)
        promise, failed = ts.Promise[None].new()
        promise.set_exception(ValueError("UNAVAILABLE: 503"))
        return failed if len(calls) == 1 else start(*given)

    monkeypatch.setattr(put, "_start_write", shaky)
    toy.save(toy.writer(), 1)
    assert toy.restored_step() == 1
    assert calls[0][0] in [part for part, _ in calls[1:]]


@pytest.mark.usefixtures("many_files")
def test_files_that_failed_together_are_waited_for_once(monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
    """What was on its way while the storage failed does not wait anew, file by file, when that is over."""
    start = put._start_write
    waits: list[float] = []
    calls: list[Any] = []

    def failing(*given: Any) -> Any:
        calls.append(given)
        promise, failed = ts.Promise[None].new()
        promise.set_exception(ValueError("UNAVAILABLE: 503"))
        return start(*given) if waits else failed

    monkeypatch.setattr(put, "_start_write", failing)
    monkeypatch.setattr(storage, "time", SimpleNamespace(sleep=waits.append))
    toy.save(toy.writer(), 1)
    assert toy.restored_step() == 1
    assert len(calls) > 2 * len(waits)
    assert waits == [storage.WAITS_SECONDS[0]]


@pytest.mark.usefixtures("many_files")
def test_waiting_for_a_save_beats_while_files_are_written(monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
    """A long save gets on file by file; one that stands still is silent, however long it is waited for."""
    start, going, looks = put._start_write, threading.Semaphore(3), threading.Semaphore(0)

    def slow(*given: Any) -> Any:
        going.acquire()
        return start(*given)

    def wait(*given: Any, **named: Any) -> Any:
        done = futures.wait(*given, **named)
        looks.release()
        return done

    monkeypatch.setattr(put, "_start_write", slow)
    monkeypatch.setattr(put, "_MAX_BYTES_IN_FLIGHT", 0)
    monkeypatch.setattr(one_at_a_time, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(one_at_a_time, "wait", wait)
    writer = toy.writer()
    beats: list[int] = []
    toy.start(writer, 1)

    def watch() -> None:
        for _ in range(30):
            looks.acquire()
        quiet.append(len(beats))
        for _ in range(30):
            looks.acquire()
        quiet.append(len(beats))
        going.release(1000)

    quiet: list[int] = []
    watching = threading.Thread(target=watch)
    watching.start()
    writer.wait(lambda: beats.append(1))
    watching.join()
    assert 0 < quiet[0] == quiet[1] < len(beats)


@pytest.mark.usefixtures("at_once")
def test_one_ranks_failure_is_everyones(toy: Toy) -> None:
    """Also where this rank has written its part: none counts a checkpoint that another lacks, and all go by rank 0."""
    toy.save(toy.writer(), 1)
    other = {"done": False, "reason": "writing failed (UNAVAILABLE: 503)", "refused": False, "passes": True}

    def exchange(name: str, text: str) -> list[str]:
        return [text, json.dumps(json.loads(text) | (other if name == "save files" else {}))]

    processes = SimpleNamespace(writes=True, count=2, exchange=exchange, agree=ALONE.agree)
    ticket = toy.save(toy.writer(restored=True, processes=processes), 2)
    assert isinstance(ticket.error, StorageError)
    assert "step-00000002 was not saved: rank 1: writing failed (UNAVAILABLE: 503)" in str(ticket.error)
    assert toy.folders() == [1]


def test_a_save_of_two_steps_is_none(toy: Toy) -> None:
    """Should two processes save the states of different steps, no checkpoint comes of it."""

    def exchange(_: str, text: str) -> list[str]:
        return [text, json.dumps(json.loads(text) | {"step": 3})]

    processes = SimpleNamespace(writes=True, count=2, exchange=exchange, agree=ALONE.agree)
    with pytest.raises(RuntimeError, match=re.escape("different steps, [2, 3]")):
        toy.save(toy.writer(restored=True, processes=processes), 2)
    assert steps(str(toy.root)) == []


def test_one_rank_describes_the_arrays(toy: Toy) -> None:
    """A bucket takes few writes of one object: the other ranks neither write what an array is nor ask for it."""
    parts, abstract, layouts = toy.staged(1)
    put.put(Store(str(toy.root)), 1, abstract, layouts, parts, describes=False)
    assert not list(toy.folder(1).rglob("zarr.json"))
    assert list(toy.folder(1).rglob("c.*"))


def test_a_rank_that_holds_only_copies_has_nothing_to_write(toy: Toy) -> None:
    """Of a second replica, say; it may come to its save before the first rank has made a folder."""
    told: list[str] = []

    def exchange(_: str, text: str) -> list[str]:
        told.append(json.loads(text)["reason"])
        return [text]

    processes = SimpleNamespace(writes=False, count=2, exchange=exchange, agree=ALONE.agree)
    writer = toy.writer(processes=processes)
    writer.save(1, {}, digester=Digester({}), identity={})
    writer.wait()
    assert told == ["", "", ""]


def test_what_retention_cannot_delete_harms_nothing(monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
    """It is told, the other ones go, and it goes after the next save."""
    heard = Heard()
    writer = toy.writer(keep=Keep(last=1), listener=heard)
    toy.save(writer, 1)
    (toy.root / "step-00000000").mkdir()
    delete = Store.delete

    def busy(store: Store, step: int, moved: Callable[[], None]) -> None:
        if step == 1:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        delete(store, step, moved)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "delete", busy)
        toy.save(writer, 2)
    assert toy.folders() == [1, 2]
    reason = "step-00000001: [Errno 39] Directory not empty"
    assert heard.events == [{"event": "retentionFailed", "step": 2, "reason": reason}]
    toy.save(writer, 3)
    assert toy.folders() == [3]
    assert heard.saved_steps == [1, 2, 3]


def test_a_long_deletion_makes_progress(monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
    """Who waits for it beats as array after array goes: it is no hang, however long the whole of it takes."""
    writer = toy.writer(keep=Keep(last=1))
    toy.save(writer, 1)
    beats, remove = threading.Semaphore(0), shutil.rmtree
    heard: list[bool] = []

    def slow(folder: Path) -> None:
        remove(folder)
        if heard:  # the first of a deletion; the save before it has beaten too
            heard.append(beats.acquire(timeout=30))
        else:
            heard.append(True)
            while beats.acquire(blocking=False):
                pass

    monkeypatch.setattr(shutil, "rmtree", slow)
    toy.start(writer, 2)
    writer.wait(beats.release)
    assert len(heard) > 2
    assert all(heard)


def test_what_is_set_aside_stays_until_the_run_has_come_so_far(toy: Toy) -> None:
    """Checkpoints after a step count no more; each has all its files until the run passes it, and then it goes."""
    writer = toy.writer(keep=Keep(last=10))
    for step in (1, 2, 4, 6):
        toy.save(writer, step)
    assert set_aside(str(toy.root), 2) == [4, 6]
    assert set_aside(str(toy.root), 2) == []
    assert steps(str(toy.root)) == [1, 2]
    assert toy.restored_step() == 2

    toy.save(writer, 3)
    assert toy.folders() == [1, 2, 3, 4, 6]
    (toy.folder(6) / "SET_ASIDE").rename(toy.folder(6) / "COMMITTED")
    assert toy.restored_step() == 6
    set_aside(str(toy.root), 3)
    toy.save(writer, 4, seed=99)
    toy.save(writer, 5)
    assert toy.folders() == [1, 2, 3, 4, 5, 6]
    toy.save(writer, 7)
    assert steps(str(toy.root)) == toy.folders() == [1, 2, 3, 4, 5, 7]


@pytest.mark.usefixtures("at_once")
def test_full_disk_is_called_that(monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
    """The system's words for a full disk become "the disk is full"."""

    def full(*_: object) -> None:
        raise ValueError("RESOURCE_EXHAUSTED: Error writing: No space left on device [tensorstore_spec='..']")

    writer = toy.writer()
    monkeypatch.setattr(put, "_start_write", full)
    with pytest.raises(StorageError, match="the disk is full") as caught:
        toy.save(writer, 1)
    assert "tensorstore_spec" not in str(caught.value)


def test_error_of_a_save_is_raised_by_the_next_one(monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
    """Nothing that goes wrong in the background is lost, and it is raised once."""
    writer = toy.writer()
    with monkeypatch.context() as patch:
        patch.setattr(put, "_start_write", lambda *_: 1 / 0)
        toy.start(writer, 1)
        with pytest.raises(ZeroDivisionError):
            toy.start(writer, 2)
    toy.save(writer, 2)
    assert toy.restored_step() == 2


@pytest.mark.parametrize("saves", [30, pytest.param(100, marks=pytest.mark.long)])
def test_resident_memory_is_flat_over_many_saves(tmp_path: Path, saves: int) -> None:
    """A 48 MB tree that a step changes while it is saved, as in training: the last saves leave what the first did."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "tensor"))
    sharding = NamedSharding(mesh, PartitionSpec("data", "tensor"))
    shapes = {f"w{n}": jax.ShapeDtypeStruct((2048, 2048), jnp.float32, sharding=sharding) for n in range(3)}
    tree = {path: jax.device_put(np.full(a.shape, 0.5, np.float32), sharding) for path, a in shapes.items()}
    digester, step = Digester(shapes), jax.jit(lambda tree: {p: x + 1 for p, x in tree.items()}, donate_argnums=0)
    writer = writing.CheckpointWriter(str(tmp_path), keep=Keep(last=1), run="r", attempt=0, fence=nullcontext)
    resident = []
    for number in range(1, saves + 1):
        writer.save(number, tree, digester=digester, identity={})
        tree = step(tree)
        writer.wait()
        resident.append(_resident_bytes())
    assert min(resident[-10:]) - min(resident[5:15]) < 5 << 20
    writer.close()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()
