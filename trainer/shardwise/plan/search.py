"""Which layout is fastest on the job's hardware: arithmetic first, then the compiler for those that are left.

What may change is what changes no run: how many ways tensor, experts and FSDP's second step have, the microbatches, and
what the backward pass computes again. At most `MOST_COMPILED` candidates are compiled.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from shardwise.job.accelerators import accelerator_of, usable_bytes
from shardwise.job.load import with_overrides
from shardwise.job.resolve import resolve
from shardwise.job.spec import Training, TrainingJob
from shardwise.job.spec.accelerator import HostRange
from shardwise.job.topology import divisors, inner_ways, mesh_shape, topologies
from shardwise.plan.build import plan
from shardwise.plan.choice import Choice, differing
from shardwise.plan.estimate import Estimate, estimate
from shardwise.plan.result import Layout, Plan
from shardwise.plan.targets import compiles_for, what_brings
from shardwise.protocol.errors import CompilerError, DataError, JobError, UsageError
from shardwise.protocol.text import size

MOST_COMPILED = 8
_MOST_OF_MEMORY = 0.95
"""Of what there is; an estimate beyond it is not compiled."""
_MOST_TRIED, _MOST_LARGER, _MOST_TIMES = 3, 4, 8
_NOT_FOR_THIS = (DataError, CompilerError)  # of a tokenizer, which the rules have not read, or of a kernel too large
_MOST_TENSOR, _MOST_EXPERT, _MOST_MICROBATCHES = 64, 64, 64
_REMATS = ("none", "dots", "full", "offload")
Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A layout that the rules accept, with its resolved job."""

    choice: Choice
    job: TrainingJob
    estimate: Estimate


@dataclass(frozen=True, kw_only=True)
class Found:
    """A candidate that was compiled."""

    choice: Choice
    plan: Plan
    is_own: bool
    """Whether it is the layout that the job has now."""

    @property
    def layout(self) -> Layout:
        """Return the layout, for programs."""
        bound, plan = self.plan.bound, self.plan
        return Layout(
            changes=self.choice.changes,
            is_own=self.is_own,
            fits=plan.fits,
            needed_bytes=plan.needed_bytes,
            **(bound.model_dump(include={"seconds", "mfu", "binds"}) if bound else {}),
        )

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort those that fit first, by the least time of a step, then the others by the memory that they need."""
        if not self.plan.fits:
            return True, self.plan.needed_bytes
        return False, self.plan.bound.seconds if self.plan.bound else float("inf")


def search(job: TrainingJob, report: Report) -> list[Found]:
    """Return the candidates that were compiled, best first; the job's own layout is among them.

    Args:
        job: checked, as written.
        report: is called with what is done next.

    Raises:
        UsageError: the class does not say how much memory its devices have, or how fast they and their links are; or
            the compiler for them is not installed.
        DataError: the vocabulary does not suit the job's own layout.
    """
    _refuse_unknown(job)
    report("looking for layouts that fit the devices")
    own, candidates = Choice.of(resolve(job)), list(_candidates(job))
    likely = sorted(_likely(job, candidates), key=lambda one: (one.estimate.seconds, one.estimate.moving_seconds))
    report(f"{len(candidates)} layouts fit the devices, {len(likely)} of them by arithmetic also the memory")
    best = [one.choice for one in likely[: MOST_COMPILED - 2]]
    chosen = list(dict.fromkeys([own, *best, *_other_steps(job, best[:1])]))
    found = []
    for number, choice in enumerate(chosen, 1):
        report(f"compiling {number} of {len(chosen)}: {choice.words}{' (the job as it is)' if choice == own else ''}")
        candidate = _changed(job, choice.changes)
        assert candidate is not None, "the candidates are those that the rules accept"
        with suppress(*() if choice == own else _NOT_FOR_THIS):
            found.append(Found(choice=choice, plan=plan(candidate), is_own=choice == own))
    return sorted(found, key=lambda one: one.rank)


def change_that_fits(job: TrainingJob, report: Report) -> str | None:
    """Return a change with which a job that does not fit does, compiled to be sure; None if none was found.

    What costs least comes first: the same devices with another layout, then more of them.
    """
    limit = usable_bytes(resolve(job))
    spec = accelerator_of(job.spec.hardware).spec
    if limit is None or spec.peak_flops is None or spec.interconnect is None:
        return None
    report("looking for a change with which it fits")
    for where, changes, candidate in _may_fit(job, limit):
        report(f"does it fit {where}?")
        with suppress(*_NOT_FOR_THIS):
            made = plan(candidate)
            if made.fits:
                changed = ", ".join(f"{path}={value}" for path, value in changes.items())
                return f"{changed}: {size(made.needed_bytes)} of {size(limit)}"
    return None


def changes_to_write(job: TrainingJob, choice: Choice) -> dict[str, int | str]:
    """Return the fields of a job as written that must change for this layout, without those a rule fills in."""
    changes = differing(Choice.of(resolve(job)), choice)
    without = {path: value for path, value in changes.items() if path != "training.mesh.dataInner"}
    filled = _changed(job, without)
    return without if filled is not None and Choice.of(filled) == choice else changes


def _refuse_unknown(job: TrainingJob) -> None:
    accelerator = accelerator_of(job.spec.hardware)
    spec = accelerator.spec
    if not compiles_for(accelerator):
        raise UsageError(
            f"--search: the compiler for {spec.platform.upper()}s is not installed, and this machine's own says "
            f"nothing of links and time; {what_brings(spec.platform)}"
        )
    if None in (spec.device_memory, spec.peak_flops, spec.memory_bandwidth, spec.interconnect):
        raise UsageError(
            f"--search: the class {accelerator.name} does not say all of how much memory a device has and how fast "
            "devices, memory and links are, so layouts cannot be ranked; name a class that does, such as tpu-v5e or "
            "gpu-h100"
        )


def _candidates(job: TrainingJob) -> Iterator[_Candidate]:
    """Yield every layout that the rules accept."""
    resolved = resolve(job)
    shape, training = mesh_shape(resolved), resolved.spec.training
    assert shape is not None
    for tensor in divisors(shape.data * shape.tensor):
        if tensor > _MOST_TENSOR:
            break
        data = shape.data * shape.tensor // tensor
        steps = inner_ways(job.spec.hardware, data) if training.mesh.fsdp else 1
        rows = training.batch.sequences // (shape.replica * data)
        for expert, parts in product(_experts(training, data), divisors(max(1, rows))):
            inner = expert if expert and expert > 1 else steps
            for remat in _REMATS if parts <= _MOST_MICROBATCHES else ():
                choice = Choice(tensor=tensor, expert=expert, data_inner=inner, microbatches=parts, remat=remat)
                candidate = _changed(job, choice.changes)
                if candidate is not None:
                    yield _Candidate(choice=choice, job=candidate, estimate=estimate(candidate))


def _experts(training: Training, data: int) -> list[int | None]:
    """Return over how many devices the experts may be split; there is only None if there are no experts."""
    experts = training.model.experts
    if experts is None:
        return [None]
    return [ways for ways in divisors(math.gcd(experts.count or 1, data)) if ways <= _MOST_EXPERT]


def _likely(job: TrainingJob, candidates: Iterable[_Candidate]) -> list[_Candidate]:
    """Return what is not the job's own layout and fits by arithmetic; what offloads only if nothing else does."""
    own, limit = Choice.of(resolve(job)), usable_bytes(resolve(job)) or 0
    small = [one for one in candidates if _is_small(one.estimate, limit) and one.choice != own]
    return [one for one in small if one.choice.remat != "offload"] or small


