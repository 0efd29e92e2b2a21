"""The job of a command line: `shardwise run --hosts 2 --devices 4 -- python my.py`, without a job file."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath

from shardwise.job.document import Document
from shardwise.job.load import check
from shardwise.job.spec import TrainingJob

_MOST_NAME = 40
_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*t?|(ba|da|z)?sh")
_WRAPPER = re.compile("env|nohup|torchrun|uvx?|poetry|pipenv|accelerate|deepspeed|conda|nice|timeout|time|sudo|numactl")
_SCRIPT = (".py", ".sh")
_WITH_VALUE = {"-X", "-W", "-o"}  # of Python and shells
_SUBCOMMANDS = {("uv", "run"), ("poetry", "run")}


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
    """Return a name for a job: of the script that runs, without folder and ending, or of the module, as a whole.

    The modules of one package are different programs, which must not go on with each other's checkpoints.
    """
    name = re.sub(r"[^a-z0-9]+", "-", _named(command).lower()).strip("-")
    return name[:_MOST_NAME].rstrip("-") or "program"


def _named(command: Sequence[str]) -> str:
    """Return the module that runs, or the stem of the script: the program, or what it runs if it runs others."""
    program, *words = command
    runner = PurePath(program).name
    wrapped = _wrapped(words) if _WRAPPER.fullmatch(runner) else None
    if wrapped:
        return wrapped
    while (_INTERPRETER.fullmatch(runner) or _WRAPPER.fullmatch(runner)) and words:
        word = words.pop(0)
        if word.startswith("-m"):
            return word[2:] or " ".join(words[:1])
        if word in _WITH_VALUE:
            del words[:1]
        elif not (word.startswith("-") or (runner, word) in _SUBCOMMANDS or (runner == "env" and "=" in word)):
            return _named([word, *words])
    return PurePath(program).stem


def _wrapped(words: Sequence[str]) -> str | None:
    """Return what a wrapper plainly runs; None if its words do not tell: values of its options name nothing."""
    for place, (before, word) in enumerate(pairwise(["", *words])):
        if _INTERPRETER.fullmatch(PurePath(word).name):
            return _named(words[place:])
        if before == "-m" and word.replace(".", "").isidentifier():  # numactl's own -m takes numbers
            return word
        if word.endswith(_SCRIPT):
            return PurePath(word).stem
    return None
