"""The very step that a run would train with, compiled for the job's hardware, and what its compiler reports of it.

Nothing of it is a model of the step: the job is resolved as for a run, the program is the trainer's own, and it is
lowered and compiled as the trainer does.
"""

import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import psutil

from shardwise.job.accelerators import accelerator_of
from shardwise.job.load import with_overrides
from shardwise.job.paths import is_url
from shardwise.job.presets import published_vocab_size
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import Topology, num_devices, num_hosts, topology_of
from shardwise.plan.hlo import Module, parse
from shardwise.plan.targets import NoCompilerError, devices_for
from shardwise.protocol.errors import CompilerError, DataError, OutOfMemoryError
from shardwise.protocol.storage import first_line
from shardwise.train.data.tokenizer import load_tokenizer
from shardwise.train.memory import peak_bytes
from shardwise.train.start import build
from shardwise.train.state import COMPILED_QUICKLY, Program
from shardwise.train.step import lower_step
from shardwise.train.work import Work

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A compiled step."""

    job: TrainingJob
    program: Program
    text: str
    peak_bytes: int
    """The most that the program holds on one device at once, its arguments included."""
    host_state_bytes: int
    """Of the state of one device what lies in the memory of its host."""
    host_temporary_bytes: int
    """What the program keeps there for one device while it runs."""
    code_bytes: int
    resident_bytes: int
    """Of this process with the compiled program in it, and none of its data."""
    compile_seconds: float
    """Lowering included."""
    stand_in: str | None
    """The platform whose compiler is missing, so that this machine's own stood in for it."""
    assumed_vocab_size: int | None
    """The size assumed for a tokenizer whose file is not here."""

    @cached_property
    def module(self) -> Module:
        """Return the instructions."""
        return parse(self.text)

    @cached_property
    def topology(self) -> Topology:
        """Return the devices of one slice of its hardware."""
        topology = topology_of(self.job.spec.hardware)
        assert topology is not None, "the rules have passed the topology"
        return topology

    @cached_property
    def mesh(self) -> dict[str, int]:
        """Return the sizes of the mesh axes, outermost first."""
        return dict(self.program.layout.mesh.shape)


@dataclass(frozen=True, kw_only=True)
class LoweredStep:
    """A step that is lowered for its hardware, and not yet compiled."""

    job: TrainingJob
    program: Program
    lowered: jax.stages.Lowered
    lower_seconds: float
    stand_in: str | None
    assumed_vocab_size: int | None

    def compile(self) -> Step:
        """Compile it.

        Raises:
            CompilerError: XLA refuses it.
            OutOfMemoryError: XLA refuses it because it does not fit into the device's memory.

        """
        began = time.perf_counter()
        compiled = compiled_in_words(self.lowered, Work.STEP)
        ended = time.perf_counter()
        memory = compiled.memory_analysis()
        text = compiled.as_text()
        assert text is not None
        assert memory is not None
        return Step(
            job=self.job,
            program=self.program,
            text=text,
            peak_bytes=peak_bytes(memory, self.program.layout.mesh.devices.flat[0].platform),
            host_state_bytes=memory.host_argument_size_in_bytes,
            host_temporary_bytes=memory.host_temp_size_in_bytes,
            code_bytes=memory.generated_code_size_in_bytes,
            resident_bytes=psutil.Process().memory_info().rss,
            compile_seconds=self.lower_seconds + ended - began,
            stand_in=self.stand_in,
            assumed_vocab_size=self.assumed_vocab_size,
        )


def compiled_in_words(lowered: jax.stages.Lowered, work: Work) -> jax.stages.Compiled:
    """Compile a program; raise as `LoweredStep.compile` does, an error that is of this (`Work.of_error`)."""
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        told = _in_words(error, work)
        told.add_note(work.note)
        raise told from error


def lowered_step(job: TrainingJob) -> LoweredStep:
    """Lower a resolved job's step for the hardware that it names."""
    devices, stand_in = _devices(job)
    size, assumed = _vocabulary(job)
    program = build(_for_cpus(job) if stand_in else job, devices, tokenizer_size=size)
    if stand_in:  # whose options this machine's compiler does not know
        program = replace(program, xla_options={})
    elif devices[0].platform == "cpu" and num_hosts(job.spec.hardware) > 1:  # as the processes of a run would
        program = replace(program, xla_options={**COMPILED_QUICKLY, **program.xla_options})
    began = time.perf_counter()
    lowered = lower_step(program)
    return LoweredStep(
        job=job,
        program=program,
        lowered=lowered,
        lower_seconds=time.perf_counter() - began,
        stand_in=stand_in,
        assumed_vocab_size=assumed,
    )


def _devices(job: TrainingJob) -> tuple[list[jax.Device], str | None]:
    try:
        return devices_for(job), None
    except NoCompilerError:
        platform = accelerator_of(job.spec.hardware).spec.platform
        return jax.devices("cpu")[: num_devices(job.spec.hardware)], platform


def _for_cpus(job: TrainingJob) -> TrainingJob:
    """Return the job with attention that any platform has."""
    return with_overrides(job, ["training.model.attention=auto"])


def _vocabulary(job: TrainingJob) -> tuple[int, int | None]:
    """Return the tokenizer's size; if its file is not here, the job's vocabSize or a published model's.

    A file at a URL counts as not here: a plan is made without a cloud's key, and without waiting for its network.
    """
    training = job.spec.training
    if not is_url(training.data.tokenizer):
        with suppress(DataError):
            return load_tokenizer(training.data.tokenizer).vocab_size, None
    size = training.model.vocab_size or published_vocab_size(training.model.preset)
    return size, None if training.model.vocab_size else size


def needed_bytes(text: str) -> int | None:
    """Return the bytes that XLA reports a device would have to hold, in either form; None if it reports none."""
    found = re.search(r"temporaries \(([\d.]+)([KMGT]?)\)", text) or re.search(r"Used ([\d.]+)([KMGT]?) of", text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def _in_words(error: jax.errors.JaxRuntimeError, work: Work) -> CompilerError | OutOfMemoryError:
    text = first_line(error)
    if "RESOURCE_EXHAUSTED" in text:
        if needed_bytes(text) is not None:
            return OutOfMemoryError(text)
        # Such as of a chip's own memory, which a kernel exceeds: the second line says of which.
        text = " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:2])
    return CompilerError(f"XLA cannot compile {work} for this hardware: {text}")
