"""`shardwise run` as a person starts it, for the tests that disturb it: where it is, its processes, what it leaves.

Every run is a command of its own with agents and trainers of its own. Where a trainer is at this moment is read from
its progress record, which is sooner than the launcher's status. That a moment is over by the time a signal lands is
possible, and as good a moment as any.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardwise.cli.live import ask
from shardwise.launcher.agent.client import NoLeaderError
from shardwise.launcher.system import processes
from shardwise.protocol.contract import LOGS, ExitCode, Phase, Progress, progress_name, read_progress
from shardwise.protocol.orders import STOP_SIGNAL

LIMIT_SECONDS = 600.0  # before a test gives up; nothing is measured with it
_PHASES = list(Phase)
_ON_THE_WAY = _PHASES[: _PHASES.index(Phase.STEP)]

Moment = Callable[[], bool]


class Run:
    """A command, and its run directory."""

    command: subprocess.Popen[bytes]

    def __init__(self, directory: Path, output: Path) -> None:
        """The command is about to be started."""
        self.directory, self._output = directory, output
        self._stale = _where(directory)

    @property
    def output(self) -> str:
        """All that the commands on this directory have printed."""
        return self._output.read_text()

    def progress(self, rank: int = 0) -> Progress | None:
        """The last word of a trainer; None before its first."""
        where = _where(self.directory)
        if where is None or where == self._stale:
            return None
        return read_progress(Path(where["tokenFile"]).parent / progress_name(rank))

    def status(self) -> dict[str, Any]:
        """What the launcher says; empty where none answers."""
        try:
            return ask(self.directory, "GET", "/status")
        except NoLeaderError:
            return {}

    def until(self, moment: Moment) -> None:
        """Wait for it; that the command ends before is a failure."""
        end = time.monotonic() + LIMIT_SECONDS
        while not moment():
            assert self.command.poll() is None, f"the command has ended before:\n{self.output}"
            assert time.monotonic() < end, f"not in time; the status is {self.status()}\n{self.output}"
            time.sleep(0.004)  # a poll, not a wait: the condition decides

    def until_phase(self, phase: Phase, *, rank: int = 0, step: int = 0, attempt: int | None = None) -> Progress:
        """Wait until a trainer is in the phase, with so many steps complete; its word.

        A phase on the way to the first step comes once, and may be over before a busy machine lets this process look:
        then a later one does as well.
        """
        found: list[Progress] = []
        accepted = _PHASES[_PHASES.index(phase) :] if phase in _ON_THE_WAY else [phase]

        def there() -> bool:
            word = self.progress(rank)
            if word is None or word.phase not in accepted or word.step < step:
                return False
            if attempt is None or word.attempt == attempt:
                found.append(word)
            return bool(found)

        self.until(there)
        return found[-1]

    def until_status(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the launcher's status is as wanted; the status."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            status = self.status()
            if status and wanted(status):
                found.append(status)
            return bool(found)

        self.until(there)
        return found[-1]

    def until_writing(self) -> None:
        """Wait until files of a checkpoint that is not committed appear."""
        before = self._half_written()
        self.until(lambda: bool(self._half_written() - before))

    def until_committed(self) -> None:
        """Wait for one more checkpoint."""
        before = set(self.directory.glob("checkpoints/*/COMMITTED"))
        self.until(lambda: bool(set(self.directory.glob("checkpoints/*/COMMITTED")) - before))

    def until_gone(self) -> None:
        """Wait until the killed command, and all that it has started, have ended by themselves."""
        self.command.wait()
        end = time.monotonic() + LIMIT_SECONDS
        while left := self.processes():
            assert time.monotonic() < end, f"still there: {left}"
            time.sleep(0.1)  # a poll, not a wait: the condition decides

    def processes(self) -> list[int]:
        """The live processes of the run, the command not counted."""
        return [found.pid for found in processes.carrying({processes.RUN_VARIABLE: str(self.directory)})]

    def kill(self) -> None:
        """SIGKILL the command and every process of the run."""
        self.command.kill()
        processes.end_marked(self.directory, None)
        self.command.wait()

    def send(self, number: signal.Signals) -> int:
        """Signal the command, and wait for its end; the exit code."""
        self.command.send_signal(number)
        return self.wait()

    def stop(self, phase: Phase = Phase.STEP, *, rank: int = 0, step: int = 0) -> int:
        """Stop the command while a trainer is where `until_phase` waits for it; the exit code.

        The trainer is held until its signal waits for it: on a busy machine a short run would else be over before.
        """
        trainer = self.until_phase(phase, rank=rank, step=step).pid
        os.kill(trainer, signal.SIGSTOP)
        self.until(lambda: processes.is_stopped(trainer))  # until then the other signal would be handled before it
        self.command.send_signal(signal.SIGTERM)
        end = time.monotonic() + LIMIT_SECONDS
        while self.command.poll() is None and not _is_pending(STOP_SIGNAL, trainer):
            assert time.monotonic() < end, f"no signal came to the trainer; the status is {self.status()}"
            time.sleep(0.01)  # a poll, not a wait: the condition decides
        with suppress(ProcessLookupError):  # whoever waits for it no longer has killed it
            os.kill(trainer, signal.SIGCONT)
        return self.wait()

    def wait(self) -> int:
        """The exit code, at the command's end."""
        return self.command.wait(LIMIT_SECONDS)

    def finish(self) -> dict[str, Any]:
        """Wait for a good end; the summary."""
        code = self.wait()
        assert code == ExitCode.OK, self.output
        return self.summary

    @property
    def summary(self) -> dict[str, Any]:
        """The summary as it stands."""
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return summary

    def records(self, event: str | None = None) -> list[dict[str, Any]]:
        """The records of the steps, or of an event, in the order in which they were written."""
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        return [record for line in lines if (record := json.loads(line)).get("event") == event]

    def events(self, name: str) -> list[dict[str, Any]]:
        """The launcher's events of one kind."""
        lines = (self.directory / LOGS / "launcher.jsonl").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == name]

    def _half_written(self) -> set[tuple[Path, int]]:
        found = set()
        for step in self.directory.glob("checkpoints/step-*"):
            if not (step / "COMMITTED").exists():
                found |= set(_stamped(step / "arrays"))
        return found


def _is_pending(number: signal.Signals, pid: int) -> bool:
    """Return whether a signal was sent to the process that it has not handled yet; so too of one that has ended."""
    try:
        states = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True
    (shared,) = (line.split()[1] for line in states.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(shared, 16) & 1 << number - 1)


def _where(directory: Path) -> dict[str, Any] | None:
    """Where the launcher of a live run says that it can be found; of a killed one it is still there."""
    try:
        where: dict[str, Any] = json.loads((directory / LOGS / "status.json").read_text())
    except FileNotFoundError:
        return None
    return where


def _stamped(folder: Path) -> Iterable[tuple[Path, int]]:
    """All that is below a folder, with the time it was written; what is renamed or removed meanwhile is passed over."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent) / name for name in names):
            with suppress(FileNotFoundError):
                yield path, path.stat().st_mtime_ns
