"""Programs that are kept: a new process finds them and computes the same, and finds none where anything differs."""

import errno
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Lowered
from tests.train.conftest import SMALL, runs_here

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.protocol.contract import PROGRAMS, PROGRAMS_KEY_VARIABLE, PROGRAMS_VARIABLE
from shardwise.train import executables
from shardwise.train.config import GptConfig
from shardwise.train.layout import Layout
from shardwise.train.sealed_files import SealedFiles, retain_bytes, retain_folders, used
from shardwise.train.state import Program, flat

FOUND, TRACED, MADE = range(3)
OWN_PROCESS = """
import json, os, resource, sys
from tests.train.test_executables import start
if "FULL" in os.environ:
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
print(json.dumps(start(*sys.argv[1:])))
"""


def start(rank: str, *changes: str) -> tuple[int, float]:
    """Have the small job's first state made as a trainer of this rank does it, and sum it up.

    Say whether the program for it was found, traced, or compiled too.
    """
    job = resolve(loads(SMALL, changes))
    training = job.spec.training
    config = GptConfig.of(training, tokenizer_size=257, platform="cpu")
    program = Program.of(training, Layout.of(training, jax.devices()), config)
    lowered: list[bool] = []
    compiled: list[str] = []

    def lower() -> Lowered:
        lowered.append(True)
        return program.lower_init()

    def heard(event: str, duration_secs: float, **__: str | int) -> None:  # noqa: ARG001  a listener
        compiled.extend([event] if event == "/jax/core/compile/backend_compile_duration" else [])

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        made = executables.Executables(job, config, int(rank)).get("init", lower)
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
    total = sum(float(np.abs(np.asarray(leaf)).sum()) for leaf in flat(made()).values())
    return bool(lowered) + bool(compiled), total


def _in_a_process(folder: Path, *arguments: str, **variables: str) -> tuple[int, float]:
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment |= variables
    command = [sys.executable, "-c", OWN_PROCESS, *arguments]
    root = Path(__file__).parents[2]
    made, total = json.loads(subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True).stdout)
    return made, total


def _start(folder: Path, *arguments: str, **variables: str) -> tuple[int, float]:
    with runs_here(folder), pytest.MonkeyPatch.context() as patch:
        for name, value in {"JAX_COMPILATION_CACHE_DIR": str(folder), **variables}.items():
            patch.setenv(name, value)
        return start(*arguments)


def _signature(job: TrainingJob, config: GptConfig) -> str:
    return executables._signature(executables._surroundings(job, 0), job, config)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return a folder in which the program of rank 0 is kept, and what it computes."""
    folder = tmp_path_factory.mktemp("programs")
    made, total = _in_a_process(folder, "0")
    assert made == MADE
    return folder, total


def test_a_new_process_neither_traces_nor_compiles(kept: tuple[Path, float]) -> None:
    """The same job finds its program and computes the same; length, cadence, origin and budgets change nothing."""
    folder, total = kept
    changes = (
        "training.steps=7",
        "training.checkpoint.everySteps=7",
        "training.startFrom.path=other",
        "recovery.hangAfter=1m",
    )
    assert _in_a_process(folder, "0", *changes) == (FOUND, total)


def test_what_decides_a_program_is_looked_at(kept: tuple[Path, float], tmp_path: Path) -> None:
    """Another job gets a program of its own."""
    shutil.copytree(kept[0], tmp_path, dirs_exist_ok=True)
    made, _ = _start(tmp_path, "0", "training.seed=1")
    assert made == MADE


@pytest.mark.parametrize(
    ("words", "code"),
    [(["training.optimizer.learningRate=3e-4"], executables.code_digest()), ([], "of a newer release")],
    ids=["another job", "a newer release"],
)
def test_the_same_text_is_compiled_once(
    kept: tuple[Path, float], tmp_path: Path, words: list[str], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs in nothing that the compiler sees is traced, and found the next time."""
    folder, total = kept
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)

    with monkeypatch.context() as patch:
        patch.setattr(executables, "code_digest", lambda: code)
        assert _start(tmp_path, "0", *words) == (TRACED, total)
        assert _start(tmp_path, "0", *words) == (FOUND, total)
    assert _start(tmp_path, "0") == (FOUND, total)


