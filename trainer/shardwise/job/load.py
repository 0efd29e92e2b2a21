"""From a job file to a checked job, and back.

Every command begins here: `load` reads the file, applies `--set`, checks each field, and checks the rules across
fields. Nothing has started when it refuses.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path as FilePath
from typing import Any

from shardwise.job import rules
from shardwise.job.document import MAX_OWN_BYTES, Document, located, parse_document, read_document, write_document
from shardwise.job.fields import takes_null
from shardwise.job.overrides import apply_overrides
from shardwise.job.quantity import Written
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.job.spec.pod import in_template
from shardwise.job.validate import validate, validate_known
from shardwise.protocol.contract import JOB_FILE
from shardwise.protocol.errors import JobError
from shardwise.protocol.strict_model import StrictModel


def load(path: FilePath, overrides: Sequence[str] = ()) -> TrainingJob:
    """Read the job in the file at `path`, as written; JobError with every mistake in it."""
    return check(read_document(path), overrides)


def load_own(path: FilePath, overrides: Sequence[str] = ()) -> TrainingJob:
    """Read a job that Shardwise wrote: as `load`, but it may be longer than a person's file."""
    return check(read_document(path, limit=MAX_OWN_BYTES), overrides)


def resolved_in(directory: FilePath, overrides: Sequence[str] = ()) -> TrainingJob | None:
    """Return the resolved job of a run directory, with overrides; None if its run has not got as far as writing it."""
    path = directory / JOB_FILE
    return resolve(load_own(path, overrides)) if path.exists() else None


def loads(text: str, overrides: Sequence[str] = (), *, source: str = "job.yaml") -> TrainingJob:
    """Read the job in `text`; `source` names it in messages."""
    return check(parse_document(text, source=source), overrides)


def loads_checked(text: str, *, source: str) -> TrainingJob:
    """Read a job, YAML or JSON, that was checked when it was written, by a release that may have other rules."""
    if text.startswith("{"):
        document = Document(data=json.loads(text), places={})
    else:
        document = parse_document(text, source=source, limit=MAX_OWN_BYTES)
    spec = document.data["spec"]
    if "pod" in spec:
        spec["pod"] = in_template(spec["pod"])
    return validate_known(TrainingJob, document)


def with_overrides(job: TrainingJob, overrides: Sequence[str]) -> TrainingJob:
    """Return a job with overrides, checked again."""
    return check(Document(data=as_data(job), places={}), overrides)


def check(document: Document, overrides: Iterable[str] = ()) -> TrainingJob:
    """Return the job in `document`; JobError with every mistake in it."""
    document = apply_overrides(document, overrides)
    job = validate(document)
    found = rules.problems(resolve(job))
    if found:
        raise JobError([located(problem, document) for problem in found])
    return job


def dump(job: TrainingJob) -> str:
    """Return YAML that `load` reads back as `job`; fields without a value are left out."""
    return write_document(as_data(job))


def as_data(group: StrictModel) -> dict[str, Any]:
    """Return a group of fields as plain data, in YAML's names; fields without a value are left out."""
    written: dict[str, Any] = {}
    for name, info in type(group).model_fields.items():
        value = getattr(group, name)
        if value not in (None, {}, ()) or takes_null(info):
            written[info.alias or name] = _as_value(value)
    return written


def _as_value(value: Any) -> Any:
    if isinstance(value, StrictModel):
        return as_data(value)
    if isinstance(value, tuple):
        return [_as_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_value(item) for key, item in value.items()}
    return str(value) if isinstance(value, Written) else value
