"""SIGKILL at every moment of a save: afterwards there is the old checkpoint or the new one, exactly."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.job.spec import Keep
from shardwise.train import checkpoint
from shardwise.train.checkpoint import CheckpointWriter, restore, steps
from shardwise.train.digest import Digester

PROGRAM = Path(__file__).with_name("killed_save.py")
SURVIVES = {
    "among the files": 1,
    "before the manifest": 1,
    "before the marker": 1,
    "after the marker": 2,
    "in retention": 2,
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder of checkpoints for each moment, left by a process that was killed there."""
    trainer = str(Path(checkpoint.__file__).parents[3])
    base = tmp_path_factory.mktemp("killed")
    roots = {moment: base / moment for moment in SURVIVES}
    environment = {**os.environ, "PYTHONPATH": trainer}
    subprocess.run([sys.executable, PROGRAM, *roots.values()], env=environment, check=True)
    return roots


@pytest.mark.parametrize("moment", SURVIVES)
def test_killed_save_leaves_old_or_new(killed: dict[str, Path], moment: str) -> None:
    """What is restored is a whole checkpoint, and the next save clears what the killed one left."""
    root, expected = str(killed[moment]), SURVIVES[moment]
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec(None, "data"))
    abstract = {path: jax.ShapeDtypeStruct((64, 64), np.dtype(np.float32), sharding=sharding) for path in ("a", "b")}
    digester = Digester(abstract)
    restored = restore(root, abstract, step=None, digester=digester, report=lambda *_: None)
    assert restored is not None
    assert restored.step == expected
    assert all(np.array_equal(array, np.full((64, 64), expected, np.float32)) for array in restored.arrays.values())

    writer = CheckpointWriter(root, keep=Keep(last=1), run="next", attempt=1, fence=nullcontext)
    writer.save(3, restored.arrays, digester=digester, identity={})
    writer.close()
    assert steps(root) == [3]
    assert [path.name for path in killed[moment].iterdir()] == ["step-00000003"]
