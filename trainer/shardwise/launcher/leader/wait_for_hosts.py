"""The wait before each attempt until every host is there, and can be reached."""

import asyncio
import time

from shardwise.launcher.leader.members import host_names
from shardwise.launcher.leader.publisher import LOOK_SECONDS
from shardwise.launcher.leader.result import host_lost, hosts_released, saved
from shardwise.launcher.leader.state import LeaderState
from shardwise.protocol.leader_record import RunResult

UNHEARD_SECONDS = 120.0  # network file systems keep for up to a minute that a file is not there


async def hosts_are_there(state: LeaderState) -> RunResult | None:
    """Wait until every host can be given orders, or this one leaves; return the result of a run that ends meanwhile."""
    recovery = state.job.spec.recovery
    bound = (recovery.start_within if state.ended_at is None else recovery.replace_within).seconds
    began, missing_since = time.monotonic(), dict[int, float]()
    while not state.stop.is_set():
        if state.host.leaving.is_set():
            return None
        if state.deadline_seconds == 0.0:
            return saved("the deadline has passed")
        now = time.monotonic()
        stuck = state.stuck
        # A host that leaves, or is stuck, still answers, but only its successor can be given orders.
        gone = {*state.members.leaving(), *(each.host for each in stuck)}
        missing = sorted({*state.members.missing(now), *gone})
        state.channel.look()
        if not missing and state.channel.ready.is_set():
            return None
        missing_since = {host: missing_since.get(host, now) for host in missing}
        if late := [host for host in missing if now - missing_since[host] > bound]:
            return _in_vain(state, late, bound)
        if stuck and state.config.one_machine:
            return host_lost(stuck[0].host, stuck[0].message)
        awaited = host_names(missing) if missing else "Ray"
        doubt = _doubt(state) if now - began > UNHEARD_SECONDS else ""
        state.reason = "; ".join([f"waiting for {awaited}{doubt}", *(each.message for each in stuck)])
        await asyncio.sleep(LOOK_SECONDS)
    if state.record.began_at is None:
        message = "stopped before a trainer ran; there was nothing to save"
    else:
        message = "stopped while no trainer ran; the steps since the last checkpoint are done again"
    return saved(message)


def _in_vain(state: LeaderState, missing: list[int], bound_seconds: float) -> RunResult:
    """Return the result of a wait in vain: one machine makes no other host, a cluster may at any time."""
    message = f"{host_names(missing)} missing for {bound_seconds:g} s{_doubt(state)}"
    return host_lost(missing[0], message) if state.config.one_machine else hosts_released(message)


def _doubt(state: LeaderState) -> str:
    """Return what may be wrong with a host that was never heard, though its pod runs."""
    if state.config.one_machine or not (silent := state.members.never_polled()):
        return ""
    place, url = f"{state.directory}, which must be on a volume that all hosts share", state.config.url
    place = f"{url}, which every host must be able to read" if url else place
    return f" (nothing was ever heard of {host_names(silent)}: where its pod runs, it does not find host 0 in {place})"
