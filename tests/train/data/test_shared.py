"""Stores that the hosts of a run make together, by real processes that meet as those of a run do."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardwise.launcher.system.ports import free_port
from shardwise.train.data.shared import SharedProgress

SHARER = Path(__file__).with_name("sharer.py")
NUM_PARTS = 15
NUM_HOSTS = 3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data section over JSONL whose store has NUM_PARTS parts; one line of ten is there twice."""
    lines = [json.dumps({"text": f"line {number - number % 10 // 9} of the corpus"}) + "\n" for number in range(8050)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    source = {"name": "lines", "paths": [str(tmp_path / "a.jsonl")]}
    section = {"train": [source], "heldOut": 0.2, "dedup": "exact", "store": str(tmp_path / "tokens")}
    (tmp_path / "data.json").write_text(json.dumps(section))
    return tmp_path / "data.json"


@contextmanager
def hosts(data: Path, *, pause: bool = False) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of an attempt; ended with the block."""
    port = str(free_port("127.0.0.1"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    made = []
    try:
        for rank in reversed(range(NUM_HOSTS)):
            cache = data.parent / f"cache-{rank}"  # each has a disk of its own
            command = [sys.executable, str(SHARER), str(rank), str(NUM_HOSTS), port, str(data), str(cache)]
            pipe = subprocess.PIPE
            command += ["pause"] if pause else []
            made.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment))
        yield made
    finally:
        for process in made:
            process.kill()
            process.communicate()


def said(process: subprocess.Popen[str], last: str) -> list[str]:
    """The lines until one begins so; fails if the process ends before."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith(last):
            return lines
    raise AssertionError(f"no {last!r} after {lines}")


def parts_of(lines: list[list[str]]) -> Counter[int]:
    """How often each part was made."""
    return Counter(int(line.split()[1]) for each in lines for line in each if line.startswith("made"))


def test_what_all_hosts_have_done_is_asked_for_no_more() -> None:
    """Once all is done, a host that looks at what the others have made spares the coordinator a request for each."""
    said, asked, counter = list[str](), list[str](), Counter[str]()

    class All:
        def add(self, name: str, amount: int) -> int:
            asked.append(name)
            counter[name] += amount
            return counter[name]

        def exchange(self, name: str, text: str) -> list[str]:
            raise AssertionError(name, text)

    progress = SharedProgress(All(), said.append, lambda _: None)
    progress("reading", 0, 0, 10_000_000)
    counter["bytes/reading"] += 9_000_000  # of other hosts
    for done in range(1, 11):
        progress("reading", 0, done * 1_000_000, 10_000_000)
    assert (len(asked), len(said)) == (2, 11)
    assert said[-1].startswith("reading: 10.0 of 10.0 MB")
    progress("tokenising", 0, 0, 10_000_000)
    assert said[-1].startswith("tokenising: 0.0 of 10.0 MB")


def test_each_part_is_made_by_one_host_and_read_by_all(data: Path) -> None:
    """Three hosts share the parts; all have the tokens that one alone would have made, and say how far all are."""
    with hosts(data) as processes:
        lines = [said(process, "tokens") for process in processes]

    assert parts_of(lines) == Counter(range(NUM_PARTS))
    assert len({each[-1] for each in lines}) == 1
    assert all(line.startswith("made") for each in lines for line in each if line.startswith("m"))
    progress = [line for each in lines for line in each if line.startswith("tokenising lines: ")]
    assert progress[-1].startswith("tokenising lines: 0.3 of 0.3 MB")
    index = json.loads(next((data.parent / "tokens").glob("lines-*/index.json")).read_text())
    assert (len(index["parts"]), index["num_removed"]) == (NUM_PARTS, 805)


def test_hosts_that_are_killed_go_on_with_what_is_there(data: Path) -> None:
    """After kill -9 of all hosts half-way the next attempt makes only the parts that are missing, to the same bytes."""
    with hosts(data, pause=True) as processes:
        for process in processes:
            said(process, "paused")
        for process in processes:
            process.kill()
    (folder,) = (data.parent / "tokens").glob("lines-*")
    before = {int(path.name[5:11]): path.read_bytes() for path in folder.glob("*.tokens")}

    with hosts(data) as processes:
        lines = [said(process, "tokens") for process in processes]

    assert len(before) >= 2 * NUM_HOSTS
    assert parts_of(lines) == Counter(set(range(NUM_PARTS)) - set(before))
    assert all((folder / f"part-{number:06d}.tokens").read_bytes() == content for number, content in before.items())
