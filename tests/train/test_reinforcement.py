"""Learning from rewards: the loss of completions and its gradient on any mesh, and what a run makes and learns."""

import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.long import all_but
from tests.train.conftest import run_here, runs_here
from tests.train.test_experts import MIXTURE
from tests.train.test_meshes import LLAMA
from tests.train.test_origin import folder, losses, params

from shardwise.job.spec.reinforcement import Reinforcement
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import DataError
from shardwise.protocol.evaluated import results
from shardwise.train.decoder import bytes_of
from shardwise.train.decoding import lower_empty, lower_weights, lower_window
from shardwise.train.decoding_arrays import Joining
from shardwise.train.dropout import Dropout
from shardwise.train.gradients import gradients
from shardwise.train.lora import without_adapters
from shardwise.train.memory import local_bytes
from shardwise.train.metrics import records
from shardwise.train.microbatches import Batch
from shardwise.train.model import whole_table
from shardwise.train.reinforcement import advantages_of
from shardwise.train.sampler import room
from shardwise.train.state import REFERENCE, Program, flat, parameters

MakeProgram = Callable[..., Program]
KL_WEIGHT, MAX_TOKENS = 0.3, 9
LEARNING = f"samples: 4, maxTokens: {MAX_TOKENS}, reward: {{pattern: '(a)'}}"
OF_COMPLETIONS = ("data.train=[{name: some, paths: [some.jsonl], prompts: true}]", "batch.sequences=24")
PLAIN = (*OF_COMPLETIONS, f"reinforcement={{{LEARNING}}}")
COMPARED = (*PLAIN, f"reinforcement.klWeight={KL_WEIGHT}", "startFrom={path: base, step: 0}")
WILDER = "reinforcement.temperature=1.5"
SEVERAL = ("reinforcement.updates=2", "reinforcement.clipHigh=0.3")
ADAPTED = (*COMPARED, "lora.rank=4")
MESHES = {
    "fsdp 2 x tensor 4": (8, ("mesh.tensor=4",)),
    "data 2 x tensor 2, no fsdp, 3 microbatches": (4, ("mesh.tensor=2", "mesh.fsdp=false", "batch.microbatches=3")),
    "replica 2 x fsdp 2 x tensor 2, 2 microbatches": (8, ("mesh.tensor=2", "mesh.replica=2", "batch.microbatches=2")),
}


