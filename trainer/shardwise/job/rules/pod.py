"""Rules on the pods of a job: names name what is there, and a run's files lie where all hosts see them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from shardwise.job.accelerators import offered
from shardwise.job.document import shown
from shardwise.job.errors import Problem
from shardwise.job.pods import JOB_MOUNT, OWN_VARIABLE_PREFIXES, SCRATCH_MOUNT, TOKEN_MOUNT
from shardwise.job.spec import Pod, SpecModel, TrainingJob, Volume, VolumeMount
from shardwise.job.topology import node_labels, parse_topology
from shardwise.job.words import any_of

SHARED_SOURCES = ("persistentVolumeClaim", "csi")
OWN_MOUNTS = (JOB_MOUNT, TOKEN_MOUNT, SCRATCH_MOUNT, "/tmp", "/dev", "/proc", "/sys")  # noqa: S108  mounts of the pod
OWN_MARKS = "shardwise.dev/"

_PATH = "spec.pod"
_NO_PODS = Pod.model_validate({"directory": "/none"})


def each_volume_has_one_source(job: TrainingJob) -> Iterator[Problem]:
    """A volume is one thing."""
    for index, volume in enumerate(_pod(job).volumes):
        yield from _one_of(f"{_PATH}.volumes.{index}", _sources(volume))


def each_env_source_is_one_thing(job: TrainingJob) -> Iterator[Problem]:
    """Variables come from a ConfigMap or from a Secret."""
    for index, source in enumerate(_pod(job).env_from):
        choices = {"configMapRef": source.config_map_ref, "secretRef": source.secret_ref}
        yield from _one_of(f"{_PATH}.envFrom.{index}", choices)


def names_are_unique(job: TrainingJob) -> Iterator[Problem]:
    """Two volumes, variables or mounts of one name would hide each other."""
    pod = _pod(job)
    yield from _unique("volumes", "name", [volume.name for volume in pod.volumes])
    yield from _unique("env", "name", [variable.name for variable in pod.env])
    yield from _unique("volumeMounts", "mountPath", [mount.mount_path for mount in pod.volume_mounts])


def mounts_name_volumes(job: TrainingJob) -> Iterator[Problem]:
    """What is mounted is there."""
    pod = _pod(job)
    known = [volume.name for volume in pod.volumes]
    for index, mount in enumerate(pod.volume_mounts):
        if mount.name not in known:
            yield Problem(
                path=f"{_PATH}.volumeMounts.{index}.name",
                given=shown(mount.name),
                expected=f"one of spec.pod.volumes: {any_of(known)}"
                if known
                else "a volume, and spec.pod.volumes is empty",
            )


def mounts_leave_ours_alone(job: TrainingJob) -> Iterator[Problem]:
    """The agent's own folders are neither covered nor inside a volume of the job."""
    for index, mount in enumerate(_pod(job).volume_mounts):
        path = PurePosixPath(mount.mount_path)
        taken = [own for own in OWN_MOUNTS if path.is_relative_to(own) or PurePosixPath(own).is_relative_to(path)]
        if taken or ".." in path.parts:
            yield Problem(
                path=f"{_PATH}.volumeMounts.{index}.mountPath",
                given=shown(mount.mount_path),
                expected=f"a folder apart from {any_of(OWN_MOUNTS)}, without '..'",
            )


def directory_is_shared(job: TrainingJob) -> Iterator[Problem]:
    """The run directory lies on a volume that every host sees and may write to."""
    if job.spec.pod is not None:
        yield from _on_shared_volume(job.spec.pod, f"{_PATH}.directory", job.spec.pod.directory)


def checkpoints_are_shared(job: TrainingJob) -> Iterator[Problem]:
    """Checkpoints have a URL or lie on a volume that every host sees and may write to."""
    path = job.spec.training.checkpoint.path
    if job.spec.pod is not None and path is not None and "://" not in path:
        yield from _on_shared_volume(job.spec.pod, "spec.training.checkpoint.path", path, other="a URL, or ")


def variables_are_not_ours(job: TrainingJob) -> Iterator[Problem]:
    """What tells a trainer its place in the gang is not for the job to set."""
    for index, variable in enumerate(_pod(job).env):
        if variable.name.startswith(OWN_VARIABLE_PREFIXES):
            yield Problem(
                path=f"{_PATH}.env.{index}.name",
                given=shown(variable.name),
                expected=f"a name that does not begin with {any_of(OWN_VARIABLE_PREFIXES)}",
                hint="Shardwise sets these itself",
            )


