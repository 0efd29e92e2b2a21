"""shardwise.job.load, resolve, overrides and explain: a right job file, and what becomes of it."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from shardwise.job.document import MAX_BYTES, Document
from shardwise.job.explain import rows
from shardwise.job.family_values import EXPERTS
from shardwise.job.fields import leaves
from shardwise.job.load import dump, load, load_own, loads, loads_checked, resolved_in, with_overrides
from shardwise.job.optimizer_values import OPTIMIZERS
from shardwise.job.overrides import apply_overrides
from shardwise.job.paths import with_absolute_paths
from shardwise.job.presets import PRESETS, padded_vocab_size
from shardwise.job.resolve import resolve
from shardwise.job.spec import Duration, Experts, Latent, Mesh, TrainingJob, Unit
from shardwise.job.topology import MeshShape, mesh_shape, num_devices
from shardwise.protocol.contract import JOB_FILE
from shardwise.protocol.errors import JobError

Golden = Callable[[str, str], None]

GOLDEN = Path(__file__).parent / "golden"
QUICKSTART = GOLDEN / "quickstart.yaml"

EVERYTHING = [
    "deadline=1h30m",
    "metadata.labels={'on': '3e-4', 'y': '017', app.kubernetes.io/name: '1:30'}",
    "metadata.annotations={note: 'a: b # c'}",
    "training.model.dropout={embed: 0.1, residual: 0.2}",
    "training.data={tokenizer: 'null', heldOut: 0.01, train: [{name: a, paths: ['*.txt', '0x10'], weight: 3}]}",
    "training.optimizer={name: muon, learningRate: 2e-2, clipNorm: null, schedule: {kind: cosine, warmupSteps: 5}}",
    "training.checkpoint={every: 90s, everySteps: 10, keep: {last: 2, everySteps: 50}}",
    "training.evaluation={everySteps: 10, batches: 2}",
    "training.tracking={tensorboard: true, wandbProject: gpt}",
]


def quickstart(*overrides: str) -> TrainingJob:
    """The quickstart job with overrides."""
    return load(QUICKSTART, overrides)


def test_quickstart_resolves_to_the_golden_file(golden: Golden) -> None:
    """What a run writes down as its job is exactly the file beside this test."""
    golden("quickstart.resolved.yaml", dump(resolve(quickstart())))


def test_an_override_begins_a_list_that_is_not_there() -> None:
    """By the number 0 of its first item, as the documents say; more items follow by their numbers."""
    sets = ("training.data.heldOut=0.1", "training.evaluation.sets.0.name=web", "training.evaluation.sets.0.paths.0=a")
    evaluation = quickstart(*sets, "training.evaluation.sets.1={name: code, paths: [b]}").spec.training.evaluation

    assert [(one.name, one.paths) for one in evaluation.sets] == [("web", ("a",)), ("code", ("b",))]


def test_what_shardwise_writes_of_a_job_may_be_longer_than_a_persons_file(tmp_path: Path) -> None:
    """A run's own job has all defaults and whole paths: it is read again at any length that a right file comes to."""
    paths = ", ".join(f"data/part-{number:05}.jsonl" for number in range(1000))
    sources = ", ".join(f"{{name: s{number}, paths: [{paths}]}}" for number in range(9))
    job = with_absolute_paths(resolve(quickstart(f"training.data.train=[{sources}]")))
    written = tmp_path / JOB_FILE
    written.write_text(dump(job))

    assert written.stat().st_size > MAX_BYTES
    with pytest.raises(JobError, match=f"at most {MAX_BYTES} bytes"):
        load(written)
    assert resolved_in(tmp_path) == load_own(written) == job
    assert loads_checked(written.read_text(), source=JOB_FILE) == job
    assert with_overrides(job, ["training.steps=7"]).spec.training.steps == 7


@pytest.mark.parametrize("overrides", [[], EVERYTHING, ["training.model.preset=gptj-6b"]], ids=["short", "all", "gptj"])
def test_job_is_written_and_read_back(overrides: list[str]) -> None:
    """A job and its resolved form survive YAML unchanged, and resolving twice changes nothing."""
    job = quickstart(*overrides)
    resolved = resolve(job)
    assert loads(dump(job)) == job
    assert loads(dump(resolved)) == resolved
    assert resolve(resolved) == resolved


