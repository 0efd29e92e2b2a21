"""Compiled programs, kept for each process of a run, so that a restart neither traces nor compiles.

JAX's own cache still traces, and of several CPU processes only the first ever finds anything in it. Here a program is
looked up by everything that decides what it would be: the code of this package, the versions, the devices and flags,
the job, the rank. What is kept there is the name of a program, which is a digest of its text and of what else the
compiler is told. So a job that differs in anything else, such as its learning rate, and a newer release trace, and
compile only what has another text.

Simulated hosts run the same program on the same processors: the first that needs it compiles it for all. Real hosts
compile their own at the same time, and XLA may make them share that work.

A kept program is a pickle, which can run code when it is loaded. On a laptop only this user may access the folder (mode
0700, checked). In a pod it is on the job's volume, where others may write: a file there is sealed with the job's token,
which only its pods have, and is unpickled only after its seal has been verified.

What JAX took from its own cache lacks functions when it is serialized once more, so that cache is off in trainers.
"""

import hashlib
import json
import os
import pickle
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import distributions
from pathlib import Path
from typing import IO, Any

import jax
from jax.experimental import serialize_executable
from jax.stages import Compiled, Lowered

import shardwise
from shardwise.job.accelerators import xla_flags
from shardwise.job.spec import TrainingJob
from shardwise.protocol.cache import private_programs
from shardwise.protocol.contract import PROGRAMS, PROGRAMS_KEY_VARIABLE, PROGRAMS_VARIABLE
from shardwise.protocol.file_lock import lock_within
from shardwise.train.bad_steps import Judge
from shardwise.train.config import GptConfig
from shardwise.train.devices import simulated
from shardwise.train.jax_private import compiled_from
from shardwise.train.optimizer import falls_to_the_last_step
from shardwise.train.sealed_files import SealedFiles, key_of, retain_bytes, retain_folders, used
from shardwise.train.work import Work, told_of

_CHANGES_NO_PROGRAM = {"data", "start_from", "checkpoint", "evaluation", "tracking", "bad_steps", "profile"}
_TRACING = {"equinox", "jmp", "marin-haliax", "numpy", "optax"}
_COMPILING = ("jax", "libtpu", "nvidia-")
_KEEP = 512
"""How many folders with names of programs are kept, one for each job; the least recently used are removed."""
_KEEP_BYTES = 4 * 2**30
"""Of programs."""
_BY_TEXT = "by-text"
_LOCK_SECONDS = 1800.0
"""More than simulated hosts ever compile for: whoever holds the lock so long hangs, as in a file system."""
_TELL_SECONDS = 60.0


