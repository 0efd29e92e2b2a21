"""shardwise.launcher.leader.devices: JAX's own reading of a TPU's variables finds each rank once."""

import os

import pytest
from jax._src.clusters import cloud_tpu_cluster
from jax._src.clusters.cloud_tpu_cluster import GkeTpuCluster

from shardwise.launcher.leader.devices import device_variables


@pytest.mark.parametrize(("hosts", "slices"), [(1, 1), (4, 1), (1, 3), (2, 2), (16, 4)])
def test_tpu(monkeypatch: pytest.MonkeyPatch, hosts: int, slices: int) -> None:
    """Rank N is process N of all hosts of all slices, and all ranks name the host of rank 0 as the coordinator."""
    monkeypatch.setattr(cloud_tpu_cluster, "get_tpu_env_value_from_metadata", lambda _name: None)
    addresses = [f"10.0.{host // 250}.{host % 250}" for host in range(hosts * slices)]
    found = []
    for rank in range(hosts * slices):
        with monkeypatch.context() as context:
            for name in [name for name in os.environ if name.startswith(("TPU_", "MEGASCALE_"))]:
                context.delenv(name)
            for name, value in device_variables("tpu", addresses, num_slices=slices, rank=rank).items():
                context.setenv(name, value)
            found.append(
                (
                    GkeTpuCluster.get_process_id(),
                    GkeTpuCluster.get_process_count(),
                    GkeTpuCluster.get_coordinator_address(1, None).split(":")[0],
                )
            )

    assert found == [(rank, hosts * slices, "10.0.0.0") for rank in range(hosts * slices)]


def test_one_slice_has_no_variables_of_many() -> None:
    """With the variables of several slices a single one would wait for others that do not come."""
    variables = device_variables("tpu", ["10.0.0.1", "10.0.0.2"], num_slices=1, rank=1)

    assert variables["TPU_WORKER_HOSTNAMES"] == "10.0.0.1,10.0.0.2"
    assert not [name for name in variables if name.startswith("MEGASCALE_")]


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_others_need_nothing(platform: str) -> None:
    """Other devices find each other through the coordinator of jax.distributed alone."""
    assert device_variables(platform, ["10.0.0.1", "10.0.0.2"], num_slices=2, rank=1) == {}
