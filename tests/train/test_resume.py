"""Whether a job is the run that it finds: what is said of one that is not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardwise.job.identity import identity
from shardwise.job.load import load
from shardwise.protocol.errors import RunDirectoryError
from shardwise.train.resume import is_fork

QUICKSTART = Path(__file__).parent.parent / "job" / "golden" / "quickstart.yaml"


def test_phases_that_were_added_are_named_in_the_refusal() -> None:
    """The fingerprint, too, is another then, but no person can see in it what to undo."""
    held = identity(load(QUICKSTART), data_fingerprint="f")
    job = load(QUICKSTART, ["training.data.phases=[{fromStep: 2, weights: {text: 2}}]"])
    run: Any = SimpleNamespace(path=Path("runs/mine"), read_identity=lambda: held)
    orders: Any = SimpleNamespace(fork=False)

    with pytest.raises(RunDirectoryError) as caught:
        is_fork(run, "", None, job.metadata.name, identity(job, data_fingerprint="g"), orders)

    assert "spec.training.data.phases.0.fromStep: was null, is now 2" in str(caught.value)
