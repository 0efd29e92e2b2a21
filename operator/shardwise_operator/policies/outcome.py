"""The end of a run, as its agents say it in their last records: complete, failed, saved, or given back.

Any agent of the round may have the word, host 0 first: all end with the run's own exit code. A record without a code is
of an agent that ended alone (see `losses.py`).
"""

from dataclasses import replace

from shardwise.job.contract import ExitCode
from shardwise.job.pods import LastRecord
from shardwise_operator.observed import LEADER, Observed
from shardwise_operator.plan import Event, Plan
from shardwise_operator.policies import deadline, endings, patience, rounds
from shardwise_operator.policies.ladder import not_whole
from shardwise_operator.state import Phase
from shardwise_operator.words import COMPLETE, DEADLINE, GIVEN_BACK, SAVED_UNASKED, TRAINED, TRUE, Lost

_REASONS = {
    ExitCode.USAGE: "BadInput",
    ExitCode.BAD_INPUT: "BadInput",
    ExitCode.NONFINITE: "NonFinite",
    ExitCode.OUT_OF_MEMORY: "OutOfMemory",
    ExitCode.STORAGE: "Storage",
    ExitCode.DEVICE: "Device",
}


def last_record(seen: Observed) -> LastRecord | None:
    """The record that has the run's last word; None while it has none."""
    spoken = [pod for pod in seen.round_pods() if pod.ended and pod.record and pod.record.code is not None]
    spoken.sort(key=lambda pod: (pod.key != LEADER, -pod.attempt))
    return spoken[0].record if spoken else None


def decide(seen: Observed, now: float) -> Plan | None:
    """What follows from the end of the run."""
    record = last_record(seen)
    if record is None:
        return None
    if record.code == ExitCode.OK:
        return _complete(seen, record, now)
    if record.code not in (ExitCode.SAVED, ExitCode.HOSTS_MISSING):
        return endings.failed(seen, _reason(record), failure_words(record), now)
    if seen.suspend or seen.state.phase in (Phase.SUSPENDING, Phase.SUSPENDED):
        return None
    return _goes_on(seen, record, now)


def _goes_on(seen: Observed, record: LastRecord, now: float) -> Plan:
    """Another round, for the run has not come to its end; nobody has asked for that, or a host was missing."""
    if deadline.passed(seen, now):
        return endings.failed(seen, DEADLINE, f"saved and stopped at its deadline: {record.message}", now)
    if record.code == ExitCode.HOSTS_MISSING:
        wait = patience.wait_seconds(seen)
        words = f"{record.message}; all are given back, and tried again in {wait:.0f} s"
        seen = replace(seen, state=not_whole(seen, seen.state))
        return rounds.again(seen, Lost.HOST_LOST, GIVEN_BACK, words, now, wait_seconds=wait)
    words = f"the run was saved and stopped from inside, and goes on: {record.message}"
    return rounds.again(seen, Lost.UNKNOWN, SAVED_UNASKED, words, now)


def failure_words(record: LastRecord) -> str:
    """A failed run in words: what, which rank, how it ended, and the end of its log."""
    said = record.rank is None or f"rank {record.rank} " in record.message
    where = "" if said else f" (rank {record.rank})"
    tail = f"\n{record.tail}" if record.tail else ""
    return f"{record.message}{where}{tail}"


def _complete(seen: Observed, record: LastRecord, now: float) -> Plan:
    words = f"{record.steps} steps"
    state = replace(seen.state, phase=Phase.COMPLETE, reason=TRAINED, message="", completed_at=now, not_before=None)
    state = state.saying(COMPLETE, TRUE, TRAINED, words, now=now).at_rest(TRAINED, now=now)
    return Plan(state=state, events=(Event("Normal", COMPLETE, words),))


def _reason(record: LastRecord) -> str:
    cause = record.cause or "failure"
    return _REASONS.get(record.code or 0, cause[0].upper() + cause[1:])  # type: ignore[call-overload,no-any-return]
