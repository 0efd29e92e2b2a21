"""The examples for two slices and for a text of one's own, as they stand, on a real cluster.

The other examples for CPU are what `test_jobs.py` is made of; those for TPU and GPU are tried without a device
(`tests/charts/test_examples.py`).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.cluster.cluster import Cluster
from tests.kubernetes.jobs import ROOT, Ended, Job, manifest

Apply = Callable[[Mapping[str, Any]], Job]
Here = Callable[[Mapping[str, Any]], Ended]


@pytest.mark.long
def test_two_slices(apply: Apply, here: Here) -> None:
    """Four pods, two of each slice, come to what `shardwise run` comes to."""
    example = manifest("cpu-two-slices")
    job = apply(example)
    job.until_phase("Complete", 600)

    slices = Counter(pod["metadata"]["labels"]["shardwise.dev/slice"] for pod in job.all_pods)
    assert slices == {"0": 2, "1": 2}
    assert Ended(job.status["digest"], job.losses) == here(example)


def test_own_text(apply: Apply, here: Here, cluster: Cluster, cluster_namespace: str) -> None:
    """Every host reads the text from its volume: `shardwise run` of the same text comes to the same."""
    texts = cluster.make_volume(cluster_namespace, "texts")
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        (texts / f"{page.stem}.txt").write_bytes(page.read_bytes())
    example = manifest("own-text-from-a-volume")
    job = apply(example)
    job.until_phase("Complete", 600)

    example["spec"]["training"]["data"]["train"][0]["paths"] = [f"{texts}/*.txt"]
    assert Ended(job.status["digest"], job.losses) == here(example)
