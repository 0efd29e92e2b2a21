"""Compiled programs, kept for each process of a run, so that a restart neither traces nor compiles.

JAX's own cache still traces, and of several CPU processes only the first ever finds anything in it. Here a program is
looked up by everything that decides what it would be: the code of this package, the versions, the devices and flags,
the job, the rank.

Simulated hosts run the same program on the same processors: the first that needs it compiles it for all. Real hosts
compile their own at the same time, and XLA may make them share that work.

A kept program is a pickle, which can run code when it is loaded. On a laptop only this user may access the folder (mode
0700, checked). In a pod it is on the job's volume, where others may write: a file there is sealed with the job's token,
which only its pods have, and is unpickled only after its seal has been verified.
"""

import hashlib
import hmac
import json
import os
import pickle
import platform
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from shardwise.train.optimizer import falls_to_the_last_step
from shardwise.train.work import Work, told_of

_CHANGES_NO_PROGRAM = {"data", "start_from", "checkpoint", "evaluation", "tracking", "bad_steps", "profile"}
_TRACING = {"equinox", "jmp", "marin-haliax", "numpy", "optax"}
_COMPILING = ("jax", "libtpu", "nvidia-")
_KEEP = 64
"""How many folders of programs are kept, one for each job and rank; the least recently used are removed."""
_LOCK_SECONDS = 1800.0
"""More than simulated hosts ever compile for: whoever holds the lock so long hangs, as in a file system."""
_TELL_SECONDS = 60.0
_SEAL = "sha256"
_SEAL_BYTES = 32


class Executables:
    """The programs of one process of a job.

    Args:
        job: resolved.
        config: of its model.
        rank: of this process.

    """

    def __init__(self, job: TrainingJob, config: GptConfig, rank: int) -> None:
        """Make the folder if needed, and remove old ones."""
        self._shares = simulated()
        owner = None if self._shares else rank
        root, self._key = _root_and_key(owner)
        self._folder = root / _signature(job, config, owner)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        os.utime(self._folder)  # retention goes by the time of last use
        _retain(self._folder.parent)

    def get(self, name: str, lower: Callable[[], Lowered], devices: Sequence[jax.Device] | None = None) -> Compiled:
        """Return the program of this name: load it, or lower, compile and keep it. Any thread may call this.

        It runs on `devices`, by default on all of the run.
        """
        ids = None if devices is None else [device.id for device in devices]
        path = self._folder / hashlib.sha256(f"{name} {ids}".encode()).hexdigest()[:16]
        with told_of(Work.of_program(name)):
            return _load(path, self._key, devices) or self._compile_once(path, lower, devices)

    def _compile_once(self, path: Path, lower: Callable[[], Lowered], devices: Sequence[jax.Device] | None) -> Compiled:
        if not self._shares:
            return self._compile(path, lower)
        with _locked(path.with_suffix(".lock")):
            if kept := _load(path, self._key, devices):
                return kept
            compiled = self._compile(path, lower)
            # Load it as the other processes do: as compiled its collectives begin in their order, loaded in order each
            # of them ends before the next one begins, and processes must not differ in that.
            return _load(path, self._key, devices) or compiled

    def _compile(self, path: Path, lower: Callable[[], Lowered]) -> Compiled:
        compiled = lower().compile()
        partial = path.with_suffix(f".{secrets.token_hex(8)}")  # process ids would collide: pods count them alike
        content = pickle.dumps(serialize_executable.serialize(compiled))
        try:
            partial.write_bytes(_seal(self._key, path, content) + content)
            partial.replace(path)
        except OSError as error:  # a full disk; the run has its program, and only the next start takes longer
            print(f"{path}: cannot be kept ({error})", file=sys.stderr)  # noqa: T201  the process's log
            partial.unlink(missing_ok=True)
        return compiled


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
    return folder, hmac.digest(token, PROGRAMS.encode(), _SEAL)


def _seal(key: bytes, path: Path, content: bytes) -> bytes:
    """Seal the content together with its path, so that one program of the job cannot pass for another."""
    place = f"{path.parent.name}/{path.name}\0".encode()
    return hmac.digest(key, place + content, _SEAL)


def _load(path: Path, key: bytes, devices: Sequence[jax.Device] | None) -> Compiled | None:
    """Return the program kept there, or None. One that cannot be used is removed."""
    try:
        sealed = path.read_bytes()
    except OSError:  # there is none, or its volume fails: the program is compiled again
        return None
    seal, content = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
    try:
        if not hmac.compare_digest(seal, _seal(key, path, content)):
            raise ValueError("it is damaged, or not what was kept there")  # noqa: TRY301  handled as any other failure below
        binary, arguments, results = pickle.loads(content)  # noqa: S301  sealed by this job, or in our own folder
        program: Compiled = serialize_executable.deserialize_and_load(
            binary, arguments, results, execution_devices=devices
        )
    except Exception as error:  # noqa: BLE001  loading may raise anything; the program is compiled again
        print(f"{path}: cannot be used ({error}); compiling again", file=sys.stderr)  # noqa: T201  the process's log
        path.unlink(missing_ok=True)
        return None
    return program


def _signature(job: TrainingJob, config: GptConfig, rank: int | None) -> str:
    """Hash everything that decides what a program would be. The config stands for the tokenizer and the presets."""
    training = job.spec.training
    # A longer run of the same job finds its programs, unless its learning rate depends on the last step.
    changes_no_program = _CHANGES_NO_PROGRAM | (set() if falls_to_the_last_step(training.optimizer) else {"steps"})
    decides: dict[str, Any] = {
        "code": code_digest(),
        "versions": versions(),
        "machine": machine(),
        "devices": [[str(device), device.device_kind, device.process_index] for device in jax.devices()],
        "flags": {
            name: os.environ.get(name)
            for name in ("XLA_FLAGS", "NPROC", "LIBTPU_INIT_ARGS", "JAX_DEFAULT_MATMUL_PRECISION")
        },
        "options": xla_flags(job),
        "hardware": job.spec.hardware.model_dump(),
        "training": training.model_dump(exclude=changes_no_program),
        # Of the data what makes another loss: what is seen, and which answers are learned as good or bad.
        "loss": [training.data.attend_across, training.learns_preferences, training.has_unmatched],
        "skips": Judge(training.bad_steps).skips,
        "model": repr(config),
        "rank": rank,
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


def _retain(root: Path) -> None:
    """Remove the least recently used folders; other processes may be doing the same."""
    used = []
    for folder in root.iterdir():
        with suppress(FileNotFoundError):
            used.append((folder.stat().st_mtime, folder))
    for _, folder in sorted(used)[:-_KEEP]:
        shutil.rmtree(folder, ignore_errors=True)
