"""`shardwise generate`: text from a run's checkpoint, written as it is made, or many texts as lines of JSON.

Reads the run's job and the parameters of one checkpoint, nothing else of the state. Text goes to standard output, what
the command is doing to standard error.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shardwise.cli.command import Average, Step, check_average, trainer_imports
from shardwise.cli.fallback_job import on_this_machine
from shardwise.cli.generated_texts import Texts, tell_of_cut, with_text
from shardwise.cli.prompts import read_prompts, refuse_broken_text
from shardwise.cli.run_directory import RunDir
from shardwise.cli.run_files import is_live, job_of, report_refused, root_of
from shardwise.job import environment
from shardwise.protocol.errors import UsageError

Prompt = Annotated[
    str | None,
    typer.Option("--prompt", help="The beginning of the text; without one a new document begins.", metavar="TEXT"),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        help='Many prompts at once: a .jsonl file of objects with a "prompt" (with --chat, "messages"), or a text with '
        "one on each line.",
        metavar="FILE",
    ),
]
Chat = Annotated[
    bool, typer.Option("--chat", help="Answer in the words of the run's chatTemplate, with the prompt as a user's.")
]
Template = Annotated[
    str | None,
    typer.Option("--chat-template", help="The same in the words of this template.", metavar="chatml|llama3"),
]
Samples = Annotated[int, typer.Option("--samples", min=1, help="How many texts to make of each prompt.", metavar="N")]
Tokens = Annotated[
    int, typer.Option("--tokens", min=0, max=2**31 - 1, help="How many tokens to make at most.", metavar="N")
]
Temperature = Annotated[
    float, typer.Option("--temperature", min=0, help="Above 1 is wilder, below 1 tamer; 0 takes the likeliest token.")
]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", min=1, help="Choose among the K likeliest tokens; without it among all.", metavar="K"),
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p", help="Choose among the likeliest tokens that together have this probability, e.g. 0.9.", metavar="P"
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="End before this text. Give it as often as you like.", metavar="TEXT"),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same text.", metavar="S")]
Lines = Annotated[
    bool,
    typer.Option(
        "--json", help="Print an object on a line for each text, as --prompts and --samples do by themselves."
    ),
]


def command(  # noqa: PLR0913  each is an option
    directory: RunDir,
    *,
    prompt: Prompt = None,
    prompts: Prompts = None,
    chat: Chat = False,
    chat_template: Template = None,
    samples: Samples = 1,
    tokens: Tokens = 200,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    stop: Stop = None,
    seed: Seed = 0,
    step: Step = None,
    average: Average = False,
    as_json: Lines = False,
) -> None:
    """Write text with a run's model.

    The model runs on the GPUs or TPU chips that the run's job names where this machine has them, or else on the
    processor; the text ends early where the model ends it.

    With --chat the model answers: it is given the messages as it has seen them in training, and the answer alone is
    written, up to the marker that ends it.

    One text is written as it is made. Several are lines of JSON in the order of the prompts, each with the prompt, the
    number of the sample, the text that follows, its number of tokens, and the finishReason: stop where the model or
    --stop ended it, length where --tokens did.
    """
    stops, is_chat = stop or [], chat or chat_template is not None
    _refuse_options(prompt, prompts, stops, is_chat=is_chat)
    given = [prompt or ""] if prompts is None else [] if is_chat else read_prompts(prompts)
    for text in given:
        refuse_broken_text(text)
    console = Console(stderr=True, highlight=False, soft_wrap=True, style="dim")
    asked_job = job_of(directory)
    check_average(asked_job, asked=average)
    job = on_this_machine(asked_job, live=is_live(directory), tell=console.print)
    environment.apply(job)
    console.print("loading the model ...")
    with trainer_imports():
        from shardwise.cli import asked
        from shardwise.cli.saved_model import load_model
        from shardwise.train.data.tokenizer import tokenizer_of
        from shardwise.train.generate import generate_all
        from shardwise.train.origin import AVERAGES, PARAMS
        from shardwise.train.sampling import Sampling

    tokenizer = tokenizer_of(job.spec.training.data)
    if is_chat:
        messages = [asked.by_user(text) for text in given] if prompts is None else asked.read_conversations(prompts)
        task = asked.to_answer(asked.chat_tokenizer(job, tokenizer, chat_template), messages, stops)
    else:
        task = asked.to_go_on(tokenizer, given, stops)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    part = AVERAGES if average else PARAMS
    model = load_model(job, root_of(job, directory), step=step, report=partial(report_refused, console), part=part)
    console.print(f"checkpoint of step {model.step}; compiling ...")
    program, params = model.program, model.params
    del model  # the weights are laid out anew, and then the parameters can go
    texts = Texts(task, samples, tokenizer, tokens)
    tell_of_cut([each.tokens for each in task.asked], program.config.seq_len, console.print)
    made = generate_all(
        program,
        params,
        texts.prompts,
        num_tokens=tokens,
        sampling=sampling,
        seed=seed,
        stop=task.end,
        is_over=texts.has_stop if task.stops or task.ends else None,
    )
    made = with_text(made, tokenizer.vocab_size, console.print)
    del params
    if as_json or prompts is not None or samples > 1:
        for line in texts.lines(made):
            typer.echo(line.encode())
    else:
        for piece in texts.stream(made):
            typer.echo(piece.encode(), nl=False)
        typer.echo()


def _refuse_options(prompt: str | None, prompts: Path | None, stops: Sequence[str], *, is_chat: bool) -> None:
    """Refuse options that do not go together."""
    if prompt is not None and prompts is not None:
        raise UsageError("given --prompt and --prompts, expected one of them; add the prompt to the file")
    if "" in stops:
        raise UsageError("--stop: given an empty text, which is everywhere; leave it out")
    if is_chat and prompt is None and prompts is None:
        raise UsageError("--chat: given nothing to answer, expected --prompt TEXT or --prompts FILE")
