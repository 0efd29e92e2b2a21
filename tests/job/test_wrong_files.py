"""Wrong job files: each is refused where it is written, with what was given and what is expected.

Every row changes the quickstart job: its overrides, and what the message must say.
"""

from pathlib import Path

import pytest

from shardwise.job.errors import JobError
from shardwise.job.load import load, loads

QUICKSTART = Path(__file__).parent / "golden" / "quickstart.yaml"

WSD = "training.optimizer.schedule={kind: warmup-stable-decay"

# One override that is wrong by itself, the path that the message names, and fragments of the rest.
FIELDS = [
    ("apiVersion=v1", "apiVersion", ['given "v1"', "expected shardwise.dev/v1alpha1"]),
    ("kind=Trainingjob", "kind", ['given "Trainingjob"', 'did you mean "TrainingJob"?']),
    ("metadata.name=Quick_Start", "metadata.name", ['given "Quick_Start"', "lower-case letters, digits and '-'"]),
    ("metadata.name=" + "a" * 41, "metadata.name", ["1 to 40 characters"]),
    ("metadata.name=17", "metadata.name", ["given 17", 'quote it ("17")']),
    ("metadata.labels={team: 3}", "metadata.labels.team", ["given 3", "0 to 63 characters"]),
    ("metadata.labels={'': a}", "metadata.labels.", ["a key of 1 to 317 characters"]),
    ("hardware.accelerator=cpu_sim", "spec.hardware.accelerator", ['given "cpu_sim"', 'did you mean "cpu-sim"?']),
    ("hardware.accelerator=quantum", "spec.hardware.accelerator", ["expected cpu-sim, ", "tpu-v5p"]),
    ("hardware.accelerator=tpu-v5p", "spec.hardware.topology", ['given "1x8"', "496 grids of tpu-v5p", "2x2x1, 2x2x2"]),
    ("hardware={accelerator: tpu-v6e, topology: 4x2}", "spec.hardware.topology", ["chips: 1x1, 2x2, 2x4, 4x4"]),
    ("hardware={accelerator: gke-gpu-h200, topology: 2x4}", "spec.hardware.topology", ["and 8 devices per host"]),
    ("hardware.topology='8'", "spec.hardware.topology", ["hosts x devices per host, such as 1x8"]),
    ("hardware.topology=1x", "spec.hardware.topology", ["whole numbers joined by 'x'"]),
    ("hardware.topology=1x999", "spec.hardware.topology", ["64 devices per host"]),
    ("hardware.topology=2x2x2", "spec.hardware.topology", ["hosts x devices per host"]),
    ("hardware.slices=0", "spec.hardware.slices", ["given 0", "an integer from 1 to 1024"]),
    ("hardware.slicess=1", "spec.hardware.slicess", ["the unknown key", 'did you mean "slices"?']),
    ("hardware=cpu-sim", "spec.hardware", ['given "cpu-sim"', "expected a mapping"]),
    ("deadline=tomorrow", "spec.deadline", ['given "tomorrow"', "a duration such as 90s, 10m, 1h30m or 7d"]),
    ("deadline=0s", "spec.deadline", ['given "0s"', "above 0s, up to 3650d"]),
    ("deadline=3600", "spec.deadline", ["given 3600", "a duration such as"]),
    ("training.steps=abc", "spec.training.steps", ['given "abc"', "an integer from 1 to 2147483647"]),
    ("training.steps='500'", "spec.training.steps", ['given "500"', "an integer"]),
    ("training.steps=1.5", "spec.training.steps", ["given 1.5", "an integer"]),
    ("training.steps=true", "spec.training.steps", ["given true", "an integer"]),
    ("training.steps=0", "spec.training.steps", ["given 0", "from 1 to"]),
    ("training.steps=1:30", "spec.training.steps", ['given "1:30"', "an integer"]),
    ("training.steps=017", "spec.training.steps", ["given 017", "the number in plain digits"]),
    ("training.steps=", "spec.training.steps", ["given no value", "take the key out"]),
    ("training.stepz=5", "spec.training.stepz", ['did you mean "steps"?']),
    ("training.seqLen=64", "spec.training.seqLen", ['"seqLen" belongs to spec.training.model']),
    ('training.seed="\\ud800\\n"', "spec.training.seed", ['given "', "\\ud800", "\\n"]),
    ("training.seed=-1", "spec.training.seed", ["given -1", "from 0 to 2147483647"]),
    ("training.seed=2147483648", "spec.training.seed", ["given 2147483648"]),
    ("training.model.preset=gpt2xl", "spec.training.model.preset", ["one of tiny, ", 'did you mean "gpt2-xl"?']),
    ("training.model.seq_len=64", "spec.training.model.seq_len", ['did you mean "seqLen"?']),
    ("training.model.seqLen=0", "spec.training.model.seqLen", ["from 1 to 1048576"]),
    ("training.model.block=serial", "spec.training.model.block", ["one of sequential, parallel"]),
    ("training.model.tiedHead=1", "spec.training.model.tiedHead", ["given 1", "true or false"]),
    ("training.optimizer.epsilon=1e-40", "spec.training.optimizer.epsilon", ["1e-30"]),
    ("training.model.normEpsilon=0", "spec.training.model.normEpsilon", ["above 0, up to 1"]),
    ("training.model.dropout.embed=1", "spec.training.model.dropout.embed", ["from 0, below 1"]),
    ("training.data.train=[]", "spec.training.data.train", ["given 0 items", "1 to 64 items"]),
    ("training.data.train=README.md", "spec.training.data.train", ["a list of 1 to 64 items"]),
    ("training.data.train.0.paths=README.md", "spec.training.data.train.0.paths", ["a list of 1 to 1024 items"]),
    ("training.data.train.0.paths=[3]", "spec.training.data.train.0.paths.0", ["given 3", 'quote it ("3")']),
    ("training.data.train.0.weight=0", "spec.training.data.train.0.weight", ["above 0, up to 1000000"]),
    ("training.data.train.0.weigth=1", "spec.training.data.train.0.weigth", ['did you mean "weight"?']),
    ("training.data.train.0={name: a}", "spec.training.data.train.0.paths", ["given nothing", "a list of"]),
    ("training.data.heldOut=0.6", "spec.training.data.heldOut", ["from 0 to 0.5"]),
    ("training.data.attendAcross=documents", "spec.training.data.attendAcross", ['did you mean "document"?']),
    ("training.mesh.fsdp=on", "spec.training.mesh.fsdp", ["given on", "write true or false"]),
    ("training.mesh=2", "spec.training.mesh", ["given 2", "expected a mapping"]),
    ("training.batch={}", "spec.training.batch.sequences", ["given nothing", "an integer from 1"]),
    ("training.optimizer.learningRate='3e-4'", "spec.training.optimizer.learningRate", ['given "3e-4"', "a number"]),
    ("training.optimizer.learningRate=.nan", "spec.training.optimizer.learningRate", ["given nan", "a number above 0"]),
    ("training.optimizer.learningRate=1e400", "spec.training.optimizer.learningRate", ["given inf"]),
    ("training.optimizer.beta1=1.0", "spec.training.optimizer.beta1", ["from 0, below 1"]),
    ("training.optimizer.name=adamW2", "spec.training.optimizer.name", ['did you mean "adamw"?']),
    ("training.precision.compute=bf16", "spec.training.precision.compute", ["one of float32, bfloat16"]),
    ("training.loss.zLoss=-1", "spec.training.loss.zLoss", ["from 0 to 1"]),
    ("training.checkpoint.every=10", "spec.training.checkpoint.every", ["given 10", "a duration such as"]),
    ("training.checkpoint.every=10min", "spec.training.checkpoint.every", ['given "10min"']),
    ("training.checkpoint.keep.last=-1", "spec.training.checkpoint.keep.last", ["from 1 to 10000"]),
    ("training.tracking.wandb=x", "spec.training.tracking.wandb", ["one of tensorboard, wandbProject"]),
]

