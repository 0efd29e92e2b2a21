"""The phases that a job has gone through: its status keeps the last of them, from which its spans follow.

A record follows from the status before and from this pass alone, so another operator goes on with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.protocol.job_status import MAX_PHASES
from shardwise_operator.observe.state import Phase
from shardwise_operator.runtime.kinds import Object, exact_timestamp, seconds_of

# A restart that brings a job into one of these is the reason for the phase; any other happened in the phase before.
_OF_A_RESTART = (Phase.RECOVERING, Phase.PENDING)


def recorded(
    old: Mapping[str, Any], phase: Phase, restarts: Mapping[str, int], step: int | None, now: float
) -> Sequence[Object]:
    """Return the records after this pass.

    Args:
        old: the status before.
        phase: the job's phase now.
        restarts: the restarts by cause that are known now.
        step: the last completed step, None before the first.
        now: in seconds since the epoch.

    """
    known: Sequence[Object] = old.get("phases", ())
    cause = _new_cause(old.get("restarts", {}), restarts)
    if not known:
        # When the phase of an older operator's job began is not known, and to say so is worth no write.
        return () if old.get("phase") == phase else (_record(phase, 0, now, cause),)
    *before, last = known
    if last["name"] == phase:
        return (*before, _with_cause(last, cause))
    # By the clock of this process, which may be behind that of the one before.
    ends_at = max(now, seconds_of(last["start"]))
    of_the_next = phase in _OF_A_RESTART
    ended = {**_with_cause(last, None if of_the_next else cause), "end": exact_timestamp(ends_at)}
    if step is not None:
        ended["step"] = step
    following = _record(phase, last["number"] + 1, ends_at, cause if of_the_next else None)
    return (*before, ended, following)[-MAX_PHASES:]


def _record(phase: Phase, number: int, start: float, cause: str | None) -> Object:
    return _with_cause({"name": phase.value, "number": number, "start": exact_timestamp(start)}, cause)


def _with_cause(record: Object, cause: str | None) -> Object:
    return record if cause is None else {**record, "cause": cause}


def _new_cause(before: Mapping[str, int], after: Mapping[str, int]) -> str | None:
    """Return the cause of which there are more restarts than before; None without any."""
    return next((cause for cause, count in after.items() if count > before.get(cause, 0)), None)
