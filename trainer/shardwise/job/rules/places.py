"""Rules on where a job's files are: on a volume that all its hosts share, or in a bucket."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from shardwise.job.document import wrong
from shardwise.job.paths import is_url
from shardwise.job.spec import Pod, TrainingJob
from shardwise.protocol.errors import Problem
from shardwise.protocol.pods import AGENT
from shardwise.protocol.text import any_of

SHARED_SOURCES = ("persistentVolumeClaim", "csi")
_BUCKETS = ("gs://", "s3://")
_PATH = "spec.pod"


def directory_is_shared(_: TrainingJob, pod: Pod) -> Iterator[Problem]:
    """Require that the run directory lies in a bucket, or on a volume that every host sees and may write to."""
    if not is_url(pod.directory):
        yield from _on_shared_volume(pod, f"{_PATH}.directory", pod.directory, other="gs://, s3:// or ")


def a_bucket_has_the_checkpoints_too(job: TrainingJob, pod: Pod) -> Iterator[Problem]:
    """Require a URL of the checkpoints too without a shared volume; a program's go below its run directory's."""
    if job.spec.training_if_any is None:
        return
    if is_url(pod.directory) and not (job.spec.checkpoint_path or "").startswith(_BUCKETS):
        expected = (
            "a folder on a volume: in a bucket only the run directory of a job can lie that has its checkpoints there"
        )
        hint = "set training.checkpoint.path to gs:// or s3:// too"
        yield wrong(f"{_PATH}.directory", pod.directory, expected, hint)


def checkpoints_are_shared(job: TrainingJob, pod: Pod) -> Iterator[Problem]:
    """Require a URL for checkpoints, or a volume that every host sees and may write to."""
    path = job.spec.checkpoint_path
    if path is not None and not is_url(path):
        yield from _on_shared_volume(pod, "spec.training.checkpoint.path", path, other="a URL, or ")


def tokens_are_shared(job: TrainingJob, pod: Pod) -> Iterator[Problem]:
    """Require that all hosts see what they make together, as they see checkpoints."""
    training = job.spec.training_if_any
    store = training.data.store if training else None
    if store is not None and not is_url(store):
        yield from _on_shared_volume(pod, "spec.training.data.store", store, other="a URL, or ")


def _on_shared_volume(pod: Pod, path: str, folder: str, *, other: str = "") -> Iterator[Problem]:
    sources = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
    shared = [
        mount["mountPath"]
        for mount in pod.agent.get("volumeMounts", [])
        if not mount.get("readOnly") and _is_shared(sources.get(mount["name"], {}))
    ]
    place = PurePosixPath(folder)
    if ".." in place.parts or not any(place.is_relative_to(mount) for mount in shared):
        expected = f"a folder below a mount of a volume that all hosts share ({' or '.join(SHARED_SOURCES)})"
        hint = "" if shared else _without_mount(pod)
        yield wrong(path, folder, f"{other}{expected}" + (f": {any_of(shared)}" if shared else ""), hint)


def _without_mount(pod: Pod) -> str:
    names = [each["name"] for each in pod.spec.get("containers", [])]
    if AGENT in names or not names:
        return f"the container {AGENT} of {_PATH}.template mounts none that may be written to"
    return f"no container of {_PATH}.template is named {AGENT}, as that of the trainer is, but {any_of(names)}"


def _is_shared(volume: dict[str, Any]) -> bool:
    return any(source in volume and not volume[source].get("readOnly") for source in SHARED_SOURCES)
