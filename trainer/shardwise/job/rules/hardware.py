"""Rules on hardware and mesh: the accelerator is known, and the mesh divides the devices and the model."""

from collections.abc import Iterator

from shardwise.job.accelerators import offered
from shardwise.job.document import shown
from shardwise.job.presets import padded_vocab_size
from shardwise.job.spec import Model, TrainingJob
from shardwise.job.topology import divisors, mesh_shape, num_devices, parse_topology, topology_of, topology_words
from shardwise.protocol.errors import Problem
from shardwise.protocol.job_status import MAX_HOSTS
from shardwise.protocol.text import any_of, close_to


def accelerator_is_known(job: TrainingJob) -> Iterator[Problem]:
    """The accelerator is in the catalogue."""
    name, known = job.spec.hardware.accelerator, offered()
    if name not in known:
        yield Problem(
            path="spec.hardware.accelerator",
            given=shown(name),
            expected=any_of(sorted(known)),
            hint=close_to(name, known),
        )


def topology_is_valid(job: TrainingJob) -> Iterator[Problem]:
    """The accelerator comes in this topology."""
    hardware = job.spec.hardware
    accelerator = offered().get(hardware.accelerator)
    if accelerator and parse_topology(accelerator, hardware.topology) is None:
        yield Problem(
            path="spec.hardware.topology",
            given=shown(hardware.topology),
            expected=topology_words(accelerator, hardware.topology),
        )


def hosts_are_bounded(job: TrainingJob) -> Iterator[Problem]:
    """All slices together have no more hosts than one job can have."""
    hardware = job.spec.hardware
    topology = topology_of(hardware)
    if topology is not None and topology.hosts * hardware.slices > MAX_HOSTS:
        yield Problem(
            path="spec.hardware.slices",
            given=shown(hardware.slices),
            expected=f"at most {MAX_HOSTS // topology.hosts} slices of {topology.hosts} hosts: "
            f"a job has at most {MAX_HOSTS} hosts",
        )


def replica_follows_slices(job: TrainingJob) -> Iterator[Problem]:
    """A slice holds whole copies of the weights."""
    replica, slices = job.spec.training.mesh.replica, job.spec.hardware.slices
    if replica is not None and replica % slices:
        yield Problem(
            path="spec.training.mesh.replica", given=shown(replica), expected=f"a multiple of {slices} slices"
        )


def mesh_divides_devices(job: TrainingJob) -> Iterator[Problem]:
    """Tensor x replica divides the devices; context and pipeline have a rule of their own."""
    mesh = job.spec.training.mesh
    if topology_of(job.spec.hardware) is None or mesh_shape(job) or mesh.context * mesh.pipeline > 1:
        return
    devices, replica = num_devices(job.spec.hardware), mesh.replica or 1
    left = devices // replica
    if devices % replica:
        yield Problem(
            path="spec.training.mesh.replica",
            given=shown(replica),
            expected=f"a size that divides {devices} devices: {any_of(divisors(devices))}",
        )
        return
    yield Problem(
        path="spec.training.mesh.tensor",
        given=shown(mesh.tensor),
        expected=f"a size that divides {left} devices of a replica: {any_of(divisors(left))}",
    )


def data_inner_divides_data(job: TrainingJob) -> Iterator[Problem]:
    """FSDP's second step takes equal parts of data."""
    mesh = mesh_shape(job)
    if mesh is None or mesh.context * mesh.pipeline > 1:
        return
    if mesh.data % mesh.data_inner:
        yield Problem(
            path="spec.training.mesh.dataInner",
            given=shown(mesh.data_inner),
            expected=f"a size that divides data {mesh.data}: {any_of(divisors(mesh.data))}",
            hint="leave it out for what suits the accelerator",
        )


def tensor_divides_model(job: TrainingJob) -> Iterator[Problem]:
    """Heads, kvHeads, mlp and the padded vocabulary split evenly over tensor; embed over data, with fsdp."""
    mesh = mesh_shape(job)
    if mesh is None or mesh.context * mesh.pipeline > 1:
        return
    uneven = _uneven(job, mesh.tensor, mesh.data)
    if not uneven:
        return
    ways = mesh.tensor * mesh.data
    works = [tensor for tensor in divisors(ways) if not _uneven(job, tensor, ways // tensor)]
    expected = f"a size that fits the model and {ways} devices" + (f": {any_of(works)}" if works else "")
    hint = "" if works else "no size does: change embed, fsdp, replica or the topology"
    yield Problem(
        path="spec.training.mesh.tensor",
        given=f"{mesh.tensor} ({', '.join(uneven)})",
        expected=expected,
        hint=hint,
    )


def _uneven(job: TrainingJob, tensor: int, data: int) -> list[str]:
    """Return the parts of the model that do not split evenly, as text."""
    model = job.spec.training.model
    parts = [f"{size} {name} over tensor {tensor}" for name, size in _tensor_sizes(model).items() if size % tensor]
    if job.spec.training.mesh.fsdp and model.embed is not None and model.embed % data:
        parts.append(f"embed {model.embed} over data {data} with fsdp")
    return parts


def _tensor_sizes(model: Model) -> dict[str, int]:
    vocab = None if model.vocab_size is None else padded_vocab_size(model.vocab_size)
    kv_heads = None if model.kv_heads == model.heads else model.kv_heads
    sizes = {"heads": model.heads, "kvHeads": kv_heads, "mlp": model.mlp, "vocabulary rows": vocab}
    return {name: size for name, size in sizes.items() if size is not None}


RULES = (
    accelerator_is_known,
    topology_is_valid,
    hosts_are_bounded,
    replica_follows_slices,
    mesh_divides_devices,
    data_inner_divides_data,
    tensor_divides_model,
)