def _lowered(
    devices: Sequence[int] = (0, 1), options: dict[str, bool] | None = None, kept: int = 0, output: str = "a"
) -> Lowered:
    places = NamedSharding(Mesh([jax.devices()[device] for device in devices], "x"), PartitionSpec("x"))
    takes = jax.ShapeDtypeStruct((4,), np.float32, sharding=places)
    jitted = jax.jit(lambda *both: {output: both[kept] + 1}, compiler_options=options)
    return jitted.lower(takes, takes)


def test_what_the_compiler_is_told_beside_the_text_makes_another_program() -> None:
    """Programs of one text are others on other devices, in another order, or with other options, inputs or outputs."""
    lowered = [
        _lowered(),
        _lowered(devices=(1, 0)),
        _lowered(devices=(2, 3)),
        _lowered(options={"xla_cpu_enable_fast_math": True}),
        _lowered(kept=1),
        _lowered(output="b"),
    ]
    assert len({executables._digest_of({}, each) for each in lowered}) == len(lowered)
    assert executables._digest_of({}, _lowered()) == executables._digest_of({}, lowered[0])
    assert executables._digest_of({"flags": []}, lowered[0]) != executables._digest_of({}, lowered[0])


def test_another_library_makes_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new image on an old volume: what traces or compiles is looked at, by version."""
    job = resolve(loads(SMALL, []))
    config = GptConfig.of(job.spec.training, tokenizer_size=257, platform="cpu")
    before = _signature(job, config)
    found = executables.versions()
    assert {"jax", "jaxlib", "equinox", "marin-haliax", "optax", "jmp"} <= found.keys()

    monkeypatch.setattr(executables, "versions", lambda: found | {"optax": "0.0.0"})
    assert _signature(job, config) != before


def test_another_loss_makes_another_program() -> None:
    """Adapters that learn from conversations or from pairs have the same arrays, and another step."""
    words = ["training.lora.rank=4", "training.startFrom={path: a, step: 4}"]
    text, source = "training.data={attendAcross: document, train: [%s]}", "name: a, paths: [b], chatTemplate: chatml"
    kto = "training.loss.preferences=kto"
    jobs = [
        loads(SMALL, [*words, text % f"{{{source}}}"]),
        loads(SMALL, [*words, text % f"{{{source}, preferences: true}}"]),
        loads(SMALL, [*words, text % f"{{{source}, labels: true}}", kto]),
    ]
    config = GptConfig.of(resolve(jobs[0]).spec.training, tokenizer_size=257, platform="cpu")
    assert len({_signature(resolve(job), config) for job in jobs}) == 3


def test_other_options_of_its_class_make_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class whose flags are changed compiles anew: no program of the old ones is used without a word."""
    job = resolve(loads(SMALL, []))
    config = GptConfig.of(job.spec.training, tokenizer_size=257, platform="cpu")
    before = _signature(job, config)

    monkeypatch.setattr(executables, "xla_flags", lambda _: ["--xla_cpu_enable_fast_math=true"])
    assert _signature(job, config) != before


