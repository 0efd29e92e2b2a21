"""`shardwise serve` as a person starts it: a process that prints its token and its address, and a client that has both.

Imported by tests.
"""

import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx
from tests.cli.conftest import COMMAND, person
from tests.cli.running import LIMIT_SECONDS


class Served:
    """The command, and a client of it once it answers."""

    client: httpx.Client
    token: str

    def __init__(self, folder: Path, cache: Path, *arguments: str) -> None:
        self._output = folder / "serve.txt"
        with self._output.open("wb") as written:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", *arguments], cwd=folder, env=person(cache), stdout=written, stderr=written
            )

    @property
    def said(self) -> str:
        """All that it has printed."""
        return self._output.read_text()

    def __enter__(self) -> Self:
        """Wait until it answers."""
        self.until(lambda: self._found(r"serving .* at (http\S+)\n") is not None)
        token, address = self._found(r"needs this token: (\S+)\n"), self._found(r"serving .* at (http\S+)\n")
        self.token = token or ""
        headers = {"Authorization": f"Bearer {self.token}"}
        self.client = httpx.Client(base_url=address or "", headers=headers, timeout=LIMIT_SECONDS, trust_env=False)
        return self

    def __exit__(self, *_: object) -> None:
        """End what a failed test has left running."""
        self.client.close()
        self.process.kill()
        self.process.wait()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it; that the command ends before is a failure."""
        end = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert self.process.poll() is None, f"the command has ended before:\n{self.said}"
            assert time.monotonic() < end, f"not in time:\n{self.said}"
            time.sleep(0.01)  # a poll, not a wait: the condition decides

    def is_closed(self) -> bool:
        """Whether it takes no more connections."""
        try:
            socket.create_connection((self.client.base_url.host, self.client.base_url.port or 0)).close()
        except ConnectionRefusedError:
            return True
        return False

    def _found(self, pattern: str) -> str | None:
        match = re.search(pattern, self.said)
        return match and match[1]
