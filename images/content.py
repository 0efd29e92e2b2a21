"""Reads what is in an image from its files, for `images/publish.py`. None of its programs runs."""

import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from images.engine import BuildError, environment, run

_PACKAGES = PurePosixPath("opt/shardwise/.venv/lib/python3.11/site-packages")
_PYTHON = PurePosixPath("opt/shardwise/.venv/pyvenv.cfg")
_DEBIAN = PurePosixPath("var/lib/dpkg/status")
# `e_machine` of programs and libraries (ELF), by the name that registries have for the architecture.
_MACHINES = {"amd64": 62, "arm64": 183}
_HEAD_BYTES = 20  # of an ELF file: up to the end of `e_machine`
_BLOCK_BYTES = 1 << 20


def look(engine: str, tag: str, architecture: str) -> dict[str, Any]:
    """Return what `scan` finds in an image of the engine's store.

    Raises:
        BuildError: the engine gives no files of it.
    """
    with _files(engine, tag) as archive:
        return scan(archive, architecture)


def scan(archive: tarfile.TarFile, architecture: str) -> dict[str, Any]:
    """Return what is in an image's file system: a mapping that `images.bill.content` takes.

    Args:
        archive: all its files, read once from the beginning to the end.
        architecture: whose programs it ought to hold, amd64 or arm64.

    Returns:
        `python`, the version of the Python that it was installed with; `distributions`, version by name; `debian`, the
        text of dpkg's list of packages; `foreign`, the path of each program or library that is for another processor.

    """
    found: dict[str, Any] = {"python": "", "distributions": {}, "debian": "", "foreign": []}
    for member in archive:
        path = PurePosixPath(member.name.removeprefix("./"))
        content = archive.extractfile(member) if member.isreg() else None
        if content is None:
            continue
        if path == _PYTHON:
            fields = dict(line.split(" = ", 1) for line in content.read().decode().splitlines())
            found["python"] = fields["version_info"]
        elif path == _DEBIAN:
            found["debian"] = content.read().decode()
        elif path.name == "METADATA" and path.parent.suffix == ".dist-info" and path.parent.parent == _PACKAGES:
            name, version = _named(content.read().decode())
            found["distributions"][name] = version
        elif _processor(content.read(_HEAD_BYTES)) not in {None, _MACHINES[architecture]}:
            found["foreign"].append(str(path))
    return found


def _named(metadata: str) -> tuple[str, str]:
    """Return the name and the version in a distribution's METADATA."""
    head = metadata.partition("\n\n")[0]
    fields = dict(line.split(": ", 1) for line in head.splitlines() if line.startswith(("Name: ", "Version: ")))
    return fields["Name"], fields["Version"]


def _processor(head: bytes) -> int | None:
    """Return `e_machine` of an ELF file by its first bytes; None where it is none."""
    if len(head) < _HEAD_BYTES or head[:4] != b"\x7fELF":
        return None
    return int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")


@contextmanager
def _files(engine: str, tag: str) -> Iterator[tarfile.TarFile]:
    """Give all files of an image, of a container that never starts."""
    make = ("from", "--pull-never") if engine == "buildah" else ("create",)
    container = run(engine, *make, tag).strip()
    try:
        command = [engine, "export", container]
        if engine == "buildah":  # it has no export, and a user's own mounts are seen in its own namespace alone
            tar = 'exec tar --create --numeric-owner --directory "$(buildah mount "$0")" .'
            command = [*(["buildah", "unshare"] if os.geteuid() else []), "sh", "-c", tar, container]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as reading:  # noqa: S603  ours
            with tarfile.open(fileobj=reading.stdout, mode="r|", bufsize=_BLOCK_BYTES) as archive:
                yield archive
            while reading.stdout and reading.stdout.read(_BLOCK_BYTES):
                pass  # what lies behind the end is read too, or the writer's pipe would break
        if reading.returncode:
            raise BuildError(f"{engine} ended with {reading.returncode} while it gave the files of {tag}")
    finally:
        run(engine, "rm", container)
