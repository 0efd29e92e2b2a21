"""shardwise.launcher.leader.publisher: the status of a program, whatever it reports or writes for itself."""

import asyncio
import re
import time
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.launcher.leader.test_state import state_in

from shardwise.job.spec.batch import Batch, RampUp
from shardwise.launcher.leader.attempt import Attempt
from shardwise.launcher.leader.publisher import StatusPublisher
from shardwise.launcher.leader.state import LeaderState
from shardwise.protocol.contract import METRICS
from shardwise.protocol.report import Report
from shardwise.protocol.run_status import RunStatus

OWN = Report(
    version=1,
    host=0,
    agent_id="own",
    agent_pid=1,
    trainer_pid=None,
    attempt=None,
    progress=None,
    age_seconds=0.0,
    resting_seconds=0.0,
    process_state="",
    exit=None,
    standby=False,
    stop_asked=False,
)
STARTED = '{"event": "started", "step": 0, "attempt": 0, "of": 10}'
STEP = '{"step": 4, "loss": 1.5, "stepSeconds": 2.0}'


def state_of_program(folder: Path, training: object = None) -> LeaderState:
    """Return the state of a program's run, which begins now."""
    state = state_in(folder)
    state.job = Mock()
    unset = dict.fromkeys(("spec.num_steps", "spec.deadline"))
    state.job.configure_mock(**{"metadata.name": "name", "spec.training_if_any": training, **unset})
    state.host = Mock(agent_id="own", stuck="", stop_asked=False, report=lambda: OWN)
    return state


def status_after(folder: Path, *lines: str, training: object = None) -> RunStatus:
    """Return the status of a run that has written these lines of metrics."""
    (folder / METRICS).unlink(missing_ok=True)
    state = state_of_program(folder, training)
    (folder / METRICS).write_text("".join(f"{line}\n" for line in lines))

    async def look() -> RunStatus:
        state.metrics.read()
        publisher = StatusPublisher(state)
        publisher.look()
        return publisher.status()

    return asyncio.run(look())


def test_the_progress_of_a_program(tmp_path: Path) -> None:
    """Its last step, of how many, its loss, and the time left: of six steps, when four have taken two seconds."""
    progress = status_after(tmp_path, STARTED, STEP).progress

    assert (progress.step, progress.of, progress.loss, progress.eta_seconds) == (4, 10, 1.5, 3.0)


def test_the_time_left_within_a_ramp(tmp_path: Path) -> None:
    """Of ten steps four are done, of half the sequences, and six more take twice as long each."""
    batch = Batch(sequences=8, ramp_up=(RampUp(until_step=4, sequences=4),))
    progress = status_after(tmp_path, STARTED, STEP, training=Mock(batch=batch)).progress

    assert progress.eta_seconds == 6.0


@pytest.mark.parametrize(
    "line",
    [
        "epoch 1 done",
        "[1, 2]",
        '{"iter": 5, "loss": 1.0}',
        '{"step": "five", "loss": 1.0}',
        '{"step": 3000000000, "loss": 1.0}',
        '{"event": "started", "attempt": 0}',
        '{"event": "saved", "epoch": 5}',
        '{"event": "saveFailed", "epoch": 5}',
    ],
)
def test_lines_that_are_no_records(tmp_path: Path, line: str) -> None:
    """A program that writes its own lines into the file keeps its status, and what the records there say."""
    before = status_after(tmp_path, STARTED, STEP)
    after = status_after(tmp_path, STARTED, STEP, line)

    assert (after.progress, after.checkpoint) == (before.progress, before.checkpoint)
    assert after.failed_saves is None


