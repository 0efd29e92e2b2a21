"""The model: what depends on what, which parameters each kind has, and what remat and the tweaks change."""

from collections.abc import Callable
from functools import partial
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from annotated_types import Gt
from haliax import Axis
from tests.train.small_gpt import Params, forward_of, gpt2_config, gptj_config, program_of, random_params

from shardwise.job.spec import Model
from shardwise.train.config import GptConfig
from shardwise.train.dropout import Dropout
from shardwise.train.gradients import head_settings
from shardwise.train.loss import head_loss
from shardwise.train.norm import Norm
from shardwise.train.self_attention import Attention
from shardwise.train.state import Program

MAKERS = [gpt2_config, gptj_config]
ROWS = np.random.default_rng(0).integers(0, 70, (2, 16)).astype(np.int32)


def loss_and_gradients(program: Program, params: Params) -> tuple[float, Params]:
    """The summed loss of two rows and its gradients."""

    def total(params: Params) -> jax.Array:
        tokens, weights = jnp.asarray(ROWS), jnp.ones(ROWS.shape, jnp.float32)
        targets = jnp.roll(tokens, -1, 1)
        model = program.model(params)
        loss = partial(head_loss, head_settings(program))
        return model.loss(tokens, None, targets, weights, Dropout.none(), program.layout, loss).total

    with jax.set_mesh(program.layout.mesh):
        loss, grads = jax.jit(jax.value_and_grad(total))(params)
    return float(loss), grads


@pytest.mark.parametrize("make", MAKERS)
def test_a_token_changes_nothing_before_it(make: Callable[..., GptConfig]) -> None:
    """Changing a token leaves all earlier logits bit-equal, and changes those at its position and after."""
    program = program_of(make())
    forward, params = forward_of(program), random_params(program)
    changed = ROWS.copy()
    changed[:, 9] = (changed[:, 9] + 1) % 70
    one, other = forward(params, ROWS)[..., :70], forward(params, changed)[..., :70]
    assert np.array_equal(one[:, :9], other[:, :9])
    assert (np.abs(one - other).max(-1)[:, 9:] > 1e-3).all()


@pytest.mark.parametrize("make", MAKERS)
def test_documents_do_not_see_each_other(make: Callable[..., GptConfig]) -> None:
    """With segments, what an earlier document says is not seen by a later one; without, it is."""
    program = program_of(make())
    forward, params = forward_of(program), random_params(program)
    segments = np.repeat([[0, 1]], 8, 1).repeat(2, 0).astype(np.int32)
    changed = ROWS.copy()
    changed[:, 3] = (changed[:, 3] + 1) % 70
    later = (slice(None), slice(8, None), slice(70))
    assert np.array_equal(forward(params, ROWS, segments)[later], forward(params, changed, segments)[later])
    assert not np.isclose(forward(params, ROWS)[later], forward(params, changed)[later]).all()


@pytest.mark.parametrize("kind", ["layer", "rms", "rms-unit-offset"])
def test_a_norm_of_nothing_has_a_gradient(kind: str) -> None:
    """The least epsilon that a job may have keeps it finite, since a pipeline computes with zeros while it fills."""
    (bound,) = (note.gt for note in Model.model_fields["norm_epsilon"].metadata if isinstance(note, Gt))
    Along = Axis("embed", 8)
    norm = Norm.init(gpt2_config(norm=kind, norm_epsilon=bound), Along)
    gradient = jax.grad(lambda x: norm(hax.named(x, (Along,))).array[0])(jnp.zeros(8))
    assert np.isfinite(gradient).all()


def test_each_kind_has_its_parameters() -> None:
    """One norm and no attention biases make a parallel block; tables and heads exist where the config says so."""
    sequential, parallel = (set(program_of(make()).names) for make in MAKERS)
    only_sequential = {
        "position_embedding",
        "blocks.mlp_norm.weight",
        "blocks.mlp_norm.bias",
        "blocks.attention.qkv.bias",
        "blocks.attention.out.bias",
    }
    assert sequential - parallel == only_sequential
    assert parallel - sequential == {"head", "head_bias"}