def test_a_program_on_a_volume_that_fails_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stale handle ends no start: the program is compiled again."""

    def stale(path: Path) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "read_bytes", stale)
    assert SealedFiles(b"").read(tmp_path / "program", bytes) is None


def test_simulated_hosts_make_a_program_once(tmp_path: Path) -> None:
    """Of three ranks that need it at the same time one makes it, and all compute the same."""
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(partial(_in_a_process, tmp_path), "012"))
    assert sorted(made for made, _ in said) == [FOUND, FOUND, MADE]
    assert len({total for _, total in said}) == 1


NAMES = "?[!y]*/*"
"""Files of names, by job: their folders are of hexadecimal digits, and the one beside them is `by-text`."""


@pytest.mark.parametrize(("damaged", "costs"), [("programs/by-text/*", MADE), (f"programs/{NAMES}", TRACED)])
def test_a_damaged_program_is_made_anew(kept: tuple[Path, float], tmp_path: Path, damaged: str, costs: int) -> None:
    """A file that was cut short ends no start: it is replaced, and found whole the next time."""
    folder, total = kept
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (file,) = tmp_path.glob(damaged)
    file.write_bytes(file.read_bytes()[:-20])

    assert (_start(tmp_path, "0"), _start(tmp_path, "0")) == ((costs, total), (FOUND, total))


def test_a_program_that_cannot_be_kept_is_used(kept: tuple[Path, float], tmp_path: Path) -> None:
    """A full disk costs the next start its time, and nothing else: no part of a file is left."""
    assert _in_a_process(tmp_path, "0", FULL="yes") == (MADE, kept[1])
    assert not [*tmp_path.glob("programs/*/*")]
    assert _start(tmp_path, "0") == (MADE, kept[1])


def test_the_programs_that_were_used_last_stay(tmp_path: Path) -> None:
    """Beyond so many jobs the oldest go, beyond so many bytes the oldest programs, and never the newest one."""
    for age in range(5):
        folder = tmp_path / f"{age:03}"
        folder.mkdir()
        (folder / "program").write_bytes(b"program of a job")
        os.utime(folder, (1000 - age, 1000 - age))
    retain_folders(tmp_path, 2, but="004")
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["000", "001", "004"]

    for age in range(5):
        (tmp_path / "004" / f"program-{age}").write_bytes(bytes(100))
        os.utime(tmp_path / "004" / f"program-{age}", (1000 - age, 1000 - age))
    used(tmp_path / "004" / "program-3")
    (tmp_path / "004" / "program").unlink()
    retain_bytes(tmp_path / "004", 300)
    assert sorted(file.name for file in (tmp_path / "004").iterdir()) == ["program-0", "program-1", "program-3"]
    retain_bytes(tmp_path / "004", 99)
    assert [file.name for file in (tmp_path / "004").iterdir()] == ["program-3"]


def test_nobody_else_may_write_them(kept: tuple[Path, float]) -> None:
    """A pickle runs code when it is read, so the folder is the user's alone."""
    assert stat.S_IMODE((kept[0] / "programs").stat().st_mode) == 0o700


@pytest.mark.parametrize("real", [False, True], ids=["simulated", "real hosts"])
def test_on_a_volume_only_programs_of_this_job_are_read(
    tmp_path: Path,
    real: bool,  # noqa: FBT001  a column
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a pod the next pod finds a program, where hosts are real its own; one sealed by another job is not read."""
    monkeypatch.setattr(executables, "simulated", lambda: not real)
    tokens = [tmp_path / name for name in ("ours", "theirs")]
    for token in tokens:
        token.write_text(token.name)
    ours, theirs = (
        {PROGRAMS_VARIABLE: str(tmp_path / "volume"), PROGRAMS_KEY_VARIABLE: str(token)} for token in tokens
    )
    made, total = _start(tmp_path, "0", **ours)

    assert made == MADE
    assert _start(tmp_path, "0", **ours) == (FOUND, total)
    assert _start(tmp_path, "1", **ours) == (MADE if real else FOUND, total)
    assert _start(tmp_path, "0", **theirs) == (MADE, total)
    assert not (tmp_path / PROGRAMS).exists()


@pytest.mark.parametrize(("places", "costs"), [("by-text/*", MADE), (NAMES, TRACED)], ids=["program", "name"])
def test_a_program_in_anothers_place_is_not_read(
    kept: tuple[Path, float], tmp_path: Path, places: str, costs: int
) -> None:
    """Whole as it is, a program that was kept for one job is not taken for the same program of another job."""
    shutil.copytree(kept[0], tmp_path, dirs_exist_ok=True)
    changed = ("0", "training.seed=3")
    _, total = _start(tmp_path, *changed)
    other, mine = sorted((tmp_path / PROGRAMS).glob(places), key=lambda path: path.stat().st_mtime_ns)
    mine.write_bytes(other.read_bytes())

    assert (_start(tmp_path, *changed), _start(tmp_path, *changed)) == ((costs, total), (FOUND, total))


def test_a_process_that_hangs_with_the_lock_keeps_nobody_from_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said what is waited for, and the lock stays its own."""
    monkeypatch.setattr(executables, "_LOCK_SECONDS", 0.3)
    monkeypatch.setattr(executables, "_TELL_SECONDS", 0.0)
    lock = tmp_path / "program.lock"
    with lock.open("w") as hanging:
        fcntl.flock(hanging, fcntl.LOCK_EX)
        with executables._locked(lock):
            pass
        assert lock.exists()
    with executables._locked(lock):
        pass

    assert not lock.exists()
    waiting, without = capsys.readouterr().err.splitlines()
    assert waiting == f"{lock}: waiting for the process that compiles this program"
    assert without.startswith(f"{lock}: held for 0 s; compiling without it")
