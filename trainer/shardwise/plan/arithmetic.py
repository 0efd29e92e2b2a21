"""The least that a layout has to move and hold, by arithmetic: what a compiled step is compared with.

Bytes are those on the wire of one device in one step, counted as for a ring: see `collectives`.

    context   weights are gathered and scattered over it first, in the parts that `data` then joins or cuts; each layer
              gathers the keys and values of whole sequences and scatters their gradients, or passes both around a ring
    data      each microbatch gathers a block's weights twice (forward, and again backward) and a table once, in the
              compute format, and scatters each gradient once in the format of sums; what FSDP does not split is summed;
              of a table of positions a device needs the part whose positions it has, where tensor splits them;
              where experts are split over part of data, only what that leaves of them moves over the rest, and tokens
              are gathered, forward, and backward with their gradients, and sums are scattered
    tensor    each of a block's two branches gathers its input and scatters its sum, forward and backward; a layer that
              is computed again does so for its inputs again, and for the sum that the second branch starts from; the
              narrow vectors of latent attention are gathered too, and their gradients scattered
    pipeline  each microbatch is handed to the next stage in each round, forward and back; a stage's part of it all is a
              share of the layers and, of what is no layer, of the microbatches; the latter's gradients are summed once
    replica   the gradients of a replica, in float32, are summed once

Of preferences the model as it was goes forward too: all that a forward pass moves is moved once more. With KTO both go
forward with answers to others as well, of which a pipeline hands on as much.
"""

import math
from collections.abc import Iterator, Mapping

import jax.numpy as jnp

from shardwise.train.axes import SPLIT_BY_FSDP
from shardwise.train.lora import is_adapter
from shardwise.train.memory import local_bytes
from shardwise.train.mesh import DATA, EXPERT
from shardwise.train.state import REFERENCE, Abstract, Program, flat, parameters

_FLOAT32 = 4


def gradient_bytes(program: Program) -> int:
    """Return what one device holds of the gradients, in float32."""
    return _float32_bytes(flat(program.abstract()["params"]))


def _float32_bytes(params: Mapping[str, Abstract]) -> int:
    return local_bytes({path: Abstract(x.shape, jnp.float32, sharding=x.sharding) for path, x in params.items()})


def least_wire(program: Program) -> dict[str, float]:
    """Return the least bytes on the wire by axis: those of the table above; axes of one device are left out."""
    mesh = program.layout.mesh.shape
    data, weights = mesh[DATA[0]] * mesh[DATA[1]], list(_weights(program))
    moved = {
        "context": sum(moved / ways for moved, ways in weights) + _over_context(program),
        "pipeline": _over_pipeline(program),
        "tensor": _over_tensor(program),
        "replica": 2.0 * gradient_bytes(program),
    }
    over_data = sum(moved * (ways - 1) / ways for moved, ways in weights) + _to_experts(program)
    others = {axis: moved[axis] * (mesh[axis] - 1) / mesh[axis] for axis in moved if mesh[axis] > 1}
    return {"data": over_data, **others} if data > 1 else others


