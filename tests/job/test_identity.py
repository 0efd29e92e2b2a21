"""shardwise.job.identity: what must stay the same for a run to go on."""

import json
from pathlib import Path

import pytest

from shardwise.job.fields import leaves
from shardwise.job.identity import (
    FREE_FIELDS,
    IDENTITY_FIELDS,
    Difference,
    differences,
    identity,
    other_order,
    recorded_differences,
)
from shardwise.job.load import dump, load, loads
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob

QUICKSTART = Path(__file__).parent / "golden" / "quickstart.yaml"


def changed(*overrides: str, fingerprint: str = "f") -> list[str]:
    """The paths in which the quickstart's identity differs from its own with overrides."""
    old = identity(load(QUICKSTART), data_fingerprint="f")
    new = identity(load(QUICKSTART, overrides), data_fingerprint=fingerprint)
    return [difference.path for difference in differences(old, new)]


def test_every_field_is_in_one_column_of_the_table() -> None:
    """A new field must be said to be identity or free, and no row names a field that is gone."""
    fields = {leaf.name for leaf in leaves(TrainingJob)}
    assert fields == IDENTITY_FIELDS | FREE_FIELDS
    assert not IDENTITY_FIELDS & FREE_FIELDS


@pytest.mark.parametrize(
    "overrides",
    [
        ["metadata.name=other"],
        ["hardware.topology=1x4"],
        ["training.mesh={tensor: 1, fsdp: false}"],
        ["training.batch.microbatches=4"],
        ["training.steps=7"],
        ["training.checkpoint={every: 1m}"],
        ["training.model.remat=none"],
        ["training.model.attention=plain"],
        ["training.loss.blockTokens=64"],
        ["training.data.train.0.paths=[moved.txt]"],
        ["training.data.train.0.weight=1"],
        ["training.data.store=tokens"],
        ["training.tracking.tensorboard=true"],
        ["training.model={layers: 4, heads: 4, embed: 128, seqLen: 128}"],
        ["training.optimizer.beta2=0.95"],
        ["deadline=1d"],
    ],
)
def test_free_fields_may_change(overrides: list[str]) -> None:
    """Where and how fast a run goes, how it is saved, and defaults written out leave it the same run."""
    assert changed(*overrides) == []


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("training.seed=1", "spec.training.seed"),
        ("training.batch.sequences=32", "spec.training.batch.sequences"),
        ("training.model.layers=2", "spec.training.model.layers"),
        ("training.model.dropout.embed=0.1", "spec.training.model.dropout.embed"),
        ("training.data.tokenizer=t.json", "spec.training.data.tokenizer"),
        ("training.data.train.0.weight=2", "spec.training.data.train.0.weight"),
        ("training.data.heldOut=0.1", "spec.training.data.heldOut"),
        ("training.data.dedup=exact", "spec.training.data.dedup"),
        ("training.data.train.0={name: a, paths: [a], epochs: 2}", "spec.training.data.train.0.epochs"),
        ("training.data.phases=[{fromStep: 2, weights: {text: 2}}]", "spec.training.data.phases.0.fromStep"),
        (
            "training.data.phases=[{fromStep: 2, weights: {text: 2}}]",
            "spec.training.data.phases.0.weights.text",
        ),
        (
            "training.batch.rampUp=[{untilStep: 9, sequences: 8}]",
            "spec.training.batch.rampUp.0.sequences",
        ),
        ("training.data.attendAcross=document", "spec.training.data.attendAcross"),
        ("training.optimizer.learningRate=1e-3", "spec.training.optimizer.learningRate"),
        ("training.optimizer.schedule.kind=cosine", "spec.training.optimizer.schedule.kind"),
        ("training.optimizer.clipNorm=null", "spec.training.optimizer.clipNorm"),
        ("training.precision.compute=bfloat16", "spec.training.precision.compute"),
        ("training.loss.zLoss=1e-4", "spec.training.loss.zLoss"),
    ],
)
def test_identity_fields_are_named_when_they_change(override: str, path: str) -> None:
    """What changes the numbers is found, and named by its path."""
    assert path in changed(override)


