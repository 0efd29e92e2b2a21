"""Runs a tour as a person would, as it stands or with one line of it broken."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TOURS = Path(__file__).parents[2] / "examples" / "tour"
TIMEOUT_SECONDS = 600


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """A tour with one idea taken out, and the claim that must then fail."""

    idea: str
    """What is broken, in a few words: the test's name."""
    old: str
    """Text that stands in the tour exactly once."""
    new: str
    claim: str
    """Of the message of the assertion that must fail."""


def run_tour(tour: str, folder: Path, broken: Broken | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tour in a folder, which gets its pictures.

    Args:
        tour: The name of the script, without `.py`.
        folder: Where it runs.
        broken: What to break in it first.
    """
    source = (TOURS / f"{tour}.py").read_text(encoding="utf-8")
    if broken is not None:
        assert source.count(broken.old) == 1, f"{broken.old!r} is not once in {tour}"
        source = source.replace(broken.old, broken.new)
    script = folder / f"{tour}.py"
    script.write_text(source, encoding="utf-8")
    environment = {**os.environ, "NPROC": "32", "PYTHONPATH": str(TOURS)}
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def assert_claim_fails(tour: str, folder: Path, broken: Broken) -> None:
    """The broken tour must end at the assertion that makes the claim, and at no other error."""
    ended = run_tour(tour, folder, broken)
    last = ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else ""

    assert ended.returncode != 0, f"{broken.idea}: the tour does not notice"
    assert last.startswith("AssertionError: "), f"{broken.idea}: {ended.stderr[-2000:]}"
    assert broken.claim in last
