"""Rules on hardware and mesh: the accelerator is known, and the mesh divides the devices and the model."""

import math
from collections.abc import Iterator, Sequence

from shardwise.job.accelerators import offered
from shardwise.job.document import wrong
from shardwise.job.presets import padded_vocab_size
from shardwise.job.rules.training import batch_divides
from shardwise.job.spec import Training, TrainingJob
from shardwise.job.topology import (
    divisors,
    mesh_shape,
    multiples_near,
    num_devices,
    parse_topology,
    topology_of,
    topology_words,
)
from shardwise.protocol.errors import Problem
from shardwise.protocol.job_status import MAX_HOSTS
from shardwise.protocol.text import any_of, close_to

_HARDWARE = "spec.hardware"
_MESH = "spec.training.mesh"


def accelerator_is_known(job: TrainingJob) -> Iterator[Problem]:
    """Require that the accelerator is in the catalogue."""
    name, known = job.spec.hardware.accelerator, offered()
    if name not in known:
        yield wrong(f"{_HARDWARE}.accelerator", name, any_of(sorted(known)), close_to(name, known))


def topology_is_valid(job: TrainingJob) -> Iterator[Problem]:
    """Require that the accelerator comes in this topology."""
    given = job.spec.hardware.topology
    accelerator = offered().get(job.spec.hardware.accelerator)
    if accelerator and parse_topology(accelerator, given) is None:
        yield wrong(f"{_HARDWARE}.topology", given, topology_words(accelerator, given))


def hosts_are_bounded(job: TrainingJob) -> Iterator[Problem]:
    """Require that all slices together have no more hosts than one job can have."""
    hardware = job.spec.hardware
    topology = topology_of(hardware)
    if topology is not None and topology.hosts * hardware.slices > MAX_HOSTS:
        most = f"{MAX_HOSTS // topology.hosts} slices of {topology.hosts} hosts"
        yield wrong(f"{_HARDWARE}.slices", hardware.slices, f"at most {most}: a job has at most {MAX_HOSTS} hosts")


def traced_ranks_exist(job: TrainingJob) -> Iterator[Problem]:
    """Require that only processes of the run are traced."""
    profile, topology = job.spec.training.profile, topology_of(job.spec.hardware)
    if profile is None or topology is None:
        return
    hosts = topology.hosts * job.spec.hardware.slices
    if max(profile.ranks) >= hosts:
        yield wrong("spec.training.profile.ranks", max(profile.ranks), f"0 to {hosts - 1}, by host")


def replica_follows_slices(job: TrainingJob) -> Iterator[Problem]:
    """Require that a slice holds whole copies of the weights."""
    replica, slices = job.spec.training.mesh.replica, job.spec.hardware.slices
    if replica is not None and replica % slices:
        yield wrong(f"{_MESH}.replica", replica, f"a multiple of {slices} slices")


def mesh_divides_devices(job: TrainingJob) -> Iterator[Problem]:
    """Require that tensor x context x pipeline x replica divides the devices."""
    mesh = job.spec.training.mesh
    if topology_of(job.spec.hardware) is None or mesh_shape(job):
        return
    devices, replica = num_devices(job.spec.hardware), mesh.replica or job.spec.hardware.slices
    left, rest = divmod(devices, replica)
    if rest:
        expected = f"a size that divides {devices} devices{_fitting(job, 'replica', divisors(devices))}"
        yield wrong(f"{_MESH}.replica", replica, expected)
        return
    taken: list[str] = []
    for name in ("tensor", "context", "pipeline"):
        ways = getattr(mesh, name)
        if left % ways:
            beside = f" with {' and '.join(taken)}" if taken else ""
            fitting = _fitting(job, name, divisors(left))
            expected = f"a size that divides {left} devices of a replica{beside}{fitting}"
            yield wrong(f"{_MESH}.{name}", ways, expected)
            return
        left //= ways
        taken += [f"{name} {ways}"] if ways > 1 else []


