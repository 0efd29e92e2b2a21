"""The cache under real processes: killed half-way, and two at once."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BUILDER = Path(__file__).with_name("builder.py")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """About 20 MB of JSONL: more than two batches."""
    path = tmp_path / "corpus.jsonl"
    with path.open("w") as handle:
        for number in range(200):
            handle.write(json.dumps({"text": f"{number} " * 25_000}) + "\n")
    return path


@contextmanager
def builder(cache: Path, corpus: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A running builder, ended with the block."""
    command = [sys.executable, str(BUILDER), str(cache), str(corpus), *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: subprocess.Popen[str], start: str) -> list[str]:
    """The lines up to the one that starts so; fails if the process ends before."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith(start):
            return lines
    raise AssertionError(f"no {start!r} in {lines}")


def go_on(process: subprocess.Popen[str]) -> None:
    """Lets a paused builder go on."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def build(cache: Path, corpus: Path) -> list[str]:
    """All lines of a builder that runs alone."""
    with builder(cache, corpus) as process:
        return lines_until(process, "tokens")


def names(cache: Path, ending: str) -> list[str]:
    """Names in the cache's data folder with this ending."""
    return [path.name for path in (cache / "data").iterdir() if path.name.endswith(ending)]


def test_a_build_killed_half_way_leaves_nothing_that_is_read(tmp_path: Path, corpus: Path) -> None:
    """After kill -9 in mid-build, the next start builds anew, gives what an undisturbed one gives, and cleans up."""
    cache = tmp_path / "cache"
    with builder(cache, corpus, "pause") as process:
        lines_until(process, "paused")
        (half_built,) = (cache / "data").glob("*.building")
        assert (half_built / "train-00000.bin").stat().st_size > 1_000_000
        process.kill()
        process.wait()
    assert names(cache, ".building")

    lines = build(cache, corpus)

    assert sum(line.startswith("report tokenised") for line in lines) == 1
    assert lines[-1] == build(tmp_path / "undisturbed", corpus)[-1]
    assert not names(cache, ".building")


def test_rubbish_of_another_corpus_is_removed_unless_it_is_being_built(tmp_path: Path, corpus: Path) -> None:
    """A builder clears what dead builders of any corpus left, and touches no living one's."""
    cache, second, third = tmp_path / "cache", tmp_path / "second.jsonl", tmp_path / "third.jsonl"
    second.write_text(corpus.read_text() + json.dumps({"text": "more"}))
    third.write_text("".join(json.dumps({"text": f"{number} " * 50}) + "\n" for number in range(100)))
    with builder(cache, corpus, "pause") as dead:
        lines_until(dead, "paused")
        dead.kill()
        dead.wait()
    with builder(cache, second, "pause") as alive:
        lines_until(alive, "paused")
        (living,) = names(cache, ".building")

        build(cache, third)

        assert names(cache, ".building") == [living]
        go_on(alive)
        assert lines_until(alive, "tokens")


def test_two_builders_at_once_build_once(tmp_path: Path, corpus: Path) -> None:
    """The second says that it waits, uses what the first built, and both read the same tokens."""
    cache = tmp_path / "cache"
    with builder(cache, corpus, "pause") as first:
        lines_until(first, "paused")
        with builder(cache, corpus) as second:
            waited = lines_until(second, "report waiting for another process")
            go_on(first)
            first_lines, second_lines = lines_until(first, "tokens"), lines_until(second, "tokens")

    assert first_lines[-1] == second_lines[-1]
    assert not any(line.startswith("report tokenis") for line in waited + second_lines)
    assert any(line.startswith("report tokenised") for line in first_lines)