class Executables:
    """The programs of one process of a job.

    Args:
        job: resolved.
        config: of its model.
        rank: of this process.

    """

    def __init__(self, job: TrainingJob, config: GptConfig, rank: int) -> None:
        """Make the folders if needed, and remove old programs."""
        self._shares = simulated()
        owner = None if self._shares else rank
        root, key = _root_and_key(owner)
        self._files = SealedFiles(key)
        self._surroundings = _surroundings(job, owner)
        self._named = root / _signature(self._surroundings, job, config)
        self._programs = root / _BY_TEXT
        for folder in (self._named, self._programs):
            folder.mkdir(mode=0o700, exist_ok=True)
        used(self._named)
        retain_folders(root, _KEEP, but=_BY_TEXT)
        retain_bytes(self._programs, _KEEP_BYTES)

    def get(self, name: str, lower: Callable[[], Lowered], devices: Sequence[jax.Device] | None = None) -> Compiled:
        """Return the program of this name: load it, or lower, compile and keep it. Any thread may call this.

        It runs on `devices`, by default on all of the run.
        """
        ids = None if devices is None else [device.id for device in devices]
        path = self._named / hashlib.sha256(f"{name} {ids}".encode()).hexdigest()[:16]
        with told_of(Work.of_program(name)):
            return self._kept(path, devices) or self._made_once(path, lower, devices)

    def _kept(self, path: Path, devices: Sequence[jax.Device] | None) -> Compiled | None:
        named = self._files.read(path, bytes.decode)
        return self._load(self._programs / named, devices) if named else None

    def _load(self, program: Path, devices: Sequence[jax.Device] | None) -> Compiled | None:
        used(program)
        return self._files.read(program, partial(_unpickled, devices=devices))

    def _made_once(self, path: Path, lower: Callable[[], Lowered], devices: Sequence[jax.Device] | None) -> Compiled:
        if not self._shares:
            return self._made(path, lower, devices)
        with _locked(path.with_suffix(".lock")):
            if kept := self._kept(path, devices):
                return kept
            made = self._made(path, lower, devices)
            # Load it as the other processes do: as compiled its collectives begin in their order, loaded in order each
            # of them ends before the next one begins, and processes must not differ in that.
            return self._kept(path, devices) or made

    def _made(self, path: Path, lower: Callable[[], Lowered], devices: Sequence[jax.Device] | None) -> Compiled:
        """Lower the program, and compile it if none of its text is kept."""
        lowered = lower()
        program = self._programs / _digest_of(self._surroundings, lowered)
        made = self._load(program, devices)
        if made is None:
            made = lowered.compile()
            self._files.write(program, pickle.dumps(serialize_executable.serialize(made)))
        self._files.write(path, program.name.encode())
        return made


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Keep other processes from compiling the same program; the kernel frees the lock of one that is killed."""
    with lock.open("w") as file:
        alone = _lock(file, lock)
        yield
        if alone:
            lock.unlink(missing_ok=True)  # later processes find the program and need no lock


def _lock(file: IO[str], lock: Path) -> bool:
    """Wait for the lock; return False if who has it does not end its work: then every process compiles its own."""

    def tell(words: str) -> None:
        print(f"{lock}: {words}", file=sys.stderr)  # noqa: T201  the process's log

    waiting = partial(tell, "waiting for the process that compiles this program")
    try:
        had = lock_within(file.fileno(), seconds=_LOCK_SECONDS, tell_after=_TELL_SECONDS, tell=waiting)
    except OSError:  # a volume without locks
        return True
    if not had:
        tell(f"held for {_LOCK_SECONDS:.0f} s; compiling without it")
    return had


def _root_and_key(rank: int | None) -> tuple[Path, bytes]:
    """Return the folder for programs of this rank, or of all ranks for None, and the key that seals them."""
    shared = os.environ.get(PROGRAMS_VARIABLE)
    if shared is None:
        return private_programs(), b"this user's alone"
    folder = Path(shared) / ("all" if rank is None else f"rank-{rank}")
    token = Path(os.environ[PROGRAMS_KEY_VARIABLE]).read_bytes()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder, key_of(token, PROGRAMS)


def _unpickled(content: bytes, devices: Sequence[jax.Device] | None) -> Compiled:
    binary, arguments, results = pickle.loads(content)  # noqa: S301  sealed by this job, or in our own folder
    program: Compiled = serialize_executable.deserialize_and_load(binary, arguments, results, execution_devices=devices)
    return program


def _digest_of(surroundings: Mapping[str, Any], lowered: Lowered) -> str:
    """Hash what the compiler is given: two programs with the same digest are one, whatever they were made for."""
    digest = hashlib.sha256(json.dumps(surroundings, sort_keys=True).encode())
    for part in compiled_from(lowered):
        digest.update(part + b"\0")
    return digest.hexdigest()[:32]


def _surroundings(job: TrainingJob, rank: int | None) -> dict[str, Any]:
    """Return what decides, beside the text of a program, what is made of it, and for whom."""
    return {
        "versions": versions(),
        "machine": machine(),
        "devices": [[str(device), device.device_kind, device.process_index] for device in jax.devices()],
        "flags": {
            name: os.environ.get(name)
            for name in ("XLA_FLAGS", "NPROC", "LIBTPU_INIT_ARGS", "JAX_DEFAULT_MATMUL_PRECISION")
        },
        "options": xla_flags(job),
        "rank": rank,
    }


def _signature(surroundings: Mapping[str, Any], job: TrainingJob, config: GptConfig) -> str:
    """Hash everything that decides what a program would be. The config stands for the tokenizer and the presets."""
    training = job.spec.training
    # A longer run of the same job finds its programs, unless its learning rate depends on the last step.
    changes_no_program = _CHANGES_NO_PROGRAM | (set() if falls_to_the_last_step(training.optimizer) else {"steps"})
    decides: dict[str, Any] = {
        **surroundings,
        "code": code_digest(),
        "hardware": job.spec.hardware.model_dump(),
        "training": training.model_dump(exclude=changes_no_program),
        # Of the data what makes another loss: what is seen, and which answers are learned as good or bad.
        "loss": [training.data.attend_across, training.learns_preferences, training.has_unmatched],
        "skips": Judge(training.bad_steps).skips,
        "model": repr(config),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]


@cache
def versions() -> dict[str, str]:
    """Return the versions of all that traces or compiles: a new image may bring others to the same volume."""
    found = {"shardwise": shardwise.__version__, "python": platform.python_version()}
    for distribution in distributions():
        name = distribution.name.lower()
        if name in _TRACING or name.startswith(_COMPILING):
            found[name] = distribution.version
    return found


@cache
def code_digest() -> str:
    """Hash the sources that programs are traced from."""
    root = Path(shardwise.__file__).parent
    digest = hashlib.sha256()
    packages = [root / name for name in ("job", "protocol", "train")]
    for path in sorted(path for package in packages for path in package.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def machine() -> str:
    """Hash the processor's name and features: a program for another processor may use instructions it lacks."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()
