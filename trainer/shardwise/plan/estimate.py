"""Memory and time of a step by arithmetic, from the job alone: good enough to choose what is worth compiling."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from shardwise.job.accelerators import accelerator_of
from shardwise.job.presets import padded_vocab_size, published_vocab_size
from shardwise.job.sizes import (
    adapter_parameters,
    block_adapters,
    block_matrices,
    flops_per_token,
    is_gated,
    keys_seen_twice,
    mlps_of_a_token,
    values_of_heads,
)
from shardwise.job.spec import Model, Training, TrainingJob
from shardwise.job.spec.accelerator import AcceleratorSpec
from shardwise.job.topology import MeshShape, mesh_shape
from shardwise.plan.arithmetic import stream_moves
from shardwise.train.optimizer import state_bytes_of_a_weight
from shardwise.train.pipeline import Schedule

_state_bytes = cache(state_bytes_of_a_weight)
_AGAIN = {"none": 1.0, "dots": 1.03, "full": 1.3}
"""How much arithmetic there is with what a policy of `remat` computes again."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of one step on one device."""

    bytes: float
    seconds: float


class _Sizes(NamedTuple):
    """What both estimates count with: dimensions, weights of a block and of the tables, bytes of a computed value.

    `seen` is twice the keys that a token sees on average, summed over the layers; `heads` and `kv_heads` are the values
    of all of them. `apart` is the part of a block that is experts, if these are split over devices.
    """

    shape: MeshShape
    layers: int
    embed: int
    mlp: int
    length: int
    heads: int
    kv_heads: int
    seen: int
    vocab: int
    block: int
    apart: int
    table: int
    width: int

    @property
    def whole_block(self) -> float:
        """Return the weights of a block that a device has when they are gathered: all, or some of the experts."""
        return self.block - self.apart * (1 - 1 / self.shape.data_inner)


def estimate(job: TrainingJob) -> Estimate:
    """Return the estimate of a resolved job; its class says how fast devices and their links are."""
    training, sizes = job.spec.training, _sizes(job)
    spec = accelerator_of(job.spec.hardware).spec
    return Estimate(bytes=_bytes(training, sizes), seconds=_seconds(training, sizes, spec))


def _sizes(job: TrainingJob) -> _Sizes:
    model, shape = job.spec.training.model, mesh_shape(job)
    assert shape is not None
    layers, embed, mlp, length = (size or 0 for size in (model.layers, model.embed, model.mlp, model.seq_len))
    vocab = padded_vocab_size(model.vocab_size or published_vocab_size(model.preset))
    block, table = block_matrices(model), vocab * embed * (1 if model.tied_head else 2)
    experts = model.experts.count or 0 if model.experts and job.spec.training.mesh.expert > 1 else 0
    apart = experts * 3 * embed * mlp
    heads, kv_heads = values_of_heads(model)
    seen = keys_seen_twice(layers, length, model.sliding_window, model.sliding_window_pattern)
    width = 2 if job.spec.training.precision.compute == "bfloat16" else 4
    return _Sizes(shape, layers, embed, mlp, length, heads, kv_heads, seen, vocab, block, apart, table, width)


def _bytes(training: Training, of: _Sizes) -> float:
    tensor, width = of.shape.tensor, of.width
    context = of.shape.context
    ways = of.shape.data * context if training.mesh.fsdp else 1
    held = (of.block if training.mesh.fsdp else of.whole_block) / ways
    stages = of.shape.pipeline
    params = training.precision.params
    trained = (2 if params == "bfloat16" else 4) + _state_bytes(training.optimizer, params) + 4  # and the gradient's
    kept = width if training.lora else trained
    # FSDP splits the factors of adapters that map from or to embed, and tensor the others.
    by_embed, others = block_adapters(training.model, training.lora) if training.lora else (0, 0)
    adapters = (by_embed / ways + others / tensor) * trained
    tokens = _tokens_at_once(training, of)
    layer = tokens * width * _kept_of_a_layer(training.model, tensor)
    logits = min(training.loss.block_tokens, tokens) * of.vocab / tensor * (8 + width)
    whole = (2 * of.whole_block + of.table) * width / tensor + 2 * (by_embed + others / tensor) * width
    if not training.lora:  # the gradient of the table that tokens are looked up in
        whole += of.vocab * of.embed * 4 / tensor
    ups = 3 if is_gated(training.model) else 2
    working = tokens * width * (2 * ups * mlps_of_a_token(training.model) * of.mlp / tensor + 8 * of.embed)
    if context > 1:  # keys and values, and their gradients in the format of sums and in float32: of whole sequences
        # or, around a ring, of a device's own part, of what is there and what is coming.
        parts = 3 if training.mesh.context_strategy == "ring" else context
        working += tokens * parts * 2 * of.kv_heads / tensor * (2 * width + 4)
    if of.apart:  # the tokens of all devices that have other experts, and their gradients; sums are in float32
        working += of.shape.data_inner * tokens * of.embed * (2 * width + 8)
    at_once = Schedule.of(training).ticks if stages > 1 else 1
    layers = of.layers / stages * (held * kept / tensor + adapters + layer * at_once / training.mesh.pipeline_rounds)
    return layers + of.table * kept / ways / tensor + logits + whole + working


