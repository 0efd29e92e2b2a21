"""Memory and time of a step by arithmetic, from the job alone: good enough to choose what is worth compiling."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from shardwise.job.accelerators import accelerator_of
from shardwise.job.adapter_sizes import adapter_parameters
from shardwise.job.latent_sizes import narrow_share
from shardwise.job.sizes import (
    all_block_matrices,
    attention_values,
    flops_per_token,
    is_gated,
    values_of_heads,
)
from shardwise.job.spec import Model, Training, TrainingJob
from shardwise.job.spec.accelerator import AcceleratorSpec
from shardwise.job.topology import MeshShape, topology_of
from shardwise.plan.arithmetic import latent_moves, stream_moves
from shardwise.plan.estimate_sizes import Sizes, sizes_of
from shardwise.plan.roofline import network_of
from shardwise.train.optimizer import state_bytes_of_a_weight
from shardwise.train.pipeline import Schedule

_state_bytes = cache(state_bytes_of_a_weight)
_AGAIN = {"none": 1.0, "dots": 1.03, "full": 1.3, "offload": 1.3}
"""How much arithmetic there is with what a policy of `remat` computes again."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of one step on one device."""

    bytes: float
    seconds: float
    moving_seconds: float
    """What all that moves takes, beside computation or not: of layouts that are as fast the one that moves least waits
    least where the estimate is too good."""


def estimate(job: TrainingJob) -> Estimate:
    """Return the estimate of a resolved job; its class says how fast devices and their links are."""
    training, sizes = job.spec.training, sizes_of(job)
    spec = accelerator_of(job.spec.hardware).spec
    seconds, moving = _seconds(training, sizes, spec, _links(job, sizes.shape))
    return Estimate(bytes=_bytes(training, sizes), seconds=seconds, moving_seconds=moving)


def _bytes(training: Training, of: Sizes) -> float:
    tensor, width = of.shape.tensor, of.width
    context = of.shape.context
    ways = of.shape.data * context if training.mesh.fsdp else 1
    held = (of.all_blocks if training.mesh.fsdp else of.all_whole_blocks) / ways
    stages = of.shape.pipeline
    params = training.precision.params
    trained = (2 if params == "bfloat16" else 4) + _state_bytes(training.optimizer, params) + 4  # and the gradient's
    kept = width if training.lora else trained + (width if training.has_reference else 0)  # a copy, as it was
    tokens = _tokens_at_once(training, of)
    layers = sum(kind.layers * _kept_of_a_layer(training.model, kind.inside, tensor) for kind in of.blocks)
    logits = min(training.loss.block_tokens, tokens) * of.vocab / tensor * (8 + width)
    whole = (2 * of.whole_block + of.table) * width / tensor + 2 * of.whole_adapters * width
    if not training.lora:  # the gradient of the table that tokens are looked up in
        whole += of.vocab * of.embed * 4 / tensor
    ups = 3 if is_gated(training.model) else 2
    working = tokens * width * (2 * ups * of.inside / tensor + 8 * of.embed)
    if context > 1:  # keys and values, and their gradients in the format of sums and in float32: of whole sequences
        # or, around a ring, of a device's own part, of what is there and what is coming.
        parts = 3 if training.mesh.context_strategy == "ring" else context
        working += tokens * parts * 2 * of.kv_heads / tensor * (2 * width + 4)
    if of.mixtures_apart:  # the tokens of all devices that have other experts, and their gradients; sums are in float32
        working += of.shape.data_inner * tokens * of.embed * (2 * width + 8)
    at_once = Schedule.of(training).ticks if stages > 1 else 1
    activations = tokens * width * layers * at_once / training.mesh.pipeline_rounds
    of_layers = (held * kept / tensor + of.adapters_held(ways) * trained + activations) / stages
    return of_layers + of.table * kept / ways / tensor + logits + whole + working


class _Links(NamedTuple):
    """The bytes a second that a device sends over each axis, and which of these axes cross the network of hosts."""

    tensor: float
    context: float
    inner: float
    """Of FSDP's second step, and of experts that are apart."""
    outer: float
    """Of its first step, or of the only one."""
    far: frozenset[str]

    def seconds(self, moved: Iterable[tuple[str, float]]) -> tuple[float, float]:
        """Return what bytes take that are sent over axes: within hosts, and between them."""
        near = far = 0.0
        for axis, size in moved:
            taken = size / getattr(self, axis)
            near, far = (near, far + taken) if axis in self.far else (near + taken, far)
        return near, far


