"""A few of the golden plans: what the compiled steps hold and move is what the golden file says."""

import pytest
from tests.plan.plans import JOBS, PAGE, compiled, golden, page, summary

_SAMPLE = ("1.3B-tpu-v5p-4x4x4-tensor2", "1.3B-gke-gpu-a100-2x8-tensor1")


@pytest.mark.parametrize("name", _SAMPLE)
def test_a_plan_is_the_golden_one(name: str) -> None:
    """Peak, bytes by axis and link, and what runs beside computation; `make plans` compares all, and rewrites them."""
    job = next(job for job in JOBS if job.name == name)

    assert summary(job, compiled(job)) == golden()[name]


def test_no_plan_moves_less_than_the_least() -> None:
    """Over any axis: what a compiler can do without is not counted."""
    for name, line in golden().items():
        for axis, least in line["leastMiB"].items():
            assert line["wireMiB"][axis] >= least, (name, axis)


def test_the_page_is_made_of_the_golden_file() -> None:
    """Every job of the list has its line, in their order, and the table of docs/plans.md has them all."""
    assert list(golden()) == [job.name for job in JOBS]
    assert PAGE.read_text(encoding="utf-8") == page(golden())
