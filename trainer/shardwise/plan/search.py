"""Which layout is fastest on the job's hardware: arithmetic first, then the compiler for those that are left.

What may change is what changes no run: how many ways tensor and FSDP's second step have, the microbatches, and what the
backward pass computes again. At most `MOST_COMPILED` candidates are compiled.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from shardwise.job.accelerators import offered
from shardwise.job.load import dump, loads
from shardwise.job.presets import padded_vocab_size, published_vocab_size
from shardwise.job.resolve import resolve
from shardwise.job.sizes import block_matrices, is_gated, keys_seen_twice
from shardwise.job.spec import Model, TrainingJob
from shardwise.job.topology import divisors, inner_ways, mesh_shape, topologies
from shardwise.plan.making import plan
from shardwise.plan.memory import usable_bytes
from shardwise.plan.result import Layout, Plan
from shardwise.plan.targets import WHEELS, compiles_for
from shardwise.protocol.errors import JobError, UsageError
from shardwise.protocol.text import size

MOST_COMPILED = 8
_MOST_OF_MEMORY = 0.95
"""Of what there is; an estimate beyond it is not compiled."""
_MOST_TRIED = 3
_MOST_TENSOR, _MOST_MICROBATCHES = 64, 64
_REMATS = ("none", "dots", "full")
_MOMENT_BYTES = {"adamw": 8, "adam": 8, "lion": 4, "muon": 4}
Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A layout, as changes of the job file."""

    tensor: int
    data_inner: int
    microbatches: int
    remat: str

    @property
    def changes(self) -> dict[str, int | str]:
        """Return the fields and their values."""
        return {
            "training.mesh.tensor": self.tensor,
            "training.mesh.dataInner": self.data_inner,
            "training.batch.microbatches": self.microbatches,
            "training.model.remat": self.remat,
        }

    @property
    def words(self) -> str:
        """Return one line for people."""
        inner = f", FSDP's second step over {self.data_inner}" if self.data_inner > 1 else ""
        return f"tensor {self.tensor}{inner}, {self.microbatches} microbatches, remat {self.remat}"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """By arithmetic alone, of one step on one device."""

    bytes: float
    seconds: float


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
        bound = self.plan.bound
        return Layout(
            changes=self.choice.changes,
            is_own=self.is_own,
            fits=self.plan.fits,
            needed_bytes=self.plan.needed_bytes,
            seconds=bound.seconds if bound else None,
            mfu=bound.mfu if bound else None,
            binds=bound.binds if bound else None,
        )

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort those that fit first, then by the least time of a step."""
        return not self.plan.fits, self.plan.bound.seconds if self.plan.bound else float("inf")


def search(job: TrainingJob, report: Report) -> list[Found]:
    """Return the candidates that were compiled, best first; the job's own layout is among them.

    Args:
        job: checked, as written.
        report: is called with what is compiled next.

    Raises:
        UsageError: the class does not say how much memory its devices have, or how fast they and their links are; or
            the compiler for them is not installed.
    """
    _refuse_unknown(job)
    own = _choice_of(resolve(job))
    fitting = [(choice, estimate(candidate)) for choice, candidate in _candidates(job)]
    limit = usable_bytes(resolve(job)) or 0
    likely = [pair for pair in fitting if pair[1].bytes <= limit * _MOST_OF_MEMORY and pair[0] != own]
    likely.sort(key=lambda pair: pair[1].seconds)
    report(f"{len(fitting)} layouts fit the devices, {len(likely)} of them by arithmetic also the memory")
    best = [choice for choice, _ in likely[: MOST_COMPILED - 2]]
    chosen = [own, *best, *_other_steps(job, best[:1])]
    found = []
    for number, choice in enumerate(chosen, 1):
        report(f"compiling {number} of {len(chosen)}: {choice.words}{' (the job as it is)' if choice == own else ''}")
        found.append(Found(choice=choice, plan=plan(_with(job, choice)), is_own=choice == own))
    return sorted(found, key=lambda one: one.rank)


def change_that_fits(job: TrainingJob, report: Report) -> str | None:
    """Return a change with which a job that does not fit does, compiled to be sure; None if none was found.

    What costs least comes first: the same devices with another layout, then more of them.
    """
    limit, own = usable_bytes(resolve(job)), _choice_of(resolve(job))
    spec = offered()[job.spec.hardware.accelerator].spec
    if limit is None or spec.peak_flops is None or spec.interconnect is None:
        return None
    pairs = [(choice, estimate(candidate)) for choice, candidate in _candidates(job)]
    likely = [pair for pair in pairs if pair[1].bytes <= limit * _MOST_OF_MEMORY and pair[0] != own]
    likely.sort(key=lambda pair: (pair[1].seconds, pair[1].bytes))
    for choice, _ in likely[:_MOST_TRIED]:
        report(f"does it fit with {choice.words}?")
        made = plan(_with(job, choice))
        if made.fits:
            changed = ", ".join(f"{path}={value}" for path, value in _differing(own, choice).items())
            return f"{changed}: {size(made.needed_bytes)} of {size(limit)}"
    for topology in _larger(job):
        report(f"does it fit on {topology}?")
        bigger = _changed(job, [f"hardware.topology={topology}"])
        if bigger is not None and estimate(bigger).bytes <= limit * _MOST_OF_MEMORY:
            made = plan(bigger)
            if made.fits:
                return f"hardware.topology={topology}: {size(made.needed_bytes)} of {size(limit)}"
    return None


def changes_to_write(job: TrainingJob, choice: Choice) -> dict[str, int | str]:
    """Return the fields of a job as written that must change for this layout, without those a rule fills in."""
    changes = _differing(_choice_of(resolve(job)), choice)
    inner = "training.mesh.dataInner"
    without = {path: value for path, value in changes.items() if path != inner}
    filled = _changed(job, [f"{path}={value}" for path, value in without.items()])
    return without if filled is not None and _choice_of(filled) == choice else changes


def estimate(job: TrainingJob) -> Estimate:
    """Return memory and time of a resolved job's step, by arithmetic: good enough to choose what to compile."""
    training, shape = job.spec.training, mesh_shape(job)
    model, spec = training.model, offered()[job.spec.hardware.accelerator].spec
    assert shape is not None
    assert spec.peak_flops is not None
    assert spec.interconnect is not None
    layers, embed, mlp, length = (size or 0 for size in (model.layers, model.embed, model.mlp, model.seq_len))
    vocab = padded_vocab_size(model.vocab_size or published_vocab_size(model.preset))
    width = 2 if training.precision.compute == "bfloat16" else 4
    block, table = block_matrices(model), vocab * embed * (1 if model.tied_head else 2)
    heads = (model.heads or 0) * (model.head_size or 0)
    seen = keys_seen_twice(layers, length, model.sliding_window, model.sliding_window_pattern)
    ways = shape.tensor * (shape.data if training.mesh.fsdp else 1)
    kept = 4 + _MOMENT_BYTES[training.optimizer.name] + 4 + (2 if training.precision.params == "bfloat16" else 0)
    rows = training.batch.sequences // (shape.replica * shape.data * training.batch.microbatches)
    tokens = rows * length
    layer = tokens * width * _kept_of_a_layer(model, shape.tensor)
    logits = min(training.loss.block_tokens, tokens) * vocab / shape.tensor * (8 + width)
    whole = (2 * block + table) * width / shape.tensor + vocab * embed * 4 / shape.tensor
    working = tokens * width * (2 * (3 if is_gated(model) else 2) * mlp / shape.tensor + 8 * embed)
    memory = (layers * block + table) * kept / ways + layers * layer + logits + whole + working

    again = {"none": 1.0, "dots": 1.03, "full": 1.3}[model.remat]
    total = training.batch.sequences * length
    matrices = layers * block + vocab * embed
    flops = total * (6 * matrices + 6 * heads * seen) * again
    peak = float(getattr(spec.peak_flops, training.precision.compute).value)
    devices = shape.replica * shape.data * shape.tensor
    link = float(spec.interconnect.bandwidth.value)
    weights = (layers * block + table) * width / shape.tensor * training.batch.microbatches
    over_data = weights * (shape.data - 1) / shape.data if training.mesh.fsdp else 0.0
    branches = 1 if model.block == "parallel" else 2
    whole_again = branches + (1 if model.block == "sequential" else 0)
    moves = layers * (4 * branches + {"none": 0, "dots": branches, "full": whole_again}[model.remat]) + 4
    over_tensor = tokens * training.batch.microbatches * embed * width * moves * (shape.tensor - 1) / shape.tensor
    on_gpu = spec.platform == "gpu"
    beside = 2 * over_data + (over_data + over_tensor / 2 if on_gpu else over_tensor / 2)
    alone = over_tensor / 2 + (0.0 if on_gpu else over_data)
    seconds = max(flops / devices / peak, beside / link) + alone / link
    return Estimate(bytes=memory, seconds=seconds)


