"""Which of a run's programs an error is of: a compiler and a device name none that a person knows."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class Work(StrEnum):
    """A program, or the work that it is for, as a person is told."""

    STEP = "the step"
    EVALUATION = "the evaluation"
    COMPLETIONS = "the program that makes completions"
    SCORES = "the program that says how likely completions were"

    @classmethod
    def of_program(cls, name: str) -> "Work | None":
        """Return that of the program of this name, by which it is kept (`Executables.get`); None of any other."""
        kind = re.match(r"\w*", name)
        return _BY_KIND.get(kind[0]) if kind else None

    @classmethod
    def of_error(cls, error: BaseException) -> "Work | None":
        """Return that of which an error is; None if nothing has said it."""
        notes = getattr(error, "__notes__", ())
        return next((work for work in cls if work.note in notes), None)

    @property
    def note(self) -> str:
        """What an error's traceback has of it."""
        return f"of {self}"


_BY_KIND = {
    "step": Work.STEP,
    "evaluation": Work.EVALUATION,
    "sampling": Work.COMPLETIONS,
    "scores": Work.SCORES,
}


@contextmanager
def told_of(work: Work | None) -> Iterator[None]:
    """Have errors say that they are of this, unless they are known to be of a part of it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if work is not None and Work.of_error(error) is None:
            error.add_note(work.note)
        raise
