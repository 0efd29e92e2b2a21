"""Options of XLA at apply: what a job says, together with what its class says."""

import pytest
from tests.cluster.client import Client, RefusedError
from tests.operator.api.jobs import create, job

OVERLAP = "--xla_tpu_overlap_compute_collective_tc"
FUSION = "--xla_tpu_enable_async_collective_fusion_fuse_all_gather"
V5P = "hardware={accelerator: tpu-v5p, topology: 2x2x1}"  # its class turns fusion on
V5E = "hardware={accelerator: tpu-v5e, topology: 2x4}"


@pytest.mark.parametrize("on", ["", "=true", "=TRUE", "=1", "=yes"])
def test_an_option_of_the_class_counts(shardwise_api: Client, on: str) -> None:
    """What is wrong with an option of the class is refused in every spelling, and the refusal names that option."""
    with pytest.raises(RefusedError) as refused:
        create(shardwise_api, job(V5P, f"training.xlaFlags=[{OVERLAP}{on}]"))
    assert f"expected options without {OVERLAP}: together with {FUSION}=true" in str(refused.value)


@pytest.mark.parametrize(
    ("hardware", "flags"),
    [
        (V5P, f"{OVERLAP}=true, {FUSION}=false"),
        (V5P, f"{OVERLAP}=false"),
        (V5P, f"{FUSION}=true"),
        (V5E, f"{OVERLAP}=true"),
        (V5E, "--xla_dump_to=/tmp/x"),
    ],
)
def test_what_is_right_is_taken(shardwise_api: Client, hardware: str, flags: str) -> None:
    """A job's option takes the place of its class's, and one of the two by itself is right."""
    create(shardwise_api, job(hardware, f"training.xlaFlags=[{flags}]"))
