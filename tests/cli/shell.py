"""A folder with a small job and its data, in which tests start `shardwise run` as a person does, and disturb it."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from tests.cli.conftest import COMMAND, MODEL, QUICKSTART, person
from tests.cli.running import Run

from shardwise.protocol.contract import LOGS
from shardwise.protocol.takeover import hold

CHANGES = (
    MODEL,
    "training.data={train: [{name: text, paths: [documents.jsonl]}], heldOut: 0.1}",
    "training.optimizer.learningRate=3e-3",
    "recovery={restarts: {failure: 20}, backoff: 10ms}",
)
"""One small job for all tests: where the devices and the batch are the same, so are the compiled programs, however
many steps there are and whatever is done to the run."""
EVALUATED = "training.evaluation={everySteps: 4, batches: 16}"  # long enough to be seen by who polls
"""Touches no state, so such a run ends as one without it."""


class Shell:
    """A folder with a job and its data, and `shardwise run` in it."""

    def __init__(
        self,
        folder: Path,
        cache: Path,
        changes: Iterable[str] = (),
        variables: Mapping[str, str] | None = None,
        command: Iterable[str] = COMMAND,
    ) -> None:
        self.folder = folder
        # The path of unix sockets is bounded, and pytest's folders are deep.
        self._temporary = Path(tempfile.mkdtemp(prefix="swt-", dir="/tmp"))
        self._environment = {**person(cache), **(variables or {}), "TMPDIR": str(self._temporary)}
        self._command = [*command, "run", "job.yaml", *_set((*CHANGES, *changes))]
        self._runs: list[Run] = []
        (folder / "job.yaml").write_bytes(QUICKSTART.read_bytes())
        text = "".join(f"{n} times {n + 1} is {n * (n + 1)}.\n" for n in range(2000))
        lines = (json.dumps({"text": line * 8}) for line in text.splitlines())
        (folder / "documents.jsonl").write_text("\n".join(lines))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        """End what is left running, and remove what lies outside of the folder; of a good end nothing may be left."""
        self.close()
        left = [] if failed else self.remains()
        self.remove()
        assert left == [], left

    def begin(self, directory: str, *changes: str) -> Run:
        """Start the run, or go on with it."""
        return self.begin_command(directory, *self._command, *_set(changes), "--dir", directory)

    def begin_command(self, directory: str, *command: str) -> Run:
        """Start a command in the folder, whose run is in the directory."""
        output = self.folder / f"{directory}.txt"
        run = Run(self.folder / directory, output)
        with output.open("ab") as written:
            run.command = subprocess.Popen(
                command, cwd=self.folder, env=self._environment, stdout=written, stderr=written, start_new_session=True
            )
        self._runs.append(run)
        return run

    def finish(self, directory: str, *changes: str) -> dict[str, Any]:
        """Run to the end; the summary."""
        return self.begin(directory, *changes).finish()

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command in the folder to its end; what it printed."""
        command = [*COMMAND, *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False
        )

    def close(self) -> None:
        """End what a failed test has left running."""
        for run in self._runs:
            if run.command.poll() is None:
                run.kill()

    def remains(self) -> list[str]:
        """What is left of the runs that should not be: processes, scratch, locks, notes of a live run."""
        left: list[str] = []
        for run in {run.directory: run for run in self._runs}.values():
            directory = run.directory
            left += [f"{directory.name}: process {pid}" for pid in run.processes()]
            with hold(directory):
                pass
            notes = [directory / LOGS / "status.json", *(directory / LOGS).glob(".standby*")]
            left += [str(path) for path in notes if path.exists()]
        return [*left, *map(str, self._temporary.iterdir())]

    def remove(self) -> None:
        """Remove what lies outside of the folder."""
        shutil.rmtree(self._temporary)


def _set(changes: Iterable[str]) -> list[str]:
    return [f"--set={change}" for change in changes]
