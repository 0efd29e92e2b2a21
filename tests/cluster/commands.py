"""Commands run to their end, progress, and waiting: what every module of the test cluster needs. Knows no cluster."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import typer

_STARTED = time.monotonic()


class ClusterError(Exception):
    """Something a person has to look at; the command line shows it without a traceback."""


def say(text: str) -> None:
    """Print a line of progress to stderr, with the seconds since the command began."""
    typer.echo(f"[{time.monotonic() - _STARTED:6.1f} s] {text}", err=True)


def run(
    *command: str | Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    stdin: str | None = None,
) -> str:
    """Run a command to its end and return what it printed to stdout.

    Args:
        command: the program and its arguments.
        environment: variables beside those of this process.
        folder: where it runs; here by default.
        stdin: what it reads.

    Raises:
        ClusterError: it ended with another code than 0; the text has all that it printed.
    """
    done = _ended(command, environment, folder, stdin)
    if done.returncode:
        printed = (done.stdout + done.stderr).strip()
        raise ClusterError(f"{' '.join(map(str, command))}\nended with {done.returncode}\n{printed}")
    return done.stdout


def attempt(
    *command: str | Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    stdin: str | None = None,
) -> tuple[int, str]:
    """Run a command that may fail, as `run` does; its exit code and all that it printed."""
    done = _ended(command, environment, folder, stdin)
    return done.returncode, done.stdout + done.stderr


def _ended(
    command: Sequence[str | Path], environment: Mapping[str, str] | None, folder: Path | None, stdin: str | None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        input=stdin,
        text=True,
        errors="replace",
        capture_output=True,
        check=False,
    )


def retry(*command: str | Path, attempts: int = 3, folder: Path | None = None, stdin: str | None = None) -> str:
    """Run a command that reads from the network; a failure is tried again after a few seconds.

    Raises:
        ClusterError: it failed every time.
    """
    for number in range(1, attempts):
        code, printed = attempt(*command, folder=folder, stdin=stdin)
        if code == 0:
            return printed
        say(f"{command[0]} ended with {code}; attempt {number} of {attempts}, again in {5 * number} s")
        time.sleep(5 * number)  # what failed is elsewhere: nothing here to wait for
    return run(*command, folder=folder, stdin=stdin)


def wait(what: str, ready: Callable[[], object], seconds: float = 120, hint: str = "") -> None:
    """Wait until `ready` says so.

    Raises:
        ClusterError: it did not within `seconds`; `hint` says where to look.
    """
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {seconds:.0f} s. {hint}".strip())
        time.sleep(0.1)
