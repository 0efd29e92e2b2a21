"""One trainer process: whether it is ready, and how much it works, as its agent can tell from outside."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from shardwise.job.contract import LOGS
from shardwise.job.orders import READY_VARIABLE
from shardwise.launcher import child
from shardwise.launcher.child import StuckError, Trainer
from shardwise.launcher.processes import clean_environment

LIMIT_SECONDS = 30.0
IMPORTING = "import sys; sys.stdin.read()"
READY = f"import os, sys; os.close(int(os.environ['{READY_VARIABLE}'])); sys.stdin.read()"
BUSY = "while True: pass"


def with_trainer(folder: Path, code: str, look: Callable[[Trainer], Coroutine[None, None, None]]) -> None:
    """Look at a trainer that runs this code, and end it."""
    (folder / LOGS).mkdir()

    async def run() -> None:
        trainer = await Trainer.start([sys.executable, "-c", code], clean_environment(), folder, 0)
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                await look(trainer)
        finally:
            await trainer.end()
            trainer.close()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    while not condition():  # noqa: ASYNC110  what another process does sets no event here
        await asyncio.sleep(0.01)


def test_ready_from_the_end_of_its_imports(tmp_path: Path) -> None:
    """A trainer is ready when it says so, and no longer once it has ended."""

    async def look(trainer: Trainer) -> None:
        await until(lambda: trainer.ready)
        assert trainer.alive
        await trainer.end()
        assert not trainer.ready

    with_trainer(tmp_path, READY, look)


def test_not_ready_while_it_imports(tmp_path: Path) -> None:
    """One that lives and has not said so is not ready: asleep, it waits in the middle of its imports."""

    async def look(trainer: Trainer) -> None:
        await until(lambda: trainer.state == "S")
        assert trainer.alive
        assert not trainer.ready

    with_trainer(tmp_path, IMPORTING, look)


def test_work_is_seen_and_its_end_too(tmp_path: Path) -> None:
    """The processor time of a process grows while it works; of a stopped one and of one that is gone it does not."""

    async def look(trainer: Trainer) -> None:
        await until(lambda: trainer.cpu_seconds >= 0.2)
        os.kill(trainer.pid, signal.SIGSTOP)
        await until(lambda: trainer.state == "T")
        assert len({trainer.cpu_seconds for _ in range(1000)}) == 1
        await trainer.end()
        assert trainer.cpu_seconds == 0.0

    with_trainer(tmp_path, BUSY, look)


def test_a_process_that_does_not_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends it hears, within a bound, which process survives SIGKILL; it is waited for again when it may go."""
    monkeypatch.setattr(child, "GONE_WITHIN_SECONDS", 0.1)

    async def look(trainer: Trainer) -> None:
        with monkeypatch.context() as held:
            held.setattr(Trainer, "_send", lambda *_: None)
            with pytest.raises(StuckError, match=rf"process {trainer.pid} has survived SIGKILL for 0.1 s \(state"):
                await trainer.end()
        assert trainer.alive
        monkeypatch.setattr(child, "GONE_WITHIN_SECONDS", LIMIT_SECONDS)
        await trainer.end()
        assert not trainer.alive

    with_trainer(tmp_path, IMPORTING, look)