def _is_small(expected: Estimate, limit: int) -> bool:
    return expected.bytes <= limit * _MOST_OF_MEMORY


def _may_fit(job: TrainingJob, limit: int) -> Iterator[tuple[str, dict[str, int | str], TrainingJob]]:
    """Yield what to try: a phrase for people, the changes, and the job with them, which by arithmetic fits."""
    likely = sorted(_likely(job, _candidates(job)), key=lambda one: (one.estimate.seconds, one.estimate.bytes))
    own = Choice.of(resolve(job))
    for one in likely[:_MOST_TRIED]:
        yield f"with {one.choice.words}", differing(own, one.choice), one.job
    sizes: set[int] = set()
    for topology, changes, bigger in _larger(job):
        chips = _chips(topology)
        if chips not in sizes and len(sizes) < _MOST_LARGER and _is_small(estimate(bigger), limit):
            sizes.add(chips)
            yield f"on {topology}", changes, bigger


def _other_steps(job: TrainingJob, choices: list[Choice]) -> Iterator[Choice]:
    """Yield the same layouts with FSDP's other factors: twice as many ways for its second step."""
    for choice in choices:
        other = replace(choice, data_inner=2 * choice.data_inner)
        if choice.data_inner > 1 and _changed(job, other.changes) is not None:
            yield other


def _larger(job: TrainingJob) -> Iterator[tuple[str, dict[str, int | str], TrainingJob]]:
    """Yield the job on topologies of its class with up to eight times the devices: smallest first, then squarest."""
    accelerator, own = accelerator_of(job.spec.hardware), job.spec.hardware.topology
    if accelerator.spec.hosts is not None:
        larger = _more_devices(accelerator.spec.hosts, own)
    else:
        within = (grid for grid in topologies(accelerator) if _chips(own) < _chips(grid) <= _MOST_TIMES * _chips(own))
        larger = sorted(within, key=lambda grid: (_chips(grid), sum(_sides(grid))))
    for topology in larger:
        changes: dict[str, int | str] = {"hardware.topology": topology}
        bigger = _changed(job, changes)
        if bigger is not None:
            yield topology, changes, bigger


def _more_devices(most: HostRange, topology: str) -> list[str]:
    """Return 2, 4 and 8 times the devices: a host is filled before there are more hosts."""
    hosts, devices = _sides(topology)
    larger = []
    for times in (2, 4, _MOST_TIMES):
        on_host = max(factor for factor in divisors(times) if factor == 1 or devices * factor <= most.max_devices)
        if hosts * times // on_host <= most.max:
            larger.append(f"{hosts * times // on_host}x{devices * on_host}")
    return larger


def _sides(topology: str) -> list[int]:
    return [int(side) for side in topology.split("x")]


def _chips(topology: str) -> int:
    return math.prod(_sides(topology))


def _changed(job: TrainingJob, changes: Mapping[str, int | str]) -> TrainingJob | None:
    """Return the resolved job with changes, or None if a rule refuses it."""
    try:
        return resolve(with_overrides(job, [f"{path}={value}" for path, value in changes.items()]))
    except JobError:
        return None
