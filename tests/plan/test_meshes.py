"""shardwise.train.mesh on topologies as libtpu describes them: what lies on neighbouring chips and in one slice."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.plan.compiling import beside_compilers, small

from shardwise.job.load import dump


@pytest.fixture(scope="module")
def meshes() -> list[Mapping[str, Any]]:
    """Where the groups of each mesh lie."""
    job = small("tpu-v5e", "2x4")
    ended = beside_compilers("tests.plan.placing", dump(job), job)
    assert not ended.returncode, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_every_device_has_one_place(meshes: list[Mapping[str, Any]]) -> None:
    """No device is left out or stands twice, also where sides are no powers of two."""
    assert len(meshes) > 500
    assert [mesh["mesh"] for mesh in meshes if not mesh["devices"]] == []


def test_a_slice_is_whole_rows_of_replica(meshes: list[Mapping[str, Any]]) -> None:
    """A replica lies in one slice, and the slices come in their order, so that only sums over replicas leave one."""
    assert any("3 slices" in mesh["mesh"] for mesh in meshes)
    assert [mesh["mesh"] for mesh in meshes if mesh["slices_of_a_replica"] > 1 or not mesh["replicas_in_order"]] == []


def test_tensor_lies_on_neighbours(meshes: list[Mapping[str, Any]]) -> None:
    """Each group of tensor fills a box of the torus."""
    assert {mesh["tensor"] for mesh in meshes} == {2, 4, 8}
    assert [mesh["mesh"] for mesh in meshes if mesh["largest_box"] != mesh["tensor"]] == []
