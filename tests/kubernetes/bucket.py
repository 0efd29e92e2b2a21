"""An S3 server of this machine that pods reach: the Versity S3 Gateway over a folder. Called by the tests of buckets.

It is a real one, which checks the signature of every request against its key; moto, which stands in for S3 in the tests
of the trainer, checks none.
"""

import hashlib
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.commands import retry, run, say, wait
from tests.cluster.places import CACHE
from tests.cluster.programs import go_compiler, locked

from shardwise.launcher.system.ports import free_port

_SOURCE = Path(__file__).with_name("s3-server")
_PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
_BUILD = ("build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w")


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket, empty at first.

    Attributes:
        name: of the bucket.
        folder: what is in it, a file for each object.
        environment: the variables that lead a trainer to it, the key among them.
    """

    name: str
    folder: Path
    environment: dict[str, str]


@contextmanager
def serving(host: str, folder: Path) -> Iterator[Bucket]:
    """A bucket whose objects lie below `folder`, served at an address of this machine as long as this lasts."""
    objects, metadata = folder / "objects", folder / "metadata"
    (objects / "runs").mkdir(parents=True)
    metadata.mkdir()
    address = f"{host}:{free_port(host)}"
    key = {"AWS_ACCESS_KEY_ID": "trainer", "AWS_SECRET_ACCESS_KEY": os.urandom(16).hex()}
    named = {"ROOT_ACCESS_KEY": key["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": key["AWS_SECRET_ACCESS_KEY"]}
    words = ("--port", address, "posix", "--sidecar", metadata, objects)
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen([_program(), *words], env={**os.environ, **named}, stdout=log, stderr=log)
    try:
        wait("the S3 server", lambda: _answers(address), 30, f"See {folder / 'server.log'}")
        where = {"AWS_ENDPOINT_URL": f"http://{address}", "AWS_DEFAULT_REGION": "us-east-1"}
        yield Bucket(name="runs", folder=objects / "runs", environment=key | where)
    finally:
        server.terminate()
        server.wait()


def _program() -> Path:
    """The compiled server, kept by its pins; two minutes the first time."""
    digest = hashlib.sha256(repr(_BUILD).encode())
    for name in ("go.mod", "go.sum"):
        digest.update((_SOURCE / name).read_bytes())
    program = CACHE / f"s3-{digest.hexdigest()[:16]}"
    with locked("s3-build"):
        if not program.exists():
            say("compiling an S3 server: about 2 minutes the first time")
            retry(go_compiler(), "mod", "download", folder=_SOURCE)
            made = program.with_suffix(".part")
            run(go_compiler(), *_BUILD, "-o", made, _PACKAGE, folder=_SOURCE, environment={"CGO_ENABLED": "0"})
            made.rename(program)
    return program


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True