# Fields that some models lack, whatever their positions.
SOME = (
    "local_rope_theta",
    "rope_scaling",
    "rotary_pattern",
    "experts",
    "latent",
    "attention_softcap",
    "logit_softcap",
    "sliding_window",
    "sliding_window_pattern",
)


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_fills_what_is_left_out(preset: str) -> None:
    """A preset gives every size that the job does not; what the job gives stays."""
    job = quickstart(f"training.model={{preset: {preset}, layers: 3}}", "training.mesh.tensor=1")
    model = resolve(job).spec.training.model
    assert model.layers == 3
    assert model.embed == PRESETS[preset]["embed"]
    assert model.mlp == PRESETS[preset].get("mlp", 4 * PRESETS[preset]["embed"])
    assert model.vocab_size == 257
    unset = {name for name in type(model).model_fields if getattr(model, name) is None}
    always = {"rotary_dim", "rotary_pairs", "rope_theta"} if model.position == "learned" else set()
    assert unset == always | {name for name in SOME if name not in PRESETS[preset]}


def test_a_preset_fills_what_is_left_out_of_its_experts() -> None:
    """One field of them is changed alone; without a preset that has experts there are defaults, and no numbers."""
    words = ("training.model.preset=mixtral-8x7b", "training.mesh.tensor=1")
    experts = resolve(quickstart(*words, "training.model.experts.perToken=4")).spec.training.model.experts
    assert experts == Experts(count=8, per_token=4, **{**EXPERTS, "balance": 0.02})
    experts = resolve(quickstart(*words, "training.model.experts={balance: 0}")).spec.training.model.experts
    assert experts == Experts(count=8, per_token=2, **{**EXPERTS, "balance": 0.0})
    words = ("training.model.preset=llama3.2-1b", "training.mesh.tensor=1")
    experts = resolve(quickstart(*words, "training.model.experts={count: 4, perToken: 2}")).spec.training.model.experts
    assert experts == Experts(count=4, per_token=2, **EXPERTS)


def test_a_bias_of_the_choice_has_a_rate_of_its_own() -> None:
    """That of DeepSeek-V3; beside adapters it stays what it is, and without a bias there is none."""
    words = ("training.model.preset=mixtral-8x7b", "training.mesh.tensor=1", "training.model.experts.pickBias=true")
    lora = ("training.lora.rank=8", "training.startFrom={path: base, step: 0}")
    found = [
        resolve(quickstart(*words, *more)).spec.training.model.experts
        for more in ((), ("training.model.experts.biasRate=0",), lora, ("training.model.experts.pickBias=false",))
    ]
    assert [experts and experts.bias_rate for experts in found] == [0.001, 0.0, 0.0, None]


def test_what_is_left_out_of_latent_attention_is_filled() -> None:
    """Values are as wide as what no position turns of a key, and queries are made directly."""
    section = "{preset: llama2-7b, headSize: 192, rotaryDim: 64, latent: {kvRank: 512}}"
    latent = resolve(quickstart(f"training.model={section}")).spec.training.model.latent
    assert latent == Latent(kv_rank=512, q_rank=None, value_size=128, norm_epsilon=1e-6)


def test_rotary_turns_the_whole_head_unless_told() -> None:
    """RotaryDim is the head size by default, and nothing with learned positions even where a preset has one."""
    rotary = resolve(quickstart("training.model.position=rotary")).spec.training.model
    learned = resolve(quickstart("training.model={preset: gptj-6b, position: learned}")).spec.training.model
    assert rotary.rotary_dim == 32
    assert learned.rotary_dim is None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_gets_its_own_defaults(name: str) -> None:
    """Only the fields that an optimizer has are filled."""
    optimizer = resolve(quickstart(f"training.optimizer={{name: {name}, learningRate: 0.01}}")).spec.training.optimizer
    own = ("beta1", "beta2", "epsilon", "weight_decay", "momentum")
    assert {field: value for field in own if (value := getattr(optimizer, field)) is not None} == OPTIMIZERS[name]
    assert optimizer.adam_learning_rate == (0.01 if name == "muon" else None)


