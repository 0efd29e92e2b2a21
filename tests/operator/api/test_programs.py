"""Jobs of an own program on a real API server: accepted, refused with words, and changed as a program's job may be."""

import uuid
from collections.abc import Iterator

import pytest
from tests.cluster.client import Client, RefusedError
from tests.job.programs import WRONG, program_job
from tests.operator.api.jobs import JOBS, create

from shardwise.job.accelerators import BUILT_IN
from shardwise.job.load import as_data
from shardwise_operator.observe.snapshot import read_snapshot, take_snapshot

MERGE = "application/merge-patch+json"


@pytest.fixture
def url(shardwise_api: Client) -> Iterator[str]:
    """Return the address of a new job that runs."""
    manifest = program_job(f"metadata.name=p-{uuid.uuid4().hex[:8]}").data
    shardwise_api.request("POST", JOBS, manifest)
    address = f"{JOBS}/{manifest['metadata']['name']}"
    yield address
    shardwise_api.request("DELETE", address)


@pytest.mark.parametrize(
    "override",
    [
        "",
        "program={module: my_package.train}",
        "program.env={XLA_FLAGS: a, MINE: b}",
        "pod={directory: 's3://bucket/run', template: {}}",
    ],
)
def test_accepted(shardwise_api: Client, override: str) -> None:
    """The server takes it, the operator makes pods of it, and what it keeps of it reads back."""
    manifest = program_job(*([override] if override else [])).data
    create(shardwise_api, manifest)
    snapshot = take_snapshot(
        manifest, {name: as_data(accelerator) for name, accelerator in BUILT_IN.items()}, image="trainer"
    )
    assert read_snapshot(snapshot.data).job == snapshot.job


@pytest.mark.parametrize(("override", "path", "fragments"), WRONG)
def test_refused(shardwise_api: Client, override: str, path: str, fragments: list[str]) -> None:
    """Each mistake is refused at apply, with its path and the words of `shardwise check`."""
    with pytest.raises(RefusedError) as refused:
        create(shardwise_api, program_job(override).data)
    assert path in str(refused.value)
    assert all(fragment in str(refused.value) for fragment in fragments)


def test_neither_is_refused(shardwise_api: Client) -> None:
    """A job without both has nothing to do."""
    manifest = program_job().data
    del manifest["spec"]["program"]
    with pytest.raises(RefusedError, match="expected either training or program"):
        create(shardwise_api, manifest)


def test_it_changes_while_it_is_suspended(shardwise_api: Client, url: str) -> None:
    """What a program is started with changes only then; that the job has a program never does."""
    changed = {"program": {"args": ["--slow"]}}
    with pytest.raises(RefusedError, match="set suspend: true first"):
        shardwise_api.request("PATCH", url, {"spec": changed}, MERGE)
    shardwise_api.request("PATCH", url, {"spec": {"suspend": True}}, MERGE)
    shardwise_api.request("PATCH", url, {"spec": changed}, MERGE)
    training = {"data": {"train": [{"name": "a", "paths": ["b"]}]}, "model": {"preset": "tiny"}, "steps": 9}
    training |= {"batch": {"sequences": 16}, "optimizer": {"learningRate": 1.0}}
    with pytest.raises(RefusedError, match="training is part of what the run is"):
        shardwise_api.request("PATCH", url, {"spec": {"program": None, "training": training}}, MERGE)
