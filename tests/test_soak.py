"""A few rounds of `make soak`: what is counted, and not only measured, is the same after each.

Not of its jobs: an API server takes half a minute to collect what the first one leaves.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks.soak import restarts  # the folder is a script's, found by path


def test_restarts_leave_nothing() -> None:
    """After the first kills the command and the agents hold what they held before: no port, descriptor or thread more.

    The least of several looks counts: one that is open for a moment may be open for long on a busy machine.
    """
    samples = list(restarts(6))[2:]
    before, after = samples[:2], samples[2:]

    assert len({sample.ports for sample in samples}) == 1, samples
    assert min(sample.descriptors for sample in after) <= min(sample.descriptors for sample in before), samples
    assert min(sample.threads for sample in after) <= min(sample.threads for sample in before), samples
