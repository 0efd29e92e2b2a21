"""Wrong job files: each is refused where it is written, with what was given and what is expected."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.job.wrong_files import FIELDS, IN_CLUSTER, PODS, QUICKSTART, RULES

from shardwise.job import validate
from shardwise.job.load import load, loads
from shardwise.protocol.errors import JobError
from shardwise.protocol.text import close_to

OVERRIDES = [
    ("training.steps", "--set", ["path=value"]),
    ("training..steps=3", "--set", ["path=value"]),
    ("training. =3", "--set", ["path=value"]),
    ('metadata.labels."a.b=3', "--set", ["path=value"]),
    ('metadata.labels."a"b=3', "--set", ["path=value"]),
    ('metadata.labels.""=3', "--set", ["path=value"]),
    ('"training.steps"=3', "spec.training.steps", ['unknown key "training.steps"']),
    ("training.steps.x=3", "spec.training.steps", ["a group, and it holds 100"]),
    ("training.data.train.2.name=b", "spec.training.data.train.2", ["an index from 0 to 1"]),
    ("training.data.train.first.name=b", "spec.training.data.train.first", ["an index from 0 to 1"]),
    ("training.data.train." + "1" * 5000 + ".name=b", "spec.training.data.train." + "1" * 5000, ["an index from 0 to"]),
    ("metadata.labels." + "1" * 5000 + "=b", "metadata.labels." + "1" * 5000, ["a key of 1 to 317 characters"]),
    ('metadata.labels."[key]"=5', "metadata.labels.[key]", ["given 5", "0 to 63 characters"]),
    (
        f"training.data.phases=[{{fromStep: 3, weights: {{{'a' * 100}: 1}}}}]",
        f"spec.training.data.phases.0.weights.{'a' * 100}",
        ["a key of 1 to 63 characters"],
    ),
    (
        "training.model={layers: 2, heads: 4, embed: 20, seqLen: 16, position: rotary}",
        "spec.training.model.heads",
        ["given 4", "heads of an even size for rotary positions, and embed 20 / heads 4 is 5"],
    ),
    (
        "training.model={layers: 2, heads: 4, headSize: 7, embed: 20, seqLen: 16, position: rotary}",
        "spec.training.model.headSize",
        ["given 7", "an even number for rotary positions"],
    ),
    ("training" + ".a" * 5000 + "=1", "spec.training.a", ["at most 32 parts"]),
    ("training.steps=[1", "spec.training.steps", ["YAML ("]),
    ("metadata.name=\udcff", "--set", ['given "metadata.name=\\udcff"', "text in UTF-8"]),
    ("metadata.n\udcff=a", "--set", ["text in UTF-8"]),
    ("trainin.steps=3", "spec.trainin", ['did you mean "training"?']),
]

ROWS = [(QUICKSTART, *row) for row in FIELDS + RULES + OVERRIDES] + [(IN_CLUSTER, *row) for row in PODS]


@pytest.mark.parametrize(("job", "override", "path", "fragments"), ROWS)
def test_wrong_value_is_refused_where_it_is(job: Path, override: str, path: str, fragments: list[str]) -> None:
    """One line of the message names the path, what was given and what is expected, and no library's jargon."""
    with pytest.raises(JobError) as refused:
        load(job, [override])
    text = str(refused.value)
    lines = [line for line in text.splitlines() if f"{path}: " in line]
    assert lines, text
    assert any(all(fragment in line for fragment in fragments) for line in lines), text
    for jargon in ("Input should", "pydantic", "https://", "validation error"):
        assert jargon not in text


def test_a_key_without_a_value_may_be_taken_out_of_a_file() -> None:
    """Of an override that is no help, and another is given."""
    with pytest.raises(JobError, match=r"steps: given no value, .*; take the key out for its default"):
        loads(QUICKSTART.read_text().replace("steps: 100", "steps:"))


@pytest.mark.parametrize("override", ["training.model.preset=null", "spec=null"])
def test_an_override_is_not_told_to_give_a_default_that_is_not_there(override: str) -> None:
    """It is told that it cannot take the key out, and no more."""
    with pytest.raises(JobError, match="--set takes no key out") as refused:
        load(QUICKSTART, [override])
    assert "default" not in str(refused.value)


@pytest.mark.parametrize(
    ("axis", "changes"),
    [
        ("tensor", ["mesh.tensor=3"]),
        ("tensor", ["mesh.tensor=8"]),
        ("tensor", ["mesh={tensor: 3, context: 2}"]),
        ("tensor", ["mesh.tensor=8", "batch.sequences=4"]),
        ("tensor", ["mesh.tensor=3", "model.kvHeads=2"]),
        ("context", ["mesh={context: 3, tensor: 1}", "model.seqLen=100"]),
        ("pipeline", ["mesh={pipeline: 4, tensor: 1}", "batch.microbatches=4", "model.layers=6"]),
        ("replica", ["mesh.replica=3"]),
    ],
)
def test_every_size_that_is_offered_makes_a_right_job(axis: str, changes: list[str]) -> None:
    """What is offered for one axis divides the devices, and the model and the batch as well."""
    overrides = [f"training.{change}" for change in changes]
    with pytest.raises(JobError) as refused:
        load(QUICKSTART, overrides)
    lines = str(refused.value).splitlines()
    [line] = [line for line in lines if f"spec.training.mesh.{axis}: " in line and "expected a size that" in line]
    offered = [int(size) for size in line.rpartition(": ")[2].split(", ")]
    assert offered
    for size in offered:
        load(QUICKSTART, [*overrides, f"training.mesh.{axis}={size}"])


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
    rules = [
        "training.mesh.pipelineRounds=2",
        "training.model.dropout.attention=0.5",
        "training.optimizer.momentum=0.1",
    ]
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


def test_of_many_unknown_keys_the_first_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may have thousands: the others are counted, and known keys are compared with those named alone.

    Other mistakes are all named.
    """
    compared: list[str] = []

    def counted(word: str, known: Iterable[str]) -> str:
        compared.append(word)
        return close_to(word, known)

    monkeypatch.setattr(validate, "close_to", counted)
    unknown = "".join(f"    sead{number}: 0\n" for number in range(5000))
    text = QUICKSTART.read_text()
    with pytest.raises(JobError) as refused:
        loads(text.replace("    steps: 100\n", f"{unknown}    steps: many\n"), source="quick.yaml")
    *named, more = [problem for problem in refused.value.problems if problem.path != "spec.training.steps"]
    assert [problem.path for problem in named] == [f"spec.training.sead{number}" for number in range(20)]
    assert compared == [f"sead{number}" for number in range(20)]
    assert str(more).startswith("quick.yaml:33  spec.training: given 4,980 more unknown keys")
    assert len(refused.value.problems) == 22
