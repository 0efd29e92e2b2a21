"""What is done to a run, at which moment, and what it went on from: what tests of killed processes are made of."""

import json
import os
import signal
from collections.abc import Callable

from tests.cli.running import Run
from tests.hosts.conftest import agent_of

from shardwise.launcher.system import processes
from shardwise.protocol.contract import METRICS, Phase, Progress

Kill = Callable[[Run, int], object]
"""What is done to the run in which attempt; it returns when it is done."""


def in_phase(phase: Phase, rank: int, further: int = 0) -> Callable[[Run, int], Progress]:
    """Wait until a rank is in the phase, so many steps further than the attempt began."""

    def wait(run: Run, attempt: int) -> Progress:
        word = run.until_phase(phase, rank=rank, attempt=attempt)
        return run.until_phase(phase, rank=rank, step=word.step + further, attempt=attempt)

    return wait


def writing(rank: int) -> Callable[[Run, int], Progress]:
    """Wait until a checkpoint is half written."""

    def wait(run: Run, attempt: int) -> Progress:
        word = run.until_phase(Phase.STEP, rank=rank, attempt=attempt)
        run.until_writing()
        return word

    return wait


def trainer(moment: Callable[[Run, int], Progress], number: signal.Signals = signal.SIGKILL) -> Kill:
    """Signal the trainer of the moment's rank."""
    return lambda run, attempt: os.kill(moment(run, attempt).pid, number)


def agent(moment: Callable[[Run, int], Progress]) -> Kill:
    """Kill the agent of the moment's rank."""
    return lambda run, attempt: os.kill(agent_of(moment(run, attempt).pid), signal.SIGKILL)


def host(moment: Callable[[Run, int], Progress]) -> Kill:
    """Kill every process of the host of the moment's rank: agent, trainer, standby, Ray."""
    return lambda run, attempt: end_host(run, moment(run, attempt).rank)


def end_host(run: Run, number: int) -> None:
    """Kill what runs of a host now: a second look for what is left could find the agent that took its place."""
    processes.end(processes.carrying(processes.mark(run.directory, number)))


def disturb(run: Run, *kills: Kill) -> None:
    """Do one after the other, each in the attempt that follows the one before."""
    for attempt, kill in enumerate(kills):
        kill(run, attempt)


def losses_by_step(run: Run) -> dict[int, float]:
    """The loss of each step; one that was done again must have come out the same, bit for bit."""
    losses: dict[int, float] = {}
    for record in run.records():
        assert losses.setdefault(record["step"], record["loss"]) == record["loss"], record["step"]
    return losses


def beginnings(run: Run) -> list[tuple[int, int]]:
    """For each attempt that took steps, the newest step that was said to be saved before, and where it began."""
    saved, found = 0, []
    for record in map(json.loads, (run.directory / METRICS).read_text().splitlines()):
        match record.get("event"):
            case "saved":
                saved = record["step"]
            case "started" | "restored":
                found.append((saved, record["step"]))
    return found
