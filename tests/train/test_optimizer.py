"""What decays, what Muon takes, and how the learning rate runs: all from axis names and the job's words."""

from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shardwise.job.spec import Optimizer, Schedule
from shardwise.job.spec.optimizer import OptimizerName
from shardwise.protocol.errors import JobError
from shardwise.train.optimizer import (
    falls_to_the_last_step,
    is_matrix,
    muon_dimensions,
    optimizer,
    scale_by_lion,
    schedule,
    state_bytes_of_a_weight,
)
from shardwise.train.state import Program, flat

MakeProgram = Callable[..., Program]


@pytest.mark.parametrize(
    ("axes", "decays", "muon"),
    [
        (("layers", "embed", "qkv", "heads", "head_size"), True, ((1,), (3, 4))),
        (("layers", "embed", "heads", "head_size"), True, ((1,), (2, 3))),
        (("layers", "embed", "mlp"), True, ((1,), (2,))),
        (("embed", "vocab"), True, None),
        (("embed", "position"), True, None),
        (("layers", "embed"), False, None),
        (("layers", "qkv", "heads", "head_size"), False, None),
        (("layers", "mlp"), False, None),
        (("embed",), False, None),
        (("vocab",), False, None),
    ],
)
def test_masks_come_from_axis_names(
    axes: tuple[str, ...],
    decays: bool,  # noqa: FBT001 - a column of the table
    muon: tuple[tuple[int, ...], ...] | None,
) -> None:
    """Stacked gains and biases are no matrices though they have two dimensions; tables go to Adam."""
    dimensions = muon_dimensions(axes)

    assert is_matrix(axes) == decays
    assert (None if dimensions is None else tuple(dimensions)) == muon


@pytest.mark.parametrize("name", ["adamw", "adam", "lion", "muon"])
def test_weight_decay_pulls_matrices_only(make_program: MakeProgram, name: str) -> None:
    """With no gradient at all, the decaying optimizers shrink every matrix and no gain and no bias."""
    decay = [] if name == "adam" else ["optimizer.weightDecay=0.5"]
    words = (f"optimizer={{name: {name}, learningRate: 0.1}}", "model.tiedHead=false")
    program = make_program(*words, *decay, num_devices=1)
    params = {path: jnp.ones([4] * len(axes)) for path, axes in program.names.items()}
    nothing = {path: jnp.zeros_like(x) for path, x in params.items()}
    after, _ = program.rule.apply(nothing, program.rule.init(params), params, jnp.int32(0))
    moved = {path for path, weight in after.items() if np.abs(weight - 1).max() > 1e-6}

    matrices = {path for path, axes in program.names.items() if is_matrix(axes)}
    assert {"token_embedding", "position_embedding", "head"} < matrices
    assert moved == (set() if name == "adam" else matrices)
    assert all(np.allclose(after[path], 1 - 0.1 * 0.5) for path in moved)


def test_muon_orthogonalises_each_matrix_of_the_stack_by_itself(make_program: MakeProgram) -> None:
    """The update of every layer, and of q, k and v each, has singular values near one another."""
    program = make_program(
        "optimizer.name=muon", "optimizer.learningRate=1.0", "optimizer.clipNorm=null", num_devices=1
    )
    rng = np.random.default_rng(0)
    shapes = {path: leaf.shape for path, leaf in program.abstract()["params"].items()}
    grads = {path: jnp.asarray(rng.standard_normal(shape), jnp.float32) for path, shape in shapes.items()}
    params = {path: jnp.zeros_like(grad) for path, grad in grads.items()}
    updates, _ = program.rule.transform.update(grads, program.rule.transform.init(params), params)

    qkv = np.moveaxis(np.asarray(updates["blocks.attention.qkv.weight"]), 2, 1)
    for matrix in qkv.reshape(-1, qkv.shape[2], qkv.shape[3] * qkv.shape[4]):
        values = np.linalg.svd(matrix, compute_uv=False)
        assert np.quantile(values, 0.9) < 2.5 * np.quantile(values, 0.1)  # of a random matrix: about 10 times
    gains = np.asarray(updates["blocks.norm.weight"])  # Adam's first step is the gradient's sign, whatever its size
    np.testing.assert_allclose(np.abs(gains), np.abs(gains).mean(), rtol=1e-3)
    assert (np.sign(gains) == -np.sign(grads["blocks.norm.weight"])).all()


