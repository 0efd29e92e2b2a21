"""Why a job's pods do not all run: the first reason that a person can do something about."""

from collections.abc import Iterator, Sequence

from shardwise_operator.observed import Observed
from shardwise_operator.pod import Pod
from shardwise_operator.words import BACKOFF, CONTAINER, ENDING, IMAGE, PLACED, SCHEDULING, SLICE_WAITS, UNSCHEDULABLE

_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_PASSING = ("", "ContainerCreating", "PodInitializing")


def waits_for_image(pod: Pod) -> bool:
    """Whether the pod's image cannot be had."""
    return pod.waiting in _IMAGE_REASONS


def why(seen: Observed, now: float) -> tuple[str, str]:
    """The reason in one word, and in words; `PLACED` where every pod has its node and nothing is wrong."""
    return next(_reasons(seen, now), (PLACED, ""))


def troubles(pods: Sequence[Pod]) -> Iterator[tuple[str, str]]:
    """What keeps these pods from running by their own word, the first things first."""
    for pod in pods:
        if waits_for_image(pod):
            yield IMAGE, f"{pod.name}: {pod.waiting}: {pod.waiting_message}"
        elif pod.waiting not in _PASSING:
            yield CONTAINER, f"{pod.name}: {pod.waiting}: {pod.waiting_message}"
    for pod in pods:
        if pod.unschedulable:
            yield UNSCHEDULABLE, f"{pod.name}: {pod.unschedulable}"


def _reasons(seen: Observed, now: float) -> Iterator[tuple[str, str]]:
    """All that keeps the pods from running, the first things first."""
    pods = seen.current_pods()
    yield from troubles(pods)
    ending = [pod.name for pod in seen.pods if pod.key not in seen.state.pods and not pod.ended]
    if ending:
        yield ENDING, f"{', '.join(ending)} must end before another takes its place"
    if seen.state.not_before is not None and now < seen.state.not_before:
        yield BACKOFF, seen.state.message
    gated = sum(pod.gated for pod in pods)
    if gated:
        yield SLICE_WAITS, f"{gated} pods wait for the first host of their slice"
    if sum(pod.node is not None for pod in pods) < len(seen.hosts):
        yield SCHEDULING, ""  # without a count, which would be a write for every pod
