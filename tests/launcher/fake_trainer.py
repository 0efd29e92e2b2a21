"""A fake of the trainer, for tests of the launcher: it obeys orders as the trainer does, and trains nothing.

Started by agents in place of `shardwise.train.child`. Its steps are agreed as a collective's are: no rank completes a
step before all have handed it out, so that a rank that dies or is stopped holds up the others. What it is to do wrong,
and when, is in the file `fake.json` of the run directory; "checkpoints" are empty folders with a marker. Where hosts
share no run directory, all of that but metrics and summary is in the folder that `FAKE_FOLDER` names.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from shardwise.protocol.contract import (
    CHECKPOINTS,
    COMMITTED,
    METRICS,
    SUMMARY,
    Control,
    ExitCode,
    Phase,
    Progress,
    checkpoint_name,
    checkpoint_step,
    read_progress,
    write_progress,
)
from shardwise.protocol.orders import (
    SAVE_SIGNAL,
    STACKS_SIGNAL,
    STOP_SIGNAL,
    Orders,
    wait_for_orders,
    wait_for_the_agents_end,
)

POLL_SECONDS = 0.005


class FakeTrainer:
    """One rank."""

    def __init__(self, orders: Orders, plan: dict[str, Any]) -> None:
        self.orders, self.plan = orders, plan
        self.run_directory, self.directory = Path(orders.directory), shared_folder(orders)
        self.words = self.directory / "words"
        self.words.mkdir(exist_ok=True)
        self.step = self.dispatched = 0
        self.seconds: dict[str, float] = {}
        self.phase = Phase.START
        self.word = Control.NONE
        self.stepping = False
        left = orders.deadline_seconds
        self.stop_at = None if left is None else time.monotonic() + left

    def run(self) -> ExitCode:
        """From the orders to the exit code."""
        signal.signal(STOP_SIGNAL, lambda *_: self.hear(Control.STOP))
        signal.signal(SAVE_SIGNAL, lambda *_: self.hear(Control.SAVE))
        self.stacks = Path(self.orders.stacks).open("a")  # noqa: SIM115  open for as long as the process lives
        faulthandler.register(STACKS_SIGNAL, file=self.stacks, all_threads=True)
        for phase in (Phase.START, Phase.JOIN, Phase.RESTORE, Phase.COMPILE):
            self.enter(phase)
        self.restore()
        self.stepping = True
        if self.word == Control.STOP:
            return ExitCode.SAVED
        self.enter(Phase.STEP)
        while self.step < self.plan["steps"]:
            if self.one_step() == Control.STOP:
                self.save()
                return self.summary("stopped", ExitCode.SAVED)
        self.save()
        self.enter(Phase.DONE)
        return self.summary("complete", ExitCode.OK)

    def hear(self, word: Control) -> None:
        """A signal; a file tells the test of it."""
        self.word = max(self.word, word)
        (self.words / f"heard-{word.name}").touch()
        if word == Control.STOP and not self.stepping:
            if self.plan.get("deaf"):
                return
            os._exit(ExitCode.SAVED)

    def enter(self, phase: Phase) -> None:
        """Be in a phase, and do what the plan says of it."""
        self.phase = phase
        self.write(0.0)
        self.misbehave(phase, self.step)

    def restore(self) -> None:
        """Go on from the newest checkpoint."""
        steps = [
            checkpoint_step(marker.parent.name) for marker in (self.directory / CHECKPOINTS).glob(f"*/{COMMITTED}")
        ]
        self.step = self.dispatched = max((step for step in steps if step is not None), default=0)
        kind = "restored" if self.step else "started"
        orders = self.orders
        self.log({"event": kind, "step": self.step, "attempt": orders.attempt, "committed": orders.committed})

    def one_step(self) -> Control:
        """Hand a step out, wait for the others, complete it."""
        began = time.perf_counter()
        self.misbehave(Phase.STEP, self.step)
        self.dispatched = self.step + 1
        self.write(0.0)
        word = self.agree()
        time.sleep(self.plan.get("stepSeconds", 0.01))
        self.step = self.dispatched
        seconds = time.perf_counter() - began
        self.seconds[Phase.STEP] = self.seconds.get(Phase.STEP, 0.0) + seconds
        self.write(seconds)
        self.log({"step": self.step, "loss": 1 / self.step, "stepSeconds": seconds, "tokensPerSecond": 1.0, "mfu": 0.5})
        every = self.plan.get("saveEvery")
        if word == Control.SAVE or (every and self.step % every == 0):
            self.save()
            self.word = Control(self.word if self.word == Control.STOP else Control.NONE)
        return word

    def agree(self) -> Control:
        """Wait until all ranks have handed this step out; the largest of their words."""
        if self.stop_at is not None and time.monotonic() >= self.stop_at:
            self.word = Control.STOP
        mine = self.words / f"word-{self.orders.attempt}-{self.dispatched}-{self.orders.rank}"
        mine.with_suffix(".partial").write_text(str(int(self.word)))
        mine.with_suffix(".partial").rename(mine)
        words = []
        for rank in range(self.orders.num_processes):
            theirs = mine.with_name(f"word-{self.orders.attempt}-{self.dispatched}-{rank}")
            while not theirs.exists():
                time.sleep(POLL_SECONDS)
            words.append(int(theirs.read_text()))
        return Control(max(words))

    def save(self) -> None:
        """Rank 0 leaves a marker."""
        if self.orders.rank == 0:
            folder = self.directory / CHECKPOINTS / checkpoint_name(self.step)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / COMMITTED).touch()
        self.log({"event": "saved", "step": self.step, "savedAt": time.time(), "durableSeconds": 0.1})

    def summary(self, status: str, code: ExitCode) -> ExitCode:
        """Rank 0 says how the run ended."""
        if self.orders.rank == 0:
            (self.run_directory / SUMMARY).write_text(
                json.dumps({"name": "fake", "status": status, "steps": self.step})
            )
        return code

    def log(self, record: dict[str, Any]) -> None:
        """Rank 0 writes metrics."""
        if self.orders.rank == 0:
            with (self.run_directory / METRICS).open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)  # noqa: T201  the log

    def write(self, step_seconds: float) -> None:
        """The progress record."""
        progress = Progress(
            attempt=self.orders.attempt,
            rank=self.orders.rank,
            phase=self.phase,
            step=self.step,
            dispatched=self.dispatched,
            step_seconds=step_seconds or self.last_step_seconds(),
            monotonic_seconds=time.monotonic(),
            pid=os.getpid(),
            seconds=self.seconds,
        )
        write_progress(Path(self.orders.progress), progress)

    def last_step_seconds(self) -> float:
        """What the record has said so far."""
        before = read_progress(Path(self.orders.progress))
        return before.step_seconds if before and before.attempt == self.orders.attempt else 0.0

    def misbehave(self, phase: Phase, step: int) -> None:
        """Do what the plan has for this rank, attempt, phase and step."""
        for fault in self.plan.get("faults", ()):
            here = {"rank": self.orders.rank, "attempt": self.orders.attempt, "phase": phase, "step": step}
            if all(fault.get(key, value) == value for key, value in here.items()):
                print(fault.get("say", ""), flush=True)  # noqa: T201  the log
                if "wait" in fault:
                    while not (self.directory / fault["wait"]).exists():
                        self.write(0.0)  # held up by a test, which may be slow: that is no hang
                        time.sleep(POLL_SECONDS)
                if "work" in fault:
                    while not (self.directory / fault["work"]).exists():
                        pass
                if "signal" in fault:
                    os.kill(os.getpid(), fault["signal"])
                if "exit" in fault:
                    os._exit(fault["exit"])


def shared_folder(orders: Orders) -> Path:
    """Where the ranks meet."""
    return Path(os.environ.get("FAKE_FOLDER", orders.directory))


def end_with_the_agent() -> None:
    """The end of the socket ends this process."""
    wait_for_the_agents_end()
    os._exit(1)


def main() -> None:
    """Wait for orders, and obey them."""
    orders = wait_for_orders()
    if orders is None:
        return
    threading.Thread(target=end_with_the_agent, daemon=True).start()
    plan = json.loads((shared_folder(orders) / "fake.json").read_text())
    sys.exit(FakeTrainer(orders, plan).run())


if __name__ == "__main__":
    main()