def test_saves_are_due_by_time_only_where_no_cadence_is_given() -> None:
    """A job that says nothing is saved every ten minutes; one that gives steps is saved by steps alone."""
    silent = resolve(quickstart("training.checkpoint={}")).spec.training.checkpoint
    assert silent.every == Duration("10m")
    assert resolve(quickstart()).spec.training.checkpoint.every is None


def test_a_vocabulary_from_a_file_is_left_to_the_trainer() -> None:
    """Only the byte tokenizer's size is known without reading a file."""
    assert resolve(quickstart("training.data.tokenizer=t.json")).spec.training.model.vocab_size is None


@pytest.mark.parametrize(
    ("overrides", "shape"),
    [
        ([], (1, 4, 1, 2)),
        (["training.mesh.replica=2"], (2, 2, 1, 2)),
        (["training.mesh.dataInner=2"], (1, 4, 2, 2)),
        (["hardware.topology=1x1", "training.mesh.tensor=1"], (1, 1, 1, 1)),
        (["training.mesh={tensor: 4, fsdp: false}"], (1, 2, 1, 4)),
    ],
)
def test_mesh_takes_all_devices(overrides: list[str], shape: tuple[int, ...]) -> None:
    """The data axis gets what tensor and replica leave."""
    job = resolve(quickstart(*overrides))
    replica, data, inner, tensor = shape
    expected = MeshShape(replica=replica, data=data, data_inner=inner, expert=1, context=1, tensor=tensor, pipeline=1)
    assert mesh_shape(job) == expected
    assert num_devices(job.spec.hardware) == replica * data * tensor


@pytest.mark.parametrize(
    ("accelerator", "topology", "tensor", "steps"),
    [
        ("tpu-v5e", "2x4", 1, (8, 1)),
        ("tpu-v5e-4t", "2x4", 1, (4, 2)),
        ("tpu-v5p", "2x2x4", 1, (8, 2)),
        ("tpu-v5p", "2x4x4", 2, (16, 1)),
        ("tpu-v5p", "4x4x4", 1, (16, 4)),
        ("tpu-v5p", "4x4x4", 2, (16, 2)),
        ("tpu-v5p", "4x4x12", 1, (16, 12)),
        ("tpu-v6e", "16x16", 1, (16, 16)),
        ("tpu-v5p", "8x8x16", 1, (32, 32)),
        ("gpu", "8x8", 1, (64, 1)),
        ("cpu-sim", "1x32", 1, (32, 1)),
    ],
)
def test_fsdp_goes_in_two_steps_on_tpus(accelerator: str, topology: str, tensor: int, steps: tuple[int, int]) -> None:
    """Groups are of at most 16 chips up to 256, as even as can be beyond, and never all of several hosts.

    Elsewhere one step does.
    """
    words = f"hardware={{accelerator: {accelerator}, topology: {topology}}}"
    model = "training.model={layers: 1, heads: 2, embed: 3072, seqLen: 128}"
    job = resolve(quickstart(words, f"training.mesh.tensor={tensor}", "training.batch.sequences=3072", model))
    shape = mesh_shape(job)
    assert shape is not None
    assert (shape.data // shape.data_inner, shape.data_inner) == steps


def test_vocabulary_is_padded_to_128() -> None:
    """The padded size is the next multiple of 128, and never smaller."""
    assert [padded_vocab_size(size) for size in (1, 128, 129, 257, 50257)] == [128, 128, 256, 384, 50304]


def test_overrides_reach_any_field_in_order() -> None:
    """Paths begin at the root or below spec, go into lists by index, make groups on the way, and later ones win."""
    job = quickstart(
        "training.steps=1e3",
        "spec.training.steps=500",
        "metadata.name=other",
        "training.data.train.0.paths=[a.txt, b.txt]",
        "training.data.train.1={name: more, paths: [c.txt]}",
        "training.optimizer.schedule.kind=cosine",
    )
    assert job.spec.training.steps == 500
    assert job.metadata.name == "other"
    assert [source.paths for source in job.spec.training.data.train] == [("a.txt", "b.txt"), ("c.txt",)]
    assert job.spec.training.optimizer.schedule.kind == "cosine"


def test_a_quoted_part_of_an_override_is_one_key() -> None:
    """A key may have dots, an equals sign or nothing but digits; parts without quotes are what they were."""
    document = apply_overrides(
        Document(data={"spec": {}}, places={}),
        [
            'pod.template.spec.nodeSelector."cloud.google.com/gke-tpu-topology"=2x4',
            ' metadata.labels."a.b/c" =d=e',
            'metadata.annotations."x=1.\'y"=[1]',
            'metadata.annotations."0"=b',
        ],
    )
    assert document.data == {
        "spec": {"pod": {"template": {"spec": {"nodeSelector": {"cloud.google.com/gke-tpu-topology": "2x4"}}}}},
        "metadata": {"labels": {"a.b/c": "d=e"}, "annotations": {"x=1.'y": [1], "0": "b"}},
    }


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.optimizer={name: muon, learningRate: 1e-2, momentum: 0.9, adamLearningRate: 1e-3}"],
        ["training.optimizer={name: lion, learningRate: 1e-4, weightDecay: 1}"],
        ["training.optimizer.schedule={kind: warmup-stable-decay, warmupSteps: 20, decaySteps: 80}"],
        ["training.optimizer.schedule={kind: cosine, warmupSteps: 99, decaySteps: 1000}"],
        ["training.data.heldOut=0.5", "training.evaluation.everySteps=1"],
        ["training.evaluation={everySteps: 1, sets: [{name: a, paths: [b], questions: true, chatTemplate: chatml}]}"],
        ["training.checkpoint.keep.everySteps=40"],
        ["training.model={layers: 1, heads: 2, embed: 30, seqLen: 8}", "training.mesh.fsdp=false"],
        ["training.model.preset=gpt2-xl", "training.mesh.tensor=1"],
        ["training.model={preset: gptj-6b, rotaryDim: 256}", "training.mesh.tensor=8"],
        ["training.model={preset: tiny, tiedHead: false, headBias: true, vocabSize: 257}"],
        ["training.batch={sequences: 16, microbatches: 4}"],
        ["training.precision={params: float32, compute: bfloat16, output: float32, reduce: float32}"],
        ["hardware.topology=1x64", "training.mesh={tensor: 4, replica: 16}"],
    ],
)
def test_right_jobs_are_accepted(overrides: list[str]) -> None:
    """Values at the edge of a rule pass it."""
    assert isinstance(quickstart(*overrides), TrainingJob)


