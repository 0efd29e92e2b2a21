"""What a host holds while several of them read published weights, by the resident memory of real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.train.small_gpt import gpt2_config
from tests.train.weights.placing import DEVICES_A_HOST

from shardwise.launcher.system.ports import free_port
from shardwise.train.weights.config_file import published_config
from shardwise.train.weights.gpt_families import GPT2
from shardwise.train.weights.tensors import tensors

HOSTS, FILES = 2, 3
MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A GPT-2 of 200 MiB in three files and their index."""
    config = gpt2_config(num_layers=16, embed_size=512, mlp_size=2048, vocab_size=4000, init_std=0.02)
    shapes = {f"transformer.{name}": tensor.shape for name, tensor in tensors(GPT2.rows, config).items()}
    places = {name: f"model-{number % FILES}.safetensors" for number, name in enumerate(shapes)}
    for file in set(places.values()):
        part = {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if places[name] == file}
        save_file(part, tmp_path / file, {"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    published = published_config(GPT2, config, "float32")
    (tmp_path / "config.json").write_text(json.dumps(published), encoding="utf-8")
    return tmp_path


def test_a_host_holds_its_own_part_alone(folder: Path) -> None:
    """Each of two hosts reads the bytes of its own slices: at no moment has it a tenth more than what it keeps."""
    port = free_port("127.0.0.1")
    flags = f"--xla_force_host_platform_device_count={DEVICES_A_HOST}"
    command = [sys.executable, "-m", "tests.train.weights.placing", str(folder)]
    hosts = [
        subprocess.Popen(
            [*command, str(host), str(HOSTS), str(port)],
            env={**os.environ, "XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
        )
        for host in range(HOSTS)
    ]
    found = [json.loads(host.communicate()[0].splitlines()[-1]) for host in hosts]

    for answer in found:
        assert answer["whole"] > 190 * MIB
        assert answer["own"] == pytest.approx(answer["whole"] / HOSTS, rel=0.01)
        assert answer["peak"] < 1.1 * answer["own"]
