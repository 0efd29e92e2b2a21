"""shardwise.cli.saved_model: the weights of a run, for what reads them."""

import errno
import json
import os
import re
import shutil
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file
from tests.cli.conftest import MODEL, QUICKSTART, Command
from tests.train.weights.test_transformers import write_model
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from shardwise.cli.saved_model import load_model
from shardwise.job.load import load
from shardwise.job.resolve import resolve
from shardwise.job.spec import Keep, TrainingJob
from shardwise.protocol.contract import JOB_FILE, ExitCode
from shardwise.train.checkpoint import CheckpointWriter, steps
from shardwise.train.data.jinja import jinja_of
from shardwise.train.digest import Digester
from shardwise.train.generate import generate
from shardwise.train.sampling import Sampling
from shardwise.train.state import Abstract
from shardwise.train.weights.reading import CONFIG_FILE
from shardwise.train.weights.tokenizer_files import GENERATION_FILE

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


def _published(name: str, folder: Path) -> dict[str, Any]:
    """Write a recorded model with a tokenizer of ten words, and a text of them; return its weights."""
    weights = write_model(name, folder / name)
    words = ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(["?", "</s>", *words])}, unk_token="?"))  # noqa: S106
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / name / "tokenizer.json"))
    (folder / "text.txt").write_text(" ".join(words * 400))
    return weights


@pytest.mark.parametrize("name", ["gemma3", "gpt-neox", "llama-tied-linear", "llama-yarn", "llama3"])
def test_a_model_is_imported_and_exported_by_the_commands(name: str, command: Command, tmp_path: Path) -> None:
    """Whatever its config says, the scaling of its positions included: every tensor comes back bit by bit."""
    published = _published(name, tmp_path)
    text = f"--set=training.data.train.0.paths=[{tmp_path}/text.txt]"
    made = command("import", str(tmp_path / name), str(tmp_path / "run"), text)
    assert made.code == 0, made.error

    assert command("export", str(tmp_path / "run"), str(tmp_path / "again" / "model.safetensors")).code == 0
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert {tensor: array.tobytes() for tensor, array in again.items()} == {
        tensor: array.tobytes() for tensor, array in published.items()
    }


@pytest.mark.parametrize(
    "name", ["llama3", *(pytest.param(name, marks=pytest.mark.long) for name in ("gpt2", "gpt-neox"))]
)
def test_adapters_are_trained_beside_imported_weights(
    name: str, command: Command, process: Command, tmp_path: Path
) -> None:
    """The commands read the model before its first step and after; the weights outlast all checkpoints of adapters.

    Added to the published weights as PEFT adds them, what is exported of the adapters alone is the exported model.
    """
    published = _published(name, tmp_path)
    changes = [f"data.train.0.paths=[{tmp_path}/text.txt]", "lora.rank=2", "steps=6"]
    changes += ["checkpoint={everySteps: 1, keep: {last: 1}}", "optimizer.learningRate=1e-2"]
    words = [f"--set=training.{change}" for change in changes]
    made = command("import", str(tmp_path / name), str(tmp_path / "run"), *words)
    assert made.code == 0, made.error
    assert "in adapters, which are trained" in command("check", str(tmp_path / "run" / JOB_FILE)).out
    exported = []
    for when in ("before", "after"):
        assert command("export", str(tmp_path / "run"), str(tmp_path / when / "model.safetensors")).code == 0
        exported.append(load_file(tmp_path / when / "model.safetensors"))
        said = process("generate", str(tmp_path / "run"), "--prompt", "The quick", "--tokens", "3", folder=tmp_path)
        assert said.code == 0, said.error
        if when == "before":
            ran = process("run", str(tmp_path / "run" / JOB_FILE), "--dir", str(tmp_path / "run"), folder=tmp_path)
            assert ran.code == 0, ran.error
    before, after = exported

    assert steps(str(tmp_path / "run" / "checkpoints")) == [0, 6]
    assert {tensor: x.tobytes() for tensor, x in before.items()} == {t: x.tobytes() for t, x in published.items()}
    peft = tmp_path / "peft" / "adapter_model.safetensors"
    refused = command("export", str(tmp_path / "run"), str(peft), "--adapters", "--step", "0")
    assert (refused.code, "holds no adapters yet" in refused.error) == (ExitCode.BAD_INPUT, True)
    refused = command("export", str(tmp_path / "run"), str(peft), "--adapters", "--tokenizer", str(tmp_path / name))
    assert (refused.code, "leave it out with --adapters" in refused.error) == (ExitCode.USAGE, True)
    rounded = tmp_path / "rounded" / "adapter_model.safetensors"
    ended = command("export", str(tmp_path / "run"), str(rounded), "--adapters", "--dtype", "bfloat16")
    assert ended.code == 0, ended.error
    assert {x.dtype.name for x in load_file(rounded).values()} == {"bfloat16"}
    ended = command("export", str(tmp_path / "run"), str(peft), "--adapters")
    assert ended.code == 0, ended.error
    factors, known = load_file(peft), json.loads((peft.parent / "adapter_config.json").read_text())
    assert (known["r"], known["lora_alpha"], known["fan_in_fan_out"]) == (2, 4.0, name == "gpt2")
    for tensor, x in after.items():
        module = f"base_model.model.{tensor.removesuffix('.weight')}"
        if (b := factors.pop(f"{module}.lora_B.weight", None)) is None:
            np.testing.assert_array_equal(x, before[tensor], err_msg=tensor)
            continue
        assert any(module.endswith(f".{target}") for target in known["target_modules"])
        added = 4.0 / 2 * b @ factors.pop(f"{module}.lora_A.weight")
        assert np.abs(added).max() > 1e-4, tensor
        added = added.T if known["fan_in_fan_out"] else added
        np.testing.assert_allclose(x, before[tensor] + added, rtol=1e-5, atol=1e-6, err_msg=tensor)
    assert not factors


