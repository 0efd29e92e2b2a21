"""shardwise.plan.search: which layouts are compiled, and what comes of those that cannot be."""

from pathlib import Path

import pytest

from shardwise.job.accelerators import CLASS_VARIABLE
from shardwise.job.document import write_document
from shardwise.job.load import loads
from shardwise.job.spec import TrainingJob
from shardwise.plan import search as searching
from shardwise.plan.result import Bound, Plan
from shardwise.plan.search import MOST_COMPILED, change_that_fits, search
from shardwise.protocol.errors import CompilerError, DataError

JOB = """\
apiVersion: shardwise.dev/v1alpha1
kind: TrainingJob
metadata: {name: searched}
spec:
  hardware: {accelerator: cpu-figured, topology: 1x6}
  training:
    model: {layers: 2, heads: 12, embed: 192, seqLen: 128}
    data: {train: [{name: text, paths: [a.txt]}], tokenizer: tokens.json}
    batch: {sequences: 24}
    optimizer: {learningRate: 3e-4}
    steps: 1
"""


@pytest.fixture(autouse=True)
def figured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of simulated devices with all the figures that a search needs."""
    written = tmp_path / "class.yaml"
    figures = {
        "platform": "cpu",
        "description": "simulated with figures",
        "kernels": ["plain", "blockwise"],
        "hosts": {"max": 64, "maxDevices": 64, "networkBandwidth": "10G"},
        "deviceMemory": "1Gi",
        "memoryBandwidth": "100G",
        "peakFlops": {"bfloat16": "1T", "float32": "1T"},
        "interconnect": {"axes": 1, "bandwidth": "10G"},
    }
    head = {"apiVersion": "shardwise.dev/v1alpha1", "kind": "AcceleratorClass", "metadata": {"name": "cpu-figured"}}
    written.write_text(write_document({**head, "spec": figures}))
    monkeypatch.setenv(CLASS_VARIABLE, str(written))


def compiled(job: TrainingJob, *, fits: bool = True) -> Plan:
    """A plan as if the job had been compiled."""
    times = {"compute_seconds": 1.0, "memory_seconds": 0.0, "asynchronous_seconds": {}, "synchronous_seconds": {}}
    hardware, training = job.spec.hardware, job.spec.training
    return Plan(
        job=job.metadata.name,
        accelerator=hardware.accelerator,
        topology=hardware.topology,
        slices=hardware.slices,
        devices=6,
        mesh={},
        attention="plain",
        remat=training.model.remat,
        microbatches=training.batch.microbatches,
        xla_flags=[],
        compiled_for="hardware",
        fits=fits,
        needed_bytes=1,
        limit_bytes=2**30,
        bound=Bound.model_validate({"seconds": 1.0, "mfu": 0.5, "binds": "arithmetic", **times}),
    )


def only_even(job: TrainingJob) -> Plan:
    """A compiler for a tokenizer whose vocabulary is split over an even number of devices alone."""
    if job.spec.training.mesh.tensor % 2 and job.spec.training.mesh.tensor > 1:
        raise DataError("the vocabulary does not split")
    return compiled(job)


def test_experts_are_split_where_they_move_more_than_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many experts and few tokens, the layouts that a search compiles have experts on devices of their own."""
    monkeypatch.setattr(searching, "plan", compiled)
    words = "{layers: 2, heads: 1, embed: 192, seqLen: 16, activation: swiglu, mlpBias: false, position: rotary, "
    words += "experts: {count: 36, perToken: 2}}"
    job = loads(JOB.replace("{layers: 2, heads: 12, embed: 192, seqLen: 128}", words))
    found = search(job, lambda _: None)

    tried = [one.choice for one in found if not one.is_own]
    assert all(choice.expert and choice.expert > 1 for choice in tried)
    assert all(choice.data_inner == choice.expert for choice in tried)
    assert any("experts over 6" in choice.words for choice in tried)