@pytest.mark.parametrize(
    "given",
    [
        '"of": -3.5',
        '"etaSeconds": -3.0',
        '"etaSeconds": NaN',
        '"stepSeconds": -0.0001',
        '"stepSeconds": "fast"',
        '"gradNorm": [1.0, 2.0]',
        '"mfu": {"a": 1}',
        '"tokensPerSecond": null',
        f'"heldOutLoss": "{"x" * 64}"',
    ],
)
def test_a_figure_of_a_step_that_cannot_be_shown(tmp_path: Path, given: str) -> None:
    """It is left out alone; what a program calls `of` or `eta_seconds` is a number of its own."""
    progress = status_after(tmp_path, STARTED, STEP, f'{{"step": 5, "loss": 1.0, {given}}}').progress

    assert (progress.step, progress.of, progress.loss, progress.eta_seconds) == (5, 10, 1.0, 2.5)
    assert (progress.grad_norm, progress.mfu, progress.tokens_per_second) == (None, None, None)


@pytest.mark.parametrize(
    ("event", "of", "saved_at"),
    [
        ('{"event": "started", "step": 4, "attempt": 1, "of": 9223372036854775807}', None, None),
        ('{"event": "restored", "step": 4, "attempt": "two", "of": 20, "savedAt": "today"}', 20, None),
        ('{"event": "saved", "step": 4, "savedAt": 5.0, "durableSeconds": -1}', 10, 5.0),
        ('{"event": "saveFailed", "step": 4, "inARow": -1, "reason": 5}', 10, None),
        ('{"event": "evaluated", "step": 4, "heldOutLoss": {"web": 2.0}}', 10, None),
    ],
)
def test_a_figure_of_an_event_that_cannot_be_shown(
    tmp_path: Path, event: str, of: int | None, saved_at: float | None
) -> None:
    """It is not known, and the rest of the event is."""
    status = status_after(tmp_path, STARTED, event, STEP)

    assert (status.progress.step, status.progress.of, status.progress.held_out_loss) == (4, of, None)
    assert (status.checkpoint.saved_at if status.checkpoint else None) == saved_at
    assert (status.failed_saves is not None) == ("saveFailed" in event)


def test_where_the_time_of_a_silent_program_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts, or recovers, until it counts as under way; nobody knows what it does then, in each attempt."""
    state, right, passed = state_of_program(tmp_path), time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: right() + passed[0])

    async def attempts() -> list[dict[str, float]]:
        seen = []
        publisher = StatusPublisher(state)
        for number in range(2):
            state.begin(Attempt(number, state))
            for seconds in (20.0, 1000.0):  # 20 s are longer than such a start is taken to last
                passed[0] += seconds
                publisher.look()
                seen.append(publisher.status().goodput)
            state.end(well=False)
        return seen

    def about(split: dict[str, float]) -> dict[str, float]:
        return {name: round(seconds, -1) for name, seconds in split.items() if seconds >= 5}

    assert [about(split) for split in asyncio.run(attempts())] == [
        {"start": 20},
        {"start": 20, "other": 1000},
        {"start": 20, "other": 1000, "recovery": 20},
        {"start": 20, "other": 2000, "recovery": 20},
    ]


def counters_of(publisher: StatusPublisher) -> dict[str, float]:
    """Return the wall time by category that Prometheus would be given now."""
    found = re.findall(r'goodput_seconds_total\{category="(\w+)".*?\} (\S+)', publisher.metrics().decode())
    return {category: float(value) for category, value in found}


def test_no_counter_falls_when_the_leader_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor, which knows no more than the record, serves no less than it has, to the same address."""
    right, now, passed = time.monotonic, time.time, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: right() + passed[0])
    monkeypatch.setattr(time, "time", lambda: now() + passed[0])

    async def lead(*seconds: float) -> list[dict[str, float]]:
        state = state_of_program(tmp_path)
        publisher = StatusPublisher(state)
        served = [counters_of(publisher)]
        state.note()
        state.begin(Attempt(0, state))
        for each in seconds:
            passed[0] += each
            publisher.look()
            served.append(counters_of(publisher))
        return served

    served = asyncio.run(lead(20.0, 1000.0, 1.5))  # the record is not written again within so short a time
    served += asyncio.run(lead(0.5))
    assert served[3]["other"] > 900
    for before, after in pairwise(served):
        assert all(after[name] >= value for name, value in before.items())
