"""The job of an own program in its run directory, where `shardwise status` and the page read it.

A trainer writes its job itself, and knows the run by what is in its checkpoints. Of a program only this is known.
"""

from pathlib import Path

from shardwise.job.load import dump, load_own
from shardwise.job.paths import with_absolute_paths
from shardwise.job.spec import TrainingJob
from shardwise.protocol.contract import JOB_FILE
from shardwise.protocol.errors import RunDirectoryError, ShardwiseError
from shardwise.protocol.files import replace_file


def keep_job(directory: Path, job: TrainingJob) -> None:
    """Write the job of a program into a run directory that is held.

    Raises:
        RunDirectoryError: the directory is that of another job.

    """
    if refusal := _refusal(directory / JOB_FILE, job):
        raise RunDirectoryError(f"{directory}: {refusal}; give this job another directory")
    if job.spec.program:
        replace_file(directory / JOB_FILE, dump(with_absolute_paths(job)), durable=True)


def _refusal(path: Path, job: TrainingJob) -> str:
    """Return why the directory cannot be this job's; "" if it can."""
    if not path.exists():
        return ""
    try:
        there = load_own(path)
    except ShardwiseError:
        return "" if job.spec.program is None else f"its {path.name} cannot be read, so it is another run"
    if (there.spec.program is None) != (job.spec.program is None):
        return f"holds a run of {'the trainer' if there.spec.program is None else 'an own program'}"
    if job.spec.program and there.metadata.name != job.metadata.name:
        return f"holds the run {there.metadata.name!r}, and this job is {job.metadata.name!r}"
    return ""
