"""A job on fewer slices than it asks for: which numbers it can run on, and what changes of it."""

from pathlib import Path

import pytest

from shardwise.job.fewer_slices import on_slices, slice_counts
from shardwise.job.load import as_data, load
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import mesh_shape
from shardwise.protocol.errors import JobError

QUICKSTART = Path(__file__).parent / "golden" / "quickstart.yaml"


def job(slices: int, least: int | None, *overrides: str) -> TrainingJob:
    """A job on slices of four devices, resolved."""
    recovery = [] if least is None else [f"recovery.minSlices={least}"]
    hardware = f"hardware={{accelerator: cpu-sim, topology: 2x2, slices: {slices}}}"
    return load(QUICKSTART, [hardware, "training.batch.sequences=96", "training.mesh.tensor=1", *recovery, *overrides])


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        (job(4, None), (4,)),
        (job(4, 4), (4,)),
        (job(4, 1), (4, 3, 2, 1)),
        (job(4, 2), (4, 3, 2)),
        (job(6, 1), (6, 4, 3, 2, 1)),  # 96 sequences are not a multiple of 5 x 4
        (job(4, 1, "training.mesh.replica=8"), (4, 3, 2, 1)),
    ],
    ids=["all", "no fewer", "any", "two", "five do not divide", "two replicas a slice"],
)
def test_a_job_runs_on_the_slices_over_which_its_batch_divides(asked: TrainingJob, counts: tuple[int, ...]) -> None:
    """Its own number first, then fewer, down to minSlices."""
    assert slice_counts(asked) == counts


def test_a_least_number_that_does_not_divide_is_refused() -> None:
    """With those that do."""
    with pytest.raises(JobError) as refused:
        job(6, 5)

    assert "spec.recovery.minSlices: given 5, expected slices over which 96 sequences divide" in str(refused.value)
    assert "1, 2, 3, 4, 6" in str(refused.value)


@pytest.mark.parametrize("replica", [1, 2, 4])
@pytest.mark.parametrize("least", [1, 5])
def test_replicas_that_do_not_follow_the_slices_are_what_is_refused(replica: int, least: int) -> None:
    """Nothing is said of the fewest slices, which nobody can judge then."""
    with pytest.raises(JobError) as refused:
        job(6, least, f"training.mesh.replica={replica}")

    assert "spec.training.mesh.replica" in str(refused.value)
    assert "minSlices" not in str(refused.value)


@pytest.mark.parametrize("replica", [None, 4, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 3])
@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_device_holds_no_more_on_fewer_slices(replica: int | None, microbatches: int, pipeline: int) -> None:
    """And within a slice nothing of the mesh changes; what the author wrote stays, but for what has to change."""
    overrides = [f"training.batch.microbatches={microbatches * pipeline}", f"training.mesh.pipeline={pipeline}"]
    whole = job(4, 1, *overrides, *([] if replica is None else [f"training.mesh.replica={replica}"]))
    spec = as_data(whole.spec)
    before, size = mesh_shape(whole), _of_a_device(whole)
    assert before is not None

    assert slice_counts(whole)[-1] == 1
    for slices in slice_counts(whole)[1:]:
        fewer = resolve(TrainingJob.model_validate({**as_data(whole), "spec": on_slices(spec, whole, slices)}))
        mesh = mesh_shape(fewer)
        assert mesh is not None
        assert (mesh.replica * 4, mesh.data, mesh.pipeline) == (before.replica * slices, before.data, before.pipeline)
        assert fewer.spec.training.batch.microbatches % pipeline == 0
        assert _of_a_device(fewer) <= size
    assert spec["hardware"]["slices"] == 4, "the job itself is as it was"


def test_a_ramp_divides_over_fewer_slices_too() -> None:
    """Three slices of four devices hold no batches of 16."""
    held = job(4, 1, "training.batch={sequences: 96, rampUp: [{untilStep: 9, sequences: 48}]}")
    assert slice_counts(held) == (4, 3, 2, 1)
    assert slice_counts(job(4, 1, "training.batch={sequences: 96, rampUp: [{untilStep: 9, sequences: 16}]}")) == (
        4,
        2,
        1,
    )


def test_ranks_that_are_not_there_are_not_traced() -> None:
    """A slice of one host each: of ranks 0, 2 and 3 two slices have the first, and of 3 alone nothing."""
    for ranks, left in (([0, 2, 3], [0]), ([3], None)):
        asked = job(4, 1, "hardware.topology=1x4", f"training.profile={{steps: [1, 2], ranks: {ranks}}}")
        profile = on_slices(as_data(asked.spec), asked, 2)["training"].get("profile")
        assert (profile and profile["ranks"]) == left


def test_an_own_program_runs_on_any_number(tmp_path: Path) -> None:
    """Its batch is its own affair."""
    file = tmp_path / "job.yaml"
    file.write_text(
        "apiVersion: shardwise.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: own}\nspec:\n"
        "  hardware: {accelerator: cpu-sim, topology: 1x2, slices: 3}\n  recovery: {minSlices: 1}\n"
        "  program: {command: [python, my.py]}\n"
    )
    own = load(file)

    assert slice_counts(own) == (3, 2, 1)
    assert on_slices(as_data(own.spec), own, 2)["hardware"]["slices"] == 2


def _of_a_device(asked: TrainingJob) -> float:
    """Sequences of one microbatch on one device."""
    mesh, batch = mesh_shape(asked), asked.spec.training.batch
    assert mesh is not None
    return batch.sequences / (mesh.replica * mesh.data * batch.microbatches)