def _kept_of_a_layer(model: Model, tensor: int) -> float:
    """Return the values of a token that the backward pass keeps of one layer."""
    embed, mlp = model.embed or 0, model.mlp or 0
    heads, kv_heads = ((number or 0) * (model.head_size or 0) for number in (model.heads, model.kv_heads))
    gates = 1 if is_gated(model) else 0
    match model.remat:
        case "full":
            return embed / tensor
        case "dots":
            return (embed + heads + 2 * kv_heads + (1 + gates) * mlp) / tensor + 2 * embed
        case _:
            return 13 * embed + (5 * heads + 6 * kv_heads + (3.5 + 2 * gates) * mlp) / tensor


def _refuse_unknown(job: TrainingJob) -> None:
    accelerator = offered()[job.spec.hardware.accelerator]
    spec = accelerator.spec
    if not compiles_for(accelerator):
        raise UsageError(
            f"--search: the compiler for {spec.platform.upper()}s is not installed, and this machine's own says "
            f'nothing of links and time; pip install "{WHEELS[spec.platform]}" brings it'
        )
    if None in (spec.device_memory, spec.peak_flops, spec.memory_bandwidth, spec.interconnect):
        raise UsageError(
            f"--search: the class {accelerator.name} does not say all of how much memory a device has and how fast "
            "devices, memory and links are, so layouts cannot be ranked; name a class that does, such as tpu-v5e or "
            "gpu-h100"
        )


