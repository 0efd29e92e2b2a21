"""The orders of an attempt's trainers: what all of them have in common, and what each has for itself."""

from collections.abc import Callable

from shardwise.job.accelerators import offered
from shardwise.launcher.agent.config import stacks_of
from shardwise.launcher.leader.devices import device_variables
from shardwise.launcher.leader.state import LeaderState
from shardwise.launcher.system.ports import free_port
from shardwise.protocol.contract import progress_name
from shardwise.protocol.orders import Orders
from shardwise.protocol.program import rendezvous


def orders_of(number: int, state: LeaderState) -> Callable[[int], Orders]:
    """Return a function from a rank to its orders in the attempt of this number, at ports of its own."""
    config, hardware = state.config, state.job.spec.hardware
    coordinator = f"{config.address}:{free_port(config.address)}"
    meeting = rendezvous(config.address, free_port(config.address)) if state.job.spec.program else {}
    addresses, platform = state.members.addresses(config.address), offered()[hardware.accelerator].spec.platform
    committed = state.metrics.committed
    fresh = state.record.fresh and committed < 0  # the record learns of a save only at the next look

    def orders(rank: int) -> Orders:
        return Orders(
            job_file=str(config.job_file),
            directory=str(config.directory),
            progress=str(config.scratch / progress_name(rank)),
            stacks=str(stacks_of(config.scratch, rank)),
            rank=rank,
            num_processes=config.num_hosts,
            coordinator=coordinator,
            attempt=number,
            fork=config.fork and fresh,
            step=config.step if fresh else None,
            deadline_seconds=state.deadline_seconds,
            committed=committed if committed >= 0 else None,
            variables=device_variables(platform, addresses, num_slices=hardware.slices, rank=rank) | meeting,
        )

    return orders
