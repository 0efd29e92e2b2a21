"""shardwise.cli.fallback_job: any run can be read on any machine; the commands do it in test_this_machine.py."""

from pathlib import Path

import pytest

from shardwise.cli.fallback_job import on_the_processor, on_this_machine
from shardwise.job.load import dump, load, loads
from shardwise.job.resolve import resolve
from shardwise.job.spec import Hardware, TrainingJob

GPUS = "hardware={accelerator: gpu, topology: 1x8}"
QUICKSTART = Path(__file__).parents[1] / "job" / "golden" / "quickstart.yaml"
ON_TPUS = (
    "hardware={accelerator: tpu-v6e, topology: 4x8, slices: 2}",
    "training.model.attention=splash",
    "training.mesh={tensor: 4, dataInner: 2}",
    "training.xlaFlags=[--xla_tpu_scoped_vmem_limit_kib=65536]",
)


def job(*changes: str) -> TrainingJob:
    """Return the quickstart job with changes, as a run keeps it."""
    return resolve(load(QUICKSTART, changes))


def test_a_job_for_tpus_becomes_one_for_a_processor() -> None:
    """What is left is a right job, with nothing that wants a TPU; all else of the model is as it was."""
    given = job(*ON_TPUS)
    stands_in = on_the_processor(given)

    assert loads(dump(stands_in)) == stands_in
    assert stands_in.spec.hardware == Hardware(accelerator="cpu-sim", topology="1x1")
    before, after = (dict(one.spec.training.model) for one in (given, stands_in))
    assert after == before | {"attention": "auto"}
    assert stands_in.spec.training.xla_flags == ()


@pytest.mark.parametrize(
    ("changes", "live", "stands_in", "told"),
    [
        (["hardware.topology=1x8"], True, True, ""),
        (["hardware.topology=2x4"], False, True, ""),
        (
            [GPUS],
            False,
            True,
            "8 GPU devices (gpu 1x8) are not on this machine",
        ),
        ([GPUS], True, True, "8 GPU devices (gpu 1x8) are in use by the run"),
        (ON_TPUS, False, True, "64 TPU devices (tpu-v6e 4x8, 2 slices) are not on this machine"),
    ],
)
def test_which_devices_are_taken(changes: list[str], live: bool, stands_in: bool, told: str) -> None:  # noqa: FBT001
    """Real ones where they are here and nobody has them; or else the processor, of which simulated ones are parts."""
    heard: list[str] = []
    given = job(*changes)

    assert on_this_machine(given, live=live, tell=heard.append) == (on_the_processor(given) if stands_in else given)
    assert [told in words for words in heard] == ([True] if told else [])