def _candidates(job: TrainingJob) -> Iterator[tuple[Choice, TrainingJob]]:
    """Yield every layout that the rules accept, with its resolved job."""
    resolved = resolve(job)
    shape = mesh_shape(resolved)
    assert shape is not None
    for tensor in divisors(shape.data * shape.tensor):
        if tensor > _MOST_TENSOR:
            break
        data = shape.data * shape.tensor // tensor
        inner = inner_ways(job.spec.hardware, data) if resolved.spec.training.mesh.fsdp else 1
        rows = resolved.spec.training.batch.sequences // (shape.replica * data)
        for parts in divisors(max(1, rows)):
            for remat in _REMATS if parts <= _MOST_MICROBATCHES else ():
                choice = Choice(tensor=tensor, data_inner=inner, microbatches=parts, remat=remat)
                candidate = _loaded(job, choice)
                if candidate is not None:
                    yield choice, candidate


def _other_steps(job: TrainingJob, choices: list[Choice]) -> Iterator[Choice]:
    """Yield the same layouts with FSDP's other factors: twice as many ways for its second step."""
    for choice in choices:
        other = replace(choice, data_inner=2 * choice.data_inner)
        if choice.data_inner > 1 and _loaded(job, other) is not None:
            yield other


def _larger(job: TrainingJob) -> Iterator[str]:
    """Return the topologies of the class with up to eight times the devices, smallest first."""
    accelerator, hardware = offered()[job.spec.hardware.accelerator], job.spec.hardware
    if accelerator.spec.hosts is not None:
        hosts, devices = (int(side) for side in hardware.topology.split("x"))
        yield from (f"{hosts * times}x{devices}" for times in (2, 4, 8) if hosts * times <= accelerator.spec.hosts.max)
        return
    grids = topologies(accelerator)
    after = grids[grids.index(hardware.topology) + 1 :]
    yield from after[:4]


def _with(job: TrainingJob, choice: Choice) -> TrainingJob:
    made = _loaded(job, choice)
    assert made is not None, "the candidates are those that the rules accept"
    return made


def _loaded(job: TrainingJob, choice: Choice) -> TrainingJob | None:
    return _changed(job, [f"{path}={value}" for path, value in choice.changes.items()])


def _changed(job: TrainingJob, changes: list[str]) -> TrainingJob | None:
    """Return the resolved job with changes, or None if a rule refuses it."""
    try:
        return resolve(loads(dump(job), changes))
    except JobError:
        return None


def _choice_of(job: TrainingJob) -> Choice:
    training = job.spec.training
    return Choice(
        tensor=training.mesh.tensor,
        data_inner=training.mesh.data_inner or 1,
        microbatches=training.batch.microbatches,
        remat=training.model.remat,
    )


def _differing(one: Choice, other: Choice) -> dict[str, int | str]:
    return {path: value for path, value in other.changes.items() if one.changes[path] != value}
