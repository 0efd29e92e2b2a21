"""The end of a run, as its agents report it in their termination records: complete, failed, saved, or hosts missing.

The record of any agent of the round will do, host 0's first: all of them have the run's own exit code. A record without
a code is that of an agent that ended alone (see `losses.py`).
"""

from dataclasses import replace

from shardwise.protocol.contract import ExitCode
from shardwise.protocol.pods import TerminationRecord
from shardwise_operator import reasons
from shardwise_operator.decide import endings
from shardwise_operator.decide.plan import Event, Plan, never
from shardwise_operator.decide.policies import deadline, fewer_slices, new_round, start_timeout
from shardwise_operator.decide.relocation import avoid_after_timeout
from shardwise_operator.decide.slices import next_slices, words
from shardwise_operator.observe.hosts import LEADER
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.state import Phase
from shardwise_operator.reasons import (
    COMPLETE,
    DEADLINE,
    PODS_RELEASED,
    SAVED_UNEXPECTEDLY,
    SLICES_BACK,
    TRAINED,
    TRUE,
    Lost,
)

OUTCOMES = {
    ExitCode.USAGE: reasons.BAD_INPUT,
    ExitCode.BAD_INPUT: reasons.BAD_INPUT,
    ExitCode.NONFINITE: reasons.NON_FINITE,
    ExitCode.OUT_OF_MEMORY: reasons.OUT_OF_MEMORY,
    ExitCode.STORAGE: reasons.STORAGE,
    ExitCode.DEVICE: reasons.DEVICE,
}
"""The reason of a job that failed, by the exit code of its run."""

wake = never


def termination_record(seen: Observed) -> TerminationRecord | None:
    """Return the record with the run's outcome; None while there is none."""
    ended = [
        pod
        for pod in seen.round_pods()
        if pod.ended and pod.record and pod.record.code is not None and not _ended_apart(seen, pod, pod.record.code)
    ]
    ended.sort(key=lambda pod: (pod.key != LEADER, -pod.attempt))
    return ended[0].record if ended else None


def _ended_apart(seen: Observed, pod: Pod, code: int) -> bool:
    """Return whether the run may go on though a pod that was replaced tells of its end.

    It was on a node that nobody reached, so the others that it missed may be well. Once its successor is made, the run
    goes on with that one, however it ended there; but a run that is complete is so.
    """
    if pod.attempt == seen.state.attempts.get(pod.key) or code == ExitCode.OK:
        return False
    return code == ExitCode.HOSTS_MISSING or pod.key in seen.state.pods


def decide(seen: Observed, now: float) -> Plan | None:
    """Complete or fail the job, or start its next round, once the run has ended."""
    record = termination_record(seen)
    if record is None:
        return None
    if record.code == ExitCode.OK:
        return _complete(seen, record, now)
    if record.code not in (ExitCode.SAVED, ExitCode.HOSTS_MISSING):
        return endings.failed(seen, _reason(record), failure_message(record), now)
    if seen.suspend or seen.state.phase in (Phase.SUSPENDING, Phase.SUSPENDED):
        return None  # the run was saved because it was asked to: suspension.py goes on
    if deadline.passed(seen, now):
        return endings.failed(seen, DEADLINE, f"stopped at its deadline: {_left(record)}", now)
    return _next_round(seen, record, now)


def _next_round(seen: Observed, record: TerminationRecord, now: float) -> Plan:
    """Start another round of a run that stopped before its end, because of a missing host or for no known reason."""
    if seen.made_of is None:  # nothing tells what it may cost; the round that begins waits for the class
        reason = PODS_RELEASED if record.code == ExitCode.HOSTS_MISSING else SAVED_UNEXPECTEDLY
        return new_round.next_round(seen, None, reason, record.message, now)
    if record.code == ExitCode.HOSTS_MISSING:
        if (fewer := fewer_slices.without_the_missing(seen, record.message, now)) is not None:
            return fewer
        wait = start_timeout.retry_seconds(seen)
        message = f"{record.message}; all are given back, and tried again in {wait:.0f} s"
        seen = replace(seen, state=avoid_after_timeout(seen, seen.state))
        return new_round.next_round(seen, Lost.HOST_LOST, PODS_RELEASED, message, now, wait_seconds=wait)
    if seen.state.growth.asked_at is not None:
        message = f"the run stopped ({_left(record)}), and goes on with {words(next_slices(seen), seen)}"
        return new_round.next_round(seen, None, SLICES_BACK, message, now)
    if (earlier := _earlier_deadline(seen, now)) is not None:
        message = f"the run stopped at the deadline that its round began with, {earlier:g} s, and goes on"
        message = f"{message}: {_left(record)}"
        return new_round.next_round(seen, None, SAVED_UNEXPECTEDLY, message, now)
    message = f"the run stopped from inside, and goes on: {_left(record)}"
    return new_round.next_round(seen, Lost.UNKNOWN, SAVED_UNEXPECTEDLY, message, now)


def _left(record: TerminationRecord) -> str:
    """Return what a stop has left in the words of the run, which may have had nothing to save, and the newest step."""
    if record.checkpoint_step is None or "checkpoint" in record.message:
        return record.message
    return f"{record.message}; the newest checkpoint is of step {record.checkpoint_step}"


def _earlier_deadline(seen: Observed, now: float) -> float | None:
    """Return the deadline in seconds that the run goes by, if it has passed and the job's is a later one by now."""
    deadline, ran_at = seen.round_snapshot.job.spec.deadline, seen.state.ran_at
    if deadline is None or ran_at is None or now < ran_at + deadline.seconds:
        return None
    later = seen.deadline_seconds is None or seen.deadline_seconds > deadline.seconds
    return deadline.seconds if later else None


def failure_message(record: TerminationRecord) -> str:
    """Return what failed, at which rank, and the end of its log."""
    named = record.rank is None or f"rank {record.rank} " in record.message
    where = "" if named else f" (rank {record.rank})"
    tail = f"\n{record.tail}" if record.tail else ""
    return f"{record.message}{where}{tail}"


def _complete(seen: Observed, record: TerminationRecord, now: float) -> Plan:
    message = f"{record.steps} steps"
    state = replace(seen.state, phase=Phase.COMPLETE, reason=TRAINED, message="", completed_at=now, not_before=None)
    state = state.with_condition(COMPLETE, TRUE, TRAINED, message, now=now).at_rest(TRAINED, now=now)
    return Plan(state=state, events=(Event(COMPLETE, message),))


def _reason(record: TerminationRecord) -> str:
    cause = record.cause or "failure"
    return OUTCOMES.get(record.code or 0, cause[0].upper() + cause[1:])  # type: ignore[call-overload,no-any-return]
