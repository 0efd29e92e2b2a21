"""The step loop: batches in, steps dispatched, losses written, saves and evaluations at agreed steps.

Called by `shardwise.train.main`. A step is dispatched before the one before it has been read back, so the devices never
wait for Python; a step counts as completed when its loss has reached this host. What the control words of a step ask
for is therefore done one step later, and at the same step on every process.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from shardwise.job.contract import Control, Phase
from shardwise.job.errors import NonFiniteError
from shardwise.train.bad_steps import Judge, Verdict
from shardwise.train.checkpoint import NO_HISTORY, CheckpointWriter, History, SaveTicket
from shardwise.train.control import Controls
from shardwise.train.digest import combine, to_hex
from shardwise.train.loader import Loader, Rows
from shardwise.train.phases import Phases
from shardwise.train.probe import Probe
from shardwise.train.processes import Processes
from shardwise.train.report import Report
from shardwise.train.run_directory import RunDirectory
from shardwise.train.start import Start
from shardwise.train.state import State, flat
from shardwise.train.step import Metrics

_LAST_SAVE_WAITS_SECONDS = (2.0, 8.0, 32.0)


@dataclass(frozen=True)
class _Dispatched:
    """A step on its way."""

    number: int
    metrics: Metrics


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the loop ended."""

    steps: int
    loss: float | None
    digest: str
    stopped: bool