def _links(job: TrainingJob, shape: MeshShape) -> _Links:
    """Return the links of a mesh: of a TPU all are those between chips, a GPU sends to another host by the network.

    As in the bound of a compiled step (`plan/roofline.py`), the devices of a host share its network, and those of one
    group send each byte once.
    """
    hardware = job.spec.hardware
    spec, topology = accelerator_of(hardware).spec, topology_of(hardware)
    assert spec.interconnect is not None
    assert topology is not None, "the rules have passed the topology"
    one, on_host = float(spec.interconnect.bandwidth.value), topology.devices_per_host
    network = network_of(spec, topology.machine)
    within = shape.tensor * shape.pipeline
    first = within if shape.data_inner == 1 or shape.context > 1 else within * shape.data_inner
    # The place of each axis: how far its neighbours are apart, and how many they are.
    places = {
        "tensor": (1, shape.tensor),
        "context": (within, shape.context),
        "inner": (within * shape.context, shape.data_inner),
        "outer": (first, shape.data * shape.context // shape.data_inner),
    }
    far = {axis for axis, (apart, ways) in places.items() if spec.platform == "gpu" and apart * ways > on_host}
    at_home = {axis: max(1, min(ways, on_host // apart)) for axis, (apart, ways) in places.items()}
    rates = {axis: network * at_home[axis] / on_host if axis in far else one for axis in places}
    return _Links(**rates, far=frozenset(far))


def _seconds(training: Training, of: Sizes, spec: AcceleratorSpec, links: _Links) -> tuple[float, float]:
    """Return the seconds of a step, and those of all that moves in it."""
    assert spec.peak_flops is not None
    model, shape, microbatches = training.model, of.shape, training.batch.microbatches
    total = training.batch.sequences * of.length
    matrices = all_block_matrices(model, of_a_token=True) + of.vocab * of.embed
    adapters = adapter_parameters(model, training.lora, of_a_token=True)
    one = flops_per_token(
        matrix_parameters=matrices,
        values=attention_values(model),
        seen_twice=of.seen,
        adapters=adapters,
        more_forwards=training.more_forwards,
    )
    again = _AGAIN[model.remat] - 1
    flops = total * one * (1 + (again if adapters is None else 1.5 * again))
    peak = spec.peak_flops.per_second(training.precision.compute)
    if training.precision.products != "compute":
        # Of the three products with a weight two are in 8 bits, and what is computed again.
        share = of.all_blocks * 6 / one * 2 / 3
        peak /= 1 - share * (1 - peak / spec.peak_flops.per_second(training.precision.products))
    a_weight = of.width / shape.tensor * microbatches / shape.pipeline * training.mesh.fsdp
    apart, weights = of.all_apart, of.all_whole_blocks - of.all_apart + of.table
    inner, outer = shape.data_inner, shape.data * shape.context // shape.data_inner
    second = weights * a_weight * (inner - 1) / inner
    first = (weights / inner + apart) * a_weight * (outer - 1) / outer
    moves = stream_moves(of.layers, model.block, model.remat, more_forwards=training.more_forwards)
    stream = _tokens_at_once(training, of) * microbatches * of.embed * of.width
    moved = moves + latent_moves(of.layers, model.remat, more_forwards=training.more_forwards) * narrow_share(model)
    over_tensor = stream / shape.pipeline * moved * (shape.tensor - 1) / shape.tensor
    to_experts = of.mixtures_apart * stream / shape.pipeline * (shape.data_inner - 1)
    keys = _tokens_at_once(training, of) * shape.context * microbatches * 2 * of.kv_heads / shape.tensor * of.width
    is_ring, on_gpu = training.mesh.context_strategy == "ring", spec.platform == "gpu"
    reference = training.more_forwards
    passes = (2 if model.remat == "none" else 3) + is_ring + reference
    over_context = of.layers * keys * passes * (shape.context - 1) / shape.context / shape.pipeline
    scattered = 0.0 if training.lora else 1.0  # beside computation on GPUs
    hidden, waited = (2 + reference + scattered, 0.0) if on_gpu else (2.0 + reference, scattered)
    beside = links.seconds(
        [
            *(("outer", hidden * first), ("inner", hidden * second + 3 * to_experts), ("tensor", over_tensor / 2)),
            ("context", over_context if is_ring else 0.0),
        ]
    )
    alone = links.seconds(
        [
            *(("outer", waited * first), ("inner", waited * second + 2 * to_experts), ("tensor", over_tensor / 2)),
            ("context", 0.0 if is_ring else over_context),
        ]
    )
    devices, busy = shape.replica * inner * outer * shape.pipeline * shape.tensor, 1 - Schedule.of(training).idle_share
    return max(flops / devices / peak / busy, *beside) + sum(alone), sum(beside) + sum(alone)


def _tokens_at_once(training: Training, of: Sizes) -> int:
    """Return a device's tokens in a microbatch."""
    rows = training.batch.sequences // (of.shape.replica * of.shape.data * training.batch.microbatches)
    return rows * of.length // of.shape.context


def _kept_of_a_layer(model: Model, mlp: int, tensor: int) -> float:
    """Return the values of a token that the backward pass keeps of one layer with an MLP of this width."""
    embed = model.embed or 0
    heads, kv_heads = values_of_heads(model)
    gates = 1 if is_gated(model) else 0
    match model.remat:
        case "full":
            return embed / tensor
        case "offload":
            return 0.0
        case "dots":
            return (embed + heads + 2 * kv_heads + (1 + gates) * mlp) / tensor + 2 * embed
        case _:
            return 13 * embed + (5 * heads + 6 * kv_heads + (3.5 + 2 * gates) * mlp) / tensor