def data_inner_divides_data(job: TrainingJob) -> Iterator[Problem]:
    """Require that FSDP's second step takes equal parts of data, and that experts, if they are split, are over it."""
    mesh, expert = mesh_shape(job), job.spec.training.mesh.expert
    if mesh and mesh.data_inner != expert > 1:
        expected = f"{expert}, since the experts are split over the same devices"
        yield wrong(f"{_MESH}.dataInner", mesh.data_inner, expected, "leave it out")
    elif mesh and mesh.data % mesh.data_inner and expert == 1:
        expected = f"a size that divides data {mesh.data}: {any_of(divisors(mesh.data))}"
        yield wrong(f"{_MESH}.dataInner", mesh.data_inner, expected, "leave it out for what suits the accelerator")


def tensor_divides_model(job: TrainingJob) -> Iterator[Problem]:
    """Require that tensor splits heads, kvHeads, mlp and padded vocabulary; with fsdp, data x context splits embed."""
    mesh = mesh_shape(job)
    if not mesh or not (uneven := _uneven(job, mesh.tensor, mesh.data, mesh.context)):
        return
    ways = mesh.tensor * mesh.data
    works = _works(job, "tensor", divisors(ways))
    yield Problem(
        path=f"{_MESH}.tensor",
        given=f"{mesh.tensor} ({', '.join(uneven)})",
        expected=f"a size that fits the model and {ways} devices" + (f": {any_of(works)}" if works else ""),
        hint="" if works else "no size does: change embed, fsdp, replica or the topology",
    )


def context_divides_positions(job: TrainingJob) -> Iterator[Problem]:
    """Require that each device has two equal chunks of a sequence, one from its front and one from its back."""
    mesh, length = job.spec.training.mesh, job.spec.training.model.seq_len
    if mesh.context > 1 and length is not None and length % (2 * mesh.context):
        near = any_of(multiples_near(length, 2 * mesh.context))
        expected = f"a context of which twice as many divide seqLen {length}"
        yield wrong(f"{_MESH}.context", mesh.context, expected, f"seqLen {near} would do")


def products_are_as_fast(job: TrainingJob) -> Iterator[Problem]:
    """Require that the accelerator multiplies in the 8 bits that are asked for, and does not widen them first."""
    form = job.spec.training.precision.products
    accelerator = offered().get(job.spec.hardware.accelerator)
    peak = accelerator.spec.peak_flops if accelerator else None
    if form != "compute" and peak is not None and getattr(peak, form) is None:
        there = [name for name in ("float8", "int8") if getattr(peak, name) is not None]
        expected = f"a format in which {job.spec.hardware.accelerator} multiplies: {any_of(['compute', *there])}"
        yield wrong("spec.training.precision.products", form, expected)


def expert_divides_experts(job: TrainingJob) -> Iterator[Problem]:
    """Require that there are experts to split, and that each device has as many, and an equal part of data."""
    shape, ways, experts = mesh_shape(job), job.spec.training.mesh.expert, job.spec.training.model.experts
    if ways == 1:
        return
    count = experts.count if experts else 0
    if count == 0:
        yield wrong(f"{_MESH}.expert", ways, "1 without model.experts, which it splits")
    elif count and (count % ways or (shape and shape.data % ways)):
        data = f" and data {shape.data}" if shape else ""
        works = divisors(math.gcd(count, shape.data if shape else 0))
        yield wrong(f"{_MESH}.expert", ways, f"a size that divides the {count} experts{data}: {any_of(works)}")


def pipeline_divides_layers(job: TrainingJob) -> Iterator[Problem]:
    """Require that each stage has equally many layers in each round."""
    mesh, layers = job.spec.training.mesh, _layers_of_stages(job.spec.training)
    if layers is None or layers % (mesh.pipeline * mesh.pipeline_rounds) == 0:
        return
    if layers % mesh.pipeline:
        behind = "" if layers == job.spec.training.model.layers else " behind denseBlocks"
        expected = f"a size that divides {layers} layers{behind}{_fitting(job, 'pipeline', divisors(layers))}"
        yield wrong(f"{_MESH}.pipeline", mesh.pipeline, expected)
        return
    left = layers // mesh.pipeline
    expected = f"a number that divides the {left} layers of a stage: {any_of(divisors(left))}"
    yield wrong(f"{_MESH}.pipelineRounds", mesh.pipeline_rounds, expected)


