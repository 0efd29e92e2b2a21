"""How fast a host is by itself: the same measure from a program that was made and from one that was kept."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = """
import json
import jax
from tests.train.conftest import SMALL
from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.train.config import GptConfig
from shardwise.train.executables import Executables
from shardwise.train.probe import Probe
job = resolve(loads(SMALL, []))
config = GptConfig.of(job.spec.training, tokenizer_size=257, platform="cpu")
probe = Probe(Executables(job, config, 0))
probe.prepare()
print(json.dumps({
    "seconds": [probe.seconds() for _ in range(3)],
    "devices": sorted(device.id for device in probe._square.devices()),
    "waits": "all-reduce" in probe._program.as_text(),
}))
"""


def _measured(folder: Path) -> dict[str, Any]:
    """What a new process measures."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, env=environment, check=True, capture_output=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def test_measured_again_by_the_next_process(tmp_path: Path) -> None:
    """The kept program measures as the one that was made did, on one of the simulated devices, and waits for nobody."""
    for _ in range(2):
        measured = _measured(tmp_path)
        assert 0 < min(measured["seconds"]) < 0.1
        assert (measured["devices"], measured["waits"]) == ([0], False)
