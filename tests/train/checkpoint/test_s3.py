"""Checkpoints in an S3 bucket, over HTTP."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.train.s3_server import Bucket, serving

from shardwise.job.spec import Keep
from shardwise.protocol.errors import CheckpointError
from shardwise.train.checkpoint import load_numpy, steps
from shardwise.train.checkpoint.objects import Objects
from shardwise.train.checkpoint.store import Store

Toy = Any
"""The fixture's class lives in conftest.py, which is not imported."""


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """One for all tests; each has a prefix of its own."""
    with serving() as bucket:
        yield bucket


@pytest.fixture
def remote(bucket: Bucket, toy: Toy, request: pytest.FixtureRequest) -> Toy:
    """The toy's run, in the bucket."""
    toy.root = f"{bucket.url}/{request.node.name}"
    return toy


def prefix(toy: Toy) -> str:
    """The key of the run's folder, without a slash at the end."""
    return str(toy.root).removeprefix("s3://bucket/")


def place(toy: Toy, step: int, name: str) -> str:
    """The key of a file of a checkpoint."""
    return f"{prefix(toy)}/step-{step:08d}/{name}"


def _flip_bit(bucket: Bucket, toy: Toy) -> None:
    key = place(toy, 2, "arrays/params.kernel/c.1.0")
    content = bytearray(bucket.get(key))
    content[10] ^= 4
    bucket.put(key, bytes(content))


def _truncate(bucket: Bucket, toy: Toy) -> None:
    key = place(toy, 2, "arrays/params.half/c.0.1.2")
    bucket.put(key, bucket.get(key)[:-20])


def _lose_file(bucket: Bucket, toy: Toy) -> None:
    bucket.delete(place(toy, 2, "arrays/params.kernel/c.2.1"))


def _swap(bucket: Bucket, toy: Toy) -> None:
    left, right = (place(toy, 2, f"arrays/params.{name}/c.0.0") for name in ("kernel", "twin"))
    content = bucket.get(left)
    bucket.put(left, bucket.get(right))
    bucket.put(right, content)


def _lose_marker(bucket: Bucket, toy: Toy) -> None:
    bucket.delete(place(toy, 2, "COMMITTED"))


def _edit_manifest(bucket: Bucket, toy: Toy) -> None:
    key = place(toy, 2, "manifest.json")
    bucket.put(key, bucket.get(key).replace(b'"toy"', b'"boy"'))


@pytest.mark.parametrize(
    ("environment", "endpoint"),
    [
        ({}, None),
        ({"AWS_ENDPOINT_URL": ""}, None),
        ({"AWS_ENDPOINT_URL": "http://all"}, "http://all"),
        ({"AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_S3": "http://s3"}, "http://s3"),
    ],
)
def test_the_endpoint_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], endpoint: str | None
) -> None:
    """As AWS's own clients do it: the variable of S3 goes before that of all services; gs:// has none."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert Store("s3://bucket/run").spec(1).get("endpoint") == endpoint
    assert "endpoint" not in Store("gs://bucket/run").spec(1)


@pytest.mark.parametrize(("missing", "found"), [((), True), (("AWS_SECRET_ACCESS_KEY",), False)])
def test_a_key_in_the_environment_is_all_that_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
    bucket: Bucket,  # noqa: ARG001  sets a key
    missing: tuple[str, ...],
    found: bool,  # noqa: FBT001  a column of the table
) -> None:
    """Where it is not whole, credentials are looked for in all places that AWS's own clients know."""
    for name in missing:
        monkeypatch.delenv(name)

    assert ("aws_credentials" in Store("s3://bucket/run").spec(1)) == found


def test_a_save_into_a_bucket_prints_nothing(remote: Toy, capfd: pytest.CaptureFixture[str]) -> None:
    """TensorStore's own libraries write to the error stream what a person would take for trouble."""
    remote.save(remote.writer(), 1)

    assert remote.restored_step() == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("many_files")
def test_a_checkpoint_comes_back_bit_by_bit_on_any_mesh(bucket: Bucket, remote: Toy) -> None:
    """Many objects of many chunks, written by one mesh and read by others; also as plain arrays."""
    remote.save(remote.writer(), 1)

    assert len(bucket.keys(place(remote, 1, "arrays/params.kernel"))) == 1 + 8
    for where in ((4, 2), (2, 4), (1, 1)):
        assert remote.restored_step(where=where) == 1
    ((path, gain),) = load_numpy(remote.root, 1, "params.gain")
    assert (path, gain.tobytes()) == ("params.gain", np.asarray(remote.arrays(1)["params.gain"]).tobytes())


