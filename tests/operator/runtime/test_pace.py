"""How fast: pauses that are spread by chance."""

import random

from shardwise_operator.runtime.pace import retry_seconds, spread


def test_chance_leaves_everybodys_alone() -> None:
    """What others draw from the module `random`, perhaps with a seed, does not depend on an operator's threads."""
    before = random.getstate()
    pauses = {retry_seconds(failures, first=1.0, most=30.0) for failures in (1, 2, 9)}
    between = spread(0.8, 1.2)

    assert random.getstate() == before
    assert len(pauses) == 3
    assert 0.8 <= between <= 1.2
