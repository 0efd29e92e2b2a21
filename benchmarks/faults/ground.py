"""Runs that are disturbed, on two simulated hosts: their folder, what is seen of them, and what becomes of that.

Called by the modules of the faults.
"""

import atexit
import shutil
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from benchmarks.faults import bucket
from benchmarks.faults.disturbed import MODULE
from benchmarks.faults.outcome import EQUAL, Outcome
from benchmarks.faults.plan import CLOCK_VARIABLE, Fault, Plan, go, were_put
from benchmarks.faults.watch import Told, Watch, way_back
from benchmarks.turns import ROOT
from tests.cli.conftest import COMMAND
from tests.cli.running import LIMIT_SECONDS, Run
from tests.cli.shell import Shell
from tests.hosts.conftest import CHANGES

from shardwise.launcher.system.ports import free_port
from shardwise.protocol.contract import CHECKPOINTS, METRICS, Cause, ExitCode, checkpoint_name

RESTORED_STEP = 12
"""Of the checkpoint that a run goes on from which is disturbed while it restores."""


class BrokenPromiseError(Exception):
    """A run did not end as it must; the message says how it ended."""


class Disturbed:
    """A run to which something is done."""

    def __init__(self, ground: "Ground", name: str, plan: Plan, changes: Sequence[str]) -> None:
        """Start it."""
        self._ground, self._name, self._changes = ground, name, changes
        self.directory = ground.shell.folder / name
        plan.write(self.directory)
        self.watch = Watch(self.directory)
        self.run: Run = ground.shell.begin(name, *changes)
        self._put_at: float | None = None

    def until_put(self) -> None:
        """Wait until a trainer has done what was planned; where that is to wait, it does."""
        self.run.until(lambda: bool(were_put(self.directory)))

    def until_stepping(self) -> None:
        """Wait until a step is complete."""
        self.until_told(lambda told: told.file == METRICS and told.event is None)

    def let_go(self) -> None:
        """Have the trainer that waits go on."""
        go(self.directory).touch()

    def put_now(self) -> None:
        """Say that the fault is put at this moment, from outside."""
        self._put_at = time.time()

    def again(self) -> None:
        """Give the same command once more."""
        self.run = self._ground.shell.begin(self._name, *self._changes)

    def until_told(self, wanted: Callable[[Told], bool]) -> Told:
        """Wait until the run says it; what it said."""
        found: list[Told] = []

        def there() -> bool:
            found.extend(told for told in [*self.watch.told] if wanted(told))
            return bool(found)

        self.run.until(there)
        return found[0]

    def outcome(
        self,
        *,
        charged: Mapping[str, int],
        cause: str | None = None,
        code: ExitCode = ExitCode.OK,
        like: Sequence[str] | None = (),
        otherwise: str = "the run has ended",
        told: Told | None = None,
        note: str = "",
    ) -> Outcome:
        """Wait for the end, hold it against what was promised, and tell.

        Args:
            charged: restarts by cause.
            cause: why the run has failed, or what is told though nothing is charged.
            code: the exit code of the command.
            like: the changes of the job whose undisturbed run must end with the same bits; None where there is none.
            otherwise: why there is none.
            told: what told the fault; None is the first thing that a run without one would not say.
            note: see `Outcome`.

        """
        ended = self.run.command.wait(LIMIT_SECONDS)
        self.watch.end()
        if ended != code:
            raise BrokenPromiseError(f"the command has ended with {ended}, not {code}: {_last_line(self.run.output)}")
        summary = self.run.summary
        if summary["restarts"] != charged:
            raise BrokenPromiseError(f"charged {summary['restarts']}, not {dict(charged)}: {self._causes()}")
        equal = otherwise if like is None else EQUAL
        if like is not None and summary["digest"] != self._ground.digest(*like):
            raise BrokenPromiseError("the digest is not that of the run without the fault")
        if left := self._ground.shell.remains():
            raise BrokenPromiseError(f"left behind: {', '.join(left)}")
        put_at = self._put_at or were_put(self.directory)[-1]["time"]
        after = [one for one in self.watch.told if one.at >= put_at]
        first = told or next((one for one in after if one.unusual), None)
        return Outcome(
            detected_seconds=first.at - put_at if first else None,
            cause=cause or ", ".join(dict.fromkeys(self._causes())) or "none",
            charged=", ".join(f"{name} {count}" for name, count in charged.items()) or "nothing",
            steps_lost=self._steps_lost(),
            next_step_seconds=way_back(after, put_at, summary),
            equal=equal,
            note="; ".join(one for one in (note, _first_word(first)) if one),
        )

    def _causes(self) -> list[str]:
        return [str(told.record["cause"]) for told in self.watch.told if told.event == "ended"]

    def _steps_lost(self) -> int:
        taken = Counter(told.record["step"] for told in self.watch.told if told.file == METRICS and told.event is None)
        return sum(count - 1 for count in taken.values())