def _seconds(training: Training, of: _Sizes, spec: AcceleratorSpec) -> float:
    assert spec.peak_flops is not None
    assert spec.interconnect is not None
    model, shape, microbatches = training.model, of.shape, training.batch.microbatches
    total = training.batch.sequences * of.length
    matrices = of.layers * block_matrices(model, of_a_token=True) + of.vocab * of.embed
    adapters = adapter_parameters(model, training.lora)
    one = flops_per_token(matrix_parameters=matrices, values=of.heads, seen_twice=of.seen, adapters=adapters)
    again = _AGAIN[model.remat] - 1
    flops = total * one * (1 + (again if adapters is None else 1.5 * again))
    peak = spec.peak_flops.per_second(training.precision.compute)
    weights = (of.layers * of.whole_block + of.table) * of.width / shape.tensor * microbatches / shape.pipeline
    sharing = shape.data * shape.context
    over_data = weights * (sharing - 1) / sharing if training.mesh.fsdp else 0.0
    moves = stream_moves(of.layers, model.block, model.remat)
    stream = _tokens_at_once(training, of) * microbatches * of.embed * of.width
    over_tensor = stream / shape.pipeline * moves * (shape.tensor - 1) / shape.tensor
    to_experts = of.layers * stream / shape.pipeline * (shape.data_inner - 1) if of.apart else 0.0
    keys = _tokens_at_once(training, of) * shape.context * microbatches * 2 * of.kv_heads / shape.tensor * of.width
    is_ring, on_gpu = training.mesh.context_strategy == "ring", spec.platform == "gpu"
    passes = (2 if model.remat == "none" else 3) + is_ring
    over_context = of.layers * keys * passes * (shape.context - 1) / shape.context / shape.pipeline
    scattered = 0.0 if training.lora else over_data
    beside = (
        2 * over_data
        + 3 * to_experts
        + over_tensor / 2
        + (scattered if on_gpu else 0.0)
        + (over_context if is_ring else 0.0)
    )
    alone = over_tensor / 2 + 2 * to_experts + (0.0 if is_ring else over_context) + (0.0 if on_gpu else scattered)
    link, devices = float(spec.interconnect.bandwidth.value), shape.replica * sharing * shape.pipeline * shape.tensor
    busy = 1 - Schedule.of(training).idle_share
    return max(flops / devices / peak / busy, beside / link) + alone / link


def _tokens_at_once(training: Training, of: _Sizes) -> int:
    """Return a device's tokens in a microbatch."""
    rows = training.batch.sequences // (of.shape.replica * of.shape.data * training.batch.microbatches)
    return rows * of.length // of.shape.context


def _kept_of_a_layer(model: Model, tensor: int) -> float:
    """Return the values of a token that the backward pass keeps of one layer."""
    embed, mlp = model.embed or 0, (model.mlp or 0) * mlps_of_a_token(model)
    heads, kv_heads = values_of_heads(model)
    gates = 1 if is_gated(model) else 0
    match model.remat:
        case "full":
            return embed / tensor
        case "dots":
            return (embed + heads + 2 * kv_heads + (1 + gates) * mlp) / tensor + 2 * embed
        case _:
            return 13 * embed + (5 * heads + 6 * kv_heads + (3.5 + 2 * gates) * mlp) / tensor
