"""shardwise.cli.check: a job file's verdict, its summary, its reference."""

import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import pytest
from tests.cli.conftest import Command

from shardwise.job.explain import rows
from shardwise.job.load import load, loads
from shardwise.job.resolve import resolve
from shardwise.job.sizes import num_parameters
from shardwise.train.config import GptConfig
from shardwise.train.layout import flatten
from shardwise.train.model import Gpt

UNTIED = "tiedHead: false, headBias: true, attentionBias: false"
HEAVY = {"equinox", "haliax", "jax", "numpy", "prometheus_client", "psutil", "ray", "tensorstore"}


def test_right_job_is_ok_with_a_summary(command: Command, quickstart: str) -> None:
    """A right file gives `ok` and what it asks for, --set included."""
    ended = command("check", quickstart, "--set", "training.mesh.tensor=4")
    assert (ended.code, ended.error) == (0, "")
    lines = [line.rstrip() for line in ended.out.splitlines()]
    assert lines == [
        "ok",
        "job      quickstart",
        "devices  8 (cpu-sim 1x8)",
        "mesh     replica 1 x data 2 x tensor 4",
        "model    842,624 parameters",
        "a step   16 sequences x 128 = 2,048 tokens",
        "steps    100 (204,800 tokens)",
    ]


def test_a_ramp_is_told(command: Command, quickstart: str) -> None:
    """With how many sequences the first steps have, and the tokens of the whole run counted by them."""
    ended = command("check", quickstart, "--set", "training.batch.rampUp=[{untilStep: 20, sequences: 8}]")
    lines = [line.rstrip() for line in ended.out.splitlines()]
    assert lines[-3:] == [
        "a step   16 sequences x 128 = 2,048 tokens",
        "         8 sequences up to step 20",
        "steps    100 (184,320 tokens)",
    ]


def test_slices_are_told(command: Command, quickstart: str) -> None:
    """All devices are counted, and the topology is said to be that of one slice."""
    ended = command("check", quickstart, "--set", "hardware={accelerator: cpu-sim, topology: 2x2, slices: 2}")
    assert ended.code == 0, ended.error
    assert "devices  8 on 4 hosts (2 slices of cpu-sim 2x2)" in ended.out


def test_wrong_job_names_every_mistake(command: Command, quickstart: str) -> None:
    """Each mistake has its place and what would work; nothing is printed on standard output."""
    ended = command("check", quickstart, "--set", "training.mesh.tensor=3", "--set", "training.stepps=1")
    assert (ended.code, ended.out) == (81, "")
    assert "training.stepps" in ended.error
    assert "steps" in ended.error


@pytest.mark.parametrize(
    "model",
    [
        "layers: 3, heads: 4, embed: 32, mlp: 48, seqLen: 16",
        "layers: 2, heads: 2, embed: 32, seqLen: 16, block: parallel, position: rotary, " + UNTIED,
    ],
    ids=["sequential", "parallel"],
)
def test_model_size_is_the_trainers(model: str, quickstart: str) -> None:
    """The number of parameters, which is counted without JAX, is that of the model that the trainer builds."""
    job = resolve(load(Path(quickstart), [f"training.model={{{model}, vocabSize: 384}}"]))
    config = GptConfig.of(job.spec.training, tokenizer_size=257, platform="cpu")
    built = flatten(eqx.filter_eval_shape(Gpt.init, config, key=jax.random.key(0)))
    assert num_parameters(job.spec.training.model, 384) == sum(array.size for array in built.values())


def test_model_size_without_the_tokenizers_file(command: Command, quickstart: str) -> None:
    """A vocabulary that a file decides is left open: the file is not read."""
    ended = command("check", quickstart, "--set", "training.data.tokenizer=missing/tokenizer.json")
    assert ended.code == 0
    assert "809,728 parameters, and 128 for each token" in ended.out


def test_resolved_is_a_job_file(command: Command, quickstart: str) -> None:
    """--resolved prints a job file and nothing else; it means the same job."""
    ended = command("check", quickstart, "--resolved", "--set", "training.steps=7")
    job = loads(ended.out)
    assert job == resolve(load(Path(quickstart), ["training.steps=7"]))


def test_explain_shows_every_field_whole(command: Command) -> None:
    """The reference needs no file, fits 80 columns, and has each path and each description unbroken by truncation."""
    ended = command("check", "--explain")
    lines = ended.out.splitlines()
    words = ended.out.split()
    assert ended.code == 0
    assert max(map(len, lines)) <= 80
    assert "…" not in ended.out
    for row in rows():
        assert row.path in words
        assert set(f"{row.description} {row.type} {row.range} {row.default}".split()) <= _bare(words)


def test_explain_checks_a_file_that_is_given(command: Command, quickstart: str) -> None:
    """A wrong file is refused with --explain as without."""
    assert command("check", quickstart, "--explain", "--set", "training.steps=0").code == 81


@pytest.mark.parametrize("arguments", [["check", "{job}"], ["status", "{run}"]], ids=["check", "status"])
def test_light_commands_import_nothing_heavy(arguments: list[str], quickstart: str, tmp_path: Path) -> None:
    """`check` and `status` answer at once, and without the trainer's libraries: they import none of them."""
    (tmp_path / "job.yaml").write_bytes(Path(quickstart).read_bytes())
    (tmp_path / ".lock").touch()
    words = [argument.format(job=quickstart, run=tmp_path) for argument in arguments]
    program = (
        f"import sys; sys.argv[1:] = {words!r}\n"
        "from shardwise.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
        f"print('imported', *({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].strip() == "imported"


def _bare(words: list[str]) -> set[str]:
    """The words with and without what the reference puts around them."""
    return {*words, *(word.strip("();") for word in words), *(word.removesuffix(";") for word in words)}
