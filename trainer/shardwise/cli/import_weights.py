"""`shardwise import`: published weights become the first checkpoint of a new run, with a job file that fits them.

Writes the checkpoint first and the job file last, so that an import cut short is no run and can be given again.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from shardwise.cli.command import Overrides, trainer_imports
from shardwise.cli.outputs import writing
from shardwise.cli.run_files import root_of
from shardwise.job import environment
from shardwise.job.document import Document, write_document
from shardwise.job.load import check
from shardwise.job.overrides import apply_overrides
from shardwise.job.paths import absolute_glob, tokenizer_file, without_links
from shardwise.job.presets import BYTE_TOKENIZER, BYTE_VOCAB_SIZE
from shardwise.job.resolve import resolve
from shardwise.job.sizes import num_parameters
from shardwise.job.spec import TrainingJob
from shardwise.job.spec.data import Data
from shardwise.protocol.contract import JOB_FILE, SUMMARY
from shardwise.protocol.errors import DataError, RunDirectoryError, UsageError
from shardwise.protocol.files import replace_file
from shardwise.protocol.text import size

_TOKENIZER_FILE = "tokenizer.json"
_TEXT_TO_FILL_IN = "your-text/*.txt"


def _on_this_machine(given: str) -> Path:
    if "://" in given:
        raise UsageError(f"{given}: expected a path of this machine; copy it here first")
    return Path(given)


Weights = Annotated[
    Path,
    typer.Argument(
        help="A safetensors file, its index, or the folder of one; config.json is read too.",
        metavar="MODEL",
        parser=_on_this_machine,
    ),
]
TokenizerFile = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        help="Its tokenizer.json, or its folder; without it the one beside the weights.",
        metavar="FILE",
        parser=_on_this_machine,
    ),
]
Heads = Annotated[
    int | None,
    typer.Option("--heads", min=1, help="Attention heads, where config.json does not say how many.", metavar="N"),
]


def _new_directory(given: str) -> Path:
    """Return where the run directory goes; UsageError where no folder can be, RunDirectoryError if a run is there."""
    if "://" in given:
        raise UsageError(
            f"{given}: give a folder of this machine, which gets the job; its weights go to a bucket with "
            f"--set training.checkpoint.path={given}"
        )
    directory = Path(given)
    if any(part.is_file() for part in (directory, *directory.parents)):
        raise UsageError(
            f"{directory}: no folder can be made there, because a file is in its way; give a new directory"
        )
    for name in (JOB_FILE, SUMMARY):
        if (directory / name).exists():
            raise RunDirectoryError(f"{directory}: holds a run already ({name} is in it); give a new directory")
    return directory


NewDir = Annotated[Path, typer.Argument(help="The run directory to make.", metavar="DIR", parser=_new_directory)]


def command(
    model_file: Weights,
    directory: NewDir,
    overrides: Overrides = None,
    *,
    heads: Heads = None,
    tokenizer: TokenizerFile = None,
) -> None:
    """Make a run directory from published weights.

    The families are Llama, Qwen, Gemma, GPT-2, GPT-J, GPT-NeoX, gpt-oss, Granite, SmolLM3, Mistral, Mixtral,
    DeepSeek, Phi, OLMo, GLM and dots.llm1. The run gets the weights as the checkpoint of step 0
    and a job file to train on from there.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    environment.apply(check(_document({"preset": "tiny"}, BYTE_TOKENIZER)))  # one device is enough to copy weights
    with trainer_imports():
        from shardwise.cli.saved_model import save_weights
        from shardwise.train import weights

    console.print(f"reading {model_file} ...")
    config, parameters = weights.read(model_file, heads=heads, tell=console.print)
    found = _tokenizer(model_file, tokenizer, config.vocab_size)
    document = apply_overrides(_document(weights.model_section(config), found), overrides or [])
    training = _section(document.data["spec"], "training")
    _section(training, "data").setdefault("tokenizer", found)  # a whole section may be given
    training["startFrom"] = {"path": str(directory), "step": 0}  # lora wants it; see below
    _shorten_warmup(training, overrides or [])
    check(document)  # before its values are used
    _name_special_tokens(document.data["spec"]["training"]["data"])
    job = resolve(check(document))
    notes = [*_tokenizer_notes(job.spec.training.data, config.vocab_size)]
    root = root_of(job, directory)
    for source in document.data["spec"]["training"]["data"]["train"]:
        source["paths"] = [path if path == _TEXT_TO_FILL_IN else absolute_glob(path) for path in source["paths"]]
    # Named in the job, so that it never begins with other weights, wherever it runs.
    document.data["spec"]["training"]["startFrom"] = {"path": without_links(root), "step": 0}
    num_bytes = save_weights(job, directory, root, config, parameters, console.print)
    with writing(directory / JOB_FILE):
        replace_file(directory / JOB_FILE, write_document(document.data), durable=True)
    count = num_parameters(job.spec.training.model, config.vocab_size)
    console.print(f"{count:,} parameters ({size(num_bytes)}) are checkpoint 0 of {root}")
    for note in notes:
        console.print(note, markup=False)
    _say_what_next(console, job, directory)


