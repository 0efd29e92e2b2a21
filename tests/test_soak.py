"""A few rounds of `make soak`: what is counted, and not only measured, is the same after each.

Not of its jobs: an API server takes half a minute to collect what the first one leaves.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks.soak import Sample, restarts  # the folder is a script's, found by path


def _counted(samples: list[Sample]) -> set[tuple[int, int]]:
    return {(sample.descriptors, sample.ports) for sample in samples}


def test_restarts_leave_nothing() -> None:
    """After the first kills the command and the agents hold what they held before, and no thread more."""
    samples = list(restarts(6))[2:]

    assert len(_counted(samples)) == 1, samples
    assert max(sample.threads for sample in samples[2:]) <= max(sample.threads for sample in samples[:2])
