"""A job's plan, from its resolved job: compiled, counted, and compared with the least."""

from collections.abc import Iterable
from typing import Any

from shardwise.job.accelerators import accelerator_of, usable_bytes, xla_flags
from shardwise.job.kernels import kernel_of
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import mesh_shape, num_devices
from shardwise.plan.arithmetic import least_wire
from shardwise.plan.collectives import Collective, collectives
from shardwise.plan.compiled import Step, lowered_step, needed_bytes
from shardwise.plan.completions import completions
from shardwise.plan.flops import eight_bit_flops, kernel_flops, traced_flops
from shardwise.plan.memory import host_memory, local_checkpoint_bytes, memory, weights
from shardwise.plan.result import Bubble, Flops, MemoryUse, Moved, Plan, Wire
from shardwise.plan.roofline import link_of, roofline
from shardwise.plan.targets import what_brings
from shardwise.protocol.errors import OutOfMemoryError
from shardwise.train.flops import flops_per_token
from shardwise.train.host_memory import not_moved, on_hosts
from shardwise.train.mesh import DATA
from shardwise.train.pipeline import Schedule
from shardwise.train.step import trace_step
from shardwise.train.work import Work

# Estimated from runs of eight jobs: what the loop, the other programs and all threads hold; how much more memory malloc
# keeps than it has handed out; and how much of the copy that a save writes is left when the next step holds most.
_LOOP_BYTES, _MALLOC, _SAVED = 128 << 20, 1.04, 0.5


def plan(job: TrainingJob) -> Plan:
    """Return the plan of a resolved job.

    Raises:
        CompilerError: XLA refuses the program for another reason than memory.
    """
    try:
        step = lowered_step(job).compile()
        held = memory(step)
        made = completions(step, held)
    except OutOfMemoryError as error:
        return _refused(job, error)
    needed = max(held.total, made.total if made else 0)
    rows = collectives(step.module, step.mesh)
    moved = [_moved(step, row) for row in rows]
    tokens = job.spec.training.batch.sequences * step.program.config.seq_len
    trace = trace_step(step.program)
    traced = traced_flops(trace, step.mesh)
    bubble = _bubble(step)
    busy = 1.0 if bubble is None else 1 - bubble.idle_share
    more_forwards = step.program.training.more_forwards
    program = traced + kernel_flops(step.program.config, tokens, more_forwards=more_forwards) / busy
    model = flops_per_token(step.program.config, step.program.training) * tokens
    flops = Flops(model=model, program=program, eight_bit=eight_bit_flops(trace, step.mesh))
    return Plan(
        **_about(job, step.program.config.attention),
        compiled_for="cpu" if step.stand_in else "hardware",
        notes=list(_notes(step)),
        compile_seconds=step.compile_seconds,
        fits=None if held.limit is None else needed <= held.limit,
        needed_bytes=needed,
        limit_bytes=held.limit,
        memory=held,
        weights=weights(step.program),
        collectives=moved,
        wire=_wire(step, moved),
        synchronous_gathers=sum(row.count - row.asynchronous for row in rows if _is_gather_of_weights(row)),
        rematerialised=sum(".remat" in one.name for line in step.module.computations.values() for one in line),
        resident_bytes=_resident(step, held),
        host_memory=host_memory(step),
        completions=made,
        local_checkpoint_bytes=local_checkpoint_bytes(step),
        flops=flops,
        bubble=bubble,
        bound=None if step.stand_in else roofline(step, rows, held, _in_compute_format(job, flops)),
    )


def _in_compute_format(job: TrainingJob, flops: Flops) -> Flops:
    """Return the FLOPs that take as long in the compute format: one in 8 bits takes a part of one, by the class."""
    precision, peak = job.spec.training.precision, accelerator_of(job.spec.hardware).spec.peak_flops
    if precision.products == "compute" or peak is None:
        return flops
    times = peak.per_second(precision.products) / peak.per_second(precision.compute)
    return flops.model_copy(update={"program": flops.program - flops.eight_bit * (1 - 1 / times)})


def _bubble(step: Step) -> Bubble | None:
    schedule = Schedule.of(step.job.spec.training)
    return Bubble(ticks=schedule.ticks, idle_share=schedule.idle_share) if schedule.stages > 1 else None


