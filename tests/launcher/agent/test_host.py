"""shardwise.launcher.agent.host: trainers that do not hear signals yet, that cannot be started, or leave no log."""

import asyncio
import errno
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from shardwise.job.load import load
from shardwise.launcher.agent import trainer
from shardwise.launcher.agent.config import AgentConfig
from shardwise.launcher.agent.host import Host
from shardwise.launcher.system.tasks import cancel
from shardwise.protocol.contract import LOGS, log_path
from shardwise.protocol.orders import Orders
from shardwise.protocol.report import Report
from shardwise.protocol.requests import Ended, EndTrainer, ReadStacks, SignalTrainer, Stacks, StartTrainer, Watch

JOB = Path(__file__).parents[2] / "job" / "golden" / "quickstart.yaml"
LIMIT_SECONDS = 300.0  # before a test gives up; nothing is measured with it
STILL_IMPORTING = (sys.executable, "-c", "import sys; sys.stdin.read()")


def host_of(directory: Path) -> Host:
    """Return a host whose trainers never come as far as their first word."""
    (directory / LOGS).mkdir()
    config = AgentConfig(
        run="life",
        host=0,
        num_hosts=1,
        job_file=JOB,
        directory=directory,
        scratch=directory,
        local=directory / "local",
        listen="127.0.0.1:1",
        address="127.0.0.1",
        gang_token_file=directory / "token",
        status_token_file=directory / "token",
        started_at=0.0,
        fork=False,
        step=None,
        trainer_command=STILL_IMPORTING,
    )
    return Host(config, load(JOB))


def orders(directory: Path, attempt: int = 0) -> Orders:
    """Return those of an attempt."""
    names = {name: str(directory / name) for name in ("job_file", "progress", "stacks")}
    part = {"rank": 0, "num_processes": 1, "coordinator": "", "attempt": attempt}
    return Orders.model_validate(
        {**names, **part, "directory": str(directory), "fork": False, "step": None, "deadline_seconds": None}
    )


def test_a_trainer_that_still_imports_is_not_ended_by_a_question(tmp_path: Path) -> None:
    """Asked for its stacks, or to save, before it hears signals, it lives on; a stop ends it."""

    async def ask() -> tuple[str, int | None, bool]:
        host = host_of(tmp_path)
        try:
            await host.answer(StartTrainer(orders=orders(tmp_path)))
            stacks = await host.answer(ReadStacks())
            await host.answer(SignalTrainer(word="save"))
            ended = await host.answer(EndTrainer())
            assert isinstance(stacks, Stacks)
            assert isinstance(ended, Ended)
            assert ended.exit
            return stacks.text, ended.exit.signal, ended.exit.asked
        finally:
            await host.close()

    text, number, asked = asyncio.run(ask())
    assert "still imports" in text
    assert (number, asked) == (9, True)


def test_a_trainer_that_could_not_be_started_is_started_later(tmp_path: Path) -> None:
    """However often the volume refuses meanwhile; each refusal says why, and leaves no process and no log."""
    in_the_way, others = log_path(tmp_path, 1, 0).parent, {*psutil.Process().children()}

    async def ask() -> int | None:
        host = host_of(tmp_path)
        try:
            await host.answer(StartTrainer(orders=orders(tmp_path)))
            await host.answer(EndTrainer())
            in_the_way.touch()
            for _ in range(3):
                with pytest.raises(FileExistsError, match=in_the_way.name):
                    await host.answer(StartTrainer(orders=orders(tmp_path, 1)))
                assert {*psutil.Process().children()} <= others
            in_the_way.unlink()
            await host.answer(StartTrainer(orders=orders(tmp_path, 1)))
            ended = await host.answer(EndTrainer())
            assert isinstance(ended, Ended)
            assert ended.exit
            return ended.exit.attempt
        finally:
            await host.close()

    assert asyncio.run(ask()) == 1
    assert sorted(path.name for path in (tmp_path / LOGS).iterdir()) == ["attempt-0", "attempt-1"]


@pytest.mark.parametrize("refused", ["standby.tempfile.mkstemp", "standby.processes.start", "standby.os.pidfd_open"])
def test_no_trainer_can_stand_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """The host goes on with the one that runs, and nothing is left of what was tried."""

    async def keep() -> None:
        host = host_of(tmp_path)
        handles = psutil.Process().num_fds()
        with monkeypatch.context() as full:
            refuses = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
            full.setattr(f"shardwise.launcher.agent.{refused}", refuses)
            running = asyncio.create_task(host.run())
            async with asyncio.timeout(LIMIT_SECONDS):
                while not refuses.called or [*(tmp_path / LOGS).iterdir()]:  # noqa: ASYNC110  what it leaves is no event
                    await asyncio.sleep(0.01)
            await cancel(running)
            assert running.cancelled()
        assert psutil.Process().num_fds() == handles
        await host.answer(StartTrainer(orders=orders(tmp_path)))
        assert host.report().trainer_pid
        await host.close()

    asyncio.run(keep())


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_log_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The volume that ends a trainer may have its log too. How the trainer ended is known, and the next one starts."""
    monkeypatch.setattr(trainer, "tail_of", Mock(side_effect=OSError(number, "no")))

    async def ask() -> tuple[int | None, str]:
        host = host_of(tmp_path)
        try:
            await host.answer(StartTrainer(orders=orders(tmp_path)))
            pid = host.report().trainer_pid
            assert pid
            psutil.Process(pid).send_signal(signal.SIGTERM)
            report = await host.answer(Watch(after=host.report().version, seconds=LIMIT_SECONDS))
            assert isinstance(await host.answer(EndTrainer()), Ended)
            await host.answer(StartTrainer(orders=orders(tmp_path, 1)))
            assert isinstance(report, Report)
            assert report.exit
            return report.exit.signal, report.exit.log_tail
        finally:
            await host.close()

    assert asyncio.run(ask()) == (signal.SIGTERM, "")
