"""The step loop: batches in, steps dispatched, losses written, saves and evaluations at agreed steps.

A step is dispatched before the one before it has been read back, so the devices never wait for Python; a step counts as
completed when its loss has reached this host. Whatever the controls of a step ask for is therefore done one step later,
and at the same step on every process.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from shardwise.protocol.contract import Control, Phase
from shardwise.protocol.evaluated import as_record
from shardwise.train.bad_step_answer import answer
from shardwise.train.bad_steps import Judge
from shardwise.train.batches import Batches
from shardwise.train.control import Controls
from shardwise.train.evaluation import Evaluator, means_of_sets
from shardwise.train.peers import Peers
from shardwise.train.phases import Phases
from shardwise.train.probe import Probe
from shardwise.train.profiler import Profiler
from shardwise.train.report import Report, step_record
from shardwise.train.run_directory import RunDirectory
from shardwise.train.saves import Saves
from shardwise.train.start import Start
from shardwise.train.state import State, parameters
from shardwise.train.step import Metrics
from shardwise.train.summary import Outcome


@dataclass(frozen=True)
class _Dispatched:
    """A step that the devices have been given."""

    number: int
    metrics: Metrics
    num_tokens: int


class Loop:
    """One process's run through the steps.

    Args:
        start: programs, data and the state to start from.
        directory: keeps which batches the next start leaves out.
        controls: what signals and clocks ask for.
        phases: where time is counted and progress recorded.
        report: takes steps, evaluations and events.
        saves: the checkpoints.
        peers: the processes that train together.
        mfu_of_one_token_a_second: FLOPs of a token over the hardware's peak FLOP/s.

    """

    def __init__(
        self,
        start: Start,
        *,
        directory: RunDirectory,
        controls: Controls,
        phases: Phases,
        report: Report,
        saves: Saves,
        peers: Peers,
        mfu_of_one_token_a_second: float,
    ) -> None:
        self._start, self._controls, self._phases, self._peers = start, controls, phases, peers
        self._directory, self._report, self._saves = directory, report, saves
        self._profiler = Profiler(start.job.spec.training.profile, directory.profile(peers.rank), rank=peers.rank)
        self._probe, self._mfu = Probe(start.kept), mfu_of_one_token_a_second
        self._program = start.program
        left_out = {*self._program.training.data.leave_out, *start.left_out}
        self._batches = Batches(start, left_out)
        self._judge = Judge.of(self._program.training, start.past, self._batches.steps_left_out())
        self._state: State = start.state
        self._completed_at = time.perf_counter()
        self._loss: float | None = None
        self._asked = Control.NONE

    def run(self) -> Outcome:
        """Train to the last step, or to an agreed stop; the last state is saved either way.

        Raises:
            NonFiniteError: a step must not be trained on; nothing of it is saved.
            DeviceError: a device of this host computes wrong.
            StorageError, CheckpointError: saves failed for too long; the checkpoints before them are untouched.

        """
        with self._profiler.closing():
            return self._run()

    def _run(self) -> Outcome:
        training = self._start.job.spec.training
        self._controls.stepping()
        self._phases.switch_to(Phase.STEP)
        self._completed_at = time.perf_counter()
        previous: _Dispatched | None = None
        asked = Control.NONE
        for batch in self._batches.of_all_steps(lambda: parameters(self._state)):
            number = (previous.number if previous else self._start.first_step) + 1
            step = self._start.steps[len(batch.tokens)]
            if self._profiler.starts_at(number):
                self._complete(previous)
                self._profile(partial(self._profiler.start, step))
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                self._state, metrics = step(self._state, batch, self._control(number), *self._limit(number))
            self._phases.dispatched(number)
            self._phases.seconds["wait"] = self._batches.loader.waited_seconds
            dispatched = _Dispatched(number, metrics, batch.tokens.size)
            # The devices work on step `number` while this waits for the step before it, but where its weights are
            # what makes the next batch.
            self._complete(previous, dispatched if self._batches.completions else None)
            # All act here on what that asks for, even one that read it early, around its own trace; but not once more
            # on what was done after its dispatch.
            asked = self._asked if self._asked > asked else Control.NONE
            previous = dispatched
            evaluates = self._due(number, training.evaluation.every_steps)
            saves = self._saves_due(number, asked)
            traced = self._profiler.stops_at(number)
            if not (evaluates or saves or traced or asked == Control.MEASURE):
                continue
            # Judge this step too before its state is saved: a bad one must not reach a checkpoint.
            self._complete(previous)
            if asked == Control.STOP:  # first, since what else is due may take longer than the machine has left
                self._save(number)
            if traced and self._profile(self._profiler.stop):
                self._report.event({"event": "profiled", "step": number})
            if asked == Control.MEASURE:
                self._measure()
            if evaluates:
                self._evaluate(number)
            for save in saves if asked != Control.STOP else ():
                save(number)
            self._controls.done(asked)
            self._completed_at = time.perf_counter()
            if asked == Control.STOP:
                break
        last = previous.number if previous else self._start.first_step
        self._complete(previous)
        return self._finish(last, stopped=asked == Control.STOP and last < training.steps)

    def _finish(self, last: int, *, stopped: bool) -> Outcome:
        self._saves.save_last(last, self._state, self._judge.past)
        digest = self._saves.digest(self._state)
        self._phases.switch_to(Phase.DONE)
        return Outcome(steps=last, loss=self._loss, digest=digest, stopped=stopped)

    def _control(self, number: int) -> jax.Array:
        """Put this process's control on each of its devices; the step returns the largest of all.

        Nothing is done between two steps on the same completions, with which a run could not go on.
        """
        sharding = self._program.layout.control
        own = np.full(1, self._controls.due() if self._batches.ends_at(number) else Control.NONE, np.int32)
        return jax.make_array_from_callback((self._program.layout.mesh.size,), sharding, lambda _: own)

    def _limit(self, number: int) -> list[jax.Array]:
        """Return the last argument of a step program that skips bad steps; nothing for any other."""
        if not self._judge.skips:
            return []
        limit = self._judge.limit_of_updates(number)
        return [jax.make_array_from_callback((), self._program.layout.replicated, lambda _: limit)]

    def _due(self, number: int, every: int | None) -> bool:
        return every is not None and number % every == 0

    def _complete(self, *steps: _Dispatched | None) -> None:
        """Wait for steps, judge their numbers and report them, and keep what they ask for; once for each step."""
        for step in steps:
            if step is not None and step.number > self._phases.step:
                self._complete_one(step)

    def _complete_one(self, step: _Dispatched) -> None:
        values = {name: float(x) for name, x in jax.device_get(step.metrics)._asdict().items() if x is not None}
        now = time.perf_counter()
        seconds, self._completed_at = now - self._completed_at, now
        verdict = self._judge.judge(step.number, values["loss"], values["grad_norm"])
        if verdict is not None:
            event = self._judge.event(verdict, step.number, self._batches.number(step.number), values)
            answer(verdict, event, self._report, self._directory, self._peers)
        self._phases.completed(step.number, seconds)
        if verdict is None:
            self._loss = values["loss"]
            z_loss = self._program.training.loss.z_loss > 0
            record = step_record(values, step.num_tokens / seconds, seconds, self._mfu, z_loss=z_loss)
            self._report.step(step.number, self._batches.record(record, values))
        self._asked = Control(int(values["control"]))

    def _profile(self, switch: Callable[[], bool]) -> bool:
        """Start or stop the trace between two steps, and return whether it was; neither step is charged for it."""
        works = switch()
        self._phases.beat()
        self._completed_at = time.perf_counter()
        return works

    def _measure(self) -> None:
        """Measure this host's own speed, and see that its devices compute right."""
        self._probe.prepare()
        began = time.perf_counter()
        self._phases.measured(self._probe.seconds())
        self._controls.measured(time.perf_counter() - began)

    def _evaluate(self, number: int) -> None:
        """Report means over the first batches of each set."""
        began = time.perf_counter()
        programs, batches, beat = self._start.evaluation, self._batches, self._phases.beat
        rewarded = batches.completions.means if batches.completions else None
        evaluator = partial(Evaluator, programs, loader=batches.loader.of, beat=beat, rewarded=rewarded)
        with self._phases.entered(Phase.EVALUATE):
            means = means_of_sets(evaluator, self._program, self._state, self._start.evaluated)
        self._report.evaluated(number, as_record(means), time.perf_counter() - began)

    def _saves_due(self, number: int, asked: Control) -> list[Callable[[int], None]]:
        """Return what saves this step: the hosts first, since that is soon done."""
        checkpoint = self._program.training.checkpoint
        saves: list[Callable[[int], None]] = []
        is_last = number == self._program.training.steps  # and saved to where the job says, in any case
        if checkpoint.local and not is_last and self._due(number, checkpoint.local.every_steps):
            saves.append(lambda step: self._saves.save_locally(step, self._state, self._judge.past))
        if self._due(number, checkpoint.every_steps) or asked in (Control.SAVE, Control.STOP):
            saves.append(self._save)
        return saves

    def _save(self, number: int) -> None:
        self._saves.save(number, self._state, self._judge.past)
        self._judge.saved()