# Overrides that are wrong together, or against the rest of the job.
RULES = [
    ("training.mesh.context=2", "spec.training.mesh.context", ["given 2", "not supported yet"]),
    ("training.mesh.pipeline=4", "spec.training.mesh.pipeline", ["given 4", "not supported yet"]),
    ("training.mesh.tensor=3", "spec.training.mesh.tensor", ["given 3", "divides 8 devices", "1, 2, 4, 8"]),
    ("training.mesh.tensor=8", "spec.training.mesh.tensor", ["4 heads over tensor 8", ": 1, 2, 4"]),
    ("training.model.preset=gpt2-xl", "spec.training.mesh.tensor", ["25 heads over tensor 2", "8 devices: 1"]),
    ("training.model.mlp=511", "spec.training.mesh.tensor", ["511 mlp over tensor 2", "8 devices: 1"]),
    (
        "training.model={layers: 1, heads: 3, embed: 9, seqLen: 8, mlp: 7}",
        "spec.training.mesh.tensor",
        ["embed 9 over data 4 with fsdp", "no size does"],
    ),
    ("training.mesh.replica=3", "spec.training.mesh.replica", ["given 3", "divides 8 devices: 1, 2, 4, 8"]),
    ("training.mesh.replica=8", "spec.training.mesh.tensor", ["1 devices of a replica: 1"]),
    ("training.batch.sequences=6", "spec.training.batch.sequences", ["data 4 x replica 1", "take 4 or 8"]),
    ("training.batch={sequences: 2147483644, microbatches: 5}", "spec.training.batch.sequences", ["microbatches 1, "]),
    ("training.batch.sequences=2", "spec.training.batch.sequences", ["take 4"]),
    (
        "training.batch.microbatches=3",
        "spec.training.batch.sequences",
        ["microbatches 3", "take 12 or 24", "microbatches 1, 2, 4 with 16 sequences"],
    ),
    ("training.model={}", "spec.training.model", ["layers, heads, embed, seqLen", "preset: tiny"]),
    ("training.model={layers: 2, embed: 64}", "spec.training.model", ["neither a preset nor heads, seqLen"]),
    ("training.model.heads=12", "spec.training.model.heads", ["divides embed 128: 1, 2, 4, 8, 16"]),
    ("training.model.rotaryDim=8", "spec.training.model.rotaryDim", ["position: learned"]),
    ("training.model.headBias=true", "spec.training.model.headBias", ["false with tiedHead: true"]),
    ("training.model.vocabSize=256", "spec.training.model.vocabSize", ["given 256", "at least 257"]),
    ("training.model.dropout.attention=0.1", "spec.training.model.dropout.attention", ["expected 0", "kernels never"]),
    ("training.model.attention=cudnn", "spec.training.model.attention", ["cpu-sim: auto, plain, blockwise"]),
    ("training.model.attention=cudnn", "spec.training.precision.compute", ['"float32"', "bfloat16 or float16"]),
    ("training.model.attention=splash", "spec.training.model.attention", ['given "splash"']),
    ("training.optimizer.momentum=0.9", "spec.training.optimizer.momentum", ["adamw has no such", "muon has it"]),
    (
        "training.optimizer={name: lion, learningRate: 1e-4, momentum: 0.9}",
        "spec.training.optimizer.momentum",
        ["lion has no such", "muon has it"],
    ),
    (
        "training.optimizer={name: adam, learningRate: 1e-4, weightDecay: 0.1}",
        "spec.training.optimizer.weightDecay",
        ["adam has no such", "adamw"],
    ),
    ("training.optimizer.adamLearningRate=1", "spec.training.optimizer.adamLearningRate", ["muon has it"]),
    (
        "training.optimizer.schedule.warmupSteps=100",
        "spec.training.optimizer.schedule.warmupSteps",
        ["fewer than the run's 100 steps"],
    ),
    (
        "training.optimizer.schedule.decaySteps=9",
        "spec.training.optimizer.schedule.decaySteps",
        ["no decaySteps with kind: constant"],
    ),
    (f"{WSD}}}", "spec.training.optimizer.schedule.decaySteps", ["given nothing", "decaySteps: 10"]),
    (
        f"{WSD}, warmupSteps: 20, decaySteps: 81}}",
        "spec.training.optimizer.schedule.decaySteps",
        ["given 81", "at most the 80 steps"],
    ),
    ("training.evaluation.everySteps=5", "spec.training.evaluation.everySteps", ["data.heldOut is 0"]),
    (
        "training.checkpoint.keep.everySteps=30",
        "spec.training.checkpoint.keep.everySteps",
        ["checkpoint.everySteps 20", "take 20 or 40"],
    ),
    (
        "training.checkpoint={every: 5m, keep: {everySteps: 30}}",
        "spec.training.checkpoint.keep.everySteps",
        ["checkpoint.everySteps beside it"],
    ),
    (
        "training.data.train=[{name: a, paths: [b]}, {name: a, paths: [c]}]",
        "spec.training.data.train.1.name",
        ['given "a"', "no other source"],
    ),
]