@pytest.mark.parametrize(
    "words",
    [
        PLAIN,
        (*PLAIN, "reinforcement.average=completions"),
        (*COMPARED, *LLAMA),
        (*ADAPTED, "reinforcement.average=limit", "batch.microbatches=2"),
        (*ADAPTED, *SEVERAL, WILDER, "model.logitSoftcap=2", "batch.microbatches=2"),
    ],
    ids=[
        "all tokens",
        "mean of completions",
        "compared with a copy",
        "limit, adapters, 2 microbatches",
        "clipped, at a temperature, of a model that bends its logits",
    ],
)
def test_the_gradient_is_that_of_the_written_loss(make_program: MakeProgram, words: tuple[str, ...]) -> None:
    """Loss, divergence, entropy and gradient are those of the formula, by whole logits and autodiff of the ratio."""
    program = make_program(*words, num_devices=1)
    params, batch, learning = _params(program), _batch(program), program.training.reinforcement
    assert learning is not None
    counted, count = batch.weights, batch.weights.sum(1, keepdims=True)

    def total(trained: dict[str, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        own = _log_probabilities(program, {**params, **trained}, batch)
        made = jax.lax.stop_gradient(own) if batch.before is None else -batch.before
        ratio = jnp.exp(own - made)
        further = jnp.zeros_like(own)
        if learning.kl_weight:
            further = _log_probabilities(program, params, batch, as_it_was=True) - own
        divergence = jnp.exp(further) - further - 1
        assert batch.advantages is not None
        bounded = jnp.clip(ratio, 1 - learning.clip_low, 1 + learning.clip_high)
        gained = jnp.minimum(batch.advantages * ratio, batch.advantages * bounded)
        each = (learning.kl_weight * divergence - gained) * counted
        of_rows = {
            "tokens": each.sum() / counted.sum(),
            "completions": (each / count).sum() / len(each),
            "limit": (each / MAX_TOKENS).sum() / len(each),
        }
        cost = of_rows[learning.average]
        clipped = ((gained != batch.advantages * ratio) * counted).sum()
        return cost, (cost, (divergence * counted).sum(), -(own * counted).sum(), clipped)

    with program.lowering():
        slopes, (cost, divergence, entropy, clipped) = jax.jit(jax.grad(total, has_aux=True))(program.split(params)[1])
        found = jax.jit(lambda p, b: gradients(program, p, b, jnp.int32(0)))(params, _on(program, batch))
    weight = float(found.sums.weight)

    assert weight == (float(counted.sum()) if learning.average == "tokens" else 24)
    assert float(found.sums.cross_entropy) / weight == pytest.approx(float(cost), rel=1e-4, abs=1e-6)
    assert float(found.sums.z_squared) == pytest.approx(float(divergence), rel=1e-4, abs=1e-6)
    assert (float(divergence) > 0.1) == (learning.kl_weight > 0)
    assert float(found.sums.correct) == pytest.approx(float(entropy), rel=1e-5)
    if batch.before is None:
        assert found.sums.clipped is None
    else:
        assert 10 < float(clipped) < float(counted.sum()) - 10
        assert float(found.sums.clipped) == float(clipped)
    for path, slope in slopes.items():
        scale = np.abs(slope).max()
        np.testing.assert_allclose(found.slopes[path] / weight, slope, rtol=2e-4, atol=1e-5 * scale, err_msg=path)


@pytest.mark.parametrize("name", all_but(list(MESHES)[:1], MESHES))
@pytest.mark.parametrize(
    "words", [ADAPTED, (*COMPARED, *SEVERAL, "reinforcement.average=completions")], ids=["lora", "all, clipped"]
)
def test_the_mesh_changes_nothing(make_program: MakeProgram, name: str, words: tuple[str, ...]) -> None:
    """Sums and gradient are those of one device, with what completions are compared with laid out as the weights."""
    devices, of_mesh = MESHES[name]
    _assert_that_of_one_device(make_program(*words, *of_mesh, num_devices=devices), make_program, words)


@pytest.mark.long  # tests/train/test_preferences.py has them, with what is compared as here
def test_experts_of_their_own_devices_change_nothing(make_program: MakeProgram) -> None:
    """Of a mixture, with its experts split over devices, it is as on one."""
    words = (*PLAIN, *MIXTURE)
    _assert_that_of_one_device(make_program(*words, "mesh.expert=4"), make_program, words)


def test_advantages_are_of_each_prompt_alone() -> None:
    """They sum to 0, are over the deviation if normalised, and 0 where all completions are worth the same."""
    rewards = np.array([[1.0, 0.0, 0.0, 1.0], [0.1, 0.1, 0.1, 0.1], [5.0, 1.0, 1.0, 1.0]])
    usual = Reinforcement.model_validate({"samples": 4, "maxTokens": 1, "reward": {"pattern": "(a)"}})
    normalised = advantages_of(rewards, usual)
    centred: NDArray[Any] = advantages_of(rewards, usual.model_copy(update={"advantage": "centred"}))
    expected = np.array([[0.5, -0.5, -0.5, 0.5], [0, 0, 0, 0], [3, -1, -1, -1]])

    np.testing.assert_allclose(centred, expected)
    np.testing.assert_allclose(normalised[0], centred[0] / (math.sqrt(1 / 3) + 1e-4), rtol=1e-6)
    np.testing.assert_allclose(normalised[2], centred[2] / (2 + 1e-4), rtol=1e-6)
    assert not normalised[1].any()


def test_what_making_completions_holds_is_told(make_program: MakeProgram) -> None:
    """A plan has the bytes that a device holds beside the state: whole weights over data, and caches."""
    program = make_program(*PLAIN, "mesh.tensor=2", num_devices=4)
    rows, layout = room(program, None)
    device = program.layout.mesh.devices.flat[0]
    weights = lower_weights(program, layout).compile()(_params(program))
    joining = Joining(np.ones((rows, 16), np.int32), np.zeros(rows, np.int32), np.ones(rows, np.bool_), np.int32(15))
    empty = lower_empty(program, layout, rows).compile()()
    batch = lower_window(program, layout, rows, 16).compile()(tuple(weights), empty, joining)

    def held(tree: Any) -> int:
        shards = (shard for x in jax.tree.leaves(tree) for shard in x.addressable_shards)
        return sum(shard.data.nbytes for shard in shards if shard.device == device)

    assert rows == 24
    assert bytes_of(program, layout, rows) == (held(weights), held(batch.caches))


def test_as_many_completions_are_made_at_once_as_there_is_room_for(make_program: MakeProgram) -> None:
    """As a microbatch has rows, over all replicas.

    Half as many while caches have no room, and last the weights are gathered instead.
    """
    words = (*PLAIN, "batch.sequences=256", "mesh.tensor=2", "mesh.replica=2")
    program = make_program(*words, "batch.microbatches=2")
    state = local_bytes(flat(program.abstract()))
    weights, caches = bytes_of(program, program.layout.whole_over_data(), 128)

    assert room(program, None)[0] == room(program, 1 << 40)[0] == 128
    assert room(make_program(*words), None)[0] == 256
    assert room(make_program(*words, "batch.microbatches=8"), None)[0] == 16 * 4
    rows, layout = room(program, int((state + weights + caches * 0.75) / 0.9))
    assert (rows, layout.parameters) == (64, program.layout.whole_over_data().parameters)
    rows, layout = room(program, weights)
    assert (rows, layout.parameters) == (64, program.layout.parameters)


def test_what_lies_with_the_host_takes_no_room_of_completions(make_program: MakeProgram) -> None:
    """A device that has room for its own part of the state, weights and caches makes as many as it could alone."""
    words = (*PLAIN, "batch.sequences=256", "batch.microbatches=2", "mesh.tensor=2", "mesh.replica=2")
    away, here = make_program(*words, "optimizer.memory=host"), make_program(*words)
    weights, caches = bytes_of(away, away.layout.whole_over_data(), 128)
    limit = math.ceil((local_bytes(flat(away.abstract())) + weights + caches) / 0.9)

    assert room(here, limit)[0] < 128
    rows, layout = room(away, limit)
    assert (rows, layout.parameters) == (128, away.layout.whole_over_data().parameters)


# ---- runs

WORTH = "[ -Z]()"
"""Is in a completion that has one of these characters: the group has nothing, and so has each line's answer."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A folder, and the words of a run that learns to write some characters."""
    path = tmp_path_factory.mktemp("reinforcement")
    lines = [{"prompt": f"say {i}: ", "answer": ""} for i in range(90)]
    lines.append({"prompt": "far too long for what completions leave of a sequence", "answer": ""})
    (path / "prompts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (path / "text.txt").write_text("all work and no play " * 2000)
    with runs_here(path):
        yield (
            path,
            [
                "training.model.layers=1",
                f"training.data.train=[{{name: some, paths: [{path / 'prompts.jsonl'}], prompts: true}}]",
                "training.batch.sequences=32",
                f"training.reinforcement={{samples: 8, maxTokens: 5, reward: {{pattern: '{WORTH}'}}}}",
                "training.optimizer={name: adamw, learningRate: 1e-2}",
                "training.checkpoint={everySteps: 6, keep: {last: 9}}",
                "training.steps=12",
            ],
        )


@pytest.fixture(scope="module")
def whole(begun: tuple[Path, list[str]]) -> Path:
    """The run, from its first step to its last."""
    path, words = begun
    run = folder(path, "whole")
    assert run_here(run, *words) == ExitCode.OK
    return run


def _steps(run: Path) -> list[dict[str, Any]]:
    """What is recorded of steps."""
    return [record for record in records(run / "metrics.jsonl") if "event" not in record]


def _evaluated(run: Path) -> list[dict[str, Any]]:
    """What each evaluation has found, by the name of the set."""
    return [results(record) for record in records(run / "metrics.jsonl") if record.get("event") == "evaluated"]


def test_rewards_rise(whole: Path) -> None:
    """What is rewarded becomes likely; the record of a step says what its completions were."""
    steps = _steps(whole)

    assert steps[0]["reward"] < 0.8
    assert steps[-1]["reward"] > 0.95
    assert steps[0]["sameRewards"] < 0.5 < steps[-1]["sameRewards"]
    assert steps[0]["entropy"] == pytest.approx(math.log(257), rel=0.02)
    assert all(each["completionTokens"] <= 5 and 0 <= each["cutCompletions"] <= 1 for each in steps)
    assert "accuracy" not in steps[0]
    assert json.loads((whole / "summary.json").read_text())["entropy"] == {}


def test_a_run_goes_on_where_it_was(begun: tuple[Path, list[str]], whole: Path) -> None:
    """Two starts make the completions of one, and end with its weights, bit for bit."""
    path, words = begun
    half = folder(path, "half")
    for steps in (6, 12):
        assert run_here(half, *words, f"training.steps={steps}") == ExitCode.OK
    names = ("loss", "reward", "entropy", "completionTokens")

    assert [[each[name] for name in names] for each in _steps(half)] == [
        [each[name] for name in names] for each in _steps(whole)
    ]
    for name, array in params(whole, 12).items():
        np.testing.assert_array_equal(params(half, 12)[name], array, err_msg=name)


def test_several_steps_learn_from_the_same_completions(begun: tuple[Path, list[str]]) -> None:
    """The first of them takes its ratio as 1; a stop waits for the last, and a run that goes on has the same bits."""
    path, words = begun
    several = [*words, "training.reinforcement.updates=3", "training.optimizer.learningRate=2e-2"]
    several.append("training.reinforcement.temperature=1.2")
    at_once, in_parts = folder(path, "several"), folder(path, "several-in-parts")
    assert run_here(at_once, *several) == ExitCode.OK
    assert run_here(in_parts, *several, deadline_seconds=0) == ExitCode.SAVED
    assert [each["step"] for each in _steps(in_parts)] == [1, 2, 3]
    assert run_here(in_parts, *several) == ExitCode.OK
    whole = _steps(at_once)

    assert whole[-1]["reward"] > whole[0]["reward"] + 0.2
    assert [each["clipped"] for each in whole[::3]] == [0] * 4
    assert any(each["clipped"] > 0 for each in whole)
    for one, other in zip(_steps(in_parts), whole, strict=True):
        for name in ("loss", "reward", "clipped", "entropy", "gradNorm"):
            assert one[name] == other[name], name


def test_completions_are_drawn_at_the_temperature(begun: tuple[Path, list[str]]) -> None:
    """Where it is low all completions of a prompt are the likeliest one, whose likelihood at it is near 1.

    Text beside them is as likely as it is without one.
    """
    path, words = begun
    sets = f"training.evaluation={{everySteps: 1, sets: [{{name: text, paths: [{path / 'text.txt'}]}}]}}"
    found = {}
    for temperature in (0.01, 1):
        run = folder(path, f"at-{temperature}")
        at = [f"training.reinforcement.temperature={temperature}", sets, "training.steps=1"]
        assert run_here(run, *words, *at, "training.checkpoint.everySteps=1") == ExitCode.OK
        found[temperature] = _steps(run)[0], _evaluated(run)[0]["text"]["loss"]
    (cold, of_cold), (plain, of_plain) = found[0.01], found[1]

    assert plain["entropy"] > 5
    assert cold["entropy"] < 1
    assert cold["loss"] == 0
    assert cold["gradNorm"] == 0
    assert of_cold == pytest.approx(of_plain, rel=0.1)


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param("mesh={tensor: 4}", marks=pytest.mark.long),
        "mesh={tensor: 2, replica: 2}",
        pytest.param("mesh={fsdp: false}", marks=pytest.mark.long),
    ],
    ids=["fsdp 2 x tensor 4", "replica 2 x fsdp 2 x tensor 2", "data 8"],
)
def test_the_mesh_changes_no_completion(begun: tuple[Path, list[str]], whole: Path, mesh: str) -> None:
    """On other meshes the same completions are made and are worth the same, and losses differ by rounding."""
    path, words = begun
    run = folder(path, mesh)
    assert run_here(run, *words, f"training.{mesh}", "training.steps=6") == ExitCode.OK

    for one, other in zip(_steps(run), _steps(whole)[:6], strict=True):
        assert (one["reward"], one["completionTokens"]) == (other["reward"], other["completionTokens"])
        assert one["loss"] == pytest.approx(other["loss"], abs=2e-6)
        assert one["entropy"] == pytest.approx(other["entropy"], abs=1e-5)


@pytest.mark.long  # tests/train/test_generate.py has experts on devices of their own complete
def test_experts_on_their_own_devices_complete_alike(begun: tuple[Path, list[str]]) -> None:
    """Of a mixture, the completions and losses are those of experts that each device has a part of."""
    path, words = begun
    found = []
    for mesh in ("training.mesh.expert=1", "training.mesh.expert=4"):
        run = folder(path, mesh)
        assert run_here(run, *words, *(f"training.{word}" for word in MIXTURE), mesh, "training.steps=2") == ExitCode.OK
        found.append([(each["reward"], each["completionTokens"], each["entropy"]) for each in _steps(run)])

    assert len(found[0]) == 2
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_what_is_not_trained_on_is_evaluated(begun: tuple[Path, list[str]]) -> None:
    """Held-out prompts and sets of prompts have rewards, text and questions beside them what they have anywhere.

    Each prompt is completed once, always by the same random numbers: on another mesh, or by the checkpoint of a step,
    the means are the same.
    """
    path, words = begun
    (path / "never.jsonl").write_text(
        "".join(json.dumps({"prompt": f"never {i}: ", "answer": "else"}) + "\n" for i in range(9))
    )
    asked = {"prompt": "all work and ", "choices": ["no play", "xxxxxxx"], "answer": 0}
    (path / "asked.jsonl").write_text((json.dumps(asked) + "\n") * 8)
    sets = (
        f"{{name: never, paths: [{path / 'never.jsonl'}], prompts: true}}, "
        f"{{name: text, paths: [{path / 'text.txt'}], batches: 1}}, "
        f"{{name: asked, paths: [{path / 'asked.jsonl'}], questions: true}}"
    )
    more = ["training.data.heldOut=0.4", f"training.evaluation={{everySteps: 6, batches: 9, sets: [{sets}]}}"]
    found = {}
    for mesh in ("{}", "{tensor: 2, replica: 2}"):
        run = folder(path, f"evaluated{mesh}")
        average = "training.optimizer.average={decay: 0.5}"
        assert run_here(run, *words, *more, average, f"training.mesh={mesh}") == ExitCode.OK
        found[mesh] = _evaluated(run)
    first, last = found["{}"]
    num_held_out = first["heldOut"]["prompts"]

    assert 20 < num_held_out < 50
    assert first["heldOut"]["reward"] < last["heldOut"]["reward"]
    assert last["heldOut"]["reward"] > 0.9
    assert (last["never"]["reward"], last["never"]["prompts"]) == (0, 9)
    assert 0 < last["heldOut"]["completionTokens"] <= 5
    assert last["average/heldOut"]["prompts"] == num_held_out
    assert last["text"]["loss"] > 1
    assert last["asked"]["questions"] == 8
    for one, other in zip(*found.values(), strict=True):
        for name, values in one.items():
            assert other[name] == pytest.approx(values, abs=1e-4), name


@pytest.mark.long  # the gradient of staying near is that of the written loss above
@pytest.mark.parametrize("lora", [("training.lora.rank=4",), ()], ids=["adapters", "all weights"])
def test_a_run_stays_near_what_it_was(begun: tuple[Path, list[str]], lora: tuple[str, ...]) -> None:
    """Compared with the weights that it began with, at first it is no other, and a larger weight keeps it nearer."""
    path, words = begun
    base = path / "base"
    if not base.exists():
        text = "training.data.train=[{name: text, paths: [" + str(path / "text.txt") + "]}]"
        assert run_here(folder(path, "base"), "training.model.layers=1", text, "training.steps=4") == ExitCode.OK
    last = {}
    for weight in (0.01, 10):
        run = folder(path, f"compared-{weight}-{len(lora)}")
        words_of_run = [*words, *lora, f"training.startFrom={{path: {base}, step: 4}}"]
        assert run_here(run, *words_of_run, f"training.reinforcement.klWeight={weight}") == ExitCode.OK
        steps = _steps(run)
        assert steps[0]["divergence"] == pytest.approx(0, abs=1e-6)
        last[weight] = steps[-1]["divergence"]

    assert 0 < last[10] < last[0.01] / 4


def test_a_marker_of_bytes_ends_a_completion(begun: tuple[Path, list[str]]) -> None:
    """With a chat template prompts are messages; where a marker is no token, completions end behind its bytes."""
    path, words = begun
    lines = [{"prompt": [{"role": "user", "content": f"{i}"}], "answer": ""} for i in range(60)]
    (path / "messages.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    source = f"{{name: some, paths: [{path / 'messages.jsonl'}], prompts: true, chatTemplate: chatml}}"
    chat = [f"training.data={{attendAcross: document, train: [{source}]}}", "training.model.seqLen=96"]
    run = folder(path, "chat")
    assert run_here(run, *words, *chat, "training.steps=2") == ExitCode.OK

    assert [each["step"] for each in _steps(run)] == [1, 2]
    assert losses(run)[1] == pytest.approx(0, abs=0.5)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"answer": "a"}', r"line 1: no text in prompt; expected a JSON object with prompt"),
        ('{"prompt": ["a"]}', r"no text in prompt.*Set chatTemplate for messages"),
        ('{"prompt": "a"}', r"a prompt's line has 'null' in 'answer'; expected the right answer"),
        (json.dumps({"prompt": "a" * 40}), r"all 1 prompts are longer than the 27 tokens that their completions leave"),
    ],
    ids=["none", "messages", "no answer", "too long"],
)
def test_other_lines_are_refused(begun: tuple[Path, list[str]], line: str, expected: str, tmp_path: Path) -> None:
    """In words that say what is there and what was expected."""
    _, words = begun
    (tmp_path / "odd.jsonl").write_text(line + "\n")
    source = f"training.data.train=[{{name: odd, paths: [{tmp_path / 'odd.jsonl'}], prompts: true}}]"
    with pytest.raises(DataError, match=expected):
        run_here(folder(tmp_path, "odd"), *words, source)