class Loop:
    """One process's run through the steps.

    Args:
        start: programs, data and the state to start from.
        directory: where it is kept which batches the next start leaves out.
        controls: what signals and clocks ask for.
        phases: where time is counted and progress recorded.
        report: what is told of it.
        writer: the checkpoints.
        processes: those that train together.
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
        writer: CheckpointWriter,
        processes: Processes,
        mfu_of_one_token_a_second: float,
    ) -> None:
        """Nothing runs yet."""
        self._start, self._controls, self._phases = start, controls, phases
        history = start.restored_from.history if start.restored_from else NO_HISTORY
        self._judge, self._num_skipped = Judge(start.job.spec.training.bad_steps, history.losses), 0
        self._probe = Probe(start.kept)
        self._report, self._writer, self._processes = report, writer, processes
        self._directory = directory
        self._mfu = mfu_of_one_token_a_second
        self._program = start.program
        self._state: State = start.state
        self._completed_at = time.perf_counter()
        self._loss: float | None = None
        self._ticket: SaveTicket | None = None
        self._saved_step = start.first_step or None

    def run(self) -> Outcome:
        """Train to the last step, or to an agreed stop; the last state is saved either way.

        Raises:
            NonFiniteError: a step is not to be trained on; nothing of it is saved.
            StorageError, CheckpointError: saves failed for too long; the checkpoints before them are untouched.

        """
        training = self._start.job.spec.training
        loader = self._training_loader()
        self._controls.stepping()
        self._phases.be(Phase.STEP)
        self._completed_at = time.perf_counter()
        previous: _Dispatched | None = None
        stopped = False
        for batch in loader.ahead(self._start.first_step, training.steps):
            number = (previous.number if previous else self._start.first_step) + 1
            self._state, metrics = self._start.step(self._state, batch, self._words(), *self._limit(number))
            self._phases.dispatched(number)
            self._phases.seconds["wait"] = loader.waited_seconds
            asked = self._complete(previous)
            previous = _Dispatched(number, metrics)
            evaluate = self._due(number, training.evaluation.every_steps)
            save = self._due(number, training.checkpoint.every_steps) or asked in (Control.SAVE, Control.STOP)
            if not (evaluate or save or asked == Control.MEASURE):
                continue
            self._complete(previous)
            if asked == Control.MEASURE:
                self._measure()
            if evaluate:
                self._evaluate(number)
            if save:
                self._save(number)
            self._controls.done(asked)
            self._completed_at = time.perf_counter()
            if asked == Control.STOP:
                stopped = True
                break
        last = previous.number if previous else self._start.first_step
        self._complete(previous)
        return self._finish(last, stopped=stopped and last < training.steps)

    def _finish(self, last: int, *, stopped: bool) -> Outcome:
        self._save_last(last)
        digest = self._digest()
        self._phases.be(Phase.DONE)
        return Outcome(steps=last, loss=self._loss, digest=digest, stopped=stopped)

    def _save_last(self, last: int) -> None:
        """There is no later save to make up for a failed one, so it is this one that is tried again."""
        waits_seconds = [*_LAST_SAVE_WAITS_SECONDS]
        while True:
            if self._saved_step != last:
                self._save(last)
            with self._phases.entered(Phase.SAVE):
                self._writer.wait(self._phases.beat)
                error = self._ticket.error if self._ticket else None
                if error is None:
                    return
                if not waits_seconds:
                    raise error
                self._saved_step = None
                time.sleep(waits_seconds.pop(0))

    def _training_loader(self) -> Loader:
        left_out = {*self._program.training.data.leave_out, *self._start.left_out}
        return self._loader(self._start.data.train.rows, left_out)

    def _loader(self, rows: Rows, left_out: Collection[int] = ()) -> Loader:
        sequences, seq_len = self._program.training.batch.sequences, self._program.config.seq_len
        return Loader(rows, self._program.layout, sequences=sequences, seq_len=seq_len, left_out=left_out)

    def _words(self) -> jax.Array:
        """This process's control word on each of its devices."""
        sharding = self._program.layout.words
        word = np.full(1, self._controls.word(), np.int32)
        return jax.make_array_from_callback((self._program.layout.mesh.size,), sharding, lambda _: word)

    def _limit(self, number: int) -> list[jax.Array]:
        """The step program's last argument, in a job whose program has one."""
        if not self._judge.skips:
            return []
        limit = self._judge.limit_of_updates(number)
        return [jax.make_array_from_callback((), self._program.layout.replicated, lambda _: limit)]

    def _due(self, number: int, every: int | None) -> bool:
        return every is not None and number % every == 0

    def _complete(self, step: _Dispatched | None) -> Control:
        """Read a step's numbers back (this waits for it), check them, write them; once for each step."""
        if step is None or step.number <= self._phases.step:
            return Control.NONE
        values = {name: float(value) for name, value in jax.device_get(step.metrics)._asdict().items()}
        now = time.perf_counter()
        seconds, self._completed_at = now - self._completed_at, now
        verdict = self._judge.judge(step.number, values["loss"], values["grad_norm"])
        if verdict is not None:
            self._bad(step.number, values, verdict)
        self._phases.completed(step.number, seconds)
        if verdict is None:
            self._loss = values["loss"]
            self._tell(step.number, values, seconds)
        return Control(int(values["control"]))

    def _bad(self, number: int, values: Mapping[str, float], verdict: Verdict) -> None:
        """Return where the step is skipped, which its program has done."""
        batch = self._training_loader().number(number - 1)
        self._num_skipped += verdict.then == "skip"
        spent = self._num_skipped > self._program.training.bad_steps.max_skips
        event = {"skip": "skipped", "rollBack": "rolledBack", "stop": "nonfinite"}["stop" if spent else verdict.then]
        numbers = {"loss": values["loss"], "gradNorm": values["grad_norm"]}
        said = f"step {number}: {verdict.words}"
        self._report.event({"event": event, "step": number, "batch": batch, "reason": said, **numbers})
        if event == "skipped":
            return
        if event == "rolledBack":
            if self._processes.writes:
                self._directory.leave_out(batch)
            self._processes.exchange("leave out", "")  # whoever ends first ends the others, and rank 0 has to write
            raise NonFiniteError(f"{said}. The run goes back to its newest checkpoint, and leaves out batch {batch}")
        skipped = f", and {self._num_skipped - 1} were skipped since the last save" if spent else ""
        raise NonFiniteError(
            f"{said}{skipped}. Nothing of this step was saved: lower optimizer.learningRate, lengthen the warm-up, "
            "look at the data, or set training.badSteps, and run again"
        )

    def _tell(self, number: int, values: dict[str, float], seconds: float) -> None:
        rate = self._program.training.batch.sequences * self._program.config.seq_len / seconds
        record = {
            "loss": values["loss"],
            "accuracy": values["accuracy"],
            "learningRate": values["learning_rate"],
            "gradNorm": values["grad_norm"],
            "tokensPerSecond": rate,
            "stepSeconds": seconds,
            "mfu": rate * self._mfu,
        }
        if self._program.training.loss.z_loss:
            record["zLoss"] = values["z_loss"]
        self._report.step(number, record)

    def _measure(self) -> None:
        """How fast this host is by itself."""
        self._probe.prepare()
        began = time.perf_counter()
        self._phases.measured(self._probe.seconds())
        self._controls.measured(time.perf_counter() - began)

    def _evaluate(self, number: int) -> None:
        """The mean loss over the first held-out batches, weighted by tokens."""
        held_out, evaluation = self._start.data.held_out, self._start.evaluation
        if held_out is None or evaluation is None:
            return
        with self._phases.entered(Phase.EVALUATE):
            training = self._program.training
            batches = min(training.evaluation.batches, -(-held_out.num_sequences // training.batch.sequences))
            loader = self._loader(held_out.rows)
            sums = []
            for batch in loader.ahead(0, batches):
                sums.append(jax.device_get(evaluation(self._state["params"], batch)))
                self._phases.beat()
        weight = sum(float(s.weight) for s in sums)
        loss = sum(float(s.cross_entropy) for s in sums) / weight
        accuracy = sum(float(s.correct) for s in sums) / weight
        self._report.evaluated(number, {"heldOutLoss": loss, "heldOutAccuracy": accuracy, "tokens": weight})

    def _save(self, number: int) -> None:
        """Copy the state to the host and let the writer do the rest while training goes on."""
        if self._saved_step == number:
            return
        with self._phases.entered(Phase.SAVE):
            self._ticket = self._writer.save(
                number,
                flat(self._state),
                digester=self._start.digester,
                identity=self._start.identity,
                history=History(left_out=self._start.left_out, losses=self._judge.losses),
                overwrite=self._start.forked or number in self._start.refused,
                beat=self._phases.beat,
            )
        self._saved_step, self._num_skipped = number, 0

    def _digest(self) -> str:
        """The digest of the last state, as the save of it found it or, where there was nothing to save, computed."""
        if self._ticket is not None and self._ticket.digest is not None:
            return self._ticket.digest
        digests = self._start.digester(flat(self._state))
        return combine(to_hex(digests, partial(self._processes.agree, "last")))
