"""The wait for all hosts: every one is there, sees the run directory, and can be reached.

Called by `gang.py` before each incarnation.
"""

import asyncio
import time

from shardwise.job.contract import Cause
from shardwise.launcher.board import LOOK_SECONDS
from shardwise.launcher.last_word import LastWord, failed, given_back, saved
from shardwise.launcher.means import Means
from shardwise.launcher.members import named
from shardwise.launcher.shared import SHARED_SECONDS
from shardwise.launcher.standing import Standing


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
        if not missing and not means.members.blind() and means.reach.ready.is_set():
            return None
        if missing and now - began > bound:
            return _in_vain(means, missing, bound)
        if word := _hopeless(means, now):
            return word
        standing.reason = "; ".join([f"waiting for {_awaited(means, missing)}", *(each.words for each in stuck)])
        await asyncio.sleep(LOOK_SECONDS)
    return saved("stopped before a trainer ran; there was nothing to save")


def _in_vain(means: Means, missing: list[int], bound_seconds: float) -> LastWord:
    """The last word of a wait that is over: on one machine nobody makes another host, a cluster may at any time."""
    words = f"{named(missing)} missing for {bound_seconds:g} s"
    return failed(Cause.HOST_LOST, missing[0], words) if means.config.one_machine else given_back(words)


def _hopeless(means: Means, now: float) -> LastWord | None:
    """The last word where waiting does not help."""
    if means.config.one_machine and (stuck := means.stuck):
        return failed(Cause.HOST_LOST, stuck[0].host, stuck[0].words)
    return _not_shared(means, now)


def _not_shared(means: Means, now: float) -> LastWord | None:
    """The last word where a host has had the time to see the run directory, and does not."""
    hosts = [host for host, member in means.members.blind().items() if now - member.came_at > SHARED_SECONDS]
    if not hosts:
        return None
    sees = means.members.blind()[hosts[0]].sees
    words = (
        f"{named(hosts)} cannot read in {means.directory} what host 0 has written there {SHARED_SECONDS:g} s ago "
        f"(found: {sees[:200]}); the run directory must be on a volume that all hosts share"
    )
    return failed(Cause.BAD_INPUT, hosts[0], words)


def _awaited(means: Means, missing: list[int]) -> str:
    if missing:
        return named(missing)
    blind = means.members.blind()
    return f"{named(list(blind))} to see the run directory" if blind else "Ray"
