"""Tasks of Ray: a cluster that is not there. `tests/train/data/test_store_processes.py` runs tasks."""

import pytest

from shardwise.launcher.ray.tasks import tasks_of_cluster
from shardwise.launcher.system.ports import free_port
from shardwise.protocol.errors import UsageError


@pytest.mark.parametrize("address", ["silent", "no-address"])
def test_a_cluster_that_does_not_answer_is_a_mistake_of_the_command(address: str) -> None:
    """It is refused at once, with what is expected; Ray is not asked."""
    if address == "silent":
        address = f"127.0.0.1:{free_port('127.0.0.1')}"
    with (
        pytest.raises(UsageError, match=f"--ray-address '{address}': .*; expected the address of the head"),
        tasks_of_cluster(address, None),
    ):
        pass
