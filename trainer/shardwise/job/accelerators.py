"""Find the classes of machine that a job can ask for, and read one that a platform team wrote.

The built-in ones lie beside this file in `classes/`, one YAML each, read when a job names them. The variable
`SHARDWISE_CLASS` adds the class of one more file: a pod's agent sets it for its processes, and a person may. The
operator, whose classes are objects of the cluster, puts `offering(classes)` around what it checks.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from shardwise.job.class_rules import class_problems
from shardwise.job.document import Document, located, parse_document, read_document
from shardwise.job.spec import Hardware, TrainingJob
from shardwise.job.spec.accelerator import AcceleratorClass
from shardwise.job.validate import validate_as, validate_known
from shardwise.protocol import pods
from shardwise.protocol.errors import JobError

CLASS_VARIABLE = "SHARDWISE_CLASS"

_GPU_SHARE_VARIABLE, _GPU_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION", 0.75
"""The share of a GPU's memory that JAX takes for programs: https://docs.jax.dev/en/latest/gpu_memory_allocation.html."""

_OFFERED: ContextVar[Mapping[str, AcceleratorClass] | None] = ContextVar("offered", default=None)


class _Files(Mapping[str, AcceleratorClass]):
    """Classes by name. A file is read when its class is asked for."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = paths

    def __getitem__(self, name: str) -> AcceleratorClass:
        return _read(self._paths[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


_PATHS = {path.stem: path for path in sorted((Path(__file__).parent / "classes").glob("*.yaml"))}
BUILT_IN: Mapping[str, AcceleratorClass] = _Files(_PATHS)


def offered() -> Mapping[str, AcceleratorClass]:
    """Return the classes that jobs are checked against; JobError if the variable's file is not a class."""
    classes = _OFFERED.get()
    if classes is not None:
        return classes
    path = os.environ.get(CLASS_VARIABLE)
    if not path:
        return BUILT_IN
    extra = Path(path)
    return _Files({**_PATHS, _read(extra).name: extra})


def accelerator_of(hardware: Hardware) -> AcceleratorClass:
    """Return the class of hardware that the rules have passed."""
    return offered()[hardware.accelerator]


def usable_bytes(job: TrainingJob) -> int | None:
    """Return the memory of one device that programs can use, or None if the class does not give it."""
    spec = accelerator_of(job.spec.hardware).spec
    if spec.device_memory is None:
        return None
    share = 1.0
    if spec.platform == "gpu":
        said = [one.value for one in spec.env if one.name == _GPU_SHARE_VARIABLE and one.value]
        share = float(said[0]) if said else _GPU_SHARE
    return int(float(spec.device_memory.value) * share)


@contextmanager
def offering(classes: Iterable[AcceleratorClass]) -> Iterator[None]:
    """Check jobs against `classes` and no others, in this thread, within the block."""
    token = _OFFERED.set({each.name: each for each in classes})
    try:
        yield
    finally:
        _OFFERED.reset(token)


def xla_flags(job: TrainingJob) -> list[str]:
    """Return what a job's programs are compiled with: its class's options, then its own, which win (`job/flags.py`)."""
    accelerator = offered().get(job.spec.hardware.accelerator)
    compiler = accelerator.spec.compiler if accelerator else None
    of_class = [one.flag for one in compiler.flags] if compiler else []
    return [*of_class, *job.spec.training.xla_flags]


def load_class(path: Path) -> AcceleratorClass:
    """Read the class in the file at `path`; JobError with everything that is wrong in it."""
    return _checked(read_document(path))


def loads_class(text: str, *, source: str = "class.yaml") -> AcceleratorClass:
    """Read the class in `text`; `source` names it in messages."""
    return _checked(parse_document(text, source=source))


def loads_checked_class(text: str, *, source: str) -> AcceleratorClass:
    """Read a class that was checked when it was written, by a release that may know more fields."""
    return validate_known(AcceleratorClass, parse_document(text, source=source))


def class_of(manifest: Mapping[str, Any]) -> AcceleratorClass:
    """Read the class in an object of a cluster, without what the cluster or a newer CRD adds to it."""
    kept = {key: manifest[key] for key in ("apiVersion", "kind", "spec") if key in manifest}
    document = Document(data={**kept, "metadata": {"name": manifest["metadata"]["name"]}}, places={})
    return _ruled(validate_known(AcceleratorClass, document), document)


@cache
def _read(path: Path) -> AcceleratorClass:
    if path.parent == Path(pods.JOB_MOUNT):  # the operator has checked it, and may know more of classes
        return loads_checked_class(path.read_text(encoding="utf-8"), source=str(path))
    return load_class(path)


def _checked(document: Document) -> AcceleratorClass:
    return _ruled(validate_as(AcceleratorClass, document), document)


def _ruled(accelerator: AcceleratorClass, document: Document) -> AcceleratorClass:
    problems = class_problems(accelerator)
    if problems:
        raise JobError([located(problem, document) for problem in problems])
    return accelerator
