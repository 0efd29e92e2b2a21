"""One of several hosts that read published weights: a process of its own, for test_resident.py.

python -m tests.train.weights.placing FOLDER HOST HOSTS PORT
"""

import json
import sys
from pathlib import Path

import jax
from tests.train.small_gpt import program_of

from shardwise.train.weights import place, read

DEVICES_A_HOST = 2


def main() -> None:
    """Place the weights over the devices of all hosts; print the bytes that are this host's, and what it took."""
    host, hosts, port = map(int, sys.argv[2:])
    jax.distributed.initialize(
        f"127.0.0.1:{port}", num_processes=hosts, process_id=host, cluster_detection_method="deactivate"
    )
    config, parameters = read(Path(sys.argv[1]))
    program = program_of(config, devices=DEVICES_A_HOST * hosts)
    jax.block_until_ready(jax.numpy.zeros(1))  # what the devices themselves take is there before
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before = _resident_bytes("VmRSS")
    placed = jax.block_until_ready(place(program, config, parameters))
    own = sum(shard.data.nbytes for array in placed.values() for shard in array.addressable_shards)
    whole = sum(array.nbytes for array in placed.values())
    print(json.dumps({"own": own, "whole": whole, "peak": _resident_bytes("VmHWM") - before}))  # noqa: T201  the answer
    jax.distributed.shutdown()


def _resident_bytes(kind: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(kind)))


if __name__ == "__main__":
    main()