def test_layouts_that_do_not_split_the_vocabulary_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer is read when a layout is compiled: one that does not suit it costs the others nothing."""
    tried: list[int] = []

    def plan(job: TrainingJob) -> Plan:
        tried.append(job.spec.training.mesh.tensor)
        return only_even(job)

    monkeypatch.setattr(searching, "plan", plan)
    found = search(loads(JOB), lambda _: None)

    assert 3 in tried
    assert len(found) == len([tensor for tensor in tried if tensor != 3]) > 1
    assert all(one.choice.tensor != 3 for one in found)
    assert [one.choice.tensor for one in found if one.is_own] == [1]


def test_layouts_that_the_compiler_refuses_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel too large for the chip is the end of its layout alone, in a search and for a change that fits."""
    tried: list[TrainingJob] = []

    def plan(job: TrainingJob) -> Plan:
        tried.append(job)
        if len(tried) == 2:
            raise CompilerError("CompileTimeScopedVmemOom")
        return compiled(job)

    monkeypatch.setattr(searching, "plan", plan)
    found = search(loads(JOB), lambda _: None)
    assert len(found) == len(tried) - 1 > 1

    del tried[1:]
    assert change_that_fits(loads(JOB), lambda _: None)
    assert len(tried) == 3


def test_a_job_whose_own_layout_does_not_split_the_vocabulary_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not run, whatever a search finds."""
    monkeypatch.setattr(searching, "plan", only_even)
    with pytest.raises(DataError, match="does not split"):
        search(loads(JOB, ["training.mesh.tensor=3"]), lambda _: None)


def test_a_change_that_fits_passes_over_layouts_that_do_not_split_the_vocabulary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next that may fit is tried."""
    tried: list[TrainingJob] = []

    def plan(job: TrainingJob) -> Plan:
        tried.append(job)
        if len(tried) == 1:
            raise DataError("the vocabulary does not split")
        return compiled(job)

    monkeypatch.setattr(searching, "plan", plan)
    assert change_that_fits(loads(JOB), lambda _: None)
    assert len(tried) == 2


def test_a_layout_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a job's own, if it is the best layout with FSDP's other factors."""
    tried: list[TrainingJob] = []

    def plan(job: TrainingJob) -> Plan:
        tried.append(job)
        return compiled(job)

    monkeypatch.delenv(CLASS_VARIABLE)
    monkeypatch.setattr(searching, "compiles_for", lambda _: True)
    monkeypatch.setattr(searching, "plan", plan)
    layout = {"mesh": "{tensor: 4, dataInner: 8}", "batch": "{sequences: 256, microbatches: 4}"}
    words = [f"training.{name}={value}" for name, value in layout.items()]
    model = "training.model={preset: llama2-7b, remat: dots}"
    search(loads(JOB, ["hardware={accelerator: tpu-v5e, topology: 16x16}", model, *words]), lambda _: None)

    assert 1 < len(tried) <= MOST_COMPILED
    assert len(tried) == len({job.model_dump_json() for job in tried})


def _tried_on(words: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topologies that are compiled for a job that fits nowhere, beside its own."""
    tried: list[str] = []

    def plan(job: TrainingJob) -> Plan:
        tried.append(job.spec.hardware.topology)
        return compiled(job, fits=False)

    monkeypatch.delenv(CLASS_VARIABLE)
    monkeypatch.setattr(searching, "plan", plan)
    job = loads(JOB, words)
    assert change_that_fits(job, lambda _: None) is None
    return [topology for topology in tried if topology != job.spec.hardware.topology]


def test_larger_slices_are_those_that_the_job_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to eight times the chips, and of those with as many chips the one whose sides are most alike."""
    hardware = "hardware={accelerator: tpu-v5p, topology: 8x8x8}"
    words = [hardware, "training.batch.sequences=4096", "training.mesh.fsdp=false"]
    assert _tried_on(words, monkeypatch) == ["8x8x16", "8x16x16", "16x16x16"]


def test_a_host_is_filled_before_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The links within a host are faster than those between hosts."""
    words = ["hardware={accelerator: gpu-h100, topology: 1x4}", "training.batch.sequences=64"]
    assert _tried_on(words, monkeypatch) == ["1x8", "2x8", "4x8"]


def test_the_memory_of_hosts_is_tried_where_nothing_else_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout that keeps its layers' inputs there is compiled if by arithmetic no other has room for them."""
    monkeypatch.setattr(searching, "plan", compiled)
    words = "{layers: 400, heads: 1, embed: 192, mlp: 192, seqLen: 4096, vocabSize: 512}"
    large = loads(JOB.replace("{layers: 2, heads: 12, embed: 192, seqLen: 128}", words).replace("24}", "6}"))

    for job, remats in ((large, {"offload"}), (loads(JOB), {"none", "dots", "full"})):
        tried = {one.choice.remat for one in search(job, lambda _: None) if not one.is_own}
        assert tried
        assert tried <= remats
