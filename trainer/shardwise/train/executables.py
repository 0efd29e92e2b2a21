"""Compiled programs, kept for each process of a run, so that a restart neither traces nor compiles.

JAX's own cache still traces, and on several CPU processes only the first one ever finds anything in it. Here a program
is looked up by all that decides what it would be: the code of this package, the versions, the devices and the flags,
the job, the place of the process. Called by the start.

Simulated hosts run the same program on the same processors: the first that needs it makes it for all. Real hosts each
make their own, at the same time, and XLA may have them divide the work of that.

What is kept is a pickle, which can run code when it is read. On a laptop the folder is this user's alone (mode 0700,
checked). In a pod it is on the job's volume, where others may write: what is read there has to be sealed with the job's
token, which only its pods have. Nothing is unpickled before its seal is seen to be right.
"""

import fcntl
import hashlib
import hmac
import json
import os
import pickle
import platform
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.stages import Compiled, Lowered

import shardwise
from shardwise.job.contract import PROGRAMS, PROGRAMS_KEY_VARIABLE, PROGRAMS_VARIABLE, cache_directory
from shardwise.job.spec import TrainingJob
from shardwise.train.bad_steps import Judge
from shardwise.train.config import GptConfig
from shardwise.train.optimizer import falls_to_the_last_step

_CHANGES_NO_PROGRAM = {"data", "checkpoint", "evaluation", "tracking", "bad_steps"}
_TRACING = {"equinox", "jmp", "marin-haliax", "numpy", "optax"}
_COMPILING = ("jax", "libtpu", "nvidia-")
_KEEP = 64
"""Programs of so many jobs and places stay; the oldest go."""
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
        """Make the folder if needed."""
        self._shares = _simulated()
        whose = None if self._shares else rank
        root, self._key = _place(whose)
        self._folder = root / _signature(job, config, whose)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        os.utime(self._folder)  # in use: retention goes by it
        _retain(self._folder.parent)

    def get(self, name: str, lower: Callable[[], Lowered], devices: Sequence[jax.Device] | None = None) -> Compiled:
        """The program of that name, loaded if it was kept, else lowered, compiled and kept. Any thread may call it.

        It runs on `devices`: all of the run's unless some are given.
        """
        ids = None if devices is None else [device.id for device in devices]
        path = self._folder / hashlib.sha256(f"{name} {ids}".encode()).hexdigest()[:16]
        return _load(path, self._key, devices) or self._get_or_make(path, lower, devices)

    def _get_or_make(self, path: Path, lower: Callable[[], Lowered], devices: Sequence[jax.Device] | None) -> Compiled:
        if not self._shares:
            return self._make(path, lower)
        with _alone(path.with_suffix(".lock")):
            if kept := _load(path, self._key, devices):
                return kept
            made = self._make(path, lower)
            # XLA may order the collectives of what it has just compiled differently from what was kept, which the other
            # processes load: then each waits for ever for a sum that the others are not at.
            return _load(path, self._key, devices) or made

    def _make(self, path: Path, lower: Callable[[], Lowered]) -> Compiled:
        compiled = lower().compile()
        partial = path.with_suffix(f".{secrets.token_hex(8)}")  # pods have the same process numbers
        content = pickle.dumps(serialize_executable.serialize(compiled))
        partial.write_bytes(_seal(self._key, path, content) + content)
        partial.replace(path)
        return compiled


def _simulated() -> bool:
    return str(jax.devices()[0].platform) == "cpu"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold off the others who need the same; one that is killed holds nothing any more."""
    with lock.open("w") as file:
        with suppress(OSError):  # a volume that knows no locks: then each makes its own
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
        lock.unlink(missing_ok=True)  # whoever comes now finds what was made


def _place(rank: int | None) -> tuple[Path, bytes]:
    """The folder of this rank's or all ranks' programs, and the key of their seals: the job's where others write."""
    shared = os.environ.get(PROGRAMS_VARIABLE)
    if shared is None:
        root = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache_directory() / "executables")
        return _private(root / PROGRAMS), b"this user's alone"
    folder = Path(shared) / ("all" if rank is None else f"rank-{rank}")
    token = Path(os.environ[PROGRAMS_KEY_VARIABLE]).read_bytes()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder, hmac.digest(token, PROGRAMS.encode(), _SEAL)


