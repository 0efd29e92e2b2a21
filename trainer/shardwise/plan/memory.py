"""What one device holds at the step's peak, by kind, and how much memory it has.

The state, the gradients and the batch are arithmetic. What the backward pass keeps of the layers is read off the
compiled program: the stacked arrays that the loop over layers hands on. The rest is what the compiler's own peak
leaves.
"""

import math
import re

from shardwise.job.accelerators import usable_bytes
from shardwise.job.topology import num_hosts
from shardwise.plan.arithmetic import gradient_bytes
from shardwise.plan.compiled import Step
from shardwise.plan.hlo import arrays
from shardwise.plan.result import HostMemory, MemoryUse, Weight, axis_words
from shardwise.train.memory import local_bytes
from shardwise.train.pipeline import Schedule
from shardwise.train.state import Program, beside_weights, flat, parameters, without_base
from shardwise.train.step import abstract_batch

_ON_HOST = re.compile(r"\w+\[[\d,]*\]\{[^}]*S\(5\)[^}]*\}")


def memory(step: Step) -> MemoryUse:
    """Return the kinds of a compiled step; their total is the compiler's peak, and the program itself."""
    state = step.program.abstract()
    held, optimizer = local_bytes(parameters(state)), local_bytes(beside_weights(state))
    batch = local_bytes(flat(abstract_batch(step.program)))
    rest = max(0, step.peak_bytes - held - optimizer - batch)
    kept = min(saved_activations(step), rest)
    gradients = min(gradient_bytes(step.program), rest - kept)
    return MemoryUse(
        parameters=held,
        optimizer=optimizer,
        gradients=gradients,
        activations=kept,
        temporaries=rest - kept - gradients,
        batch=batch,
        program=step.code_bytes,
        total=held + optimizer + batch + rest + step.code_bytes,
        limit=usable_bytes(step.job),
    )


def host_memory(step: Step) -> HostMemory | None:
    """Return what the devices of a host keep in its memory; None if that is nothing.

    What is kept there of the state goes to the device and back once a step, of layers in each microbatch.
    """
    state, kept, devices = step.host_state_bytes, step.host_temporary_bytes, step.topology.devices_per_host
    if not state and not kept:
        return None
    moved = 2 * (state + kept * step.job.spec.training.batch.microbatches)
    return HostMemory(state=state * devices, activations=kept * devices, moved=moved)


def local_checkpoint_bytes(step: Step) -> int | None:
    """Return the most that local checkpoints need of a host's memory; None of a job that makes none.

    A host has its own part and another's, of the checkpoint that is there and of the one that is being made, and the
    copy of its part that is on its way to the second.
    """
    if step.job.spec.training.checkpoint.local is None:
        return None
    saved: int = sum(leaf.size * leaf.dtype.itemsize for leaf in flat(without_base(step.program.abstract())).values())
    hosts = num_hosts(step.job.spec.hardware)
    return math.ceil(saved / hosts) * (5 if hosts > 1 else 3)


def weights(program: Program) -> list[Weight]:
    """Return how each parameter lies on the mesh, in the model's order."""
    rows = []
    for name, leaf in parameters(program.abstract()).items():
        assert leaf.sharding is not None
        axes = program.names[name]
        part = leaf.sharding.shard_shape(leaf.shape)
        parts = zip(axes, leaf.sharding.spec, leaf.shape, part, strict=True)
        rows.append(
            Weight(
                name=name,
                axes=dict(zip(axes, leaf.shape, strict=True)),
                part=[*part],
                split={axis: axis_words(_names(by)) for axis, by, whole, here in parts if here < whole},
                part_bytes=math.prod(part) * leaf.dtype.itemsize,
            )
        )
    return rows


def _names(mesh_axes: str | tuple[str, ...]) -> tuple[str, ...]:
    return (mesh_axes,) if isinstance(mesh_axes, str) else mesh_axes


def saved_activations(step: Step) -> int:
    """Return the bytes of stacked arrays, one part a layer, that are no parameters: the most of any loop.

    Of a pipeline it is one part for each layer of a visit, in each tick.
    """
    schedule, layers = Schedule.of(step.job.spec.training), step.program.config.Layers.size
    is_pipeline = schedule.stages > 1
    parts = (schedule.ticks, layers // schedule.stages // schedule.rounds) if is_pipeline else (layers,)
    weights = _shapes_of_parameters(step.program)
    found = [0]
    for line in step.module.computations.values():
        for loop in line:
            if loop.op != "while":
                continue
            # Those in the host's memory, which XLA calls its space 5, are no bytes of the device.
            stacked = (one for one in arrays(_ON_HOST.sub("", loop.type)) if one.shape[: len(parts)] == parts)
            found.append(sum(one.bytes for one in stacked if _without_ones(one.shape[len(parts) :]) not in weights))
    return max(found)


def _shapes_of_parameters(program: Program) -> set[tuple[int, ...]]:
    """Return the shapes of one layer's parameters: as they are stored, and whole over data."""
    shapes = set()
    for path, leaf in parameters(program.abstract()).items():
        if path.startswith(("blocks.", "dense_blocks.")):
            assert leaf.sharding is not None
            shapes.add(_without_ones(leaf.sharding.shard_shape(leaf.shape)[1:]))
    return shapes


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size > 1) if math.prod(shape) > 1 else ()
