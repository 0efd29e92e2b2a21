"""The job of a command line: `shardwise run --hosts 2 --devices 4 -- python my.py`, without a job file."""

import re
from collections.abc import Sequence
from pathlib import PurePath

from shardwise.job.document import Document
from shardwise.job.load import check
from shardwise.job.spec import TrainingJob

_MOST_NAME = 40


def job_of_command(command: Sequence[str], *, hosts: int, devices: int) -> TrainingJob:
    """Return the job that runs a command on so many simulated hosts, each with so many devices; JobError if wrong."""
    data = {
        "apiVersion": "shardwise.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name_of_command(command)},
        "spec": {
            "hardware": {"accelerator": "cpu-sim", "topology": f"{hosts}x{devices}"},
            "program": {"command": list(command)},
        },
    }
    return check(Document(data=data, places={}))


def name_of_command(command: Sequence[str]) -> str:
    """Return a name for a job: the first word that names a script, without folder and ending, or a module, as a whole.

    The modules of one package are different programs, which must not go on with each other's checkpoints.
    """
    words = [word for word in command[1:] if not word.startswith("-")]
    named = [*words, command[0]][0]
    named = named if "-m" in command[: command.index(named)] else PurePath(named).stem
    name = re.sub(r"[^a-z0-9]+", "-", named.lower()).strip("-")
    return name[:_MOST_NAME].rstrip("-") or "program"
