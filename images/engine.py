"""The engine that builds images here: docker, podman or buildah."""

import os
import shutil
import subprocess
import sys

# buildah has no daemon; layers kept, or every build would install everything again.
_BUILDAH = {"STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot", "BUILDAH_LAYERS": "true"}


class BuildError(Exception):
    """An image cannot be built or published; shown without a traceback."""


def engine_here() -> str:
    """The engine of this machine.

    Raises:
        BuildError: there is none.
    """
    if _succeeds("docker", "info"):  # the client alone, without its daemon, builds nothing
        return "docker"
    for engine in ("podman", "buildah"):
        if shutil.which(engine):
            return engine
    raise BuildError("no docker with a daemon, no podman and no buildah; on Debian: apt-get install buildah")


def environment() -> dict[str, str]:
    """The variables that an engine runs with."""
    return {**os.environ, **_BUILDAH}


def run(*command: str) -> str:
    """Run a command of an engine and return what it printed.

    Raises:
        BuildError: it failed; the text has what it said.
    """
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)  # noqa: S603  ours
    if done.returncode:
        raise BuildError(f"{' '.join(command[:2])} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def say(text: str) -> None:
    """Tell a person on standard error: standard output has the images' names alone."""
    sys.stderr.write(f"images: {text}\n")


def _succeeds(*command: str) -> bool:
    if not shutil.which(command[0]):
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603  ours
