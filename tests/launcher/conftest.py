"""Runs of the launcher as real processes: a command, its agents, and fake trainers; and a look at what they leave."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from shardwise.launcher.agent.client import NoLeaderError, request
from shardwise.launcher.system import processes
from shardwise.protocol.contract import LEADER_RECORD, LOGS, SUMMARY, Control
from shardwise.protocol.takeover import hold

HERE = Path(__file__).parent
JOB = HERE.parent / "job" / "golden" / "quickstart.yaml"
LIMIT_SECONDS = 300.0  # before a test gives up; nothing is measured with it


class Run:
    """A run directory, and the commands that were started on it."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "run"
        self.directory.mkdir()
        self._job, self._output = folder / "job.yaml", folder / "output.txt"
        self._commands: list[subprocess.Popen[bytes]] = []
        # The path of unix sockets is bounded, and pytest's folders are deep.
        self._temporary = Path(tempfile.mkdtemp(prefix="swt-", dir="/tmp"))

    def start(
        self,
        *,
        hosts: int = 1,
        recovery: str = "",
        deadline: str = "1d",
        ray: bool = False,
        stdout: int | None = None,
        stderr: int | None = None,
        on_terminal: bool = False,
        **plan: Any,
    ) -> None:
        """Start the command, with these files as its output if they are given, and trainers that follow the plan.

        On a terminal, which is its output, it is what the terminal was opened for.
        """
        text = JOB.read_text().replace("1x8", f"{hosts}x2").replace("fsdp: true", "fsdp: false")
        text = text.replace("tensor: 2", "tensor: 1").replace("sequences: 16", "sequences: 12")
        self._job.write_text(text + f"  recovery: {{{recovery}}}\n  deadline: {deadline}\n")
        (self.directory / "fake.json").write_text(json.dumps({"steps": 30, "saveEvery": 5, **plan}))
        self.again(ray=ray, stdout=stdout, stderr=stderr, on_terminal=on_terminal)

    def again(
        self, *, ray: bool = False, stdout: int | None = None, stderr: int | None = None, on_terminal: bool = False
    ) -> None:
        """Start the same command once more."""
        command = [sys.executable, str(HERE / "command.py"), str(self._job), str(self.directory)]
        if on_terminal:
            command = ["sh", "-c", 'exec setsid --ctty "$@" <&1', "sh", *command]
        environment = os.environ | {"TMPDIR": str(self._temporary)}
        with self._output.open("ab") as output:
            started = subprocess.Popen(
                [*command, *(["ray"] if ray else [])],
                env=environment,
                stdout=output if stdout is None else stdout,
                stderr=output if stderr is None else stderr,
            )
        self._commands.append(started)

    @property
    def command(self) -> subprocess.Popen[bytes]:
        """The newest command."""
        return self._commands[-1]

    @property
    def output(self) -> str:
        """All that the commands have printed."""
        return self._output.read_text()

    @property
    def summary(self) -> dict[str, Any]:
        """The summary as it stands."""
        read: dict[str, Any] = json.loads((self.directory / SUMMARY).read_text())
        return read

    def text(self, path: str) -> str:
        """What the leader answers, as it is."""
        where = json.loads((self.directory / LOGS / "status.json").read_text())
        token = Path(where["tokenFile"]).read_text()
        asked = Request(where["url"] + path, headers={"Authorization": f"Bearer {token}"})  # noqa: S310  our own address
        with urlopen(asked) as answer:  # noqa: S310  as above
            text: str = answer.read().decode()
        return text

    def ask(self, method: str, path: str, token: str | None = None) -> dict[str, Any]:
        """A request to the leader; with the run's token unless another one is given."""
        where = json.loads((self.directory / LOGS / "status.json").read_text())
        token = Path(where["tokenFile"]).read_text() if token is None else token
        return request(urlsplit(where["url"]).netloc, token, method, path)

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the status is as wanted, and return it."""
        end = time.monotonic() + LIMIT_SECONDS
        status: dict[str, Any] = {}
        while time.monotonic() < end:
            assert self.command.poll() is None, f"the command has ended meanwhile:\n{self.output}"
            try:
                status = self.ask("GET", "/status")
            except (FileNotFoundError, NoLeaderError):
                status = {}
            if status and condition(status):
                return status
            time.sleep(0.02)  # a poll, not a wait: the condition decides
        raise AssertionError(f"not within {LIMIT_SECONDS} s; the status is {status}\n{self.output}")

    def until_step(self, step: int, *, attempt: int = 0) -> list[dict[str, Any]]:
        """Wait until every host is at the step in the attempt; the hosts."""

        def there(status: dict[str, Any]) -> bool:
            trainers = [host for host in status["hosts"] if host["trainerPid"] and host["step"] == step]
            return status["attempt"] == attempt and len(trainers) == len(status["hosts"]) and not status["missing"]

        hosts: list[dict[str, Any]] = self.until(there)["hosts"]
        return hosts

    def go_on(self, *, heard: Control = Control.NONE) -> None:
        """Let go of the trainers that the plan has made wait, once one of them has heard this."""
        end = time.monotonic() + LIMIT_SECONDS
        while heard != Control.NONE and not (self.directory / "words" / f"heard-{heard.name}").exists():
            assert time.monotonic() < end, f"no trainer has heard {heard.name}:\n{self.output}"
            time.sleep(0.02)  # a poll, not a wait: the condition decides
        (self.directory / "go").touch()

    def end(self) -> int:
        """Wait for the command's end; its exit code."""
        return self.command.wait(LIMIT_SECONDS)

    def close(self) -> None:
        """End what a failed test has left running."""
        for command in self._commands:
            if command.poll() is None:
                command.send_signal(signal.SIGKILL)
                command.wait()

    def remains(self) -> list[str]:
        """What is left of the run that should not be: processes, scratch, the lock, notes of a live run."""
        end = time.monotonic() + LIMIT_SECONDS
        while (left := processes.carrying({processes.RUN_VARIABLE: str(self.directory)})) and time.monotonic() < end:
            time.sleep(0.02)
        with hold(self.directory):
            pass
        record = json.loads((self.directory / LOGS / LEADER_RECORD).read_text())
        live = [self.directory / LOGS / "status.json", *(self.directory / LOGS).glob(".standby*")]
        files = [Path(record["scratch"]), *live, *self._temporary.iterdir()]
        return [*map(str, left), *(str(path) for path in files if path.exists())]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Return a run that is not started yet; after the test nothing of it may remain.

    Its command hears of a closed terminal, also where the tests themselves were begun under nohup.
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    one = Run(tmp_path)
    yield one
    one.close()
    signal.signal(signal.SIGHUP, before)
    assert one.remains() == []
    one._temporary.rmdir()
