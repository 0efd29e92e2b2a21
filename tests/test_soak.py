"""A few rounds of `make soak`: what is counted, and not only measured, is the same after each.

Not of its jobs: an API server takes half a minute to collect what the first one leaves.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks.soak import restarts  # the folder is a script's, found by path


def test_restarts_leave_nothing() -> None:
    """After the first kills the command and the agents hold no more than they held before, and the same ports.

    An agent waits for the end of a trainer by a descriptor or, of one that it had to start anew, by a thread: on a busy
    machine both happen, so that the two are counted together. What one restart leaves behind, the last would have four
    times.
    """
    samples = list(restarts(6))[2:]
    held = [sample.descriptors + sample.threads for sample in samples]

    assert len({sample.ports for sample in samples}) == 1, samples
    assert max(held[2:]) <= max(held[:2]), samples
