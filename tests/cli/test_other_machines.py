"""A run of a cluster's machines on a laptop: its directory is all that `generate` and `export` need."""

import json
from contextlib import closing, nullcontext
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.cli.conftest import MODEL, QUICKSTART, Command
from tests.train.small_gpt import Params, random_params

from shardwise.job.load import dump, load
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.train.checkpoint import CheckpointWriter
from shardwise.train.devices import devices_of
from shardwise.train.digest import Digester
from shardwise.train.origin import PARAMS
from shardwise.train.start import build
from shardwise.train.state import Abstract

HERE = ("hardware={accelerator: cpu-sim, topology: 1x8}", "training.mesh={tensor: 2}")
MACHINES = {
    "tpu-v5p": (
        "hardware={accelerator: tpu-v5p, topology: 4x4x4, slices: 2}",
        "training.mesh={tensor: 2}",
        "training.model.attention=splash",
        "training.xlaFlags=[--xla_tpu_scoped_vmem_limit_kib=65536]",
    ),
    "gpu-h100": (
        "hardware={accelerator: gpu-h100, topology: 2x8}",
        "training.mesh={tensor: 2}",
        "training.precision={compute: bfloat16}",
    ),
}
CHANGES = (MODEL, "training.model.seqLen=128", "training.model.vocabSize=400", "training.batch.sequences=128")


def _job(*changes: str) -> TrainingJob:
    return resolve(load(Path(QUICKSTART), [*CHANGES, *changes]))


@pytest.fixture
def params() -> Params:
    """Return parameters that lie on eight devices, as other machines have written them."""
    job = _job(*HERE)
    return random_params(build(job, devices_of(job)), seed=3)


def _run_of(machine: str, params: Params, directory: Path) -> None:
    """Make a run directory as that machine leaves it: the job, the summary, one checkpoint."""
    directory.mkdir()
    (directory / "job.yaml").write_text(dump(_job(*MACHINES[machine])), encoding="utf-8")
    (directory / "summary.json").write_text(json.dumps({"status": "complete", "steps": 7}), encoding="utf-8")
    arrays = {PARAMS + path: array for path, array in params.items()}
    digester = Digester({path: Abstract(x.shape, x.dtype, sharding=x.sharding) for path, x in arrays.items()})
    keep = _job().spec.training.checkpoint.keep
    with closing(
        CheckpointWriter(str(directory / "checkpoints"), keep=keep, run="far", attempt=0, fence=nullcontext)
    ) as writer:
        writer.save(7, arrays, digester=digester, identity={})


@pytest.mark.parametrize("machine", MACHINES)
def test_a_run_of_another_machine_is_read_on_this_one(
    machine: str, params: Params, process: Command, tmp_path: Path
) -> None:
    """It is exported whole, and makes text on the processor, which is said; so are tokens that have no text."""
    _run_of(machine, params, tmp_path / "run")

    exported = process("export", "run", "out/model.safetensors", folder=tmp_path)
    assert (exported.code, exported.error) == (0, "")
    table = load_file(tmp_path / "out" / "model.safetensors")["transformer.wte.weight"]
    assert table.shape == (400, 64)
    assert np.array_equal(table, np.asarray(params["token_embedding"]).T[:400])

    made = process("generate", "run", "--tokens", "24", "--samples", "2", "--temperature", "3", folder=tmp_path)
    assert made.code == 0, made.error
    lines = [json.loads(line) for line in made.out.splitlines()]
    assert [line["tokens"] for line in lines] == [24, 24]
    notes = " ".join(made.error.split())
    assert f"({machine} {'4x4x4, 2 slices' if machine == 'tpu-v5p' else '2x8'}) are not on this machine" in notes
    assert "of 48 tokens have no text, since the tokenizer has 257 tokens and the model more" in notes
