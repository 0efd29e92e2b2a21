"""The tour of many hosts notices when what it is about is taken out."""

from pathlib import Path

import pytest
from tests.tour.breaking import Broken, assert_claim_fails

BROKEN = [
    Broken(
        idea="nobody joins",
        old="    jax.distributed.initialize(\n",
        new="    (lambda *_, **__: None)(\n",
        claim="each process sees eight devices and owns four",
    ),
    Broken(
        idea="every host reads the rows of the first",
        old="number * training.batch.sequences + rank * share",
        new="number * training.batch.sequences",
        claim="its losses are those of the processes by hand",
    ),
    Broken(
        idea="no kill under the launcher",
        old='os.kill(status["hosts"][1]["trainerPid"], signal.SIGKILL)',
        new="",
        claim="the launcher has started the trainers again, once",
    ),
]


@pytest.mark.parametrize("broken", BROKEN, ids=[broken.idea for broken in BROKEN])
def test_a_broken_idea_fails_its_claim(broken: Broken, tmp_path: Path) -> None:
    """With the idea taken out, the tour ends at the assertion that claims it."""
    assert_claim_fails("14_many_hosts", tmp_path, broken)
