"""Token stores made by real processes: killed half-way, several at once, with and without Ray."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

MAKER = Path(__file__).with_name("store_maker.py")
NUM_PARTS = 15


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data section over JSONL that makes NUM_PARTS parts, most of them of one file."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = [json.dumps({"text": f"line {number} of the corpus"}) + "\n" for number in range(7900)]
    lines += [json.dumps({"text": f"line {number} of the corpus"}) + "\n" for number in range(7850, 8000)]
    (folder / "a.jsonl").write_text("".join(lines[:7900]))
    (folder / "b.jsonl").write_text("".join(lines[7900:]))
    section = {"train": [{"name": "lines", "paths": [f"{folder}/*.jsonl"]}], "heldOut": 0.2, "dedup": "exact"}
    (folder / "data.json").write_text(json.dumps(section))
    return folder / "data.json"


@contextmanager
def maker(data: Path, to: Path, workers: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A running maker, ended with the block."""
    command = [sys.executable, str(MAKER), str(data), str(to), str(workers), *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str], start: str) -> str:
    """The line that begins so; fails if the process ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line.strip()
    raise AssertionError(f"no {start!r}")


def made(process: subprocess.Popen[str]) -> tuple[int, dict[str, bytes]]:
    """How many parts a maker has made by itself, and the files of the store."""
    _, number, folder = said(process, "made").split(" ", 2)
    return int(number), {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that one process makes."""
    with maker(data, tmp_path_factory.mktemp("undisturbed"), 0) as process:
        number, files = made(process)
    assert number == NUM_PARTS
    assert sorted(files) == ["index.json", *(f"part-{part:06d}.tokens" for part in range(NUM_PARTS))]
    return files


def _lives(process: psutil.Process) -> bool:
    """Whether it is more than an entry that its parent has not taken yet."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_killed_command_goes_on_with_what_is_there(data: Path, tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    """After kill -9 of four workers' driver, one process makes what is missing alone; one from the start, the same.

    None of Ray's processes stays: its agents would for a minute.
    """
    with maker(data, tmp_path, 4, "pause") as process:
        said(process, "paused")
        (folder,) = tmp_path.glob("lines-*")
        before = len(list(folder.glob("*.tokens")))
        of_ray = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
    _, there = psutil.wait_procs(of_ray, timeout=30)
    assert len(of_ray) > 5
    assert [each for each in there if _lives(each)] == []
    assert before >= NUM_PARTS // 2
    assert not (folder / "index.json").exists()

    with maker(data, tmp_path, 0) as process:
        number, files = made(process)

    assert 0 < number <= NUM_PARTS - before
    assert files == undisturbed


def test_two_commands_at_once_make_each_part_once(data: Path, tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    """One that comes to a part which the other has made takes it as it is; both end with the whole store."""
    with maker(data, tmp_path, 0, "pause") as first:
        said(first, "paused")
        with maker(data, tmp_path, 0) as second:
            second_number, second_files = made(second)
        assert first.stdin is not None
        first.stdin.write("go\n")
        first.stdin.flush()
        first_number, first_files = made(first)

    assert min(first_number, second_number) >= NUM_PARTS // 3
    assert first_number + second_number == NUM_PARTS
    assert first_files == second_files == undisturbed