def _assert_that_of_one_device(program: Program, make_program: MakeProgram, words: tuple[str, ...]) -> None:
    sums, slopes = _sums_and_slopes(program)
    expected, other_slopes = _of_one_device(make_program, words)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), sums, expected)
    for path, slope in other_slopes.items():
        scale = np.abs(slope).max()
        np.testing.assert_allclose(slopes[path], slope, rtol=1e-4, atol=1e-5 * scale, err_msg=path)


@cache
def _of_one_device(make_program: MakeProgram, words: tuple[str, ...]) -> tuple[Any, dict[str, NDArray[Any]]]:
    return _sums_and_slopes(make_program(*words, num_devices=1))


def _sums_and_slopes(program: Program) -> tuple[Any, dict[str, NDArray[Any]]]:
    with program.lowering():
        placed = _on(program, _batch(program))
        found = jax.jit(lambda p, b: gradients(program, p, b, jnp.int32(0)))(_params(program), placed)
    return found.sums._replace(total=found.sums.cross_entropy), jax.tree.map(np.asarray, found.slopes)


def _params(program: Program) -> dict[str, Any]:
    """Drawn weights, and adapters that are of some weight, or weights that are no longer what they were."""
    with program.lowering():
        params = parameters(jax.jit(program.init, out_shardings=program.shardings())())
    rng = np.random.default_rng(0)

    def trained(path: str, x: Any) -> Any:
        if path.endswith(".b.weight"):
            return jax.device_put(x + 0.2 * rng.normal(size=x.shape).astype(x.dtype), x.sharding)
        return x + 0.02 * jnp.sin(40 * x) if REFERENCE + path in params else x  # padding stays zero

    return {path: trained(path, x) for path, x in params.items()}


