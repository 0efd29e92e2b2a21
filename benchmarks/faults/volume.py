"""A volume under a run that fails: a memory disk, and system calls that fail or wait. Both want root.

Called by `storage.py`. Mounts lie below the folder of the runs, and go away with the block.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from benchmarks.faults.outcome import NotShownError

_SIZE = "64m"
_BLOCK = bytes(1 << 20)
_LOOK_SECONDS = 0.01
_ATTACHED_WITHIN_SECONDS = 30.0


class Volume:
    """A memory disk, mounted where it keeps its files, and from there where it is used."""

    def __init__(self, kept: Path, folder: Path) -> None:
        """Mount it."""
        self._kept, self.folder = kept, folder
        for place in (self._kept, self.folder):
            place.mkdir(parents=True)
        _as_root("mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "none", str(self._kept))
        self.bring_back()

    @contextmanager
    def full(self) -> Iterator[None]:
        """No room is left in the block."""
        filler = self._kept / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(_BLOCK)
        yield
        filler.unlink()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """It takes no writes in the block; one that is under way is waited for."""
        self._remount("ro")
        yield
        self._remount("rw")

    @contextmanager
    def gone(self) -> Iterator[None]:
        """It is not mounted in the block; the folder below it is there, and empty."""
        _as_root("umount", "--lazy", str(self.folder))
        yield
        self.bring_back()

    def bring_back(self) -> None:
        """Mount it where it is used."""
        _as_root("mount", "--bind", str(self._kept), str(self.folder))

    def remove(self) -> None:
        """Unmount all of it."""
        for place in (self.folder, self._kept):
            while place.is_mount():
                _as_root("umount", "--lazy", str(place))

    def _remount(self, option: str) -> None:
        command = ["mount", "-o", f"remount,bind,{option}", str(self.folder)]
        while subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode:
            time.sleep(_LOOK_SECONDS)  # a poll: files are open for writing


@contextmanager
def mounted(kept: Path, folder: Path) -> Iterator[Volume]:
    """A volume that keeps its files in one folder and is used in another; neither is there yet."""
    if os.geteuid():
        raise NotShownError("to mount a volume takes root")
    volume = Volume(kept, folder)
    try:
        yield volume
    finally:
        volume.remove()


@contextmanager
def system_calls(pid: int, calls: str, how: str) -> Iterator[None]:
    """In the block these system calls of a process do as strace's `inject` says: `error=EIO`, or `delay_enter=1s`."""
    strace = shutil.which("strace")
    if strace is None or os.geteuid():
        raise NotShownError("to have system calls fail takes strace, and root")
    words = ["-qq", "-f", "-o", os.devnull, "-e", f"trace={calls}", "-e", f"inject={calls}:{how}", "-p", str(pid)]
    with subprocess.Popen([strace, *words], stderr=subprocess.DEVNULL) as tracer:
        try:
            _wait_until_traced(pid)
            yield
        finally:
            tracer.kill()  # a delay keeps it from hearing another signal; the traced go on by themselves


def _wait_until_traced(pid: int) -> None:
    end = time.monotonic() + _ATTACHED_WITHIN_SECONDS
    while any(_tracer(task) == 0 for task in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > end:
            raise NotShownError("strace did not attach to the trainer")
        time.sleep(_LOOK_SECONDS)


def ended(pid: int) -> bool:
    """Whether a process has ended, though who traces it may have to let go of it first."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _tracer(task: Path) -> int:
    lines = (task / "status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("TracerPid:"))


def _as_root(*command: str) -> None:
    subprocess.run(command, check=True)
