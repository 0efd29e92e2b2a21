"""Runs a tour as a person would, but compiled quickly, and with one idea at a time taken out.

Compiled as a person has it, a tour runs for its page (`make tour`): `test_tours.py` takes no change without that.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOURS = Path(__file__).parents[2] / "examples" / "tour"
IN_TURN = Path(__file__).with_name("in_turn.py")
TIMEOUT_SECONDS = 800
QUICKLY = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"
"""Most of the time goes into XLA's compiler, and no claim is about how well it does: half of that is saved so."""

# Linux counts into `ru_maxrss` what a process held before its exec, which is all that its parent held at its fork. So a
# shell is the parent: the processes of pytest hold more than some versions of a tour come to.
_OF_A_SMALL_PROCESS = ("sh", "-c", '"$@"; exit $?', "sh")


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """A tour with one idea taken out, and the claim that must then fail."""

    idea: str
    """What is broken, in a few words: the test's name."""
    old: str
    """Text that stands in the tour exactly once, within one cell."""
    new: str
    claim: str
    """The whole message of the assertion that must fail, with the values in it."""


class Outcomes:
    """How a tour ended, and how each of its broken versions did.

    All versions share a process as far as they can, which imports and compiles what they have in common once: a
    broken version begins with the names that the tour has before the broken cell.

    Args:
        tour: The name of the script, without `.py`.
        broken: What to break in it, one at a time.
        folder: Where it runs.
    """

    def __init__(self, tour: str, broken: Sequence[Broken], folder: Path) -> None:
        """Run it."""
        script = TOURS / f"{tour}.py"
        source = script.read_text(encoding="utf-8")
        waiting = {one.idea: _break(source, one, tour) for one in broken}
        self._tour, self._folder = tour, folder
        self._outcomes: dict[str, tuple[str, str]] = {}  # and what was printed
        while "" not in self._outcomes:
            left = {idea: text for idea, text in waiting.items() if idea not in self._outcomes}
            found = self._run(script, left)
            assert found, f"{tour}: the process ended without a word:\n{self._said}"
            self._outcomes |= found

    def _run(self, script: Path, versions: dict[str, str]) -> dict[str, tuple[str, str]]:
        results = self._folder / "outcomes.json"
        results.unlink(missing_ok=True)
        ended = subprocess.run(
            [*_OF_A_SMALL_PROCESS, sys.executable, str(IN_TURN), str(script), str(results)],
            input=json.dumps(list(versions.items())),
            cwd=self._folder,
            env={
                **os.environ,
                "NPROC": "32",
                "PYTHONPATH": str(TOURS),
                "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {QUICKLY}",
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        self._said = ended.stdout + ended.stderr
        found: dict[str, tuple[str, str]] = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
        return found

    def assert_it_holds(self) -> None:
        """The tour itself must run through, so that none of its assertions fails, and save a picture."""
        outcome, printed = self._outcomes[""]
        assert not outcome, f"{outcome}\n{printed[-2000:]}"
        assert list((self._folder / "runs" / "tour" / self._tour).glob("*.png"))

    def assert_claim_fails(self, broken: Broken) -> None:
        """The broken tour must end at the assertion that makes the claim, and at no other error."""
        found = self._outcomes.get(broken.idea)
        assert found is not None, f"not run, for the tour ended before: {self._outcomes['']}"
        outcome, printed = found
        assert outcome == f"AssertionError: {broken.claim}", (
            f"{outcome[-2000:] or 'the tour does not notice'}\n{printed[-2000:]}"
        )


def _break(source: str, broken: Broken, tour: str) -> str:
    assert source.count(broken.old) == 1, f"{broken.old!r} is not once in {tour}"
    return source.replace(broken.old, broken.new)