def marks_are_not_ours(job: TrainingJob) -> Iterator[Problem]:
    """Labels and annotations of shardwise.dev are the operator's."""
    pod = _pod(job)
    for group, marks in (("labels", pod.labels), ("annotations", pod.annotations)):
        for key in marks:
            if key.startswith(OWN_MARKS):
                yield Problem(
                    path=f"{_PATH}.{group}", given=shown(key), expected=f"keys that do not begin with {OWN_MARKS}"
                )


def tolerations_make_sense(job: TrainingJob) -> Iterator[Problem]:
    """Any value is tolerated or one is; every taint is tolerated only by Exists."""
    for index, toleration in enumerate(_pod(job).tolerations):
        path = f"{_PATH}.tolerations.{index}"
        if toleration.operator == "Exists" and toleration.value:
            yield Problem(
                path=f"{path}.value", given=shown(toleration.value), expected="no value with operator: Exists"
            )
        if toleration.key is None and toleration.operator != "Exists":
            yield Problem(path=f"{path}.key", given="nothing", expected="a key, or operator: Exists")


def selectors_keep_to_the_class(job: TrainingJob) -> Iterator[Problem]:
    """A job chooses among the nodes of its class; it takes no others."""
    hardware = job.spec.hardware
    accelerator = offered().get(hardware.accelerator)
    if accelerator is None or parse_topology(accelerator, hardware.topology) is None:
        return
    labels = node_labels(accelerator, hardware)
    for key, value in _pod(job).node_selector.items():
        if labels.get(key, value) != value:
            yield Problem(
                path=f"{_PATH}.nodeSelector.{key}",
                given=shown(value),
                expected=f"{shown(labels[key])}, which {hardware.accelerator} asks for, or no such key",
            )


def _pod(job: TrainingJob) -> Pod:
    """The job's pods; a job without them breaks none of these rules."""
    return job.spec.pod or _NO_PODS


def _sources(volume: Volume) -> dict[str, SpecModel | None]:
    return {
        "persistentVolumeClaim": volume.persistent_volume_claim,
        "configMap": volume.config_map,
        "secret": volume.secret,
        "emptyDir": volume.empty_dir,
        "csi": volume.csi,
    }


def _one_of(path: str, choices: Mapping[str, SpecModel | None]) -> Iterator[Problem]:
    given = [name for name, value in choices.items() if value is not None]
    if len(given) != 1:
        yield Problem(
            path=path, given=" and ".join(given) or "none of them", expected=f"exactly one of {any_of(choices)}"
        )


def _unique(group: str, field: str, values: list[str]) -> Iterator[Problem]:
    seen: Counter[str] = Counter()
    for index, value in enumerate(values):
        if seen[value]:
            yield Problem(
                path=f"{_PATH}.{group}.{index}.{field}",
                given=shown(value),
                expected=f"a {field} of {group} that is not there yet",
            )
        seen[value] += 1


def _on_shared_volume(pod: Pod, path: str, folder: str, *, other: str = "") -> Iterator[Problem]:
    shared = [mount.mount_path for mount in pod.volume_mounts if _is_shared(pod, mount)]
    place = PurePosixPath(folder)
    if ".." in place.parts or not any(place.is_relative_to(mount) for mount in shared):
        expected = f"a folder below a mount of a volume that all hosts share ({' or '.join(SHARED_SOURCES)})"
        yield Problem(
            path=path,
            given=shown(folder),
            expected=f"{other}{expected}" + (f": {any_of(shared)}" if shared else ""),
            hint="" if shared else "spec.pod.volumeMounts has none that may be written to",
        )


def _is_shared(pod: Pod, mount: VolumeMount) -> bool:
    """Whether a mount is of a volume that all hosts see and may write to."""
    for volume in pod.volumes:
        if volume.name == mount.name and not mount.read_only:
            source = volume.persistent_volume_claim or volume.csi
            return source is not None and not source.read_only
    return False


RULES = (
    each_volume_has_one_source,
    each_env_source_is_one_thing,
    names_are_unique,
    mounts_name_volumes,
    mounts_leave_ours_alone,
    directory_is_shared,
    checkpoints_are_shared,
    variables_are_not_ours,
    marks_are_not_ours,
    tolerations_make_sense,
    selectors_keep_to_the_class,
)
