"""Runs of an own program on two hosts of two devices, in the place of a job of the trainer."""

import sys
from pathlib import Path

from tests.cli.conftest import COMMAND
from tests.cli.shell import Shell

from shardwise.job.document import write_document

EXAMPLES = Path(__file__).parents[2] / "examples" / "programs"


class ProgramShell(Shell):
    """A folder with the job file of a program."""

    def __init__(self, folder: Path, cache: Path, *words: str, topology: str = "2x2") -> None:
        """`words` follow the interpreter of these tests."""
        super().__init__(folder, cache)
        self._command = [*COMMAND, "run", "job.yaml"]
        spec = {
            "hardware": {"accelerator": "cpu-sim", "topology": topology},
            "program": {"command": [sys.executable, *words]},
            "recovery": {"restarts": {"failure": 20}, "backoff": "10ms"},
        }
        head = {"apiVersion": "shardwise.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "mine"}}
        (folder / "job.yaml").write_text(write_document({**head, "spec": spec}))