def test_retention_deletes_objects(bucket: Bucket, remote: Toy) -> None:
    """The two newest stay; of others, and of a save that was cut short, no object is left. Another run's stay."""
    bucket.put(place(remote, 9, "arrays/params.kernel/c.0.0"), b"cut short")
    of_another = f"{prefix(remote)}-of-another/step-00000001/COMMITTED"
    bucket.put(of_another, b"x")
    writer = remote.writer(keep=Keep(last=2))
    for step in (1, 2, 3):
        remote.save(writer, step)

    assert steps(remote.root) == [2, 3]
    left = {key.removeprefix(f"{prefix(remote)}/").split("/")[0] for key in bucket.keys(prefix(remote))}
    assert left == {"step-00000002", "step-00000003"}
    assert bucket.get(of_another) == b"x"


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_flip_bit, "params.kernel: "),
        (_truncate, "params.half: "),
        (_lose_file, "params.kernel: "),
        (_swap, "the values of params.kernel, params.twin are not the ones that were saved"),
        (_lose_marker, "it was never committed"),
        (_edit_manifest, "manifest.json is not the one that was committed"),
    ],
)
def test_damage_is_refused_and_the_one_before_serves(
    bucket: Bucket, remote: Toy, damage: Callable[[Bucket, Toy], None], words: str
) -> None:
    """Whatever is wrong with the newest checkpoint's objects, it is refused by name and the older one is restored."""
    writer = remote.writer()
    for step in (1, 2):
        remote.save(writer, step)
    damage(bucket, remote)

    assert remote.restored_step() == 1
    ((step, reason),) = remote.reports
    assert (step, reason[: len(words)]) == (2, words)


def test_a_step_is_saved_once_and_replaced_only_on_request(remote: Toy) -> None:
    """Other values for a committed step are refused; with `overwrite` they take its place as a whole."""
    remote.save(remote.writer(), 1)
    with pytest.raises(CheckpointError, match="is committed and holds other values"):
        remote.save(remote.writer(), 1, seed=2)
    assert remote.restored_step() == 1

    remote.save(remote.writer(), 1, seed=2, overwrite=True)

    assert remote.restore().arrays["key"].tolist() == remote.arrays(2)["key"].tolist()


def test_a_bucket_that_is_not_there_is_an_error(remote: Toy) -> None:
    """It never reads as "nothing saved yet", and a save into it fails in plain words."""
    remote.root = "s3://no-such-bucket/run"
    with pytest.raises(CheckpointError, match=r"s3://no-such-bucket/run cannot be read: .*NoSuchBucket"):
        remote.restore()
    with pytest.raises(CheckpointError, match=r"s3://no-such-bucket/run/step-00000001 was not saved: .*NoSuchBucket"):
        remote.save(remote.writer(), 1)


def test_a_listing_asks_for_folders_and_markers_alone(
    bucket: Bucket, remote: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many objects a checkpoint has; what is no checkpoint is passed over, and nothing old is remembered."""
    store = Store(str(remote.root))
    for name in (
        "step-00000003/manifest.json",
        "step-00000020/COMMITTED",
        "step-7/COMMITTED",
        "step-00000009",
        "LEASE",
    ):
        bucket.put(f"{prefix(remote)}/{name}", b"x")
    monkeypatch.setattr(Store, "folder", lambda _: pytest.fail("every object was listed"))
    assert store.steps() == {3: False, 20: True}
    bucket.put(f"{prefix(remote)}/step-00000003/COMMITTED", b"x")
    bucket.put(f"{prefix(remote)}/step-00000004/arrays/w/c.0", b"x")
    assert store.steps() == {3: True, 4: False, 20: True}


def test_an_object_of_one_chunk_is_one_request(bucket: Bucket, remote: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to a bucket costs tens of milliseconds, so the index and its chunk come together."""
    remote.save(remote.writer(), 1)
    objects = {key for key in bucket.keys(prefix(remote)) if not key.endswith("zarr.json")}
    asked: list[str] = []
    read, straight = Store.read, Objects.read

    def counted(store: Store, step: int, name: str, *part: slice) -> bytes | None:
        asked.append(place(remote, step, name))
        return read(store, step, name, *part)

    def counted_straight(of: Objects, key: str, start: int, memory: Any, num_more: int) -> tuple[int, bytes] | None:
        asked.append(key)
        return straight(of, key, start, memory, num_more)

    monkeypatch.setattr(Store, "read", counted)
    monkeypatch.setattr(Objects, "read", counted_straight)
    remote.restore()

    assert sorted(asked) == sorted(objects - {f"{prefix(remote)}/LEASE"})


@pytest.mark.usefixtures("many_files")
def test_chunks_come_straight_and_only_then_through_tensorstore(remote: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a bucket that answers plainly TensorStore reads no chunk; without plain answers all, and the same bits."""
    remote.save(remote.writer(), 1)
    sizes: list[int] = []
    read = Store.read

    def sized(store: Store, step: int, name: str, *part: slice) -> bytes | None:
        content = read(store, step, name, *part)
        sizes.append(len(content or b"") if "/c" in name else 0)
        return content

    monkeypatch.setattr(Store, "read", sized)
    assert remote.restored_step() == 1
    straight = sum(sizes)
    monkeypatch.setattr(Objects, "_read", lambda *_: None)
    assert remote.restored_step() == 1

    everything = sum(entry.nbytes for entry in remote.arrays(1).values())
    assert straight < everything / 4, "the indices of files of several chunks, and no chunk"
    assert sum(sizes) - straight >= everything


def test_nothing_saved_yet_is_not_an_error(remote: Toy) -> None:
    """A fresh run finds an empty prefix and starts."""
    assert remote.restore() is None