def _tokenizer(model_file: Path, given: Path | None, vocab_size: int) -> str:
    """Return the tokenizer.json given, itself or by its folder, or beside the weights; else bytes if they fit."""
    if given is not None:
        return tokenizer_file(str(given.absolute()))
    folder = model_file if model_file.is_dir() else model_file.parent
    if not (folder / _TOKENIZER_FILE).exists() and vocab_size == BYTE_VOCAB_SIZE:
        return BYTE_TOKENIZER
    return str((folder / _TOKENIZER_FILE).absolute())


def _name_special_tokens(data: dict[str, Any]) -> None:
    """Fill in which tokens begin and end a document, as the files beside the tokenizer say, if the job does not."""
    path = Path(data["tokenizer"])
    if not path.is_file():
        return
    from shardwise.train.weights import special_tokens

    data["tokenizer"] = str(path.absolute())
    for name, token in zip(("beginToken", "endToken"), special_tokens(path), strict=True):
        if token is not None:
            data.setdefault(name, token)


def _tokenizer_notes(data: Data, vocab_size: int) -> Iterator[str]:
    """Yield what a person should know of a tokenizer that is there; DataError for one that the model cannot have."""
    if data.tokenizer != BYTE_TOKENIZER and not Path(data.tokenizer).exists():
        return
    from shardwise.train.data.tokenizer import tokenizer_of
    from shardwise.train.data.vocabulary import least_vocab_size

    known = tokenizer_of(data).vocab_size
    if known > vocab_size and least_vocab_size(data) > vocab_size:
        raise DataError(
            f"{data.tokenizer}: has {known} tokens, more than the {vocab_size} of the weights: it is another model's; "
            "give the weights' own with --tokenizer"
        )
    if known < vocab_size:
        yield f"the tokenizer has {known} of the model's {vocab_size} tokens: the others can be made, and have no text"


def _document(model: dict[str, Any], tokenizer: str) -> Document:
    """Return a job file that fine-tunes such a model gently on one device."""
    training = {
        "model": model,
        "data": {"train": [{"name": "text", "paths": [_TEXT_TO_FILL_IN]}], "tokenizer": tokenizer},
        "batch": {"sequences": 8},
        "optimizer": {"name": "adamw", "learningRate": 3e-5, "schedule": {"kind": "cosine", "warmupSteps": 50}},
        "steps": 1000,
        "checkpoint": {"everySteps": 100},
    }
    hardware = {"accelerator": "cpu-sim", "topology": "1x1"}
    job = {
        "apiVersion": "shardwise.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "fine-tune"},
        "spec": {"hardware": hardware, "training": training},
    }
    return Document(data=job, places={})


def _section(within: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the section of this name; an empty one in the place of what is none, which `check` refuses."""
    found = within.get(name)
    return found if isinstance(found, dict) else {}


def _shorten_warmup(training: dict[str, Any], overrides: Sequence[str]) -> None:
    """Have a short run warm up for a tenth of its steps, unless the command line says for how long."""
    schedule, steps = _section(_section(training, "optimizer"), "schedule"), training.get("steps")
    if schedule and isinstance(steps, int) and not any("warmupSteps" in each for each in overrides):
        schedule["warmupSteps"] = min(schedule.get("warmupSteps", 0), steps // 10)


def _say_what_next(console: Console, job: TrainingJob, directory: Path) -> None:
    path, data = directory / JOB_FILE, job.spec.training.data
    console.print(f"the job to train on from there is {path}")
    if data.train[0].paths == (_TEXT_TO_FILL_IN,):
        console.print("first put the paths of your text in its spec.training.data.train.0.paths")
    if data.tokenizer != BYTE_TOKENIZER and not Path(data.tokenizer).exists():
        console.print(f"and the model's tokenizer at {data.tokenizer}, or its path in spec.training.data.tokenizer")
    console.print(f"next: shardwise run {path} --dir {directory}")
