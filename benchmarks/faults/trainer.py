"""The trainer of `shardwise run` as it is, but that it does what a plan (`plan.py`) says, at its moment.

Started by agents in its place: `python -m benchmarks.faults.trainer`. A fault in the midst of a phase is put by the
trainer itself: a signal from outside comes when the phase may be over.
"""

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

# Before all else: it says how JAX is to be imported.
from shardwise.train import child  # isort: split

import numpy as np
import psutil
from benchmarks.faults import disturbed
from benchmarks.faults.plan import AFTER_COMMIT, BEFORE_COMMIT, Does, Fault, Plan, go, put

from shardwise.launcher.system import processes
from shardwise.protocol.contract import COMMITTED
from shardwise.train.checkpoint.save import Save
from shardwise.train.checkpoint.store import Store
from shardwise.train.loader import Loader
from shardwise.train.phases import Phases
from shardwise.train.probe import Probe

_LOOK_SECONDS = 0.005
_LEFT_BYTES, _ASKED_BYTES = 4 << 30, 1 << 40
_SIGNALS = {
    Does.KILL: (os.getpid, signal.SIGKILL),
    Does.STOP: (os.getpid, signal.SIGSTOP),
    Does.AGENT: (os.getppid, signal.SIGKILL),
}


class _Trainer:
    """What this process is to do wrong; nothing before it has its orders, which one that stands by has not."""

    def __init__(self) -> None:
        self._directory, self.rank, self._attempt = Path(), 0, 0
        self.plan, self._done = Plan(), set[Fault]()

    def obey(self, orders: Any) -> None:
        """Take the plan of the run that the orders are for."""
        self._directory, self.rank, self._attempt = Path(orders.directory), orders.rank, orders.attempt
        self.plan = Plan.read(self._directory)

    def reached(self, moment: str, step: int, beat: Callable[[], None]) -> None:
        """Do what is planned for this moment; `beat` keeps one that waits from looking hung."""
        for fault in self.plan.faults:
            here = (fault.moment, fault.rank, fault.attempt) == (moment, self.rank, self._attempt)
            if here and step >= fault.step and fault not in self._done:
                self._done.add(fault)
                put(self._directory, fault, time.clock_gettime(time.CLOCK_REALTIME))
                self._do(fault, beat)

    @property
    def computes_wrong(self) -> bool:
        """Whether its device does, since a fault was put."""
        return any(fault.does == Does.WRONG for fault in self._done)

    def _do(self, fault: Fault, beat: Callable[[], None]) -> None:
        match fault.does:
            case Does.KILL | Does.STOP | Does.AGENT:
                whom, number = _SIGNALS[fault.does]
                os.kill(whom(), number)
            case Does.HOST:
                self._end_host()
            case Does.RAISE:
                raise RuntimeError("a fault that was put there")
            case Does.MEMORY:
                _ask_for_too_much()
            case Does.STUCK:
                _stand_still()
            case Does.BAD_BATCH | Does.WRONG:
                pass  # whoever makes the batch, or measures, does it
            case Does.LATE:
                time.sleep(fault.seconds)
            case Does.HOLD:
                while not go(self._directory).exists():
                    beat()
                    time.sleep(_LOOK_SECONDS)

    def _end_host(self) -> NoReturn:
        for process in processes.carrying(processes.mark(self._directory, self.rank)):
            if process.pid != os.getpid():
                os.kill(process.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it has survived SIGKILL")


def _ask_for_too_much() -> NoReturn:
    """More than it may have; what other threads need is there, since XLA's do not say that they have too little."""
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + _LEFT_BYTES, resource.RLIM_INFINITY))
    raise AssertionError(f"there were {len(bytearray(_ASKED_BYTES))} bytes")


def _stand_still() -> NoReturn:
    while True:
        time.sleep(3600)


def _in_phases(here: _Trainer) -> None:
    """Each word of progress is a moment."""
    write = Phases._write  # noqa: SLF001  where a trainer says what it does

    def told(phases: Phases) -> None:
        write(phases)
        here.reached(phases._phase, phases.step, lambda: write(phases))  # noqa: SLF001  as above

    setattr(Phases, "_write", told)  # noqa: B010  it is not to be typed


def _in_saves(here: _Trainer) -> None:
    """All ranks come before and after a commit; the one that writes the marker is after it as soon as that is there."""
    together, write = Save._together, Store.write  # noqa: SLF001  as above

    def agreed(save: Save, what: str, act: Callable[[], bool]) -> list[bool]:
        if what == "commit":
            here.reached(BEFORE_COMMIT, save.step, save.moved)
        done = together(save, what, act)
        if what == "commit":
            here.reached(AFTER_COMMIT, save.step, save.moved)
        return done

    def written(store: Store, step: int, name: str, content: bytes) -> None:
        write(store, step, name, content)
        if name == COMMITTED:
            here.reached(AFTER_COMMIT, step, lambda: None)

    setattr(Save, "_together", agreed)  # noqa: B010  as above
    setattr(Store, "write", written)  # noqa: B010  as above


def _in_batches(here: _Trainer) -> None:
    """One batch may be no number, and all may come late."""
    batch = Loader.batch

    def made(loader: Loader, step: int) -> Any:
        time.sleep(dict(enumerate(here.plan.late_seconds)).get(here.rank, 0.0))
        rows = batch(loader, step)
        if loader.number(step) != here.plan.bad_batch:
            return rows
        here.reached(Does.BAD_BATCH, step, lambda: None)
        return rows._replace(weights=rows.weights * float("nan"))

    setattr(Loader, "batch", made)  # noqa: B010  as above


def _in_measurements(here: _Trainer) -> None:
    """More work than the other rank's takes as much longer as slower devices do; a device may have one wrong number."""
    run = Probe._run  # noqa: SLF001  what is timed

    def badly(probe: Probe) -> tuple[float, Any]:
        if here.computes_wrong:
            factor = np.array(probe._factor)  # noqa: SLF001  as above
            factor[0, 0] = 8  # its numbers are at most 7
            probe._factor = probe._put(factor)  # noqa: SLF001  as above
        runs = [run(probe) for _ in range(here.plan.slow_products if here.rank == 1 else 1)]
        return sum(seconds for seconds, _ in runs), runs[0][1]

    setattr(Probe, "_run", badly)  # noqa: B010  as above


def main() -> None:
    """Be a trainer."""
    disturbed.take_the_wrong_clock()
    here, run = _Trainer(), vars(child)["run"]

    def obeying(job: Any, orders: Any, *rest: Any, **named: Any) -> Any:
        here.obey(orders)
        return run(job, orders, *rest, **named)

    vars(child)["run"] = obeying
    for hook in (_in_phases, _in_saves, _in_batches, _in_measurements):
        hook(here)
    child.main()


if __name__ == "__main__":
    main()