def _layers_of_stages(training: Training) -> int | None:
    """Return the layers that a pipeline splits: not the first blocks of a mixture, which are of another kind."""
    model = training.model
    if model.layers is None:
        return None
    return max(0, model.layers - ((model.experts.dense_blocks or 0) if model.experts else 0))


def _fitting(job: TrainingJob, axis: str, sizes: Sequence[int]) -> str:
    """Return the sizes of a mesh axis that a job can take, as the end of what is expected."""
    works = _works(job, axis, sizes)
    if not works:
        return ""
    return f"{'' if len(works) == len(sizes) else ' and fits the rest of the job'}: {any_of(works)}"


def _works(job: TrainingJob, axis: str, sizes: Sequence[int]) -> list[int]:
    """Return the sizes of a mesh axis with which the job is right, or, if there is none, this axis is."""
    found = {size: set(_objections(job, axis, size)) for size in sizes}
    right = [size for size in sizes if not found[size]]
    return right or [size for size in sizes if f"{_MESH}.{axis}" not in found[size]]


def _objections(job: TrainingJob, axis: str, size: int) -> Iterator[str]:
    """Yield the fields that are wrong if an axis has this size.

    Not those that such a change would change too: the steps of FSDP, and a pipeline's microbatches.
    """
    training = job.spec.training
    mesh = training.mesh.model_copy(update={axis: size})
    changed = job.with_spec(training=training.model_copy(update={"mesh": mesh}))
    shape, layers = mesh_shape(changed), _layers_of_stages(training)
    if shape is None:
        yield _MESH
    if _uneven(changed, mesh.tensor, shape.data if shape else 1, mesh.context):
        yield f"{_MESH}.tensor"
    if layers is not None and layers % (mesh.pipeline * mesh.pipeline_rounds):
        yield f"{_MESH}.pipeline{'' if layers % mesh.pipeline else 'Rounds'}"
    for rule in (replica_follows_slices, context_divides_positions, batch_divides):
        yield from (problem.path for problem in rule(changed))


def _uneven(job: TrainingJob, tensor: int, data: int, context: int) -> list[str]:
    """Return the parts of the model that do not split evenly, as text."""
    model = job.spec.training.model
    vocab = None if model.vocab_size is None else padded_vocab_size(model.vocab_size)
    kv_heads = None if model.kv_heads == model.heads else model.kv_heads
    shared, dense_mlp = (model.experts.shared, model.experts.dense_mlp) if model.experts else (None, None)
    kv_rank, q_rank = (model.latent.kv_rank, model.latent.q_rank) if model.latent else (None, None)
    sizes = {"heads": model.heads, "kvHeads": kv_heads, "mlp": model.mlp, "shared": shared, "denseMlp": dense_mlp}
    sizes["latent.kvRank + rotaryDim"] = None if kv_rank is None else kv_rank + (model.rotary_dim or 0)
    sizes |= {"latent.qRank": q_rank, "vocabulary rows": vocab}
    parts = [
        f"{size} {name} over tensor {tensor}" for name, size in sizes.items() if size is not None and size % tensor
    ]
    if job.spec.training.mesh.fsdp:
        and_context = f" x context {context}" if context > 1 else ""
        gathered = {"embed": model.embed, "latent.kvRank": kv_rank, "latent.qRank": q_rank}
        parts += [
            f"{name} {size} over data {data}{and_context} with fsdp"
            for name, size in gathered.items()
            if size is not None and size % (data * context)
        ]
    return parts


OF_ANY_JOB = (accelerator_is_known, topology_is_valid, hosts_are_bounded)
"""Those that a program is held to as well."""

RULES = (
    *OF_ANY_JOB,
    traced_ranks_exist,
    replica_follows_slices,
    mesh_divides_devices,
    data_inner_divides_data,
    tensor_divides_model,
    context_divides_positions,
    products_are_as_fast,
    expert_divides_experts,
    pipeline_divides_layers,
)
