"""The pods of a job that share no volume: each has a folder of its own, and the run directory is in a bucket."""

import json
from pathlib import Path
from typing import Any

from tests.launcher.pods import Pods
from tests.train.s3_server import Bucket

from shardwise.launcher.system import processes
from shardwise.protocol import pods as names
from shardwise.protocol.contract import EVENTS, LOGS, METRICS, SUMMARY


class Apart(Pods):
    """The pods of a job whose run directory is in a bucket."""

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        super().__init__(folder)
        self.bucket, self.prefix = bucket, folder.name
        # What fake trainers do together is no part of the run directory.
        self.variables = {names.DIRECTORY_VARIABLE: self.url, "FAKE_FOLDER": str(self.directory)}
        self.options = {"copySeconds": 0.2}

    @property
    def url(self) -> str:
        """Where the run directory is."""
        return f"{self.bucket.url}/{self.prefix}"

    def folder(self, host: int) -> Path:
        """The folder of a host's newest pod."""
        return self.roots / str(host) / "scratch_mount" / "run"

    def has(self, name: str) -> str:
        """A file of the run directory; "" if it is not there."""
        there = f"{self.prefix}/{name}" in self.bucket.keys(f"{self.prefix}/{name}")
        return self.bucket.get(f"{self.prefix}/{name}").decode() if there else ""

    def until_saved(self, step: int) -> None:
        """Wait until the bucket tells of the checkpoint of a step."""

        def there(_: dict[str, Any]) -> bool:
            lines = map(json.loads, self.has(METRICS).splitlines())
            return any(line.get("event") == "saved" and line["step"] == step for line in lines)

        self.until(there)

    @property
    def summary(self) -> dict[str, Any]:
        """The summary as it stands in the bucket."""
        read: dict[str, Any] = json.loads(self.has(SUMMARY))
        return read

    def events(self, name: str) -> list[dict[str, Any]]:
        """The launcher's events of one kind in the bucket."""
        lines = map(json.loads, self.has(f"{LOGS}/{EVENTS}").splitlines())
        return [event for event in lines if event["event"] == name]

    def close(self) -> list[str]:
        """End what a failed test has left running; what is left that should not be."""
        folders = [str(path.resolve()) for path in self.roots.glob("*-*/scratch_mount/run")]
        left = super().close()
        return left + [str(each) for path in folders for each in processes.carrying({processes.RUN_VARIABLE: path})]
