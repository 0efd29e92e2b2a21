"""The paths of a job as they are from any folder: a run's own job file is read from everywhere."""

from pathlib import Path

from shardwise.job.presets import BYTE_TOKENIZER
from shardwise.job.spec import TrainingJob


def with_absolute_paths(job: TrainingJob) -> TrainingJob:
    """Return the job with its relative paths below the working directory; addresses with a protocol stay."""
    training = job.spec.training
    data, start, checkpoint = training.data, training.start_from, training.checkpoint
    sources = tuple(
        source.model_copy(update={"paths": tuple(absolute(path) for path in source.paths)}) for source in data.train
    )
    tokenizer = data.tokenizer if data.tokenizer == BYTE_TOKENIZER else absolute(data.tokenizer)
    changes = {
        "data": data.model_copy(
            update={"train": sources, "tokenizer": tokenizer, "store": data.store and absolute(data.store)}
        ),
        "start_from": start and start.model_copy(update={"path": absolute(start.path)}),
        "checkpoint": checkpoint.model_copy(update={"path": checkpoint.path and absolute(checkpoint.path)}),
    }
    spec = job.spec.model_copy(update={"training": training.model_copy(update=changes)})
    return job.model_copy(update={"spec": spec})


def absolute(path: str) -> str:
    """Return a path below the working directory, or an address as it is."""
    return path if "://" in path else str(Path(path).absolute())
