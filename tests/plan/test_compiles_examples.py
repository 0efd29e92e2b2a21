"""examples/kubernetes: each job of the trainer, as it stands, compiles for its hardware and fits into it."""

from pathlib import Path

import pytest
from tests.plan.compiling import ROOT, Request, answers

from shardwise.job.accelerators import usable_bytes
from shardwise.job.load import load

EXAMPLES = [
    path for path in sorted((ROOT / "examples" / "kubernetes").glob("*.yaml")) if load(path).spec.program is None
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_compiles(path: Path) -> None:
    """What the compiler says that its step holds is less than a device has."""
    job = load(path)
    (said,) = answers([Request(job)])

    assert "error" not in said["step"], said["step"]["error"]
    assert said["step"]["stand_in"] is None
    limit = usable_bytes(job)
    assert limit is None or said["step"]["peak_bytes"] < limit