def test_lion_with_the_least_epsilon_is_the_published_one() -> None:
    """As epsilon goes to 0 the updates are optax.lion's bit for bit, those of a gradient of exactly 0 included."""
    rng = np.random.default_rng(0)
    settings = Optimizer(
        name="lion", learning_rate=0.1, beta1=0.9, beta2=0.99, epsilon=1e-30, weight_decay=0.1, clip_norm=None
    )
    ours = optimizer(settings, {"w": ("embed", "mlp")}, 10).transform
    published = optax.lion(1.0, 0.9, 0.99, weight_decay=0.1)
    params = {"w": jnp.asarray(rng.standard_normal((8, 64)), jnp.float32)}
    state, reference = ours.init(params), published.init(params)
    for _ in range(3):
        sizes = np.asarray([1, 1e-2, 1e-4, 0, 1e-6, 1e-8, 1e-10, 1e-12])[:, None]
        grads = {"w": jnp.asarray(rng.standard_normal((8, 64)) * sizes, jnp.float32)}
        updates, state = ours.update(grads, state, params)
        expected, reference = published.update(grads, reference, params)
        np.testing.assert_array_equal(updates["w"], expected["w"])


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_lion_takes_part_of_a_step_below_epsilon(scale: float) -> None:
    """The update grows up to a share of the root mean square, and is a whole step from there on, at any scale."""
    rule = scale_by_lion(0.9, 0.99, 0.1)
    values = np.asarray([0.0, 0.025, -0.05, 0.1, 1.0, -1.0])
    values[-1] = -np.sqrt(len(values) - np.square(values[:-1]).sum())  # the root mean square is 1
    grads = {"w": jnp.asarray(values * scale, jnp.float32)}
    updates, _ = rule.update(grads, rule.init(grads))

    np.testing.assert_allclose(updates["w"], [0, 0.25, -0.5, 1, 1, -1], rtol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "adam", "lion", "muon"])
def test_epsilon_of_the_job_reaches_the_update(make_program: MakeProgram, name: str) -> None:
    """Gradients that are small beside epsilon move gains and matrices little; beside a small epsilon they move them.

    Lion's epsilon is a share of an array's root mean square, so there one entry is large.
    """
    moved = {}
    for epsilon in ("1e-20", "1.0"):
        program = make_program(
            f"optimizer={{name: {name}, learningRate: 0.1, epsilon: {epsilon}, clipNorm: null}}", num_devices=1
        )
        params = {path: jnp.zeros([4] * len(axes)) for path, axes in program.names.items()}
        grads = {path: jnp.full_like(x, 1e-6).at[(0,) * x.ndim].set(1.0) for path, x in params.items()}
        moved[epsilon], _ = program.rule.transform.update(grads, program.rule.transform.init(params), params)

    for path in ("blocks.norm.weight", "blocks.mlp.up.weight"):
        last = (-1,) * len(moved["1.0"][path].shape)
        assert np.abs(moved["1e-20"][path][last]) > 1e-2, path
        assert np.abs(moved["1.0"][path][last]) < 1e-3, path


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Schedule(kind="constant"), {0: 1.0, 99: 1.0}),
        (Schedule(kind="constant", warmup_steps=4), {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 99: 1.0}),
        (Schedule(kind="linear", final_ratio=0.0), {0: 1.0, 50: 0.5, 100: 0.0}),
        (Schedule(kind="linear", warmup_steps=20, final_ratio=0.5), {19: 1.0, 20: 1.0, 60: 0.75, 100: 0.5}),
        (Schedule(kind="cosine", final_ratio=0.1), {0: 1.0, 50: 0.55, 100: 0.1}),
        (Schedule(kind="cosine", warmup_steps=1, decay_steps=49, final_ratio=0.0), {0: 1.0, 50: 0.0, 80: 0.0}),
        (
            Schedule(kind="warmup-stable-decay", warmup_steps=10, decay_steps=20, final_ratio=0.0),
            {9: 1.0, 79: 1.0, 90: 0.5, 100: 0.0},
        ),
    ],
)
def test_the_learning_rate_by_step(settings: Schedule, expected: dict[int, float]) -> None:
    """Warm-up reaches the peak at its last step; the fall ends where the job says; a share of a peak of 1."""
    rate = schedule(settings, 1.0, 100)

    assert {step: pytest.approx(float(rate(step)), abs=1e-6) for step in expected} == expected


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear", "warmup-stable-decay"])
@pytest.mark.parametrize("decay_steps", [None, 20])
def test_where_more_steps_change_no_rate(kind: Any, decay_steps: int | None) -> None:
    """Exactly where the fall does not end with the run, the rate of a step is the same in a longer one."""
    settings = Schedule(kind=kind, warmup_steps=10, decay_steps=decay_steps)
    short, long = (schedule(settings, 1.0, steps) for steps in (100, 150))
    differ = any(float(short(step)) != float(long(step)) for step in range(0, 100, 5))

    assert falls_to_the_last_step(Optimizer(learning_rate=1.0, schedule=settings)) == differ