def _seal(key: bytes, path: Path, content: bytes) -> bytes:
    """Of a file in its place: a program of this job that was put in another's place is not what was asked for."""
    place = f"{path.parent.name}/{path.name}\0".encode()
    return hmac.digest(key, place + content, _SEAL)


def _load(path: Path, key: bytes, devices: Sequence[jax.Device] | None) -> Compiled | None:
    """The program that is kept there; None where there is none, or one that cannot be used, which is then removed."""
    try:
        sealed = path.read_bytes()
    except FileNotFoundError:
        return None
    seal, content = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
    try:
        if not hmac.compare_digest(seal, _seal(key, path, content)):
            raise ValueError("it is damaged, or not what was kept there")  # noqa: TRY301  one way out for all that is wrong
        made, arguments, results = pickle.loads(content)  # noqa: S301  sealed by this job, or in our own folder
        program: Compiled = serialize_executable.deserialize_and_load(
            made, arguments, results, execution_devices=devices
        )
    except Exception as error:  # noqa: BLE001  what XLA cannot load can raise anything; the program is made anew
        print(f"{path}: cannot be used ({error}); compiling again", file=sys.stderr)  # noqa: T201  the process's log
        path.unlink(missing_ok=True)
        return None
    return program


def _private(folder: Path) -> Path:
    """The folder, which nobody else may write to or read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)  # raises where it is somebody else's
    return folder


def _signature(job: TrainingJob, config: GptConfig, rank: int | None) -> str:
    """All that decides what a program would be. The tokenizer and the presets have gone into the config."""
    training = job.spec.training
    # A run that only goes on for longer finds its programs.
    changes_no_program = _CHANGES_NO_PROGRAM | (set() if falls_to_the_last_step(training.optimizer) else {"steps"})
    decides: dict[str, Any] = {
        "code": _code(),
        "versions": _versions(),
        "machine": machine(),
        "devices": [[str(device), device.device_kind, device.process_index] for device in jax.devices()],
        "flags": {
            name: os.environ.get(name)
            for name in ("XLA_FLAGS", "NPROC", "LIBTPU_INIT_ARGS", "JAX_DEFAULT_MATMUL_PRECISION")
        },
        "hardware": job.spec.hardware.model_dump(),
        "training": training.model_dump(exclude=changes_no_program) | {"attend": training.data.attend_across},
        "skips": Judge(training.bad_steps).skips,
        "model": repr(config),
        "rank": rank,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _versions() -> dict[str, str]:
    """Of all that traces or compiles: a new image may bring another one to the same volume."""
    found = {"shardwise": shardwise.__version__, "python": platform.python_version()}
    for distribution in distributions():
        name = distribution.name.lower()
        if name in _TRACING or name.startswith(_COMPILING):
            found[name] = distribution.version
    return found


@cache
def _code() -> str:
    """A fingerprint of this package's sources."""
    root = Path(shardwise.__file__).parent
    digest = hashlib.sha256()
    for path in sorted((*(root / "job").rglob("*.py"), *(root / "train").rglob("*.py"))):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def machine() -> str:
    """The processor's name and abilities: a program made for another one may use instructions that this one lacks."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


def _retain(root: Path) -> None:
    """Remove the folders that were used the longest ago; other processes may be doing the same."""
    used = []
    for folder in root.iterdir():
        with suppress(FileNotFoundError):
            used.append((folder.stat().st_mtime, folder))
    for _, folder in sorted(used)[:-_KEEP]:
        shutil.rmtree(folder, ignore_errors=True)
