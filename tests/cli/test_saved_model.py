"""shardwise.cli.saved_model: the weights of a run, for what reads them."""

from functools import partial
from pathlib import Path

import pytest
from tests.cli.conftest import MODEL, QUICKSTART, Command

from shardwise.cli.saved_model import load_model
from shardwise.job.load import load
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.train.generate import generate
from shardwise.train.sampling import Sampling

MICROBATCHES = "training.batch.microbatches=2"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, process: Command) -> str:
    """Return the folder of checkpoints of a run whose sequences and layers were split over devices."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "README.md").write_text("The quick brown fox jumps over the lazy dog. " * 200)
    changes = (MODEL, MICROBATCHES, "training.mesh={pipeline: 2, context: 2}", "training.steps=2")
    ended = process("run", str(QUICKSTART), "--dir", "run", *(f"--set={one}" for one in changes), folder=folder)
    assert (ended.code, ended.error) == (0, "")
    return str(folder / "run" / "checkpoints")


def _job(mesh: str) -> TrainingJob:
    return resolve(load(Path(QUICKSTART), [MODEL, MICROBATCHES, f"training.mesh={mesh}"]))


def test_split_sequences_and_layers_are_read_whole(root: str) -> None:
    """A job with context, or with a pipeline, gives the text of one without, on all of its devices."""
    texts = []
    for mesh in ("{tensor: 2, context: 2}", "{tensor: 2, pipeline: 2}", "{tensor: 2}"):
        model = load_model(_job(mesh), root, step=None, report=lambda *_: None)
        make = partial(generate, model.program, model.params, [84, 104, 101], num_tokens=12)
        texts.append(list(make(sampling=Sampling(temperature=0))))
        layout = model.program.layout
        assert (layout.context, layout.stages, layout.mesh.size) == (1, 1, 8)

    assert texts[0] == texts[1] == texts[2]