OVERRIDES = [
    ("training.steps", "--set", ["path=value"]),
    ("training..steps=3", "--set", ["path=value"]),
    ("training.steps.x=3", "spec.training.steps", ["a group, and it holds 100"]),
    ("training.data.train.2.name=b", "spec.training.data.train.2", ["an index from 0 to 1"]),
    ("training.data.train.first.name=b", "spec.training.data.train.first", ["an index from 0 to 1"]),
    ("training" + ".a" * 5000 + "=1", "spec.training.a", ["at most 32 parts"]),
    ("training.steps=[1", "spec.training.steps", ["YAML ("]),
    ("trainin.steps=3", "spec.trainin", ['did you mean "training"?']),
]


@pytest.mark.parametrize(("override", "path", "fragments"), FIELDS + RULES + OVERRIDES)
def test_wrong_value_is_refused_where_it_is(override: str, path: str, fragments: list[str]) -> None:
    """One line of the message names the path, what was given and what is expected, and no library's jargon."""
    with pytest.raises(JobError) as refused:
        load(QUICKSTART, [override])
    text = str(refused.value)
    lines = [line for line in text.splitlines() if f"{path}: " in line]
    assert lines, text
    assert any(all(fragment in line for fragment in fragments) for line in lines), text
    for jargon in ("Input should", "pydantic", "https://", "validation error"):
        assert jargon not in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    steps: 100", "    steps: many", 'quick.yaml:13  spec.training.steps: given "many"'),
        ("    seed: 0", "    sead: 0", 'quick.yaml:14  spec.training.sead: given the unknown key "sead"'),
        ("mesh: {tensor: 2, fsdp: true}", "mesh: {tensor: 5}", "quick.yaml:9  spec.training.mesh.tensor: given 5"),
        ("    steps: 100\n", "", "quick.yaml:6  spec.training.steps: given nothing, expected an integer"),
        ("kind: TrainingJob\n", "", "kind: given nothing, expected TrainingJob"),
        ("    steps: 100", "    steps: 100\n    steps: 200", 'quick.yaml:14  spec.training.steps: given "steps" again'),
    ],
)
def test_message_names_the_line(old: str, new: str, message: str) -> None:
    """A mistake in the file is shown with the file's name and the line of the key, or of the group that lacks it."""
    text = QUICKSTART.read_text()
    assert old in text
    with pytest.raises(JobError) as refused:
        loads(text.replace(old, new), source="quick.yaml")
    assert message in str(refused.value)


def test_all_mistakes_are_shown_at_once() -> None:
    """Several wrong fields, and several broken rules, each get a line of one message."""
    fields = ["training.steps=0", "training.seed=x", "hardware.slices=", "training.mesh.tensr=2"]
    rules = ["training.mesh.pipeline=2", "training.model.dropout.attention=0.5", "training.optimizer.momentum=0.1"]
    for overrides in (fields, rules):
        with pytest.raises(JobError) as refused:
            load(QUICKSTART, overrides)
        assert len(refused.value.problems) == len(overrides)
        assert str(refused.value).startswith(f"{len(overrides)} mistakes in the job:")


def test_an_item_of_a_list_is_blamed_once() -> None:
    """A wrong source is one mistake: the list around it is not called too short as well."""
    with pytest.raises(JobError) as refused:
        load(QUICKSTART, ["training.data.train.0.name=A B"])
    assert [problem.path for problem in refused.value.problems] == ["spec.training.data.train.0.name"]