def _first_word(first: Told | None) -> str:
    """How a fault was told first, if not by an end."""
    return "" if first is None or first.event == "ended" else f"told as `{first.event}`"


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it has said nothing"


class Ground:
    """The folder of the runs, and what those end with that nothing disturbs."""

    def __init__(self) -> None:
        """Make the folder; it goes away with this process."""
        folder = Path(tempfile.mkdtemp(prefix="shardwise-chaos-", dir="/tmp"))
        self.clock = folder / "clock"
        self.set_clock(0.0)
        self.port = free_port("127.0.0.1")
        variables = {"PYTHONPATH": str(ROOT), CLOCK_VARIABLE: str(self.clock), **bucket.variables(self.port)}
        command = (COMMAND[0], "-m", MODULE, "command")
        self.shell = Shell(folder, folder / "cache", CHANGES, variables, command)
        self._runs: dict[tuple[str, ...], Run] = {}
        self._count = 0
        atexit.register(self.close)

    def set_clock(self, seconds: float) -> None:
        """Have the wall clock of all runs be wrong by so much, from now on."""
        with self.clock.open("r+b" if self.clock.exists() else "wb") as file:
            file.write(struct.pack("d", seconds))

    def undisturbed(self, *changes: str) -> Run:
        """A run of the job without a fault, at its end."""
        if changes not in self._runs:
            run = self.shell.begin(f"undisturbed-{len(self._runs)}", *changes)
            run.finish()
            self._runs[changes] = run
        return self._runs[changes]

    def digest(self, *changes: str) -> str:
        """What a run of the job must end with."""
        return str(self.undisturbed(*changes).summary["digest"])

    def fresh_name(self) -> str:
        """A name of no run before."""
        self._count += 1
        return f"run-{self._count}"

    def fresh_folder(self) -> Path:
        """A folder that is there for one row."""
        folder = self.shell.folder / f"for-{self.fresh_name()}"
        folder.mkdir()
        return folder

    def start(self, plan: Plan, *changes: str, name: str | None = None) -> Disturbed:
        """Start a run that is to be disturbed."""
        self.undisturbed()  # before, so that programs are kept and nothing else runs meanwhile
        return Disturbed(self, name or self.fresh_name(), plan, changes)

    def put(self, *faults: Fault, changes: Sequence[str] = ()) -> Disturbed:
        """Start a run whose trainers put these faults."""
        return self.start(Plan(faults=faults), *changes)

    def put_to_restored(self, *faults: Fault, changes: Sequence[str] = (), root: Path | None = None) -> Disturbed:
        """The same with a run that goes on from a checkpoint, of a run without a fault, which lies below `root`."""
        name, checkpoint = self.fresh_name(), checkpoint_name(RESTORED_STEP)
        there = root or self.shell.folder / name / CHECKPOINTS
        shutil.copytree(self.undisturbed().directory / CHECKPOINTS / checkpoint, there / checkpoint)
        return self.start(Plan(faults=faults), *changes, name=name)

    def close(self) -> None:
        """End and remove all of it."""
        atexit.unregister(self.close)
        self.shell.close()
        self.shell.remove()
        shutil.rmtree(self.shell.folder, ignore_errors=True)


@cache
def ground() -> Ground:
    """The one of this process."""
    return Ground()


def once(cause: Cause) -> Mapping[str, int]:
    """One restart for a cause."""
    return {cause.value: 1}
