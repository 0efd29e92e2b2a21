"""One small job on two hosts of two devices, and the run of it that nothing disturbs."""

from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from tests.cli.running import Run
from tests.cli.shell import Shell

STEPS = 32
CHANGES = (
    "hardware.topology=2x2",
    "training.batch.sequences=8",
    f"training.steps={STEPS}",
    "training.checkpoint={everySteps: 4, keep: {last: 12}}",
)


@pytest.fixture(scope="session")
def _shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with Shell(tmp_path_factory.mktemp("hosts"), tmp_path_factory.getbasetemp() / "cache", CHANGES) as made:
        yield made


@pytest.fixture
def shell(_shell: Shell) -> Iterator[Shell]:
    """Return the folder with the job; after the test nothing of its runs may remain."""
    yield _shell
    _shell.close()
    assert _shell.remains() == []


@pytest.fixture(scope="session")
def undisturbed(_shell: Shell) -> Run:
    """Return the run that nothing disturbed, at its end."""
    run = _shell.begin("undisturbed")
    run.finish()
    return run


@pytest.fixture(scope="session")
def digest(undisturbed: Run) -> str:
    """Return the digest that every run of the job must end with."""
    summary: dict[str, Any] = undisturbed.summary
    return str(summary["digest"])


def agent_of(trainer: int) -> int:
    """Return the process that has started a trainer."""
    agent: int = psutil.Process(trainer).ppid()
    return agent
