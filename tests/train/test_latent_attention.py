"""Multi-head latent attention: its definition, values that are narrower than keys in every kernel, and all meshes."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.long import all_but
from tests.train.grids import layout_over
from tests.train.small_gpt import gpt2_config
from tests.train.test_attention import assert_close, inputs
from tests.train.test_context import over_context
from tests.train.test_meshes import LATENT, run

from shardwise.job.kernels import Kernel
from shardwise.train import context, splash_tiles
from shardwise.train.attention import attend, plain, splash
from shardwise.train.config import GptConfig
from shardwise.train.latent_attention import LatentAttention
from shardwise.train.layout import Layout, assemble, axis_names, flatten
from shardwise.train.optimizer import is_matrix, muon_dimensions
from shardwise.train.scores import Scores
from shardwise.train.splash import splash_kernel
from shardwise.train.splash_tiles import tile_kernel
from shardwise.train.state import Program

Array = jax.Array
MakeProgram = Callable[..., Program]
FIELDS: dict[str, Any] = {
    "num_layers": 2,
    "norm": "rms",
    "position": "rotary",
    "attention_bias": False,
    "head_size": 12,
    "rotary_dim": 4,
    "kv_rank": 20,
    "value_size": 6,
    "query_pre_attn_scalar": 7.0,
    "latent_epsilon": 0.1,
}
LAYOUTS = {
    "one device": {},
    "fsdp 2 x 2 x tensor 2": {"outer": 2, "inner": 2, "tensor": 2},
    "tensor 4, no fsdp": {"outer": 2, "tensor": 4, "fsdp": False},
}
MESHES = {
    "context 2 x fsdp 2 x tensor 2": (8, ("mesh.context=2", "mesh.tensor=2")),
    "context 2 in a ring x fsdp 2 x tensor 2": (8, ("mesh.context=2", "mesh.contextStrategy=ring", "mesh.tensor=2")),
    "pipeline 2 x fsdp 2 x tensor 2, 2 rounds": (
        8,
        ("mesh.pipeline=2", "mesh.pipelineRounds=2", "mesh.tensor=2", "batch.microbatches=4"),
    ),
    "tensor 2, no fsdp, nothing computed again": (4, ("mesh.tensor=2", "mesh.fsdp=false", "model.remat=none")),
    "context 2, products kept, 2 microbatches": (4, ("mesh.context=2", "model.remat=dots", "batch.microbatches=2")),
}
SHORT = list(MESHES)[1:3]


@pytest.mark.parametrize("q_rank", [0, 12])
@pytest.mark.parametrize("name", LAYOUTS)
def test_it_is_its_definition(name: str, q_rank: int) -> None:
    """What it adds, and the gradients of its input and of every weight, by the paper's formulas, head by head."""
    config, layout = gpt2_config(**FIELDS, q_rank=q_rank), layout_over(**LAYOUTS[name])
    module = LatentAttention.init(config, key=jax.random.key(0))
    rng = np.random.default_rng(0)
    weights = {path: jnp.asarray(rng.normal(0.5, 0.4, x.shape), jnp.float32) for path, x in flatten(module).items()}
    x, slope = (jnp.asarray(rng.normal(size=(4, 16, config.embed_size)), jnp.float32) for _ in range(2))

    def total(attended: Callable[..., Array], weights: dict[str, Array], x: Array) -> tuple[Array, Array]:
        out = attended(weights, x)
        return (out * slope).sum(), out

    def graded(attended: Callable[..., Array]) -> tuple[Array, ...]:
        (of_weights, of_x), out = jax.jit(jax.grad(partial(total, attended), argnums=(0, 1), has_aux=True))(weights, x)
        return tuple(jax.device_get((out, of_x, *(of_weights[path] for path in sorted(weights)))))

    expected = graded(partial(by_definition, config))
    with jax.set_mesh(layout.mesh):
        found = graded(partial(by_module, module, layout))
    assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("name", all_but(SHORT, MESHES))
def test_every_mesh_gives_the_losses_of_one_device(make_program: MakeProgram, name: str) -> None:
    """Over 20 float32 steps, and from the very same bits, of packed documents; fsdp and tensor are in `test_meshes`."""
    devices, more = MESHES[name]
    digest, losses = of_one_device(make_program)
    other_digest, other_losses = run(make_program(*WORDS, *more, num_devices=devices))

    assert losses[-1] < losses[0] - 0.1
    assert digest == other_digest
    np.testing.assert_allclose(other_losses, losses, rtol=1e-5, atol=0)


@pytest.mark.parametrize("kernel", ["blockwise", "splash"])
def test_a_kernel_takes_values_narrower_than_keys(kernel: Kernel) -> None:
    """On one device: outputs, and gradients of queries, keys and values; splash as a TPU has it, interpreted."""
    q, k, v, segments = narrow(1024)
    expected = graded_by(plain, q, k, v, segments)
    one = partial(splash, interpret=True) if kernel == "splash" else partial(attend, kernel=kernel)
    with jax.set_mesh(layout_over().mesh):
        assert_close(jax.device_get(graded_by(one, q, k, v, segments)), expected, 1e-5)


