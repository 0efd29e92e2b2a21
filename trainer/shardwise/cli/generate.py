"""`shardwise generate`: text from a run's checkpoint, written as it is made.

Reads the run's job and the parameters of one checkpoint, nothing else of the state. Text goes to standard output, what
the command is doing to standard error.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Console

from shardwise.cli.arguments import RunDir, Step
from shardwise.cli.extras import trainer_imports
from shardwise.cli.run_files import job_of, root_of
from shardwise.job import environment
from shardwise.job.errors import CheckpointError, UsageError

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


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("generate", epilog='Example: shardwise generate runs/first --prompt "def " --tokens 100')(_generate)


def _generate(  # noqa: PLR0913  the parameters are the command's options
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

    The model runs on the devices that the run's job names; the text ends early where the model ends it.
    """
    _refuse_broken_text(prompt)
    job = job_of(directory)
    environment.apply(job)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print("loading the model ...", style="dim")
    with trainer_imports():
        from shardwise.train.data.tokenizer import load_tokenizer
        from shardwise.train.generate import generate
        from shardwise.train.parameters import restore_parameters
        from shardwise.train.start import build

    program = build(job)
    root = root_of(job, directory)
    report = lambda refused, reason: console.print(f"checkpoint of step {refused} refused: {reason}", style="yellow")  # noqa: E731
    restored = restore_parameters(program, root, step=step, report=report)
    if restored is None:
        raise CheckpointError(f"{root}: no checkpoint has been saved yet; run the job until its first save")
    console.print(f"step {restored.step}; compiling ...", style="dim")
    tokenizer = load_tokenizer(job.spec.training.data.tokenizer)
    made = generate(
        program,
        restored.params,
        [int(token) for token in tokenizer.encode(prompt)] or [tokenizer.end_of_text],
        num_tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        stop=tokenizer.end_of_text,
    )
    for piece in (prompt, *()):
        typer.echo(piece.encode(), nl=False)
    for piece in pieces(made, tokenizer.decode):
        typer.echo(piece.encode(), nl=False)
    typer.echo()


def pieces(tokens: Iterable[int], decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """The text of `tokens` piece by piece, each as soon as it is sure; together they are `decode` of all.

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
        raise UsageError(f"--prompt: character {error.start} is no text in this terminal's encoding; use UTF-8") from error