def test_clipping_can_be_switched_off() -> None:
    """Null is a value of clipNorm, which a written job keeps."""
    job = quickstart("training.optimizer.clipNorm=null")
    assert job.spec.training.optimizer.clip_norm is None
    assert loads(dump(job)).spec.training.optimizer.clip_norm is None


def test_a_schedule_may_outlast_the_run() -> None:
    """A run may end in the middle of a cosine, so that it can go on later."""
    schedule = quickstart(
        "training.optimizer.schedule={kind: cosine, decaySteps: 1000}"
    ).spec.training.optimizer.schedule
    assert schedule.decay_steps == 1000


def test_models_are_frozen_and_built_by_python_names() -> None:
    """Code builds a section by attribute names and cannot change it."""
    mesh = Mesh(tensor=2)
    with pytest.raises(ValidationError, match="frozen"):
        mesh.tensor = 4  # type: ignore[misc]


def test_every_field_is_explained() -> None:
    """Each field has a row with a description; each number a unit and a range; each text, list and map a bound."""
    table = rows()
    assert len({row.path for row in table}) == len(table) == len(list(leaves(TrainingJob)))
    for row in table:
        assert row.description.endswith("."), row
        assert row.range, row
        assert row.default, row
        assert row.unit or row.type not in ("integer", "number", "duration"), row


def test_fields_are_frozen(golden: Golden) -> None:
    """A field, its type, bounds and default change only together with the golden file."""
    lines = [f"{row.path} | {row.type} | {row.range} | {row.unit} | {row.default}" for row in rows()]
    golden("fields.txt", "\n".join(lines) + "\n")