def test_the_gradient_is_clipped_to_its_global_norm(make_program: MakeProgram) -> None:
    """A gradient a hundred times the clip norm moves Lion's and Adam's moments no further than the clip norm."""
    program = make_program("optimizer.clipNorm=0.5", num_devices=1)
    names = program.names
    params = {path: jnp.ones([4] * len(axes)) for path, axes in names.items()}
    rule = optimizer(program.training.optimizer, names, 10)
    _, state = rule.apply({path: 100 * x for path, x in params.items()}, rule.init(params), params, jnp.int32(0))
    first_moment = optax.tree.get(state, "mu")

    assert float(optax.tree.norm(first_moment)) == pytest.approx(0.5 * 0.1, rel=1e-3)  # 1 - beta1 of it


@pytest.mark.parametrize("name", ["adamw", "adam", "lion", "muon"])
def test_the_rate_that_is_applied_is_the_schedule_at_the_runs_own_step(make_program: MakeProgram, name: str) -> None:
    """A fresh optimizer at a later step of a run moves by that step's rate, as the metrics say, not by the first's."""
    program = make_program(
        f"optimizer={{name: {name}, learningRate: 0.1, schedule: {{kind: linear, finalRatio: 0.0}}}}", num_devices=1
    )
    rng = np.random.default_rng(0)
    params = {path: jnp.zeros([4] * len(axes)) for path, axes in program.names.items()}
    grads = {path: jnp.asarray(rng.normal(size=x.shape), jnp.float32) for path, x in params.items()}
    first, half = (program.rule.apply(grads, program.rule.init(params), params, jnp.int32(step))[0] for step in (0, 10))

    for path, moved in first.items():
        np.testing.assert_allclose(half[path], moved / 2, rtol=1e-6, err_msg=path)


def test_moments_lie_where_they_lay_when_clipping_is_switched_off(make_program: MakeProgram) -> None:
    """The paths of an optimizer's state do not depend on whether it clips, so that a fork keeps its moments."""
    clipped, free = (
        make_program(f"optimizer.clipNorm={norm}", num_devices=1).abstract()["optimizer"] for norm in ("1.0", "null")
    )

    assert list(flat(clipped)) == list(flat(free))


@pytest.mark.parametrize("params", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_the_bytes_of_a_weight_are_those_of_the_state(make_program: MakeProgram, name: str, params: str) -> None:
    """What a search of layouts counts with is what the state of any optimizer has for each weight of a block."""
    program = make_program(
        f"optimizer={{name: {name}, learningRate: 1e-5}}", f"precision.params={params}", num_devices=1
    )
    path = "blocks.mlp.up.weight"
    held = {place: leaf for place, leaf in flat(program.abstract()["optimizer"]).items() if place.endswith(path)}
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in held.values())

    weights = program.abstract()["params"][path].size
    assert state_bytes_of_a_weight(program.training.optimizer, params) * weights == num_bytes > 0


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear", "warmup-stable-decay, decaySteps: 5"])
def test_a_schedule_changes_no_bytes_of_a_weight(make_program: MakeProgram, kind: str) -> None:
    """Nor does it stop the count, which knows nothing of the job's steps: a warm-up may be longer than what it asks."""
    program = make_program(f"optimizer.schedule={{kind: {kind}, warmupSteps: 5}}", num_devices=1)

    assert state_bytes_of_a_weight(program.training.optimizer, "float32") == 2 * 4


