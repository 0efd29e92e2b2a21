"""The places of files as TensorStore knows them: local folders and buckets."""

from contextlib import closing, nullcontext
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.bucket.conftest import of, silently

from shardwise.bucket.folder import description
from shardwise.cli.run_files import committed_steps
from shardwise.job.spec import Keep
from shardwise.train.checkpoint import CheckpointWriter, load_numpy, steps
from shardwise.train.digest import Digester
from shardwise.train.state import Abstract


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_path_with_dots_is_the_folder_that_it_leads_to(scheme: str, tmp_path: Path) -> None:
    """As the file system has it, links included: the folder is held, listed, and written to."""
    (tmp_path / "disk" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "below")
    root = f"{scheme}{tmp_path}/link/../checkpoints"
    with of(root, "run").held(silently):
        assert steps(root) == []
    assert (tmp_path / "disk" / "checkpoints" / "LEASE").exists()


def _save(root: str, step: int, value: float) -> None:
    """Save one array as a checkpoint of a run that keeps the newest alone."""
    whole = NamedSharding(Mesh(jax.devices()[:1], ("device",)), PartitionSpec())
    arrays = {"params.x": jax.device_put(np.full(8, value), whole)}
    digester = Digester({path: Abstract(x.shape, x.dtype, sharding=x.sharding) for path, x in arrays.items()})
    with closing(CheckpointWriter(root, keep=Keep(last=1), run="run", attempt=0, fence=nullcontext)) as writer:
        writer.save(step, arrays, digester=digester, identity={})


@pytest.mark.parametrize("place", ["bucket", "file://"])
@pytest.mark.parametrize("mark", ["#", "?"])
def test_marks_of_an_address_are_part_of_the_path(
    mark: str, place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Two runs whose folders differ behind one keep their own checkpoints, and `status` finds them too."""
    above = f"file://{tmp_path}" if place == "file://" else f"{request.getfixturevalue('bucket')}/{tmp_path.name}"
    roots = [f"{above}/sweep{mark}{number}/checkpoints" for number in (1, 2)]
    for number, root in enumerate(roots):
        _save(root, 10 + number, float(number))
    assert [steps(root) for root in roots] == [[10], [11]]
    assert [committed_steps(root) for root in roots] == [([10], ""), ([11], "")]
    for number, root in enumerate(roots):
        (array,) = (array for _, array in load_numpy(root, 10 + number, "params."))
        assert array.tolist() == [float(number)] * 8


@pytest.mark.parametrize(
    ("root", "found"),
    [
        ("gs://bucket/a#1/b?c", {"driver": "gcs", "bucket": "bucket", "path": "a#1/b?c/"}),
        ("gs://bucket/", {"driver": "gcs", "bucket": "bucket", "path": ""}),
        ("gs://bucket", {"driver": "gcs", "bucket": "bucket", "path": ""}),
        ("file://localhost/a#1", {"driver": "file", "path": "/a#1/"}),
        ("/a#1/b?c", {"driver": "file", "path": "/a#1/b?c/"}),
    ],
)
def test_descriptions(root: str, found: dict[str, str]) -> None:
    """Of a folder in a bucket, of a whole bucket, and of local ones."""
    assert description(root) == found
