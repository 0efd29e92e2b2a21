"""Programs that are kept: a new process finds them and computes the same, and finds none where anything differs."""

import errno
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.train.conftest import SMALL

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.protocol.contract import PROGRAMS, PROGRAMS_KEY_VARIABLE, PROGRAMS_VARIABLE
from shardwise.train import executables
from shardwise.train.config import GptConfig

SCRIPT = """
import json, os, resource, sys
import jax, numpy as np
from tests.train.conftest import SMALL
from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.train.config import GptConfig
from shardwise.train import executables
from shardwise.train.layout import Layout
from shardwise.train.state import Program, flat
rank, *changes = sys.argv[1:]
if "REAL_HOSTS" in os.environ:
    executables.simulated = lambda: False
if "FULL" in os.environ:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
job = resolve(loads(SMALL, changes))
training = job.spec.training
config = GptConfig.of(training, tokenizer_size=257, platform="cpu")
program = Program.of(training, Layout.of(training, jax.devices()), config)
lowered = []
def lower():
    lowered.append(True)
    return program.lower_init()
state = executables.Executables(job, config, int(rank)).get("init", lower)()
total = sum(float(np.abs(np.asarray(leaf)).sum()) for leaf in flat(state).values())
print(json.dumps([bool(lowered), total]))
"""


def _start(folder: Path, *arguments: str, **variables: str) -> tuple[bool, float]:
    """Whether a process had to make the program, and what it computed with it."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment |= variables
    command = [sys.executable, "-c", SCRIPT, *arguments]
    root = Path(__file__).parents[2]
    made, total = json.loads(subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True).stdout)
    return made, total


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return a folder in which the program of rank 0 is kept, and what it computes."""
    folder = tmp_path_factory.mktemp("programs")
    made, total = _start(folder, "0")
    assert made
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
    assert _start(folder, "0", *changes) == (False, total)


def test_what_decides_a_program_is_looked_at(kept: tuple[Path, float], tmp_path: Path) -> None:
    """Another job gets a program of its own."""
    shutil.copytree(kept[0], tmp_path, dirs_exist_ok=True)
    made, _ = _start(tmp_path, "0", "training.seed=1")
    assert made


def test_another_library_makes_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new image on an old volume: what traces or compiles is looked at, by version."""
    job = resolve(loads(SMALL, []))
    config = GptConfig.of(job.spec.training, tokenizer_size=257, platform="cpu")
    before = executables._signature(job, config, 0)
    found = executables.versions()
    assert {"jax", "jaxlib", "equinox", "marin-haliax", "optax", "jmp"} <= found.keys()

    monkeypatch.setattr(executables, "versions", lambda: found | {"optax": "0.0.0"})
    assert executables._signature(job, config, 0) != before


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
    assert len({executables._signature(resolve(job), config, 0) for job in jobs}) == 3


def test_other_options_of_its_class_make_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class whose flags are changed compiles anew: no program of the old ones is used without a word."""
    job = resolve(loads(SMALL, []))
    config = GptConfig.of(job.spec.training, tokenizer_size=257, platform="cpu")
    before = executables._signature(job, config, 0)

    monkeypatch.setattr(executables, "xla_flags", lambda _: ["--xla_cpu_enable_fast_math=true"])
    assert executables._signature(job, config, 0) != before


def test_a_program_on_a_volume_that_fails_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stale handle ends no start: the program is compiled again."""

    def stale(path: Path) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "read_bytes", stale)
    assert executables._load(tmp_path / "program", b"", None) is None


def test_simulated_hosts_make_a_program_once(tmp_path: Path) -> None:
    """Of three ranks that need it at the same time one makes it, and all compute the same."""
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(partial(_start, tmp_path), "012"))
    assert sorted(made for made, _ in said) == [False, False, True]
    assert len({total for _, total in said}) == 1


def test_a_damaged_program_is_made_anew(kept: tuple[Path, float], tmp_path: Path) -> None:
    """A file that was cut short ends no start: it is replaced, and found whole the next time."""
    folder, total = kept
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (program,) = tmp_path.glob("programs/*/*")
    program.write_bytes(program.read_bytes()[:1000])

    assert (_start(tmp_path, "0"), _start(tmp_path, "0")) == ((True, total), (False, total))


def test_a_program_that_cannot_be_kept_is_used(kept: tuple[Path, float], tmp_path: Path) -> None:
    """A full disk costs the next start its time, and nothing else: no part of a file is left."""
    assert _start(tmp_path, "0", FULL="yes") == (True, kept[1])
    assert not [*tmp_path.glob("programs/*/*")]
    assert _start(tmp_path, "0") == (True, kept[1])


def test_the_programs_that_were_used_last_stay(tmp_path: Path) -> None:
    """Beyond so many jobs and places the oldest go, and one that is gone already is no error."""
    for age in range(executables._KEEP + 2):
        folder = tmp_path / f"{age:03}"
        folder.mkdir()
        (folder / "program").touch()
        os.utime(folder, (1000 - age, 1000 - age))
    executables._retain(tmp_path)

    assert sorted(folder.name for folder in tmp_path.iterdir()) == [f"{age:03}" for age in range(executables._KEEP)]


def test_nobody_else_may_write_them(kept: tuple[Path, float]) -> None:
    """A pickle runs code when it is read, so the folder is the user's alone."""
    assert stat.S_IMODE((kept[0] / "programs").stat().st_mode) == 0o700


@pytest.mark.parametrize("real", [False, True], ids=["simulated", "real hosts"])
def test_on_a_volume_only_programs_of_this_job_are_read(tmp_path: Path, real: bool) -> None:  # noqa: FBT001  a column
    """In a pod the next pod finds a program, where hosts are real its own; one sealed by another job is not read."""
    tokens = [tmp_path / name for name in ("ours", "theirs")]
    for token in tokens:
        token.write_text(token.name)
    ours, theirs = (
        {PROGRAMS_VARIABLE: str(tmp_path / "volume"), PROGRAMS_KEY_VARIABLE: str(token)}
        | ({"REAL_HOSTS": ""} if real else {})
        for token in tokens
    )
    made, total = _start(tmp_path, "0", **ours)

    assert made
    assert _start(tmp_path, "0", **ours) == (False, total)
    assert _start(tmp_path, "1", **ours) == (real, total)
    assert _start(tmp_path, "0", **theirs) == (True, total)
    assert not (tmp_path / PROGRAMS).exists()


def test_a_program_in_anothers_place_is_not_read(kept: tuple[Path, float]) -> None:
    """Whole as it is, a program that was kept for one job is not taken for the same program of another job."""
    folder, _ = kept
    changed = ("0", "training.seed=3")
    _, total = _start(folder, *changed)
    newest = sorted((folder / PROGRAMS).iterdir(), key=lambda path: path.stat().st_mtime_ns)
    (mine,), (other,) = newest[-1].iterdir(), newest[0].iterdir()
    mine.write_bytes(other.read_bytes())

    assert (_start(folder, *changed), _start(folder, *changed)) == ((True, total), (False, total))


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
