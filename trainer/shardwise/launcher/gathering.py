"""The wait for all hosts: every one is there, and can be reached.

Called by `gang.py` before each incarnation.
"""

import asyncio
import time

from shardwise.job.contract import Cause
from shardwise.launcher.board import LOOK_SECONDS
from shardwise.launcher.last_word import LastWord, failed, given_back, saved
from shardwise.launcher.means import Means
from shardwise.launcher.members import named
from shardwise.launcher.standing import Standing

UNHEARD_SECONDS = 120.0  # network file systems keep for up to a minute that a file is not there


async def hosts_are_there(means: Means, standing: Standing) -> LastWord | None:
    """Wait until every host can be given orders, or this one leaves; the last word if that comes first."""
    recovery = means.job.spec.recovery
    bound = (recovery.start_within if standing.ended_at is None else recovery.replace_within).seconds
    began = time.monotonic()
    while not means.stop.is_set():
        if means.host.leaving.is_set():
            return None
        if means.deadline_seconds(standing.record.began_at) == 0.0:
            return saved("the deadline has passed")
        now = time.monotonic()
        stuck = means.stuck
        # A host that leaves, or is stuck, still answers, but only its successor can be given orders.
        gone = {*means.members.leaving(), *(each.host for each in stuck)}
        missing = sorted({*means.members.missing(now), *gone})
        means.reach.look()
        if not missing and means.reach.ready.is_set():
            return None
        if missing and now - began > bound:
            return _in_vain(means, missing, bound)
        if stuck and means.config.one_machine:
            return failed(Cause.HOST_LOST, stuck[0].host, stuck[0].words)
        awaited = named(missing) if missing else "Ray"
        doubt = _doubt(means) if now - began > UNHEARD_SECONDS else ""
        standing.reason = "; ".join([f"waiting for {awaited}{doubt}", *(each.words for each in stuck)])
        await asyncio.sleep(LOOK_SECONDS)
    return saved("stopped before a trainer ran; there was nothing to save")


def _in_vain(means: Means, missing: list[int], bound_seconds: float) -> LastWord:
    """The last word of a wait that is over: on one machine nobody makes another host, a cluster may at any time."""
    words = f"{named(missing)} missing for {bound_seconds:g} s{_doubt(means)}"
    return failed(Cause.HOST_LOST, missing[0], words) if means.config.one_machine else given_back(words)


def _doubt(means: Means) -> str:
    """What may be wrong with a host that has never been heard, though its pod runs."""
    if means.config.one_machine or not (unheard := means.members.never_heard()):
        return ""
    return (
        f" (nothing was ever heard of {named(unheard)}: where its pod runs, it does not find host 0 in "
        f"{means.directory}, which must be on a volume that all hosts share)"
    )