def _refused(job: TrainingJob, error: OutOfMemoryError) -> Plan:
    """Return what is still known of a program that XLA refuses for want of memory."""
    platform = accelerator_of(job.spec.hardware).spec.platform
    return Plan(
        **_about(job, kernel_of(job.spec.training, platform)),
        compiled_for="hardware",
        fits=False,
        needed_bytes=needed_bytes(str(error)) or 0,
        limit_bytes=usable_bytes(job),
        refusal=str(error),
        refused=Work.of_error(error),
    )


def _about(job: TrainingJob, attention: str) -> dict[str, Any]:
    """Return what is planned."""
    hardware, training = job.spec.hardware, job.spec.training
    shape = mesh_shape(job)
    assert shape is not None, "the rules have passed the mesh"
    mesh = {"replica": shape.replica, "data": shape.data, "dataInner": shape.data_inner, "tensor": shape.tensor}
    if shape.context > 1:
        mesh["context"] = shape.context
    if shape.pipeline > 1:
        mesh["pipeline"] = shape.pipeline
    if training.mesh.expert > 1:
        mesh["expert"] = training.mesh.expert
    return {
        "job": job.metadata.name,
        "accelerator": hardware.accelerator,
        "topology": hardware.topology,
        "slices": hardware.slices,
        "devices": num_devices(hardware),
        "mesh": mesh,
        "attention": attention,
        "remat": training.model.remat,
        "microbatches": training.batch.microbatches,
        "xla_flags": xla_flags(job),
    }


def _notes(step: Step) -> Iterable[str]:
    spec = accelerator_of(step.job.spec.hardware).spec
    if step.stand_in:
        yield (
            f"the compiler for {step.stand_in.upper()}s is not installed, so this machine's own stood in: the "
            f"memory is its, and it says nothing of links and time; {what_brings(step.stand_in)}"
        )
    if step.assumed_vocab_size:
        yield (
            f"{step.job.spec.training.data.tokenizer} is not here: planned for {step.assumed_vocab_size:,} tokens; set "
            "model.vocabSize for another number"
        )
    training = step.job.spec.training
    if told := not_moved(training, step.program.layout.mesh.devices.flat[0].platform):
        yield told
    if spec.platform == "gpu" and not step.stand_in:
        yield (
            "a GPU's compiler without a GPU tunes no kernel: bytes are final, and the working memory of cuDNN, "
            "cuBLAS and NCCL, some hundreds of MiB, is in no figure"
        )
        if on_hosts(training):
            yield (
                "optimizer.memory: host is in no figure: a GPU's compiler without a GPU keeps no state with a host, so "
                "the optimizer's counts as on the devices"
            )
        if training.model.experts:
            yield (
                "a GPU multiplies experts' rows by the block, which is up to half again the arithmetic of these "
                "products: no figure but the memory has that"
            )
        if spec.device_memory is None:
            name = step.job.spec.hardware.accelerator
            yield f"the class {name} does not say which GPU it is: compiled as for an H100, and whether it fits is open"


def _resident(step: Step, held: MemoryUse) -> int | None:
    """Return the most that a trainer of simulated devices holds: process, arrays, and what neither counts."""
    if accelerator_of(step.job.spec.hardware).spec.platform != "cpu":
        return None
    saved = _SAVED * (held.parameters + held.optimizer)
    return int(step.resident_bytes + _LOOP_BYTES + step.topology.devices_per_host * (_MALLOC * held.total + saved))


def _moved(step: Step, row: Collective) -> Moved:
    shown = {name: value for name, value in vars(row).items() if name in Moved.model_fields}
    return Moved(link=link_of(step, row), **shown)


def _wire(step: Step, rows: Iterable[Moved]) -> dict[str, Wire]:
    """Return the rows by axis; a few sums over several axes have their own row."""
    moved: dict[str, float] = {}
    for row in rows:
        moved[row.axis] = moved.get(row.axis, 0.0) + row.wire_bytes
    least = least_wire(step.program)
    return {
        axis: Wire(
            bytes=moved.get(axis, 0.0),
            least=least.get(axis),
            ratio=moved.get(axis, 0.0) / least[axis] if least.get(axis) else None,
        )
        for axis in {**dict.fromkeys(least), **moved}
    }


def _is_gather_of_weights(row: Collective) -> bool:
    return row.kind == "all-gather" and set(row.axes) <= set(DATA)