def _batch(program: Program) -> Batch:
    """24 rows of 32 positions: a prompt of a few tokens, a completion of up to MAX_TOKENS, and room.

    Where more than one step learns from them, likelihoods were up to half again as high or low as a fresh model's.
    """
    rng = np.random.default_rng(1)
    shape = (24, 32)
    tokens, targets = (rng.integers(0, 257, shape).astype(np.int32) for _ in range(2))
    segments, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    for row in range(shape[0]):
        first, size = int(rng.integers(1, 20)), int(rng.integers(1, MAX_TOKENS + 1))
        weights[row, first : first + size] = 1
        segments[row, first + size :] = 1
    advantages = weights * rng.normal(size=(24, 1)).astype(np.float32)
    fields = [tokens, targets, weights, segments, advantages]
    if program.training.clips:
        fields.append(weights * (math.log(257) + rng.uniform(-0.4, 0.4, shape)).astype(np.float32))
    return Batch(*(jnp.asarray(x) for x in fields))


def _on(program: Program, batch: Batch) -> Batch:
    placed: Batch = jax.tree.map(lambda field: jax.device_put(field, program.layout.batch), batch)
    return placed


def _log_probabilities(program: Program, params: Any, batch: Batch, *, as_it_was: bool = False) -> jax.Array:
    """Of each target, from whole logits."""
    layout, first = program.layout, {path: params.get(REFERENCE + path, x) for path, x in params.items()}
    model = without_adapters(program.model(first)) if as_it_was else program.model(params)
    table = whole_table(model.token_embedding, layout)
    hidden = model.hidden(table, batch.tokens, None, Dropout.none(), layout)
    logits = model.logits(hidden, layout).rearrange(("batch", "position", "vocab")).array
    assert program.training.reinforcement is not None
    logits = logits / program.training.reinforcement.temperature
    chosen: jax.Array = jnp.take_along_axis(jax.nn.log_softmax(logits), batch.targets[..., None], -1)[..., 0]
    return chosen
