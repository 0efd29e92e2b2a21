"""The tour of many hosts notices when what it is about is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

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


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
