"""How fast a host is by itself, from a program that was made and from one that was kept; and what computes wrong."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest

from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import DeviceError
from shardwise.train import probe
from shardwise.train.probe import Probe

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
    "devices": sorted(device.id for device in probe._factor.devices()),
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


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> Probe:
    """Return a probe of eight devices that are taken for real ones, ready to measure."""
    monkeypatch.setattr(probe, "simulated", lambda: False)
    compiled = SimpleNamespace(get=lambda _name, lower, _devices: lower().compile())
    made = Probe(cast("Any", compiled))
    made.prepare()
    return made


@pytest.mark.parametrize(("size", "passes"), [(128, 1), (128, 2), (128, 33), (2048, 2)])
def test_the_result_is_exact(size: int, passes: int) -> None:
    """Sums of float32 are those of whole numbers, whatever their order, and factors have eight bits, as in bfloat16."""
    rows, factor = probe._factors(size)
    exact = rows.astype(np.int64)
    for _ in range(passes):
        products = exact @ factor.astype(np.int64)
        assert np.abs(exact).sum(axis=1).max() * 8 < 2**24
        exact = (products + 128) % 256 - 128

    np.testing.assert_array_equal(probe._chained(rows, factor, passes), exact)
    assert (rows.min(), rows.max(), factor.min(), factor.max()) == (-128, 127, -8, 7)
    assert len(np.unique(exact)) > 200


@pytest.mark.parametrize("passes", [1, 5])
def test_devices_that_compute_right_are_timed(eight: Probe, passes: int) -> None:
    """All of them make what the processor makes by itself, in as many products as a measurement has."""
    eight._passes = passes
    eight._expected = eight._put(probe._chained(*probe._factors(128), passes))
    assert eight.seconds() > 0
    eight._passes += 1
    with pytest.raises(DeviceError) as refused:
        eight.seconds()
    assert str(refused.value).count(" wrong)") == 8


@pytest.mark.parametrize("broken", [[5], [0, 7]])
def test_a_device_that_computes_wrong_is_named(eight: Probe, broken: list[int]) -> None:
    """One entry of 16,384 that is wrong by one in the memory of one device is enough."""
    parts = []
    for number, device in enumerate(eight._mesh.devices.flat):
        factor = np.asarray(eight._factor).copy()
        factor[77, 100] += number in broken
        parts.append(jax.device_put(factor, device))
    eight._factor = jax.make_array_from_single_device_arrays((128, 128), eight._factor.sharding, parts)

    with pytest.raises(DeviceError, match="computes wrong and reports no error") as refused:
        eight.seconds()
    assert refused.value.exit_code == ExitCode.DEVICE
    assert re.findall(r"cpu:(\d) \([\d,]+ wrong\)", str(refused.value)) == [str(number) for number in broken]
