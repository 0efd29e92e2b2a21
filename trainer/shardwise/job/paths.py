"""The paths of a job as they are from any folder: a run's own job file is read from everywhere."""

import glob
import os
from pathlib import Path
from typing import TypeVar

from shardwise.job.presets import BYTE_TOKENIZER
from shardwise.job.spec import TrainingJob
from shardwise.job.spec.data import EvaluationSet, Source

HasPaths = TypeVar("HasPaths", Source, EvaluationSet)


def with_absolute_paths(job: TrainingJob) -> TrainingJob:
    """Return the job with its relative paths below the working directory; addresses with a protocol stay."""
    training = job.spec.training_if_any
    if training is None:
        return _with_absolute_workdir(job)
    data, start, checkpoint = training.data, training.start_from, training.checkpoint
    evaluation = training.evaluation
    tokenizer = data.tokenizer if data.tokenizer == BYTE_TOKENIZER else absolute(data.tokenizer)
    changes = {
        "data": data.model_copy(
            update={
                "train": _absolute(data.train),
                "tokenizer": tokenizer,
                "store": data.store and absolute(data.store),
            }
        ),
        "evaluation": evaluation.model_copy(update={"sets": _absolute(evaluation.sets)}),
        "start_from": start and start.model_copy(update={"path": absolute(start.path)}),
        "checkpoint": checkpoint.model_copy(update={"path": checkpoint.path and absolute(checkpoint.path)}),
    }
    return job.with_spec(training=training.model_copy(update=changes))


def _with_absolute_workdir(job: TrainingJob) -> TrainingJob:
    program = job.spec.program
    assert program is not None, "the rules want one of the two"
    return job.with_spec(program=program.model_copy(update={"workdir": absolute(program.workdir or ".")}))


def _absolute(sources: tuple[HasPaths, ...]) -> tuple[HasPaths, ...]:
    return tuple(each.model_copy(update={"paths": tuple(map(absolute_glob, each.paths))}) for each in sources)


def absolute(path: str) -> str:
    """Return a path below the working directory, or an address as it is."""
    return path if is_url(path) else str(Path(path).absolute())


def absolute_glob(path: str) -> str:
    """Return the same of a path that may be a glob: the working directory's own name is then no part of the glob."""
    if is_url(path) or not glob.has_magic(path) or os.path.lexists(path):
        return absolute(path)
    return str(Path(glob.escape(str(Path.cwd()))) / path)


def without_links(path: str) -> str:
    """Return a path below the working directory with no link and no `..` in it, or an address as it is."""
    return path if is_url(path) else str(Path(path).resolve())


def is_url(path: str) -> bool:
    """Return whether a path of a job is an address with a protocol."""
    return "://" in path


def tokenizer_file(given: str) -> str:
    """Return the path of a tokenizer.json for which it, or a folder that holds it, is given."""
    return str(Path(given) / "tokenizer.json") if Path(given).is_dir() else given