@pytest.mark.parametrize("place", ["beside the weights", "at a URL", "given"])
def test_an_export_keeps_what_the_imported_model_could_do(place: str, command: Command, tmp_path: Path) -> None:
    """Trained on shorter conversations it has as many positions as before, and ends its texts with the same tokens.

    So it does wherever the tokenizer is: where the import has found it, at a URL, or in a folder that is given because
    the job's path is another machine's. Its chat template is the one that it has trained with, not the published one.
    """
    _published("llama3", tmp_path)
    folder = tmp_path / "llama3"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = ["<bos>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    begin, answer_end, other_end, end = (tokenizer.token_to_id(name) for name in (*names[:3], "</s>"))
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", begin)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    generation = {"bos_token_id": begin, "eos_token_id": [end, other_end], "temperature": 0.6}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "chat_template.jinja").write_text("published")
    (tmp_path / "chats.jsonl").write_text("")
    changes = ("model.seqLen=12", f"data.train.0.paths=[{tmp_path}/chats.jsonl]", "data.train.0.chatTemplate=llama3")
    words = [f"--set=training.{change}" for change in (*changes, "data.attendAcross=document")]
    made = command("import", str(folder), str(tmp_path / "run"), *words)
    assert made.code == 0, made.error

    job, words = tmp_path / "run" / JOB_FILE, []
    if place == "at a URL":
        fsspec.filesystem("memory").put(f"{folder}/", "/model/", recursive=True)
        job.write_text(job.read_text().replace(str(folder), "memory://model"))
    elif place == "given":
        job.write_text(job.read_text().replace(str(folder), "/runs"))
        export = ("export", str(tmp_path / "run"), str(tmp_path / "without" / "model.safetensors"))
        ended = command(*export)
        assert (ended.code, "--tokenizer names another" in ended.out) == (0, True)
        text = job.read_text()
        job.write_text(re.sub(r"\n *vocabSize: \d+", "", text))
        ended = command(*export)
        assert (ended.code, "by --tokenizer" in ended.error) == (ExitCode.USAGE, True)
        job.write_text(text)
        words = ["--tokenizer", str(folder)]
    ended = command("export", str(tmp_path / "run"), str(tmp_path / "again" / "model.safetensors"), *words)
    assert ended.code == 0, ended.error
    assert "its chat template is llama3, as in training" in ended.out
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert (tmp_path / "again" / "chat_template.jinja").read_text() == jinja_of("llama3", "<bos>")
    config, written = (json.loads((tmp_path / "again" / name).read_text()) for name in (CONFIG_FILE, GENERATION_FILE))
    assert config["max_position_embeddings"] == 24
    for file in (config, written):
        assert (file["bos_token_id"], file["eos_token_id"]) == (begin, [end, answer_end, other_end])
    assert written["temperature"] == 0.6


@pytest.mark.parametrize("place", ["file", "file/run"])
def test_an_import_into_a_file_is_refused(place: str, command: Command, tmp_path: Path) -> None:
    """Where no folder can be made is said before anything is read."""
    (tmp_path / "file").touch()
    refused = command("import", "model", str(tmp_path / place))
    assert (refused.code, refused.out) == (ExitCode.USAGE, "")
    assert f"{tmp_path / place}: no folder can be made there" in refused.error


def test_an_import_through_a_link_names_the_folder_itself(command: Command, tmp_path: Path) -> None:
    """The job's beginning is where the weights are, also once the link is another's."""
    _published("llama3", tmp_path)
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    text = f"--set=training.data.train.0.paths=[{tmp_path}/text.txt]"
    made = command("import", str(tmp_path / "llama3"), str(tmp_path / "link" / "run"), text)
    assert made.code == 0, made.error
    start = load(tmp_path / "disk" / "run" / JOB_FILE).spec.training.start_from
    assert start is not None
    assert start.path == str(tmp_path / "disk" / "run" / "checkpoints")


def test_an_import_into_another_runs_checkpoints_is_refused(command: Command, tmp_path: Path) -> None:
    """Before anything is written, and none of them is deleted, however few the imported job keeps."""
    _published("llama3", tmp_path)
    whole = NamedSharding(Mesh(jax.devices()[:1], ("device",)), PartitionSpec())
    arrays = {"params.x": jax.device_put(np.arange(8.0), whole)}
    digester = Digester({path: Abstract(x.shape, x.dtype, sharding=x.sharding) for path, x in arrays.items()})
    root = str(tmp_path / "kept")
    with closing(CheckpointWriter(root, keep=Keep(last=9), run="other", attempt=0, fence=nullcontext)) as writer:
        for step in (10, 20, 30):
            writer.save(step, arrays, digester=digester, identity={})
    changes = (f"data.train.0.paths=[{tmp_path}/text.txt]", f"checkpoint.path={root}", "checkpoint.keep={last: 1}")
    words = [f"--set=training.{change}" for change in changes]
    refused = command("import", str(tmp_path / "llama3"), str(tmp_path / "run"), *words)
    assert (refused.code, steps(root)) == (ExitCode.BAD_INPUT, [10, 20, 30])
    assert f"{root}: holds checkpoints of a run already, up to step 30" in refused.error
    assert "training.checkpoint.path" in refused.error
    assert not (tmp_path / "run" / JOB_FILE).exists()


def test_an_export_that_cannot_be_written(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in its place is refused before the work; a full disk is an error of storage, and leaves nothing."""
    _published("llama3", tmp_path)
    text = f"--set=training.data.train.0.paths=[{tmp_path}/text.txt]"
    assert command("import", str(tmp_path / "llama3"), str(tmp_path / "run"), text).code == 0
    out = tmp_path / "again" / "model.safetensors"
    out.mkdir(parents=True)
    refused = command("export", str(tmp_path / "run"), str(out))
    assert (refused.code, refused.out) == (ExitCode.USAGE, "")
    assert f"{out}: cannot be written (Is a directory)" in refused.error

    out.rmdir()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    ended = command("export", str(tmp_path / "run"), str(out))
    assert ended.code == ExitCode.STORAGE
    assert f"{out}: cannot be written (No space left on device)" in ended.error
    assert not [*out.parent.iterdir()]


def test_an_export_refuses_the_tokenizer_of_another_model(command: Command, tmp_path: Path) -> None:
    """One of another size is no other copy of the run's own: it would cut its tokens away, or name some it has not."""
    _published("llama3", tmp_path)
    own = tmp_path / "llama3" / "tokenizer.json"
    for name, num_more in (("one-more", 1), ("many-more", 500)):
        other = Tokenizer.from_file(str(own))
        other.add_tokens([f"more{number}" for number in range(num_more)])
        other.save(str(tmp_path / f"{name}.json"))
    text = f"--set=training.data.train.0.paths=[{tmp_path}/text.txt]"
    assert command("import", str(tmp_path / "llama3"), str(tmp_path / "run"), text).code == 0
    out = tmp_path / "again" / "model.safetensors"
    job = tmp_path / "run" / JOB_FILE

    def given(name: str) -> tuple[int, str]:
        ended = command("export", str(tmp_path / "run"), str(out), "--tokenizer", str(tmp_path / f"{name}.json"))
        return ended.code, ended.error

    code, error = given("many-more")
    assert (code, "json: has 511 tokens, more than the 90 of the model" in error) == (ExitCode.BAD_INPUT, True)
    assert given("one-more")[0] == 0  # the model knows more tokens than either, as published ones do
    shutil.rmtree(out.parent)

    job.write_text(re.sub(r"\n *vocabSize: \d+", "", job.read_text()))
    code, error = given("one-more")
    assert (code, "has 12 tokens, where the job's own has 11" in error) == (ExitCode.BAD_INPUT, True)
    own.rename(tmp_path / "elsewhere.json")
    code, error = given("many-more")
    assert (code, "has 511 tokens, for which the table of tokens would have" in error) == (ExitCode.BAD_INPUT, True)
    assert not out.exists()
    assert given("elsewhere")[0] == 0


def test_an_exported_tokenizer_names_the_token_that_ended_the_runs_documents(command: Command, tmp_path: Path) -> None:
    """Also where the job names none, and it is the usual one of the tokenizer."""
    _published("llama3", tmp_path)
    text = f"--set=training.data.train.0.paths=[{tmp_path}/text.txt]"
    assert command("import", str(tmp_path / "llama3"), str(tmp_path / "run"), text).code == 0
    assert load(tmp_path / "run" / JOB_FILE).spec.training.data.end_token is None
    assert command("export", str(tmp_path / "run"), str(tmp_path / "again" / "model.safetensors")).code == 0
    written = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert written == {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}


def test_a_tokenizer_may_have_a_special_token_that_the_model_lacks(
    command: Command, process: Command, tmp_path: Path
) -> None:
    """As that of Gemma 3 1B has for images: the model is imported, trained, asked and exported with it.

    A token that texts may have is another matter, and the model another's.
    """
    _published("gemma3", tmp_path)
    path = tmp_path / "gemma3" / "tokenizer.json"
    library = Tokenizer.from_file(str(path))
    few = 90 - library.get_vocab_size()
    library.add_special_tokens([*(f"<unused{number}>" for number in range(few)), "<image_soft_token>"])
    library.save(str(path))
    changes = (f"data.train.0.paths=[{tmp_path}/text.txt]", "steps=1")
    words = [f"--set=training.{change}" for change in changes]
    made = command("import", str(tmp_path / "gemma3"), str(tmp_path / "run"), "--set=hardware.topology=1x1", *words)
    assert made.code == 0, made.error
    for what in (("run", "run/job.yaml", "--dir", "run"), ("generate", "run", "--prompt", "The", "--tokens", "2")):
        ended = process(*what, folder=tmp_path)
        assert ended.code == 0, ended.error
    ended = command("export", str(tmp_path / "run"), str(tmp_path / "out" / "model.safetensors"))
    assert ended.code == 0, ended.error

    library.add_tokens(["word"])
    library.save(str(path))
    refused = command("import", str(tmp_path / "gemma3"), str(tmp_path / "other"), *words)
    assert (refused.code, "has 92 tokens, more than the 90 of the weights" in refused.error) == (
        ExitCode.BAD_INPUT,
        True,
    )


def test_an_export_refuses_numbers_that_its_format_does_not_have(command: Command, tmp_path: Path) -> None:
    """What would become infinite is named before a file with it is there; infinite ones of the run itself stay."""
    weights = _published("llama3", tmp_path)
    weights["model.norm.weight"][:2] = 1e5, -np.inf
    save_file(weights, tmp_path / "llama3" / "model.safetensors", {"format": "pt"})
    text = f"--set=training.data.train.0.paths=[{tmp_path}/text.txt]"
    assert command("import", str(tmp_path / "llama3"), str(tmp_path / "run"), text).code == 0
    out = tmp_path / "again" / "model.safetensors"

    ended = command("export", str(tmp_path / "run"), str(out), "--dtype", "float16")
    assert ended.code == ExitCode.BAD_INPUT
    assert "norm.weight: 1 of its numbers is too large for float16; take bfloat16" in ended.error
    assert not [*out.parent.iterdir()]
    assert command("export", str(tmp_path / "run"), str(out), "--dtype", "bfloat16").code == 0
    assert load_file(out)["model.norm.weight"][:2].tolist() == [99840, -np.inf]


def test_an_import_tells_of_a_layer_that_it_leaves_out(command: Command, tmp_path: Path) -> None:
    """One that predicts a further token, as DeepSeek-V3's files have behind the last; of others nothing is told."""
    published = _published("moonlight", tmp_path)
    text = f"--set=training.data.train.0.paths=[{tmp_path}/text.txt]"
    assert "left out" not in command("import", str(tmp_path / "moonlight"), str(tmp_path / "plain"), text).out
    further = {"model.layers.3.enorm.weight": np.ones(48, np.float32)}
    save_file({**published, **further}, tmp_path / "moonlight" / "model.safetensors")
    made = command("import", str(tmp_path / "moonlight"), str(tmp_path / "run"), text)

    assert made.code == 0, made.error
    assert "what is behind layer 2 is left out: it predicts further tokens" in made.out


def test_an_import_takes_the_folder_of_a_tokenizer(command: Command, tmp_path: Path) -> None:
    """As an export does: the job names the file in it, and the tokens that the files beside it name."""
    _published("llama3", tmp_path)
    given = tmp_path / "given"
    given.mkdir()
    (tmp_path / "llama3" / "tokenizer.json").rename(given / "tokenizer.json")
    (given / "tokenizer_config.json").write_text('{"eos_token": "fox"}')
    text = f"--set=training.data.train.0.paths=[{tmp_path}/text.txt]"
    made = command("import", str(tmp_path / "llama3"), str(tmp_path / "run"), "--tokenizer", str(given), text)
    assert made.code == 0, made.error
    data = load(tmp_path / "run" / JOB_FILE).spec.training.data
    assert (data.tokenizer, data.end_token) == (str(given / "tokenizer.json"), "fox")


def test_an_import_with_other_data_keeps_the_tokenizer(command: Command, tmp_path: Path) -> None:
    """A whole section of data that names no tokenizer has that of the weights, not bytes."""
    _published("llama3", tmp_path)
    data = f"--set=training.data={{train: [{{name: own, paths: [{tmp_path}/text.txt]}}]}}"
    made = command("import", str(tmp_path / "llama3"), str(tmp_path / "run"), data)
    assert made.code == 0, made.error
    found = load(tmp_path / "run" / JOB_FILE).spec.training.data
    assert (found.train[0].name, found.tokenizer) == ("own", str(tmp_path / "llama3" / "tokenizer.json"))


@pytest.mark.parametrize("change", ["training=5", "training.optimizer=5", "training.optimizer=null"])
def test_an_import_with_a_value_in_the_place_of_a_section_is_refused(
    change: str, command: Command, tmp_path: Path
) -> None:
    """In the words of every job file that has one there."""
    _published("llama3", tmp_path)
    refused = command("import", str(tmp_path / "llama3"), str(tmp_path / "run"), f"--set={change}")
    path = f"spec.{change.partition('=')[0]}: given"
    assert (refused.code, path in refused.error, "expected a mapping" in refused.error) == (
        ExitCode.BAD_INPUT,
        True,
        True,
    ), refused.error


@pytest.mark.parametrize("words", [["gs://bucket/model"], ["model", "--tokenizer", "gs://bucket/tokenizer.json"]])
def test_an_import_of_a_url_is_refused(words: list[str], command: Command, tmp_path: Path) -> None:
    """In words on URLs, not on a path that nobody has given."""
    refused = command("import", *words, str(tmp_path / "run"))
    assert (refused.code, f"{words[-1]}: expected a path of this machine" in refused.error) == (ExitCode.USAGE, True)


def test_an_import_with_scaled_positions_trains(process: Command, command: Command, tmp_path: Path) -> None:
    """The run of Llama 3's scaling is the one that the imported weights belong to."""
    _published("llama3", tmp_path)
    changes = ("data.train.0.paths=[text.txt]", "steps=1", "optimizer.schedule.warmupSteps=0")
    words = [f"--set=training.{change}" for change in changes]
    ended = process("import", "llama3", "run", "--set=hardware.topology=1x1", *words, folder=tmp_path)
    assert ended.code == 0, ended.error

    trained = process("run", "run/job.yaml", "--dir", "run", folder=tmp_path)
    assert (trained.code, trained.error) == (0, "")
    assert command("status", str(tmp_path / "run")).out.count("complete") == 1


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
