"""Accelerator classes at apply: what is offered is taken, and what is near it is refused with what is."""

import pytest
from tests.cluster.client import Client, RefusedError
from tests.operator.api.jobs import create, job

from shardwise.job.accelerators import BUILT_IN
from shardwise.job.spec import Hardware
from shardwise.job.topology import num_devices, topologies


def asking(accelerator: str, topology: str) -> list[str]:
    """Overrides for a job that fits any number of devices."""
    hardware = Hardware(accelerator=accelerator, topology=topology)
    return [
        f"hardware={{accelerator: {accelerator}, topology: {topology}}}",
        "training.mesh={fsdp: false}",
        f"training.batch.sequences={num_devices(hardware)}",
    ]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_topology_of_a_class_is_taken(shardwise_api: Client, name: str) -> None:
    """Every grid of a class passes the policy; of hosts x devices both ends do."""
    spec = BUILT_IN[name].spec
    for topology in topologies(BUILT_IN[name]):
        create(shardwise_api, job(*asking(name, topology)))
    if spec.hosts is not None:
        create(shardwise_api, job(*asking(name, f"1x{spec.hosts.min_devices}")))
        create(shardwise_api, job(*asking(name, f"{spec.hosts.max}x{spec.hosts.max_devices}")))


@pytest.mark.parametrize(
    ("name", "topology", "said"),
    [
        ("tpu-v4", "2x2x8", "186 grids of chips, such as 2x2x4, 2x4x4"),
        ("tpu-v4", "16x16x20", "12x12x28, 4x12x84"),
        ("tpu-v5e", "4x2", "8 grids of chips, such as 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"),
        ("tpu-v5e-4t", "1x1", "7 grids of chips, such as 2x2, 2x4, 4x4"),
        ("tpu-v5p", "4x4x6", "310 grids of chips, such as 4x4x4, 4x4x8"),
        ("tpu-v5p", "8x4x4", "4x4x8"),
        ("tpu-v5p", "20x20x24", "16x16x24"),
        ("tpu-v6e", "16x32", "16x16"),
        ("tpu-v7x", "4x8x12", "10 grids of chips, such as 2x2x1, 2x2x2"),
        ("cpu-sim", "65x1", "at most 64 hosts and 1 to 64 devices per host"),
        ("gke-gpu-h200", "1x4", "8 to 8 devices per host"),
        ("gpu", "99999999x1", "at most 1024 hosts"),
        ("cpu", "1x8", "expected one of cpu-sim, eks-gpu-h100"),
    ],
)
def test_a_near_miss_is_refused_with_the_choices(shardwise_api: Client, name: str, topology: str, said: str) -> None:
    """The refusal at apply names what was given and what there is near it."""
    with pytest.raises(RefusedError) as refused:
        create(shardwise_api, job(f"hardware={{accelerator: {name}, topology: {topology}}}"))
    assert f'given "{topology if name in BUILT_IN else name}", expected' in str(refused.value)
    assert said in str(refused.value)


def test_sequences_that_are_split_share_a_batch(shardwise_api: Client) -> None:
    """With context a batch may have fewer sequences than devices; weights are split over its ways too."""
    devices = "hardware={accelerator: cpu-sim, topology: 1x8}"
    create(shardwise_api, job(devices, "training.mesh={context: 4}", "training.batch.sequences=2"))
    with pytest.raises(RefusedError, match=r"a multiple of data 2 x replica 1"):
        create(shardwise_api, job(devices, "training.mesh={context: 4}", "training.batch.sequences=3"))
    with pytest.raises(RefusedError, match=r"mesh.context: given 3, expected a size that divides 4 devices"):
        create(shardwise_api, job(devices, "training.mesh={context: 3, tensor: 2}", "training.model.seqLen=96"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["training.mesh={pipeline: 3}", "training.model.layers=6", "training.batch.microbatches=3"],
            "mesh.pipeline: given 3, expected a size that divides 8 devices",
        ),
        (["training.mesh={pipeline: 4}", "training.model.layers=6"], "a pipeline that divides layers, such as 1, 2"),
        (
            ["training.mesh={pipeline: 2, pipelineRounds: 4}"],
            "pipelineRounds that divide the layers of a stage, such as 1, 2",
        ),
        (["training.mesh={pipeline: 4}", "training.batch.microbatches=2"], "a multiple of mesh.pipeline"),
        (["training.mesh={pipelineRounds: 2}"], "expected 1 with pipeline: 1"),
        (
            ["training.mesh={pipeline: 2, pipelineRounds: 2}", "training.model.remat=none"],
            "expected 1 with remat: none",
        ),
    ],
)
def test_layers_that_do_not_split_are_refused(shardwise_api: Client, words: list[str], said: str) -> None:
    """Each with what is expected; the same job is taken where its stages are even."""
    even = ["hardware={accelerator: cpu-sim, topology: 1x8}", "training.batch={sequences: 32, microbatches: 4}"]
    even += ["training.model.layers=4"]
    create(shardwise_api, job(*even, "training.mesh={pipeline: 2, pipelineRounds: 2}"))
    with pytest.raises(RefusedError, match=said):
        create(shardwise_api, job(*even, *words))