def test_a_parallel_block_adds_both_branches_to_the_same_stream() -> None:
    """With a silent attention the two kinds of block agree when they have the same norm, and differ otherwise."""
    programs = [program_of(gpt2_config(block=block, num_layers=1)) for block in ("sequential", "parallel")]
    params = random_params(programs[0])
    params["blocks.mlp_norm.weight"] = params["blocks.norm.weight"]
    params["blocks.mlp_norm.bias"] = params["blocks.norm.bias"]
    quiet = {path: 0 * array if ".attention.out." in path else array for path, array in params.items()}
    for given, equal in ((quiet, True), (params, False)):
        logits = [
            forward_of(program)({path: given[path] for path in program.names}, ROWS)[..., :70] for program in programs
        ]
        assert np.allclose(logits[0], logits[1], atol=1e-4) == equal


def test_remat_changes_no_gradient() -> None:
    """All give the same loss and, but for rounding, the same gradients; `offload` has the bits of `full`."""
    programs = [program_of(gpt2_config(remat=remat)) for remat in ("none", "dots", "full", "offload")]
    params = random_params(programs[0])
    (loss, grads), *others = (loss_and_gradients(program, params) for program in programs)
    for other_loss, other_grads in others:
        assert np.isclose(other_loss, loss, rtol=1e-6)
        for path, grad in grads.items():
            assert np.allclose(other_grads[path], grad, rtol=1e-4, atol=1e-5 * float(np.abs(grad).max())), path
    (_, full), (_, offload) = others[1:]
    assert all(np.array_equal(full[path], offload[path]) for path in full)


def test_scores_shrink_with_the_layer_where_asked() -> None:
    """scale_by_inverse_layer halves the second layer's scores and leaves the first layer alone."""
    plain, scaled = (program_of(gpt2_config(num_layers=2, scale_by_inverse_layer=flag)) for flag in (False, True))
    params = random_params(plain)
    qkv = np.asarray(params["blocks.attention.qkv.weight"]).copy()
    bias = np.asarray(params["blocks.attention.qkv.bias"]).copy()
    qkv[1, :, 0] /= 2
    bias[1, 0] /= 2
    halved = {**params, "blocks.attention.qkv.weight": jnp.asarray(qkv)}
    halved["blocks.attention.qkv.bias"] = jnp.asarray(bias)
    given, expected = forward_of(scaled)(params, ROWS), forward_of(plain)(halved, ROWS)
    assert np.allclose(given[..., :70], expected[..., :70], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("features", [24, 128, 144])
def test_scores_are_scaled_as_asked_in_bfloat16(
    make: Callable[..., GptConfig], features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 / sqrt(features) is none of bfloat16's numbers, and yet queries are on average scaled by it, not by another."""
    queries: list[jax.Array] = []

    def attend(q: jax.Array, *_: Any, **__: Any) -> jax.Array:
        queries.append(q)
        return q

    monkeypatch.setattr("shardwise.train.self_attention.attend", attend)
    sums = []
    for scalar in (1.0, float(features)):
        config = make(num_layers=1, embed_size=64, query_pre_attn_scalar=scalar)
        attention = Attention.init(config, key=jax.random.key(0))
        Batch, Position = Axis("batch", 16), Axis("position", 64)
        x = hax.random.normal(jax.random.key(1), (Batch, Position, config.Embed)).astype(jnp.bfloat16)
        program = program_of(config, precision={"compute": "bfloat16"})
        with jax.set_mesh(program.layout.mesh):
            attention(x, None, jnp.int32(0), program.layout)
        sums.append(float(jnp.abs(queries.pop().astype(jnp.float32)).sum()))
    assert np.isclose(sums[1] / sums[0], features**-0.5, rtol=5e-5)


WRITERS = ("blocks.attention.out.weight", "blocks.mlp.down.weight")


def test_initial_weights_have_the_deviation_of_their_place() -> None:
    """Normal with init_std, smaller by 1 / sqrt(2 layers) where the residual stream is written; gains 1, biases 0."""
    fields: dict[str, Any] = {"num_layers": 8, "embed_size": 64, "mlp_size": 256, "vocab_size": 512}
    program = program_of(gptj_config(**fields))
    for path, array in program.lower_init().compile()()["params"].items():
        values = np.asarray(array)
        if path.endswith("bias"):
            assert (values == 0).all(), path
        elif path.endswith("norm.weight"):
            assert (values == 1).all(), path
        else:
            expected = 0.02 / 4 if path in WRITERS else 0.02
            assert np.isclose(values.std(), expected, rtol=0.05), path