def test_steps_count_where_a_source_has_epochs() -> None:
    """Its share of each step follows from the number of steps; without epochs they may change."""
    source = "training.data.train.0={name: a, paths: [a], epochs: 2}"
    old, new = (
        identity(load(QUICKSTART, [source, f"training.steps={steps}"]), data_fingerprint="f") for steps in (50, 60)
    )

    assert list(map(str, differences(old, new))) == ["spec.training.steps: was 50, is now 60"]
    assert changed("training.steps=60") == []


def test_other_data_is_another_run() -> None:
    """Only the fingerprint tells data apart."""
    assert changed(fingerprint="g") == ["dataFingerprint"]


def test_a_source_more_is_a_difference() -> None:
    """A list that grew differs in each field of its new item."""
    assert "spec.training.data.train.1.weight" in changed("training.data.train.1={name: b, paths: [b]}")


def test_a_phase_more_is_named_to_a_run_that_had_none() -> None:
    """It is why the data are others; what the record lacks for its age is no difference, nor are words for the same."""
    phase = "training.data.phases=[{fromStep: 2, weights: {text: 2}}]"
    held = identity(load(QUICKSTART), data_fingerprint="f")
    del held["spec.training.data.attendAcross"]
    changes = recorded_differences(held, identity(load(QUICKSTART, [phase]), data_fingerprint="g"))
    assert [str(change) for change in changes if change.path != "dataFingerprint"] == [
        "spec.training.data.phases.0.fromStep: was null, is now 2",
        "spec.training.data.phases.0.weights.text: was null, is now 2.0",
    ]
    assert recorded_differences(held, identity(load(QUICKSTART, [phase]), data_fingerprint="f")) == []
    assert recorded_differences({}, identity(load(QUICKSTART, [phase]), data_fingerprint="f")) == []


def test_groups_of_parameters_are_part_of_a_run() -> None:
    """A group that is added, taken out or changed makes another run."""
    group = "training.optimizer.groups=[{match: '*.bias', rateFactor: 0.5}]"
    paths = [f"spec.training.optimizer.groups{rest}" for rest in (".0.match", ".0.rateFactor", "")]
    assert sorted(changed(group)) == sorted(paths)
    old, new = (
        identity(load(QUICKSTART, [group, *more]), data_fingerprint="f") for more in ([], [group.replace("0.5", "0.1")])
    )
    assert [str(one) for one in differences(old, new)] == [f"{paths[1]}: was 0.5, is now 0.1"]


def test_a_group_that_gets_a_weight_decay_is_named() -> None:
    """Also to a run whose checkpoints were written while a group without one was recorded as nothing."""
    group = "training.optimizer.groups=[{match: '*.bias'}]"
    path = "spec.training.optimizer.groups.0.weightDecay"
    held, new = (
        identity(load(QUICKSTART, [group, *more]), data_fingerprint="f")
        for more in ([], ["training.optimizer.groups.0.weightDecay=0.5"])
    )
    assert held[path] is None
    older = {known: value for known, value in held.items() if known != path}
    for record in (held, older):
        assert list(map(str, recorded_differences(record, new))) == [f"{path}: was null, is now 0.5"]
        assert recorded_differences(record, held) == []
    assert list(map(str, recorded_differences(new, held))) == [f"{path}: was 0.5, is now null"]


@pytest.mark.parametrize(
    ("override", "fingerprint", "same"),
    [
        ("training.optimizer.learningRate=0.5", "f", True),
        ("training.steps=60", "f", True),
        ("training.data.leaveOut=[3]", "f", True),
        ("training.data.train.0.name=other", "f", True),
        ("training.seed=7", "f", False),
        ("training.model.seqLen=32", "f", False),
        ("training.batch.sequences=8", "f", False),
        ("training.optimizer.learningRate=0.5", "g", False),
    ],
)
def test_which_runs_have_the_same_batches(override: str, fingerprint: str, *, same: bool) -> None:
    """A batch is known by its number: in another order, of other sizes or of other data it is another batch."""
    held = identity(load(QUICKSTART), data_fingerprint="f")
    new = identity(load(QUICKSTART, [override]), data_fingerprint=fingerprint)
    assert (other_order(held, new) == []) == same
    assert other_order({}, new) == []


