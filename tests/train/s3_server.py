"""A bucket on this machine for tests: moto's S3 over HTTP, in a process of its own, and a client that is not ours."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import s3fs

_NAME = "bucket"
# It ends when its standard input does, so it never outlives the tests.
_SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), sep=":", flush=True)
sys.stdin.read()
server.stop()
"""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """An S3 bucket as another program sees it; keys are without the bucket's name."""

    client: s3fs.S3FileSystem

    @property
    def url(self) -> str:
        """Its address without a slash at the end."""
        return f"s3://{_NAME}"

    def put(self, key: str, content: bytes) -> None:
        """Writes an object."""
        self.client.pipe_file(f"{_NAME}/{key}", content)

    def get(self, key: str) -> bytes:
        """Reads an object."""
        return bytes(self.client.cat_file(f"{_NAME}/{key}"))

    def delete(self, key: str) -> None:
        """Removes an object."""
        self.client.rm_file(f"{_NAME}/{key}")

    def keys(self, prefix: str) -> list[str]:
        """The keys below a prefix."""
        return [path.removeprefix(f"{_NAME}/") for path in self.client.find(f"{_NAME}/{prefix}")]


@contextmanager
def serving() -> Iterator[Bucket]:
    """An empty bucket that the environment leads to, with credentials that nobody checks."""
    command = [sys.executable, "-c", _SERVER]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        with server.stdin:
            place = server.stdout.readline().strip()
            assert place, "the S3 server did not start"
            _lead_to(patch, place)
            s3fs.S3FileSystem.clear_instance_cache()
            client = s3fs.S3FileSystem(use_listings_cache=False)
            client.mkdir(_NAME)
            yield Bucket(client=client)
            s3fs.S3FileSystem.clear_instance_cache()


def _lead_to(patch: pytest.MonkeyPatch, place: str) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        patch.setenv(name, os.devnull)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "unchecked")
    for name in ("NO_PROXY", "no_proxy"):
        patch.setenv(name, "127.0.0.1")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_ENDPOINT_URL", f"http://{place}")
