"""`shardwise export`: a run's model as a safetensors file in Hugging Face's names, with its config.json beside it.

Reads one parameter at a time, so that the model need not fit twice, and needs no device of the run.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from shardwise.cli.command import Average, Step, check_average, trainer_imports
from shardwise.cli.exported_tokenizer import check_table, tokenizer_of_model
from shardwise.cli.fallback_job import on_the_processor
from shardwise.cli.outputs import check_new_file, writing
from shardwise.cli.run_directory import RunDir
from shardwise.cli.run_files import job_of, report_refused, root_of
from shardwise.job import environment
from shardwise.job.paths import tokenizer_file
from shardwise.job.presets import BYTE_TOKENIZER
from shardwise.job.spec.data import Data
from shardwise.protocol.errors import CheckpointError, UsageError
from shardwise.protocol.text import size

if TYPE_CHECKING:
    from shardwise.train.data.tokenizer import Tokenizer

_SUFFIX = ".safetensors"
_ADAPTERS_FILE = "adapter_model.safetensors"

OutFile = Annotated[
    Path, typer.Argument(help="The file to write; its folder gets a config.json too.", metavar=f"OUT{_SUFFIX}")
]

Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option("--dtype", help="The format of the numbers; without it the run's.", metavar="TYPE"),
]


TokenizerFile = Annotated[
    str | None,
    typer.Option("--tokenizer", help="A tokenizer.json, or its folder or URL; without it the job's.", metavar="FILE"),
]


Adapters = Annotated[
    bool, typer.Option("--adapters", help="Write the adapters of a job with lora alone, as PEFT reads them.")
]


def command(
    directory: RunDir,
    out: OutFile,
    *,
    step: Step = None,
    average: Average = False,
    dtype: Dtype = None,
    tokenizer: TokenizerFile = None,
    adapters: Adapters = False,
) -> None:
    """Write a run's model as safetensors in Hugging Face's names.

    GPT-2, GPT-J, GPT-NeoX, gpt-oss, Llama, Granite, SmolLM3, Mistral, Mixtral, Qwen, DeepSeek, OLMo, GLM, dots.llm1 and
    Gemma have such a
    format; any other model is refused, with what differs.
    The tokenizer is copied, with the files published beside it, and the chat template that the run trained with.
    """
    if adapters and tokenizer is not None:
        raise UsageError("--tokenizer: adapters have none beside them; leave it out with --adapters")
    _prepare_folder(out, adapters=adapters)
    job = on_the_processor(job_of(directory))
    check_average(job, asked=average)
    environment.apply(job)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    with trainer_imports():
        from shardwise.cli.adapted_model import base_of
        from shardwise.cli.saved_model import exported_parameters, save_adapters
        from shardwise.train import weights
        from shardwise.train.config import GptConfig
        from shardwise.train.data.jinja import jinja_of, puts_a_space
        from shardwise.train.origin import AVERAGES, PARAMS

    training, data = job.spec.training, job.spec.training.data
    if tokenizer is not None:
        data = data.model_copy(update={"tokenizer": tokenizer_file(tokenizer)})
    known = tokenizer_of_model(data, training, given=tokenizer is not None)
    num_tokens = known.vocab_size if known else training.model.vocab_size
    assert num_tokens is not None
    config = GptConfig.of(training, tokenizer_size=num_tokens, platform="cpu")
    family = weights.check_exportable(config)
    root, part = root_of(job, directory), AVERAGES if average else PARAMS
    if adapters:
        written = _from_newest(
            console, root, step, out, lambda step: save_adapters(job, config, root, step, out, dtype=dtype, part=part)
        )
        console.print(f"wrote {out} ({size(out.stat().st_size)}) of step {written}, with adapter_config.json beside it")
        return
    with _tokenizer_here(data.tokenizer if known else None) as source:
        # A run from drawn weights may have a published tokenizer, and is not the model beside it.
        published = weights.PublishedBeside.of(source if training.start_from else None, family, config)
        tokens = published.tokens(known.begin_of_text if known else None, _ends(data, known))
        keys = {**published.positions(family, config), **tokens}

        def write(step: int) -> None:
            check_table(*(base_of(job, root, step) or (root, step)), data.tokenizer, config.vocab_size)
            weights.write(out, config, exported_parameters(job, config, root, step, dtype, part=part), keys)

        _from_newest(console, root, step, out, write)
        chat = next(iter(_templates(data)), None)
        jinja = chat and jinja_of(chat, data.begin_token, spaced=known is not None and puts_a_space(known))
        with writing(out.parent):
            weights.write_generation_config(out.parent, published.generation, tokens)
            end = known.end_token if known else None
            copied = weights.write_tokenizer(source, out.parent, data.begin_token, end, jinja)
    beside = ["config.json", "generation_config.json", *copied]
    console.print(f"wrote {out} ({size(out.stat().st_size)}) with {', '.join(beside)} beside it")
    if source is None:
        console.print(_without_tokenizer(data.tokenizer))
    elif chat:
        console.print(f"its chat template is {chat}, as in training")


def _from_newest(console: Console, root: str, step: int | None, out: Path, write: Callable[[int], None]) -> int:
    """Write the newest checkpoint that can be read, or that of `step`; return which it was."""
    from shardwise.cli.saved_model import candidates

    for candidate, is_last in candidates(root, step):
        console.print(f"writing {out} from the checkpoint of step {candidate} ...")
        try:
            with writing(out):
                write(candidate)
        except CheckpointError as error:
            if is_last:
                raise
            report_refused(console, candidate, str(error))
        else:
            return candidate
    raise AssertionError("the last one is returned, or raises")


@contextmanager
def _tokenizer_here(tokenizer: str | None) -> Iterator[Path | None]:
    """Yield a tokenizer.json on this machine, with the files beside it; None where there is none, as of bytes."""
    from shardwise.train.weights import fetch_tokenizer

    if tokenizer is None or tokenizer == BYTE_TOKENIZER:
        yield None
    elif "://" in tokenizer:
        with TemporaryDirectory() as folder:
            yield fetch_tokenizer(tokenizer, Path(folder))
    else:
        yield Path(tokenizer)


def _templates(data: Data) -> dict[str, None]:
    """Return the templates of the job's conversations, each once, in its order."""
    return dict.fromkeys(source.chat_template for source in data.train if source.chat_template)


def _ends(data: Data, tokenizer: "Tokenizer | None") -> list[int]:
    """Return the tokens that end what the model makes: a document, and an answer in the conversations of the job."""
    from shardwise.train.data.chat import ChatTokenizer

    if tokenizer is None:
        return []
    markers = [tokenizer.marker(ChatTokenizer(tokenizer, template).end_of_answer) for template in _templates(data)]
    # Of bytes no marker is a token.
    return [tokenizer.end_of_text, *(int(marker[0]) for marker in markers if len(marker) == 1)]


def _without_tokenizer(tokenizer: str) -> str:
    if tokenizer == BYTE_TOKENIZER:
        why = "bytes have no tokenizer.json"
    else:
        why = f"{tokenizer} is not a file here (--tokenizer names another)"
    return f"no tokenizer is beside it, since {why}: AutoTokenizer of transformers reads an empty one there"


def _prepare_folder(out: Path, *, adapters: bool) -> None:
    if adapters and out.name != _ADAPTERS_FILE:
        raise UsageError(f"{out}: expected a file of the name {_ADAPTERS_FILE}, which PEFT looks for")
    if out.suffix != _SUFFIX:
        raise UsageError(f"{out}: expected a file name that ends with {_SUFFIX}")
    with writing(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    check_new_file(out)