@pytest.mark.parametrize("strategy", ["gather", "ring"])
@pytest.mark.parametrize("kernel", ["plain", "blockwise", "splash"])
def test_so_does_context(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, strategy: Any) -> None:
    """Likewise of sequences that two devices share."""
    monkeypatch.setattr(context, "splash_kernel", partial(splash_kernel, interpret=True))
    monkeypatch.setattr(splash_tiles, "tile_kernel", partial(tile_kernel, interpret=True))
    q, k, v, segments = narrow(512)
    expected = graded_by(plain, q, k, v, segments)
    layout = layout_over(context=2, tensor=2)
    shared = partial(over_context, layout, kernel, Scores(), strategy=strategy)
    with jax.set_mesh(layout.mesh):
        assert_close(jax.device_get(graded_by(shared, q, k, v, segments)), expected, 1e-5)


def test_every_weight_is_a_matrix_with_an_input() -> None:
    """Weight decay and Muon take its weights and not its gains, and see each as a matrix from what it reads."""
    module = LatentAttention.init(gpt2_config(**FIELDS, q_rank=12), key=jax.random.key(0))
    names = axis_names(module)
    sides = {
        "q_a.weight": "embed",
        "q_b.weight": "q_latent",
        "kv_a.weight": "embed",
        "kv_b.weight": "kv_latent",
        "out.weight": "embed",
    }
    assert {path for path, axes in names.items() if is_matrix(axes)} == sides.keys()
    for path, side in sides.items():
        dimensions = muon_dimensions(names[path])
        assert dimensions is not None
        assert [names[path][at] for at in dimensions.reduction_axis] == [side]
        assert len(dimensions.output_axis) == len(names[path]) - 1


WORDS = (*LATENT, "model.layers=4", "data.attendAcross=document")


@cache
def of_one_device(make_program: MakeProgram) -> tuple[str, list[float]]:
    """The digest and the losses that every mesh must have."""
    return run(make_program(*WORDS, num_devices=1))


def narrow(length: int) -> tuple[Array, Array, Array, Array | None]:
    """Random queries and keys of 96 features, values of 64, and documents."""
    q, k, v, segments = inputs(length, 96, documents=True)
    return q, k, v[..., :64], segments


def graded_by(kernel: Callable[..., Array], q: Array, k: Array, v: Array, segments: Array | None) -> tuple[Array, ...]:
    """A kernel's output and the gradients of a sum that weighs every entry differently."""
    weights = jnp.cos(jnp.arange(v.size)).reshape(v.shape)

    def total(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        out = kernel(q, k, v, segments)
        return (out * weights).sum(), out

    grads, out = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return out, *grads


def by_module(module: LatentAttention, layout: Layout, weights: dict[str, Array], x: Array) -> Array:
    """What the module adds to [batch, position, embed], in its first layer."""
    stream = layout.enter(hax.named(x, ("batch", "position", "embed")))
    out: Array = assemble(module, weights)(stream, None, jnp.int32(0), layout).rearrange(stream.axes).array
    return out


def by_definition(config: GptConfig, weights: dict[str, Array], x: Array) -> Array:
    """What the paper's formulas add to [batch, position, embed], head by head, with all scores at once."""
    apart, rank, positions = config.head_size - config.rotary_dim, config.kv_rank, x.shape[1]

    def normed(c: Array, gains: Array) -> Array:
        return c / jnp.sqrt((c**2).mean(-1, keepdims=True) + config.latent_epsilon) * gains

    def turned(part: Array) -> Array:
        pairs = jax.lax.complex(part[..., 0::2], part[..., 1::2])
        speed = config.rope_theta ** (-jnp.arange(0, config.rotary_dim, 2) / config.rotary_dim)
        pairs = pairs * jnp.exp(1j * jnp.arange(positions)[:, None] * speed)
        return jnp.stack([pairs.real, pairs.imag], -1).reshape(part.shape)

    down = x @ weights["kv_a.weight"]
    latent, shared = normed(down[..., :rank], weights["kv_norm.weight"]), turned(down[..., rank:])
    of_q, to_q = x, weights.get("q.weight")
    if config.q_rank:
        of_q, to_q = normed(x @ weights["q_a.weight"], weights["q_norm.weight"]), weights["q_b.weight"]
    assert to_q is not None
    out = jnp.zeros_like(x)
    for head in range(config.num_heads):
        q, kv = of_q @ to_q[:, head], latent @ weights["kv_b.weight"][:, head]
        scores = q[..., :apart] @ kv[..., :apart].mT + turned(q[..., apart:]) @ shared.mT
        seen = jnp.tril(jnp.ones((positions, positions), bool))
        likely = jax.nn.softmax(jnp.where(seen, scores / jnp.sqrt(config.query_pre_attn_scalar), -jnp.inf))
        out = out + likely @ kv[..., apart:] @ weights["out.weight"][:, head].T
    return out