def test_a_digest_is_told_with_what_it_is_of() -> None:
    """No field of a job has its name."""
    old, new = (identity(load(QUICKSTART), data_fingerprint=digest) for digest in "fg")
    assert [str(change) for change in differences(old, new)] == [
        'dataFingerprint: was "f", is now "g" (a digest of the tokens of data)'
    ]


def test_sequences_that_are_left_out_are_part_of_a_run() -> None:
    """Of each source, in any order."""
    assert changed("training.data.train.0.leaveOut=[3, 1]") == ["spec.training.data.train.0.leaveOut"]
    jobs = [load(QUICKSTART, [f"training.data.train.0.leaveOut={numbers}"]) for numbers in ("[1, 3]", "[3, 1]")]
    old, new = (identity(job, data_fingerprint="f") for job in jobs)
    assert differences(old, new) == []


def test_the_factor_of_each_pair_is_part_of_a_run() -> None:
    """Each of both kinds of LongRoPE's, in its place; the rest of a job with another factor is the same."""
    rotary = "position: rotary, ropeScaling: {kind: longrope, factor: 2"
    pairs = "1.0, " * 15

    def of(short: str, long: str) -> dict[str, object]:
        factors = f"shortFactors: [{pairs}{short}], longFactors: [{pairs}{long}]"
        model = f"training.model={{preset: tiny, seqLen: 128, {rotary}, {factors}}}}}"
        return dict(identity(load(QUICKSTART, [model]), data_fingerprint="f"))

    def paths(other: dict[str, object]) -> list[str]:
        return [change.path.rpartition(".")[2] for change in differences(of("2.0", "3.0"), other)]  # type: ignore[arg-type]

    assert not paths(of("2.0", "3.0"))
    assert paths(of("2.5", "3.0")) == ["shortFactors"]
    assert paths(of("2.0", "3.5")) == ["longFactors"]


def test_a_tokenizer_file_may_move() -> None:
    """A tokenizer's file is known by the fingerprint, not by its path."""
    jobs = [load(QUICKSTART, [f"training.data.tokenizer={path}"]) for path in ("a/t.json", "b/t.json")]
    old, new = (identity(job, data_fingerprint="f") for job in jobs)
    assert differences(old, new) == []


def test_identity_survives_json_and_yaml() -> None:
    """The manifest's JSON and the run directory's resolved job give the same identity again."""
    job = load(QUICKSTART)
    original = identity(job, data_fingerprint="f")
    assert json.loads(json.dumps(original)) == original
    assert identity(loads(dump(resolve(job))), data_fingerprint="f") == original


def test_difference_reads_as_a_sentence() -> None:
    """Old and new are shown as YAML would."""
    assert str(Difference(path="spec.training.seed", old=0, new=1)) == "spec.training.seed: was 0, is now 1"
    assert str(Difference(path="a", old=None, new="x")) == 'a: was null, is now "x"'


def test_a_run_from_before_the_families_is_the_same_run() -> None:
    """A model that older releases could train has none of the younger fields in its identity, however it is written."""
    young = {
        "kvHeads",
        "headSize",
        "norm",
        "activation",
        "mlpBias",
        "ropeTheta",
        "queryPreAttnScalar",
        "scaleEmbedding",
    }
    for words in ([], ["training.model.position=rotary"], ["training.model={preset: tiny, kvHeads: 4, norm: layer}"]):
        known = identity(load(QUICKSTART, words), data_fingerprint="f")
        assert {known[f"spec.training.model.{name}"] for name in young} == {None}
    assert changed("training.model.kvHeads=2") == ["spec.training.model.kvHeads"]
    assert changed("training.model.norm=rms") == ["spec.training.model.norm"]