def test_explained_values_are_the_models() -> None:
    """Rows say what the models say."""
    by_path = {row.path: row for row in rows()}
    steps, rate = by_path["spec.training.steps"], by_path["spec.training.optimizer.learningRate"]
    assert (steps.type, steps.default, steps.unit, steps.range) == (
        "integer",
        "required",
        "steps",
        "from 1 to 2147483647",
    )
    assert (rate.type, rate.range) == ("number", "above 0, up to 100")
    assert by_path["spec.training.model.mlp"].default == "the preset, or else 4 x embed"
    assert by_path["spec.training.mesh.fsdp"].default == "true"
    assert by_path["spec.training.data.train.*.paths"].range == "1 to 1024 items"
    assert (
        Unit("steps") in next(leaf for leaf in leaves(TrainingJob) if leaf.name == "spec.training.steps").info.metadata
    )


def test_schema_is_bounded() -> None:
    """Every string, list and map of the JSON schema has an upper bound, which a Kubernetes schema needs."""

    def unbounded(node: object, path: str) -> list[str]:
        if isinstance(node, list):
            return [found for index, item in enumerate(node) for found in unbounded(item, f"{path}[{index}]")]
        if not isinstance(node, dict):
            return []
        bound = {"string": "maxLength", "array": "maxItems"}.get(str(node.get("type")))
        is_map = node.get("type") == "object" and isinstance(node.get("additionalProperties"), dict)
        needed = "maxProperties" if is_map else bound
        bad = needed is not None and not {needed, "enum", "const"} & set(node)
        below = [found for key, item in node.items() for found in unbounded(item, f"{path}.{key}")]
        return [path, *below] if bad else below

    assert unbounded(TrainingJob.model_json_schema(), "") == []


def test_package_needs_pydantic_and_yaml_only() -> None:
    """Reading a job file imports no array, cluster or command-line library."""
    code = "import sys, shardwise.job.load, shardwise.job.identity, shardwise.job.explain; print(*sys.modules)"
    path = Path(__file__).parents[2] / "trainer"
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONPATH": str(path)}
    )
    heavy = {"jax", "numpy", "ray", "kubernetes", "haliax", "fsspec", "typer", "rich", "tensorstore"}
    assert not heavy & set(result.stdout.split())


LLAMA = "layers: 2, heads: 8, embed: 64, seqLen: 64, position: rotary"
APART: list[tuple[str, str, str]] = [
    ("kvHeads: 3", "model.kvHeads", "a number that divides heads 8: 1, 2, 4"),
    ("kvHeads: 1", "mesh.tensor", "1 kvHeads over tensor 2"),
    ("headSize: 7", "model.headSize", "an even number for rotary positions"),
    ("slidingWindowPattern: 2", "model.slidingWindowPattern", "no slidingWindowPattern without slidingWindow"),
    ("localRopeTheta: 100.0", "model.localRopeTheta", "no localRopeTheta without slidingWindow"),
    ("position: learned, ropeTheta: 100.0", "model.ropeTheta", "no ropeTheta with position: learned"),
    ("position: learned, rotaryPairs: half", "model.rotaryPairs", "no rotaryPairs with position: learned"),
    (
        "ropeScaling: {kind: linear, factor: 2.0, originalSeqLen: 8}",
        "model.ropeScaling.originalSeqLen",
        "no originalSeqLen with kind: linear",
    ),
    (
        "ropeScaling: {kind: llama3, factor: 2.0, attentionFactor: 2.0}",
        "model.ropeScaling.attentionFactor",
        "no attentionFactor with kind: llama3",
    ),
    (
        "ropeScaling: {kind: llama3, factor: 2.0, longFactors: [2.0]}",
        "model.ropeScaling.longFactors",
        "none with kind: llama3",
    ),
    (
        "ropeScaling: {kind: longrope, factor: 2.0, shortFactors: [1.0], longFactors: [2.0]}",
        "model.ropeScaling.shortFactors",
        "numbers, half of rotaryDim",
    ),
    (
        "ropeScaling: {kind: llama3, factor: 2.0, highFrequencyFactor: 1.0}",
        "model.ropeScaling.highFrequencyFactor",
        "more than 1.0",
    ),
    ("ropeScaling: {kind: yarn, factor: 2.0, betaSlow: 40.0}", "model.ropeScaling.betaFast", "more than 40.0"),
    ("attentionSoftcap: 8.0, attention: cudnn", "model.attentionSoftcap", "none with attention: cudnn"),
]


