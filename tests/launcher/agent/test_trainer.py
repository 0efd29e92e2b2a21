"""One trainer process: who stands by, who follows it, and how much it works, as its agent can tell from outside."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import psutil
import pytest

from shardwise.launcher.agent import standby as standbys
from shardwise.launcher.agent import trainer as module
from shardwise.launcher.agent.standby import Standby
from shardwise.launcher.agent.trainer import StuckError, Trainer
from shardwise.launcher.system import processes
from shardwise.launcher.system.processes import clean_environment
from shardwise.protocol.contract import LOGS, log_path
from shardwise.protocol.orders import Orders

LIMIT_SECONDS = 300.0  # before a test gives up; nothing is measured with it
IMPORTING = "import os; os.read(0, 1); os.read(0, 1)"  # orders do not end it
OBEDIENT = """
import sys
from shardwise.protocol.orders import wait_for_orders, wait_for_the_agents_end
orders = wait_for_orders()
if orders is None:
    sys.exit(5)
print(f"obeys {orders.attempt}", flush=True)
if orders.step is None:
    wait_for_the_agents_end()
sys.exit(orders.step)
"""
ALONE = """
import os
def refuse():
    raise BlockingIOError("no process more")
os.fork = refuse
"""
BUSY = "while True: pass"
HEEDS = """
import signal
words = {signal.SIGTERM: "stop", signal.SIGUSR1: "save"}
signal.pthread_sigmask(signal.SIG_BLOCK, words)  # one that comes between two waits is kept for the next
print("heeds", flush=True)
while True: print(words[signal.sigwait(words)], flush=True)
"""
SHORT_CHILD = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
IN_SHORT_CHILDREN = f"""
import os, subprocess, sys, time
for number in range(2):
    subprocess.run([sys.executable, "-c", {SHORT_CHILD!r}], check=True)
