"""The wait before each attempt until every host is there, and can be reached."""

import asyncio
import time

from shardwise.launcher.leader.context import Context
from shardwise.launcher.leader.members import host_names
from shardwise.launcher.leader.publisher import LOOK_SECONDS
from shardwise.launcher.leader.result import given_back, host_lost, saved
from shardwise.launcher.leader.state import LeaderState
from shardwise.protocol.run_result import RunResult

UNHEARD_SECONDS = 120.0  # network file systems keep for up to a minute that a file is not there


async def hosts_are_there(context: Context, state: LeaderState) -> RunResult | None:
    """Wait until every host can be given orders, or this one leaves; return the result of a run that ends meanwhile."""
    recovery = context.job.spec.recovery
    bound = (recovery.start_within if state.ended_at is None else recovery.replace_within).seconds
    began = time.monotonic()
    while not context.stop.is_set():
        if context.host.leaving.is_set():
            return None
        if context.deadline_seconds(state.record.began_at) == 0.0:
            return saved("the deadline has passed")
        now = time.monotonic()
        stuck = context.stuck
        # A host that leaves, or is stuck, still answers, but only its successor can be given orders.
        gone = {*context.members.leaving(), *(each.host for each in stuck)}
        missing = sorted({*context.members.missing(now), *gone})
        context.channel.look()
        if not missing and context.channel.ready.is_set():
            return None
        if missing and now - began > bound:
            return _in_vain(context, missing, bound)
        if stuck and context.config.one_machine:
            return host_lost(stuck[0].host, stuck[0].message)
        awaited = host_names(missing) if missing else "Ray"
        doubt = _doubt(context) if now - began > UNHEARD_SECONDS else ""
        state.reason = "; ".join([f"waiting for {awaited}{doubt}", *(each.message for each in stuck)])
        await asyncio.sleep(LOOK_SECONDS)
    return saved("stopped before a trainer ran; there was nothing to save")


def _in_vain(context: Context, missing: list[int], bound_seconds: float) -> RunResult:
    """Return the result of a wait in vain: one machine makes no other host, a cluster may at any time."""
    message = f"{host_names(missing)} missing for {bound_seconds:g} s{_doubt(context)}"
    return host_lost(missing[0], message) if context.config.one_machine else given_back(message)


def _doubt(context: Context) -> str:
    """Return what may be wrong with a host that was never heard, though its pod runs."""
    if context.config.one_machine or not (silent := context.members.never_polled()):
        return ""
    return (
        f" (nothing was ever heard of {host_names(silent)}: where its pod runs, it does not find host 0 in "
        f"{context.directory}, which must be on a volume that all hosts share)"
    )
