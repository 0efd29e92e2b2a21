"""A layout among which a search chooses, as changes of the job file."""

from dataclasses import dataclass
from typing import Self

from shardwise.job.spec import TrainingJob


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What may change without changing the run."""

    tensor: int
    expert: int | None
    """None if the model has no experts."""
    data_inner: int
    microbatches: int
    remat: str

    @classmethod
    def of(cls, job: TrainingJob) -> Self:
        """Return the layout of a resolved job."""
        training = job.spec.training
        return cls(
            tensor=training.mesh.tensor,
            expert=training.mesh.expert if training.model.experts else None,
            data_inner=training.mesh.data_inner or 1,
            microbatches=training.batch.microbatches,
            remat=training.model.remat,
        )

    @property
    def changes(self) -> dict[str, int | str]:
        """Return the fields and their values."""
        return {
            "training.mesh.tensor": self.tensor,
            **({} if self.expert is None else {"training.mesh.expert": self.expert}),
            "training.mesh.dataInner": self.data_inner,
            "training.batch.microbatches": self.microbatches,
            "training.model.remat": self.remat,
        }

    @property
    def words(self) -> str:
        """Return one line for people."""
        inner = f", FSDP's second step over {self.data_inner}" if self.data_inner > 1 else ""
        if self.expert is not None and self.expert > 1:
            inner = f", experts over {self.expert}"
        return f"tensor {self.tensor}{inner}, microbatches {self.microbatches}, remat {self.remat}"


def differing(one: Choice, other: Choice) -> dict[str, int | str]:
    """Return the fields that the other layout has otherwise, and its values."""
    return {path: value for path, value in other.changes.items() if one.changes[path] != value}