print("worked", flush=True)
time.sleep(600)
"""


def orders(folder: Path, attempt: int = 0, code: int | None = None) -> Orders:
    """Return orders to end with this code; without one, to live on."""
    return Orders(
        job_file=str(folder / "job.yaml"),
        progress=str(folder / "progress"),
        stacks=str(folder / "stacks"),
        directory=str(folder),
        rank=0,
        num_processes=1,
        coordinator="",
        attempt=attempt,
        fork=False,
        step=code,
        deadline_seconds=None,
    )


def with_standby(folder: Path, code: str, look: Callable[[Standby], Coroutine[None, None, None]]) -> None:
    """Look at a process that runs this code and stands by; `look` ends it."""
    (folder / LOGS).mkdir()
    processes.become_subreaper()
    processes.reap_orphans()  # of tests before this one in the same process, whose children's children come here too

    async def run() -> None:
        standby = await Standby(folder, 0).start([sys.executable, "-c", code], clean_environment())
        async with asyncio.timeout(LIMIT_SECONDS):
            await look(standby)

    asyncio.run(run())
    assert not [*(folder / LOGS).glob(".standby*")]


def with_trainer(folder: Path, code: str, look: Callable[[Trainer], Coroutine[None, None, None]]) -> None:
    """Look at a trainer that runs this code and has orders, and end it."""

    async def run(standby: Standby) -> None:
        trainer = standby.give(orders(folder), None)
        try:
            await look(trainer)
        finally:
            await trainer.end()
            trainer.close()

    with_standby(folder, code, run)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    while not condition():  # noqa: ASYNC110  what another process does sets no event here
        await asyncio.sleep(0.01)


def test_ready_from_the_end_of_its_imports(tmp_path: Path) -> None:
    """A process is ready when it says so, and no longer once it has ended; its log goes with it."""

    async def look(standby: Standby) -> None:
        await until(lambda: standby.ready)
        assert standby.alive
        os.kill(standby._pid, signal.SIGKILL)
        await until(lambda: not standby.alive)
        assert not standby.ready
        await standby.end()

    with_standby(tmp_path, OBEDIENT, look)


def test_not_ready_while_it_imports(tmp_path: Path) -> None:
    """One that lives and has not said so is not ready: asleep, it waits in the middle of its imports."""

    async def look(standby: Standby) -> None:
        await until(lambda: psutil.Process(standby._pid).status() == psutil.STATUS_SLEEPING)
        assert standby.alive
        assert not standby.ready
        await standby.end()

    with_standby(tmp_path, IMPORTING, look)


def test_each_leaves_one_behind_that_stands_by(tmp_path: Path) -> None:
    """Whoever gets orders forks the next: its own code, log and number, whichever way the one before it ended."""

    async def look(standby: Standby) -> None:
        seen = []
        for attempt, code in enumerate((None, 7, 0, None)):
            await until(lambda: standby.ready)  # noqa: B023  called before the next round
            successor = Standby(tmp_path, 0)
            trainer = standby.give(orders(tmp_path, attempt, code), successor)
            await until(lambda: successor.ready)  # noqa: B023  as above
            log = log_path(tmp_path, attempt, 0)
            if code is None:
                await until(lambda: log.read_text() != "")  # noqa: B023  it forks before it obeys
                trainer.ask("save")  # SIGUSR1, which ends who does not listen
            ended = await trainer.wait()
            assert (ended.code, ended.signal) == ((code, None) if code is not None else (None, signal.SIGUSR1))
            assert log.read_text() == ended.log_tail + "\n" == f"obeys {attempt}\n"
            seen.append(trainer.pid)
            trainer.close()
            standby = successor
        assert len(set(seen)) == 4
        assert processes.reap_orphans() == []
        await standby.end()
        await until(lambda: len(processes.reap_orphans()) == 1)

    with_standby(tmp_path, OBEDIENT, look)


def test_one_that_may_not_fork(tmp_path: Path) -> None:
    """It obeys all the same, and nobody stands by."""

    async def look(standby: Standby) -> None:
        await until(lambda: standby.ready)
        successor = Standby(tmp_path, 0)
        trainer = standby.give(orders(tmp_path, code=3), successor)
        assert (await trainer.wait()).code == 3
        assert not successor.alive
        await successor.end()
        trainer.close()

    with_standby(tmp_path, ALONE + OBEDIENT, look)


def test_one_that_was_ended_before_it_forked(tmp_path: Path) -> None:
    """Nobody stands by then, and that is seen."""

    async def look(standby: Standby) -> None:
        successor = Standby(tmp_path, 0)
        trainer = standby.give(orders(tmp_path), successor)
        assert not successor.alive
        await trainer.end()
        trainer.close()
        assert not successor.alive
        await successor.end()

    with_standby(tmp_path, IMPORTING, look)


def test_one_that_ends_while_it_stands_by(tmp_path: Path) -> None:
    """It is seen while the trainer before it lives, and after that has ended."""

    async def look(standby: Standby) -> None:
        successor = Standby(tmp_path, 0)
        trainer = standby.give(orders(tmp_path), successor)
        await until(lambda: successor.ready)
        os.kill(successor._pid, signal.SIGKILL)
        await until(lambda: not successor.alive)
        await trainer.end()
        trainer.close()
        await until(lambda: len(processes.reap_orphans()) == 1)
        assert not successor.alive
        await successor.end()

    with_standby(tmp_path, OBEDIENT, look)


def test_none_outlives_the_agent(tmp_path: Path) -> None:
    """When the agent's ends of the sockets close, the trainer ends, and who stands by too."""

    async def look(standby: Standby) -> None:
        await until(lambda: standby.ready)
        successor = Standby(tmp_path, 0)
        trainer = standby.give(orders(tmp_path), successor)
        await until(lambda: successor.ready)
        for ours in (trainer._channel, successor._channel):
            ours.close()
        await trainer.wait()
        await until(lambda: len(processes.reap_orphans()) == 1)
        await successor.end()
        trainer.close()

    with_standby(tmp_path, OBEDIENT, look)


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