def stream_moves(layers: int, block: str | None, remat: str, *, split: bool = True, more_forwards: int = 0) -> int:
    """Return the gathers and scatters of one stream of activations; `split` is whether it is, by position."""
    branches = 1 if block == "parallel" else 2
    sums = 1 if block == "sequential" else 0  # computing a layer again sums what its second branch starts from
    again = {"none": 0, "dots": branches}.get(remat, branches + sums)
    if not split:
        again = 2 * sums if remat in ("full", "offload") else 0  # a sum is there whole
    ends = 4  # the embedding and the head, forward and backward
    return layers * (4 * branches + again) + ends + more_forwards * (layers * 2 * branches + ends // 2)


def latent_moves(layers: int, remat: str, *, more_forwards: int = 0) -> int:
    """Return how often the narrow vectors of latent attention move over tensor, of all layers."""
    return layers * (2 + (remat != "none") + more_forwards)


def _weights(program: Program) -> Iterator[tuple[float, int]]:
    """Yield the bytes that each weight moves over data, if over infinitely many devices, and over how many it does."""
    layout, training = program.layout, program.training
    parts = training.batch.microbatches
    compute, wire, mesh = layout.dtype.itemsize, layout.wire.itemsize, layout.mesh.shape
    for path, leaf in parameters(program.abstract()).items():
        names, is_trained = program.names[path], path in program.trained
        experts = mesh[EXPERT] if layout.splits_experts and "experts" in names else 1
        # Whole over data, and as it is over tensor.
        size = math.prod(leaf.shape) // _ways_over_tensor(program, names) / experts / layout.stages
        in_block, is_matrix = path.startswith(("blocks.", "dense_blocks.")), _is_matrix(names)
        is_there_once = training.lora is not None and not is_adapter(path)
        of_copy = not in_block and path.removeprefix(REFERENCE).startswith(("blocks.", "dense_blocks."))
        further = training.more_forwards if is_there_once else int(training.has_unmatched)
        gathers = 2 + further if in_block else 1 + int(of_copy and training.has_unmatched)
        there, back = (compute, wire) if is_matrix else (_FLOAT32, _FLOAT32)
        ways = mesh[DATA[0]] * mesh[DATA[1]] // experts
        if layout.fsdp and {*names} & {*SPLIT_BY_FSDP}:
            yield size * parts * (gathers * there + is_trained * back), ways
        else:
            yield 2 * size * parts * is_trained * back, ways


def _to_experts(program: Program) -> float:
    """Return the bytes of tokens that a device hands to those with other experts, and gets back, in one step."""
    config, layout = program.config, program.layout
    if not layout.splits_experts or not config.num_experts:
        return 0.0
    others: int = layout.mesh.shape[EXPERT] - 1
    more = program.training.more_forwards
    a_value = ((3 + more) * layout.dtype.itemsize + (2 + more) * layout.wire.itemsize) / layout.dtype.itemsize
    return others * (config.num_layers - config.num_dense_blocks) / layout.stages * _stream_bytes(program) * a_value


def _over_pipeline(program: Program) -> float:
    """Return what a stage hands on, forward and back, and twice the gradients of what is no layer."""
    shared = {path: x for path, x in program.abstract()["params"].items() if "layers" not in program.names[path]}
    ways = 2 + program.training.more_forwards
    handed = ways * program.training.mesh.pipeline_rounds * _stream_bytes(program)
    return float(handed + 2 * _float32_bytes(shared))


def _over_context(program: Program) -> float:
    """Return the keys and values that a device gathers, forward and again backward, and whose gradients it scatters.

    Around a ring they pass once more, since the backward pass needs them, too; what computes a layer again shares the
    first transfer with it.
    """
    config, layout = program.config, program.layout
    heads = config.num_kv_heads // layout.mesh.shape["tensor"]
    values = _rows(program) * config.seq_len * heads * (config.head_size + config.value_size)
    passes = (1.0 if config.remat == "none" else 2.0) + program.training.more_forwards
    if layout.context_strategy == "ring":
        passes += 1 if config.remat == "none" else 1 - 1 / (layout.context - 1)
    a_pass = float(config.num_layers / layout.stages * values)
    return a_pass * passes * layout.dtype.itemsize + a_pass * layout.wire.itemsize


def _rows(program: Program) -> int:
    """Return the sequences of which a device has a part, or the whole, in one step."""
    mesh = program.layout.mesh.shape
    rows: int = program.training.batch.sequences // (mesh["replica"] * mesh[DATA[0]] * mesh[DATA[1]])
    return rows


def _over_tensor(program: Program) -> float:
    """Return the gathers and scatters of one position-wide stream's activations; an all-reduce is one of each."""
    config, layout = program.config, program.layout
    split = layout.splits_positions(config.seq_len)
    more_forwards = program.training.more_forwards
    narrow = (config.KvDown.size + config.q_rank) / config.embed_size if config.is_latent else 0.0
    moves = stream_moves(config.num_layers, config.block, config.remat, split=split, more_forwards=more_forwards)
    more = latent_moves(config.num_layers, config.remat, more_forwards=more_forwards) * narrow
    return _stream_bytes(program) * (moves + more) / layout.stages


def _stream_bytes(program: Program) -> int:
    """Return the bytes of all tokens of a device between two layers, in one step, not split over tensor."""
    config, layout = program.config, program.layout
    size: int = _rows(program) * config.seq_len // layout.context * config.embed_size * layout.dtype.itemsize
    return size


def _is_matrix(names: tuple[str, ...]) -> bool:
    features = [name for name in names if name not in ("layers", "qkv", "kv")]
    return len(features) > 1 and "position" not in features


def _ways_over_tensor(program: Program, names: tuple[str, ...]) -> int:
    layout = program.layout
    tensor: int = layout.mesh.shape["tensor"]
    by_position = "position" in names and layout.splits_positions(program.config.seq_len)
    return tensor if by_position or any(layout.compute.get(name) == "tensor" for name in names) else 1
