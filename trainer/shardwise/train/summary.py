"""summary.json: the state of a run, rewritten as the run starts, trains and ends.

`shardwise status`, people and tools read it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import jax

from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import NonFiniteError, ShardwiseError
from shardwise.train.metrics import Recorded
from shardwise.train.phases import Phases
from shardwise.train.run_directory import RunDirectory
from shardwise.train.start import Start


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the steps of a run ended."""

    steps: int
    loss: float | None
    digest: str
    stopped: bool


class Summary:
    """The summary of one start of a run."""

    def __init__(self, directory: RunDirectory, job: TrainingJob, phases: Phases) -> None:
        self._directory, self._job, self._phases = directory, job, phases
        self._before = directory.read_summary()
        self._initial_digest: str | None = self._before.get("initialDigest")
        self._started = False
        self.write("starting")

    def running(self, start: Start) -> None:
        """Record that the first step is about to begin."""
        self._started = True
        self._initial_digest = start.initial_digest
        self.write("running", data=[asdict(source) for source in start.data.sources])

    def ended(self, outcome: Outcome, known: Recorded, entropy: Mapping[str, float]) -> None:
        """Record the end of the loop, or its stop; `known` is what the run recorded, `entropy` the data's, in nats."""
        status = "stopped" if outcome.stopped else "complete"
        evaluated = known.evaluation
        more = {} if evaluated is None else {"evaluated": evaluated}
        loss = known.steps[-1].get("loss") if known.steps else None
        self.write(status, finalLoss=loss, digest=outcome.digest, entropy=entropy, **more)

    def failed(self, error: ShardwiseError) -> None:
        """Record the error that ends this start."""
        status = "nonfinite" if isinstance(error, NonFiniteError) else "failed"
        if self._started:
            self.write(status, error=str(error))
        else:
            self.not_started(status, error=str(error))

    def not_started(self, status: str, **more: object) -> None:
        """Record that this start reached no step, unless a run has ended here before: then keep its summary."""
        if self._before.get("status") in ("complete", "stopped"):
            self._directory.write_summary(self._before)
        else:
            self.write(status, **more)

    def write(self, status: str, **more: object) -> None:
        """Replace the summary."""
        summary = {
            "name": self._job.metadata.name,
            "status": status,
            "steps": self._phases.step,
            "of": self._job.spec.training.steps,
            "phases": {str(name): round(seconds, 4) for name, seconds in self._phases.seconds.items()},
            "initialDigest": self._initial_digest,
            "jax": jax.__version__,
        }
        self._directory.write_summary(summary | more)