@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_bfloat16_parameters_are_the_rounded_master_weights(make_program: MakeProgram, name: str) -> None:
    """Steps far too small for bfloat16 add up in float32 beside the moments, and show once they are large enough."""
    program = make_program(
        f"optimizer={{name: {name}, learningRate: 1e-5}}", "precision.params=bfloat16", num_devices=1
    )
    weights = {path: jnp.ones([4] * len(axes)) for path, axes in program.names.items()}
    state, params = program.rule.init(weights), jax.tree.map(lambda x: x.astype(jnp.bfloat16), weights)
    grads = {path: jnp.ones_like(x) for path, x in weights.items()}
    for step in range(20):
        params, state = program.rule.apply(grads, state, params, jnp.int32(step))

    for path, weight in state.weights.items():
        assert weight.dtype == jnp.float32
        assert params[path].dtype == jnp.bfloat16
        assert (np.asarray(weight) < 1 - 1e-5).all(), path
        np.testing.assert_array_equal(params[path], weight.astype(jnp.bfloat16), err_msg=path)


GROUPS = (
    "{match: blocks.norm.weight, weightDecay: 0.5}",
    "{match: 'blocks.*.weight', rateFactor: 0.5, weightDecay: 0}",
    "{match: '*_embedding', rateFactor: 0}",
)


@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_groups_have_rates_and_decays_of_their_own(make_program: MakeProgram, name: str) -> None:
    """The first group that matches counts: its factor times what the update was, and its decay, of a gain too."""
    settings = f"name: {name}, learningRate: 0.1, clipNorm: null, weightDecay: 0.1"
    plain = make_program(f"optimizer={{{settings}}}", num_devices=1)
    grouped = make_program(f"optimizer={{{settings}, groups: [{', '.join(GROUPS)}]}}", num_devices=1)
    rng = np.random.default_rng(0)
    shapes = {path: leaf.shape for path, leaf in plain.abstract()["params"].items()}
    params, grads = (
        {path: jnp.asarray(rng.standard_normal(shape), jnp.float32) for path, shape in shapes.items()} for _ in range(2)
    )
    step = jnp.int32(0)
    before, _ = plain.rule.apply(grads, plain.rule.init(params), params, step)
    after, state = grouped.rule.apply(grouped.rule.trained(grads), grouped.rule.init(params), params, step)

    decayed = {path for path, axes in plain.names.items() if is_matrix(axes)}
    kinds = set()
    for path, weight in params.items():
        moved = np.asarray(before[path] - weight)
        without_decay = moved + (0.1 * 0.1 * np.asarray(weight) if path in decayed else 0)
        if path == "blocks.norm.weight":
            kinds.add("decay")
            expected = without_decay - 0.1 * 0.5 * np.asarray(weight)
        elif path.startswith("blocks.") and path.endswith(".weight"):
            kinds.add("factor")
            expected = 0.5 * without_decay
        elif path.endswith("_embedding"):
            kinds.add("frozen")
            assert after[path] is weight  # not even a zero is added
            expected = np.zeros_like(moved)
        else:
            expected = moved
        np.testing.assert_allclose(after[path] - weight, expected, atol=1e-6, err_msg=path)
    assert kinds == {"decay", "factor", "frozen"}
    moments = {key: leaf for key, leaf in flat(state).items() if key.endswith("token_embedding") and leaf.ndim > 1}
    assert moments
    assert all((leaf == 0).all() for leaf in moments.values())


def test_what_is_frozen_is_in_no_norm(make_program: MakeProgram) -> None:
    """Clipping scales by the norm of what moves, and the state has the paths that it has without groups."""
    program = make_program("optimizer.groups=[{match: '*', rateFactor: 0}]", num_devices=1)
    grads = {path: jnp.ones(leaf.shape) for path, leaf in program.abstract()["params"].items()}
    assert float(optax.tree.norm(program.rule.trained(grads))) == 0
    plain = make_program(num_devices=1)
    assert flat(program.abstract()).keys() == flat(plain.abstract()).keys()
    assert plain.rule.trained(grads) is grads


def test_a_pattern_that_matches_nothing_is_refused(make_program: MakeProgram) -> None:
    """As is one whose parameters other groups have all taken; the refusal lists the model's parameters."""
    with pytest.raises(JobError, match=r"groups\.0\.match: given \"blocks\.nothing\".*blocks\.norm\.weight"):
        make_program("optimizer.groups=[{match: blocks.nothing}]", num_devices=1)
    with pytest.raises(JobError, match=r"groups\.1\.match: .*that no group before it has"):
        make_program("optimizer.groups=[{match: 'blocks.*'}, {match: blocks.norm.weight}]", num_devices=1)