@pytest.mark.parametrize(("fields", "path", "words"), APART)
def test_fields_of_a_model_that_do_not_go_together_are_refused(fields: str, path: str, words: str) -> None:
    """The field is named, with what it was given and what goes with the others."""
    given = ", ".join([*(part for part in LLAMA.split(", ") if part.split(":")[0] not in fields), fields])
    with pytest.raises(JobError, match=re.escape(words)) as error:
        quickstart(f"training.model={{{given}}}", "training.mesh.tensor=2")
    assert f"spec.training.{path}" in str(error.value)


@pytest.mark.parametrize(
    ("words", "path", "expected"),
    [
        ("mesh={context: 4, tensor: 2}, model.seqLen=100", "mesh.context", "twice as many divide seqLen 100"),
        ("mesh={context: 8, tensor: 2}", "mesh.context", "divides 4 devices of a replica with tensor 2: 1, 2, 4"),
        (
            "mesh.context=4, model.attention=splash, model.seqLen=640",
            "model.seqLen",
            "a multiple of 1024 with attention: splash and context 4",
        ),
        ("mesh.context=4, model.embed=202, model.heads=2", "mesh.tensor", "embed 202 over data 1 x context 4"),
    ],
)
def test_sequences_that_do_not_split_are_refused(words: str, path: str, expected: str) -> None:
    """Context divides the devices, and twice context the positions; a kernel has blocks in each chunk."""
    with pytest.raises(JobError, match=re.escape(expected)) as error:
        quickstart(*(f"training.{word}" for word in re.split(r", (?=m[oe])", words)))
    assert f"spec.training.{path}" in str(error.value)


@pytest.mark.parametrize(
    ("words", "path", "expected"),
    [
        ("mesh={pipeline: 8, tensor: 2}", "mesh.pipeline", "divides 4 devices of a replica with tensor 2: 1, 2, 4"),
        ("mesh={pipeline: 4, context: 4}", "mesh.pipeline", "divides 2 devices of a replica with context 4: 1, 2"),
        ("mesh.pipeline=4, model.layers=6", "mesh.pipeline", "divides 6 layers and fits the rest of the job: 1, 2"),
        (
            "mesh={pipeline: 2, pipelineRounds: 2}, model.layers=6",
            "mesh.pipelineRounds",
            "a number that divides the 3 layers of a stage: 1, 3",
        ),
        ("mesh.pipeline=4, batch.microbatches=6", "batch.microbatches", "a multiple of pipeline 4; take 4 or 8"),
        ("mesh.pipelineRounds=2", "mesh.pipelineRounds", "1 with pipeline: 1, which has no stages to go round"),
        (
            "mesh={pipeline: 2, pipelineRounds: 2}, model.remat=none",
            "mesh.pipelineRounds",
            "a copy of the weights for every visit of a stage; set model.remat: dots or full",
        ),
        (
            "mesh={pipeline: 2}, model.remat=offload, batch.microbatches=2",
            "model.remat",
            "full, dots or none with a pipeline, whose stages keep the inputs of all microbatches on the devices",
        ),
    ],
)
def test_layers_that_do_not_split_are_refused(words: str, path: str, expected: str) -> None:
    """Pipeline divides the devices, the layers and the microbatches, and rounds what is left of the layers."""
    with pytest.raises(JobError, match=re.escape(expected)) as error:
        quickstart(*(f"training.{word}" for word in re.split(r", (?=mo|b)", words)))
    assert f"spec.training.{path}" in str(error.value)


def test_what_follows_from_other_fields_is_filled_in() -> None:
    """Sizes of heads and of stretched positions are written out, and a preset's are kept."""
    yarn = "ropeScaling: {kind: yarn, factor: 4.0}"
    model = resolve(quickstart(f"training.model={{{LLAMA}, kvHeads: 2, {yarn}}}")).spec.training.model
    assert (model.head_size, model.rotary_dim, model.query_pre_attn_scalar) == (8, 8, 8.0)
    assert model.rope_scaling is not None
    assert model.rope_scaling.original_seq_len == 16
    assert model.rope_scaling.attention_factor == pytest.approx(1.1386294)
    gemma = resolve(quickstart("training.model.preset=gemma2-2b", "training.mesh.tensor=1")).spec.training.model
    assert (gemma.head_size, gemma.kv_heads, gemma.norm_epsilon) == (256, 4, 1e-6)
