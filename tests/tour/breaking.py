"""Runs a tour as a person would, but compiled quickly, and with one idea at a time taken out.

Compiled as a person has it, a tour runs for its page (`make tour`): `test_tours.py` takes no change without that.
How a tour and its broken versions end as they should is kept outside of the checkout, by the content of all that they
could depend on; without the folder, and after a change of any of it, they run.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.tour.in_turn import HELD

from shardwise.train.executables import machine

ROOT = Path(__file__).parents[2]
TOURS = ROOT / "examples" / "tour"
ENDED = Path("~/.cache/shardwise/tours").expanduser()
"""By `_key`: how a tour and its broken versions have ended."""
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

    @property
    def outcome(self) -> str:
        """How it must end."""
        return f"AssertionError: {self.claim}"


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
        source = (TOURS / f"{tour}.py").read_text(encoding="utf-8")
        versions = {one.idea: _break(source, one, tour) for one in broken}
        kept = ENDED / f"{tour}-{_key(source, broken)}.json"
        if kept.exists():
            self._outcomes: dict[str, tuple[str, str]] = json.loads(kept.read_text(encoding="utf-8"))
            return
        self._outcomes = self._all(tour, versions, folder)
        if {idea: outcome for idea, (outcome, _) in self._outcomes.items()} == _wanted(broken):
            kept.parent.mkdir(parents=True, exist_ok=True)
            written = kept.with_suffix(f".{os.getpid()}")
            written.write_text(json.dumps(self._outcomes), encoding="utf-8")
            written.replace(kept)

    def _all(self, tour: str, versions: dict[str, str], folder: Path) -> dict[str, tuple[str, str]]:
        """Return how each version has ended and what it printed; that of the tour itself has the name ""."""
        found: dict[str, tuple[str, str]] = {}
        while "" not in found:
            left = {idea: text for idea, text in versions.items() if idea not in found}
            more = self._run(TOURS / f"{tour}.py", left, folder)
            assert more, f"{tour}: the process ended without a word:\n{self._said}"
            found |= more
        outcome, printed = found[""]
        if not outcome and not list((folder / "runs" / "tour" / tour).glob("*.png")):
            found[""] = "it saved no picture", printed
        return found

    def _run(self, script: Path, versions: dict[str, str], folder: Path) -> dict[str, tuple[str, str]]:
        results = folder / "outcomes.json"
        results.unlink(missing_ok=True)
        ended = subprocess.run(
            [*_OF_A_SMALL_PROCESS, sys.executable, str(IN_TURN), str(script), str(results)],
            input=json.dumps(list(versions.items())),
            cwd=folder,
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

    def assert_claim_fails(self, broken: Broken) -> None:
        """The broken tour must end at the assertion that makes the claim, and at no other error."""
        found = self._outcomes.get(broken.idea)
        assert found is not None, f"not run, for the tour ended before: {self._outcomes['']}"
        outcome, printed = found
        assert outcome == broken.outcome, f"{outcome[-2000:] or 'the tour does not notice'}\n{printed[-2000:]}"


def _wanted(broken: Sequence[Broken]) -> dict[str, str]:
    return {"": HELD} | {one.idea: one.outcome for one in broken}


def _break(source: str, broken: Broken, tour: str) -> str:
    assert source.count(broken.old) == 1, f"{broken.old!r} is not once in {tour}"
    return source.replace(broken.old, broken.new)


def _key(source: str, broken: Sequence[Broken]) -> str:
    """Return another text for anything that may change how a tour ends."""
    read = [IN_TURN, Path(__file__), ROOT / "requirements" / "dev.txt", *sorted((TOURS / "book").glob("*.py"))]
    trainer = ROOT / "trainer" / "shardwise"
    of_in_turn = [trainer / "train" / name for name in ("jax_private.py", "kept_order.py")]
    read += [*(TOURS / "show").glob("*.py"), *(trainer.rglob("*.py") if "shardwise" in source else of_in_turn)]
    parts = [source, repr(broken), os.environ["XLA_FLAGS"], platform.python_version(), machine()]
    parts += [f"{path.relative_to(ROOT)}\n{path.read_text(encoding='utf-8')}" for path in sorted(read)]
    return sha256("\0".join(parts).encode()).hexdigest()[:32]
