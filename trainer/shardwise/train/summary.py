"""summary.json: how a run stands or ended, rewritten as the run passes through its life.

Called by `shardwise.train.main`; read by `shardwise status`, by people and by tools.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import jax

from shardwise.job.errors import NonFiniteError, ShardwiseError
from shardwise.job.spec import TrainingJob
from shardwise.train.loop import Outcome
from shardwise.train.phases import Phases
from shardwise.train.run_directory import RunDirectory
from shardwise.train.start import Start


class Summary:
    """The summary of one start of a run."""

    def __init__(self, held: RunDirectory, job: TrainingJob, phases: Phases) -> None:
        self._held, self._job, self._phases = held, job, phases
        self._before = held.read_summary()
        self._initial: str | None = self._before.get("initialDigest")
        self._begun = False
        self.write("starting")

    def began(self, began: Start) -> None:
        """The first step is about to begin."""
        self._begun = True
        self._initial = began.initial_digest
        self.write("running", data=[asdict(source) for source in began.data.sources])

    def ended(self, outcome: Outcome, drawn: list[dict[str, Any]], entropy: Mapping[str, float]) -> None:
        """The loop came to its end or to a stop; `drawn` are the step records, `entropy` the data's, in nats."""
        status = "stopped" if outcome.stopped else "complete"
        self.write(status, finalLoss=drawn[-1]["loss"] if drawn else None, digest=outcome.digest, entropy=entropy)

    def failed(self, error: ShardwiseError) -> None:
        """An error ends this start."""
        status = "nonfinite" if isinstance(error, NonFiniteError) else "failed"
        if self._begun:
            self.write(status, error=str(error))
        else:
            self.not_begun(status, error=str(error))

    def not_begun(self, status: str, **more: object) -> None:
        """A start that came to nothing says so only where no run has ended before: what that one reached stays."""
        if self._before.get("status") in ("complete", "stopped"):
            self._held.write_summary(self._before)
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
            "initialDigest": self._initial,
            "jax": jax.__version__,
        }
        self._held.write_summary(summary | more)
