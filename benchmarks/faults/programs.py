"""Rows of an own program, the example of equinox: killed, stopped by SIGSTOP, and drained.

It takes the trainer's place on the same two simulated hosts, and is hurt from outside: it knows no plan. Called by
`local.py`.
"""

import os
import signal
from collections.abc import Callable
from functools import cache, partial

from benchmarks.faults.ground import BrokenPromiseError, Disturbed, Ground, once
from benchmarks.faults.kills import IMPATIENT
from benchmarks.faults.outcome import Outcome, Row
from benchmarks.faults.plan import Plan
from tests.hosts.programs import EXAMPLES, ProgramShell

from shardwise.cli.live import ask
from shardwise.protocol.contract import Cause, ExitCode, Phase

_STEPS, _FAULT_STEP = 400, 20
_SCRIPT = EXAMPLES / "equinox_sine.py"


class _Programs(Ground):
    """The folder of the program's runs."""

    def __init__(self) -> None:
        super().__init__()
        self.shell.remove()
        self.shell = ProgramShell(self.shell.folder, self.shell.folder / "cache", str(_SCRIPT), str(_STEPS))


@cache
def _ground() -> _Programs:
    return _Programs()


def _signalled(_: str, *, number: signal.Signals, charged: Cause, note: str, changes: tuple[str, ...] = ()) -> Outcome:
    """Signal process 1, which has saved a moment before."""
    run = _ground().start(Plan(), *changes)
    run.run.until_phase(Phase.STEP, rank=1, step=_FAULT_STEP)
    ask(run.directory, "POST", "/save")
    run.until_told(lambda told: told.event == "saved")
    word = run.run.until_phase(Phase.STEP, rank=1)
    run.put_now()
    os.kill(word.pid, number)
    return run.outcome(charged=once(charged), note=note)


def _drained(_: str) -> Outcome:
    """End the run as a drain does, and give the same command again."""
    run: Disturbed = _ground().start(Plan())
    run.run.until_phase(Phase.STEP, rank=1, step=_FAULT_STEP)
    run.put_now()
    if (code := run.run.send(signal.SIGTERM)) != ExitCode.SAVED:
        raise BrokenPromiseError(f"it has ended with {code}, and not saved")
    run.again()
    note = "SIGTERM: all processes save after the same step and end; the same command goes on"
    return run.outcome(charged={}, note=note)


def _row(fault: str, measure: Callable[[str], Outcome]) -> Row:
    return Row(place="local", fault=f"own program: {fault}", phases=("step",), measure=measure)


ROWS = (
    _row("process killed", partial(_signalled, number=signal.SIGKILL, charged=Cause.FAILURE, note="it has just saved")),
    _row(
        "SIGSTOP to a process",
        partial(
            _signalled,
            number=signal.SIGSTOP,
            charged=Cause.HANG,
            note="it has just saved; hangAfter is 10 s",
            changes=(IMPATIENT,),
        ),
    ),
    _row("drained", _drained),
)
