"""Lays meshes over the topologies that the classes of TPUs offer, and says where their groups lie.

Run by `test_meshes.py` with the Python of `.venv-plan`: libtpu describes the topologies. Prints a line of JSON for
each mesh; nothing is compiled.
"""

import json
import math
import sys
from collections.abc import Iterator

import numpy as np

from shardwise.job.accelerators import BUILT_IN
from shardwise.job.load import loads
from shardwise.job.spec import Hardware, Mesh, TrainingJob
from shardwise.job.topology import num_devices, topologies
from shardwise.plan.targets import devices_for
from shardwise.train.mesh import device_grid

TENSOR = (2, 4, 8)
_MOST = 512
"""Devices of a topology up to which all are laid; beyond, of the hundreds that some classes have, the largest."""
_MOST_OF_SLICES = 64
"""Devices of a slice up to which two and three of them are joined."""


def main() -> None:
    """Lay them all."""
    job = loads(sys.stdin.read())
    for name, accelerator in BUILT_IN.items():
        for grid in topologies(accelerator):
            number = num_devices(Hardware(accelerator=name, topology=grid))
            if number > _MOST and grid != topologies(accelerator)[-1]:
                continue
            for slices in (1, 2, 3) if number <= _MOST_OF_SLICES else (1,):
                for line in _laid(job, Hardware(accelerator=name, topology=grid, slices=slices)):
                    sys.stdout.write(json.dumps(line) + "\n")


def _laid(job: TrainingJob, hardware: Hardware) -> Iterator[dict[str, object]]:
    spec = job.spec.model_copy(update={"hardware": hardware})
    devices = devices_for(job.model_copy(update={"spec": spec}))
    for tensor in TENSOR:
        for replica in (hardware.slices, 2 * hardware.slices):
            if len(devices) % (replica * tensor):
                continue
            grid = device_grid(Mesh(tensor=tensor, replica=replica, data_inner=1), devices)
            slices = [{getattr(device, "slice_index", None) or 0 for device in row.flat} for row in grid]
            places = np.array([(*device.coords, device.core_on_chip) for device in grid.flat]).reshape(-1, tensor, 4)
            boxes = np.prod(places.max(axis=1) - places.min(axis=1) + 1, axis=1)
            yield {
                "mesh": f"{hardware.accelerator} {hardware.topology}, {hardware.slices} slices: {replica} x {tensor}",
                "devices": len({device.id for device in grid.flat}) == math.prod(grid.shape) == len(devices),
                "slices_of_a_replica": max(len(row) for row in slices),
                "replicas_in_order": slices == sorted(slices, key=min),
                "largest_box": int(boxes.max()),
                "tensor": tensor,
            }


if __name__ == "__main__":
    main()