def test_a_stop_that_is_sent_again(tmp_path: Path) -> None:
    """A program is told once, which may take a second SIGTERM for a wish to end unsaved; nor is one told too late."""

    def written() -> list[str]:
        return log_path(tmp_path, 0, 0).read_text().split()

    async def look(trainer: Trainer) -> None:
        await until(lambda: written() == ["heeds"])
        trainer.ask("stop", attempt=1)
        trainer.ask("save")
        await until(lambda: written() == ["heeds", "save"])
        trainer.ask("stop", attempt=0)
        await until(lambda: written() == ["heeds", "save", "stop"])
        trainer.ask("stop", attempt=0)
        trainer.ask("save", attempt=0)
        await until(lambda: written()[3:] == ["save"])

    with_trainer(tmp_path, HEEDS, look)


def test_the_work_of_children_that_have_ended(tmp_path: Path) -> None:
    """It counts for the family, as that of those which live; for the process itself it does not."""

    async def look(trainer: Trainer) -> None:
        await until(lambda: "worked" in log_path(tmp_path, 0, 0).read_text())
        assert trainer.family_cpu_seconds >= trainer.cpu_seconds + 0.6

    with_trainer(tmp_path, IN_SHORT_CHILDREN, look)


def test_the_work_of_one_process_of_a_family(tmp_path: Path) -> None:
    """It is told apart from that of the others; of a number that is of no process there, all of them are meant."""

    async def look(trainer: Trainer) -> None:
        await until(lambda: len(psutil.Process(trainer.pid).children()) == 1)
        (child,) = psutil.Process(trainer.pid).children()
        children.append(child)
        await until(lambda: trainer.cpu_seconds_of(child.pid) >= 0.2)
        assert trainer.cpu_seconds_of(trainer.pid) < trainer.cpu_seconds_of(child.pid)
        assert trainer.cpu_seconds_of(os.getpid()) >= 0.2
        os.kill(child.pid, signal.SIGSTOP)
        await until(lambda: child.status() == psutil.STATUS_STOPPED)
        assert trainer.cpu_seconds_of(os.getpid()) == trainer.family_cpu_seconds

    children: list[psutil.Process] = []
    try:
        with_trainer(tmp_path, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])", look)
    finally:
        for child in children:  # of a process that is ended alone
            child.kill()


def test_a_process_that_does_not_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends it hears, within a bound, which process survives SIGKILL; it is waited for again when it may go."""
    monkeypatch.setattr(module, "GONE_WITHIN_SECONDS", 0.1)

    async def look(trainer: Trainer) -> None:
        with monkeypatch.context() as held:
            held.setattr(Trainer, "_send", lambda *_: None)
            with pytest.raises(StuckError, match=rf"process {trainer.pid} has survived SIGKILL for 0.1 s \(state"):
                await trainer.end()
        assert trainer.alive
        monkeypatch.setattr(module, "GONE_WITHIN_SECONDS", LIMIT_SECONDS)
        await trainer.end()
        assert not trainer.alive

    with_trainer(tmp_path, IMPORTING, look)


def test_an_agent_that_leaves_touches_no_other_s_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host may have another pod by then; one that begins removes what those before it have left."""
    (tmp_path / LOGS).mkdir()
    own = Standby(tmp_path, 0)
    monkeypatch.setattr(standbys, "_AGENT", "another")
    other = Standby(tmp_path, 0)
    left = [*(tmp_path / LOGS).iterdir()]

    standbys.remove_standby_logs(tmp_path, 0, of_others=False)
    assert [log for log in left if not log.exists()] == [log for log in left if "another" in log.name]
    standbys.remove_standby_logs(tmp_path, 0)
    assert not [*(tmp_path / LOGS).iterdir()]
    asyncio.run(own.end())
    asyncio.run(other.end())
