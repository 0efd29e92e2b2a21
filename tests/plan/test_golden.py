"""A few of the golden plans: what the compiled steps hold and move is what the golden file says."""

import pytest
from tests.plan.plans import JOBS, PAGE, compiled, golden, page, summary

_SAMPLE = (
    "1.3B-tpu-v5p-4x4x4-tensor1",
    "1.3B-tpu-v6e-4x4-tensor2",
    "7B-tpu-v5e-2x16x16-tensor4-micro2",
    "7B-gpu-h100-4x8-tensor2",
)


@pytest.mark.parametrize("name", _SAMPLE)
def test_a_plan_is_the_golden_one(name: str) -> None:
    """Peak, bytes by axis and link, and what runs beside computation; `make plans` compares all, and rewrites them."""
    job = next(job for job in JOBS if job.name == name)

    assert summary(job, compiled(job)) == golden()[name]


def test_the_page_has_every_job() -> None:
    """The table of docs/plans.md is made of the golden file, which has a line for each job."""
    assert list(golden()) == [job.name for job in JOBS]
    assert PAGE.read_text(encoding="utf-8") == page(golden())
