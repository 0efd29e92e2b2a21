"""The first start of a job, of which no program is kept."""

from pathlib import Path

import pytest
from tests.cli.shell import Shell


@pytest.mark.long  # tests/train/test_kept_order.py looks at the order of such sums itself
def test_the_rank_that_compiles_runs_what_the_others_load(tmp_path: Path) -> None:
    """Without a tensor axis and with one sequence a device the sums of a program just compiled are in another order."""
    with Shell(
        tmp_path,
        tmp_path / "cache",
        (
            "hardware.topology=2x2",
            "training.mesh.tensor=1",
            "training.batch.sequences=4",
            "training.steps=3",
            "recovery.hangAfter=20s",
        ),
        {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "executables")},
    ) as shell:
        summary = shell.finish("first")

    assert (summary["restarts"], summary["attempts"]) == ({}, 1)
