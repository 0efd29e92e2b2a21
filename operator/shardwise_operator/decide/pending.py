"""Find out why a job's pods do not all run: the first reason that a person can do something about."""

from collections.abc import Iterator, Sequence

from shardwise_operator import reasons
from shardwise_operator.decide.naming import counted
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.state import State

_ENDS = "must end before another takes its place"
# Reasons of this module's own; the message that comes with any other one says why pods have to be made again.
_OF_A_PASS = (
    *(reasons.IMAGE, reasons.CONTAINER, reasons.UNSCHEDULABLE, reasons.WAITING_FOR_SLICE),
    *(reasons.SCHEDULING, reasons.PLACED),
)
_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")


def waits_for_image(pod: Pod) -> bool:
    """Return whether an image of the pod cannot be pulled."""
    return pod.waiting in _IMAGE_REASONS


def pending_reason(seen: Observed, now: float) -> tuple[str, str]:
    """Return the reason and its message; `PLACED` if every pod has its node and nothing is wrong."""
    return next(_reasons(seen, now), (reasons.PLACED, ""))


def pod_problems(pods: Sequence[Pod]) -> Iterator[tuple[str, str]]:
    """Yield what keeps these pods from running by their own status: reason and message, the most telling first."""
    for pod in pods:
        if waits_for_image(pod):
            yield reasons.IMAGE, f"{pod.name}: {pod.waiting}: {pod.waiting_message}"
        elif pod.waiting:
            yield reasons.CONTAINER, f"{pod.name}: {pod.waiting}: {pod.waiting_message}"
    for pod in pods:
        if pod.unschedulable:
            yield reasons.UNSCHEDULABLE, f"{pod.name}: {pod.unschedulable}"


def _reasons(seen: Observed, now: float) -> Iterator[tuple[str, str]]:
    pods = seen.current_pods()
    yield from pod_problems(pods)
    missing = {*seen.hosts} - seen.state.pods.keys()
    ending = [pod.name for pod in seen.pods if pod.key in missing and not pod.ended]
    if ending:
        yield reasons.ENDING, "; ".join(filter(None, (f"{counted(ending)} {_ENDS}", _why_again(seen.state))))
    if seen.state.not_before is not None and now < seen.state.not_before:
        yield reasons.BACKOFF, _why_again(seen.state)
    gated = sum(pod.gated for pod in pods)
    if gated:
        yield reasons.WAITING_FOR_SLICE, f"{gated} pods wait for the first host of their slice"
    if sum(pod.node is not None for pod in pods) < len(seen.hosts):
        yield reasons.SCHEDULING, ""  # without a count, which would cost a status write for every pod


def _why_again(state: State) -> str:
    """Return why pods have to be made again, as was said before the first of these passes; "" if that is not known."""
    if state.reason == reasons.ENDING:
        return state.message.partition(f"{_ENDS}; ")[2]
    return "" if state.reason in _OF_A_PASS else state.message
