"""`shardwise generate`: text from a run's checkpoint, written as it is made.

Reads the run's job and the parameters of one checkpoint, nothing else of the state. Text goes to standard output, what
the command is doing to standard error.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Annotated

import typer
from rich.console import Console

from shardwise.cli.command import RunDir, Step, trainer_imports
from shardwise.cli.fallback_job import on_this_machine
from shardwise.cli.run_files import is_live, job_of, report_refused, root_of
from shardwise.job import environment
from shardwise.protocol.errors import UsageError

Prompt = Annotated[
    str, typer.Option("--prompt", help="The beginning of the text; without one a new document begins.", metavar="TEXT")
]
Tokens = Annotated[int, typer.Option("--tokens", min=0, help="How many tokens to make at most.", metavar="N")]
Temperature = Annotated[
    float, typer.Option("--temperature", min=0, help="Above 1 is wilder, below 1 tamer; 0 takes the likeliest token.")
]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", min=1, help="Choose among the K likeliest tokens; without it among all.", metavar="K"),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same text.", metavar="S")]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def command(
    directory: RunDir,
    *,
    prompt: Prompt = "",
    tokens: Tokens = 200,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    seed: Seed = 0,
    step: Step = None,
) -> None:
    """Write text with a run's model.

    The model runs on the devices that the run's job names where this machine has them, or else on the processor; the
    text ends early where the model ends it.
    """
    _refuse_broken_text(prompt)
    console = Console(stderr=True, highlight=False, soft_wrap=True, style="dim")
    job = on_this_machine(job_of(directory), live=is_live(directory), tell=console.print)
    environment.apply(job)
    console.print("loading the model ...")
    with trainer_imports():
        from shardwise.cli.model import load_model
        from shardwise.train.data.tokenizer import load_tokenizer
        from shardwise.train.generate import generate

    model = load_model(job, root_of(job, directory), step=step, report=partial(report_refused, console))
    console.print(f"checkpoint of step {model.step}; compiling ...")
    data = job.spec.training.data
    tokenizer = load_tokenizer(data.tokenizer, begin=data.begin_token, end=data.end_token)
    made = generate(
        model.program,
        model.params,
        tokenizer.prompt(prompt),
        num_tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        stop=tokenizer.end_of_text,
    )
    for piece in chain([prompt], pieces(made, tokenizer.decode)):
        typer.echo(piece.encode(), nl=False)
    typer.echo()


def pieces(tokens: Iterable[int], decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """Yield the text of `tokens` piece by piece, each as soon as it is sure; together they are `decode` of all.

    A character of several tokens shows as one replacement character until its last token, so a replacement character at
    the end is held back.
    """
    seen: list[int] = []
    written = 0
    for token in tokens:
        seen.append(token)
        sure = decode(seen).removesuffix(_REPLACEMENT)
        yield sure[written:]
        written = len(sure)
    yield decode(seen)[written:]


def _refuse_broken_text(prompt: str) -> None:
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"--prompt: character {error.start} is no text in this terminal's encoding; use UTF-8"
        ) from error
